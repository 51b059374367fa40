"""What a simulation shows of its records, and a private run never does."""

import pytest
import torch
from torch import nn

import prifedsync
from prifedsync.data import Client, Federation, Records, Task
from prifedsync.report.contents import report_of
from prifedsync.report.html.page import page_of
from prifedsync.report.html.research import NOT_COVERED, NOT_MEASURED
from prifedsync.run import statistics

SIZES = {"a": 30, "b": 50}
NOISE = {"noise_multiplier": 4.0}
PRIVACY = {"clip_norm": 0.7, "randomness": "seeded"}


def records():
    draw = torch.Generator().manual_seed(1)
    return {
        name: (torch.randn(size, 3, generator=draw), (torch.rand(size, generator=draw) < 0.3).long())
        for name, size in SIZES.items()
    }


def simulated(folder=None, clients=None, model=None, **changes):
    config = {
        "rounds": 3,
        "data": {"classes": 2, "test_fraction": 0.0},
        "local": {"batch": "full", "learning_rate": 0.5},
        "performance": {"dtype": "float64"},
        **changes,
    }
    config["privacy"] = PRIVACY | changes.get("privacy", NOISE)
    given = {"clients": clients or records(), "model": model or nn.Linear(3, 2)}
    return prifedsync.train(config, **given, out=folder, progress=False)


def norms(result, weights):
    """The norm of each record's gradient, by plain autograd."""
    net = nn.Linear(3, 2).double()
    net.load_state_dict(dict(zip(net.state_dict(), weights, strict=True)))
    found = []
    for x, y in records().values():
        for row, label in zip(x.double(), y, strict=True):
            net.zero_grad()
            nn.functional.cross_entropy(net(row[None]), label[None]).backward()
            found.append(torch.cat([each.grad.flatten() for each in net.parameters()]).norm())
    return torch.stack(found)


def test_a_private_run_shows_nothing_of_its_records(monkeypatch):
    monkeypatch.setattr(statistics, "_labels", lambda *given: pytest.fail("records were counted"))
    monkeypatch.setattr(statistics, "_clipping", lambda *given: pytest.fail("gradients were looked at"))
    assert simulated(privacy={"randomness": "system", **NOISE}).record.statistics is None


def test_shares_of_labels_are_those_of_the_records():
    found = simulated().record.statistics["labels"]
    assert found["names"] == ["0", "1"]
    for (_, y), shares in zip(records().values(), found["shares"], strict=True):
        assert shares == pytest.approx([(y == 0).double().mean().item(), (y == 1).double().mean().item()], abs=6e-4)


def test_clipping_is_that_of_single_gradients():
    result = simulated()
    found = result.record.statistics["clipping"]
    assert found["units"] == sum(SIZES.values())
    start = nn.Linear(3, 2)
    start.load_state_dict(result.prepared.net.state_dict(result.prepared.start))
    for name, weights in (("start", start.parameters()), ("end", result.model.parameters())):
        ratio = norms(result, [each.detach().double() for each in weights]) / 0.7
        assert found[name]["clipped"] == pytest.approx((ratio > 1).double().mean().item(), abs=1e-3)
        assert found[name]["median"] == pytest.approx(ratio.quantile(0.5).item(), rel=5e-3)
        assert found[name]["upper_quartile"] == pytest.approx(ratio.quantile(0.75).item(), rel=5e-3)
    assert 0 < found["start"]["clipped"] < 1  # both kinds are there, so a wrong clip norm would be seen


def test_few_of_many_records_are_looked_at(monkeypatch):
    monkeypatch.setattr(statistics, "MOST_UNITS", 10)
    monkeypatch.setattr(statistics, "MOST_VALUES", 24)  # three gradients at once
    assert simulated().record.statistics["clipping"]["units"] == 10


@pytest.mark.parametrize("privacy", [{"mechanism": "none"}, {"mechanism": "output-gaussian", "noise_multiplier": 4.0}])
def test_no_clipping_is_shown_where_no_gradient_is_clipped(privacy):
    found = simulated(privacy=privacy).record.statistics
    assert found["clipping"] is None
    assert found["labels"]


def test_a_person_has_one_gradient():
    """The mean over its records: two people with three records each, one with a single one."""
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(2))
    y = torch.arange(7) % 2
    persons = torch.tensor([4, 4, 4, 9, 5, 5, 5])
    client = Client("a", Records(x, y, persons), Records(x[:0], y[:0], persons[:0]))
    result = simulated(clients=Federation((client,), Task("classes", 2)), rounds=1)
    ratios = []
    for person in (4, 9, 5):
        net = nn.Linear(3, 2)
        net.load_state_dict(result.prepared.net.state_dict(result.prepared.start))
        rows = persons == person
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        ratios.append(torch.cat([each.grad.flatten() for each in net.parameters()]).norm() / 0.7)
    found = result.record.statistics["clipping"]["start"]
    assert result.record.statistics["clipping"]["units"] == 3
    assert found["median"] == pytest.approx(torch.stack(ratios).median().item(), rel=5e-3)


def test_a_regression_has_no_labels():
    clients = {name: (x, x.sum(1)) for name, (x, _) in records().items()}
    found = simulated(clients=clients, model=nn.Linear(3, 1), data={"task": "regression", "test_fraction": 0.0})
    assert found.record.statistics["labels"] is None


def test_the_page_of_a_simulation_shows_both_and_marks_them(tmp_path):
    simulated(tmp_path / "run")
    report = report_of(tmp_path / "run")
    page = page_of(report)
    assert report.utility.labels.clients == ("a", "b")
    assert [each.weights for each in report.utility.clipping] == ["first weights", "released model"]
    assert 'data-chart="labels"' in page
    assert NOT_COVERED in page
    left = {each.what: each.covered_by for each in report.leaving.releases}
    assert left["shares of labels, and how many gradients are clipped"] == "nothing"


def test_the_page_of_a_private_run_says_that_nothing_was_measured(tmp_path):
    simulated(tmp_path / "run", privacy={"randomness": "system", **NOISE})
    page = page_of(report_of(tmp_path / "run"))
    assert 'data-chart="labels"' not in page
    assert NOT_MEASURED in page
    assert NOT_COVERED not in page
