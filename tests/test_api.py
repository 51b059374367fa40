"""What a user of the package finds: its names, what a run returns, and progress where somebody looks on."""

import io
import json
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import prifedsync
from prifedsync.accounting import Neighbours, NoisySteps, OutputPerturbation, PrivacyPlan, Sampling
from prifedsync.accounting.statement import Statement
from prifedsync.config import load
from prifedsync.data import load as load_records
from prifedsync.models import features
from prifedsync.report import curve, rounds
from prifedsync.values import BadValue

NAMES = {
    "BadValue", "Config", "Description", "Federation", "LayerRule", "Metric", "Outer", "Result", "Rule", "SavedRun",
    "Update", "__version__", "open_run", "resume", "train",
}  # fmt: skip
COLUMNS = [
    "round",
    "participants",
    "attempts",
    "lost",
    "personal_mean",
    "personal_worst",
    "released_mean",
    "released_worst",
    "seconds",
]
SMALL = ("data.clients=3", "rounds=4", "compare=[]", "participation=0.7", "performance.checkpoint_seconds=0")

TWO_PLANS = ("privacy.target={}", "privacy.noise_multiplier=9", "clients.client-01.noise_multiplier=5")


def config_of(*changes):
    return load("digits", [*SMALL, *changes])


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return prifedsync.train(config_of('compare=["alone"]'), out=tmp_path_factory.mktemp("api") / "run")


class Stopped(Exception):
    pass


# ------------------------------------------------------------------ names


def test_dir_shows_the_public_names_and_each_is_there():
    assert set(dir(prifedsync)) == set(prifedsync.__all__) == NAMES
    for name in NAMES:
        assert getattr(prifedsync, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'open_runs'"):
        _ = prifedsync.open_runs


def test_torch_is_loaded_only_by_names_that_need_it():
    script = (
        "import sys, prifedsync\n"
        "dir(prifedsync); prifedsync.Config; prifedsync.BadValue; prifedsync.__version__\n"
        "assert 'torch' not in sys.modules\n"
        "prifedsync.train\n"
        "assert 'torch' in sys.modules\n"
        "assert not {'rich', 'matplotlib', 'plotly'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------ history


def test_history_is_a_table_of_what_the_log_holds(result):
    assert [list(row) for row in result.history] == [COLUMNS] * 4
    lines = [json.loads(line) for line in (result.folder / "rounds.jsonl").read_text().splitlines()]
    for row, line in zip(result.history, lines, strict=True):
        assert (row["round"], row["participants"]) == (line["round"], line["participants"])
        for kind in ("personal", "released"):
            assert row[f"{kind}_mean"] == line[kind]["mean"]
            assert row[f"{kind}_worst"] == line[kind]["worst"]
        assert row["seconds"] > 0


def without_seconds(history):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in history]


def test_history_needs_no_folder(result):
    unwritten = prifedsync.train(config_of())
    assert unwritten.folder is None
    assert without_seconds(unwritten.history) == without_seconds(result.history)


def test_rounds_that_are_not_evaluated_have_no_scores():
    history = prifedsync.train(config_of("evaluate_every=3")).history
    assert [row["released_mean"] is None for row in history] == [True, True, False, False]
    assert [list(row) for row in history] == [COLUMNS] * 4


def test_a_resumed_run_has_all_its_rounds(result, tmp_path):
    def stops(event):
        if getattr(event, "round", 0) == 3:
            raise Stopped

    config = config_of('compare=["alone"]')
    with pytest.raises(Stopped):
        prifedsync.train(config, out=tmp_path / "run", watch=stops)
    resumed = prifedsync.resume(tmp_path / "run")
    assert without_seconds(resumed.history) == without_seconds(result.history)
    assert [row["seconds"] is None for row in resumed.history] == [True, True, False, False]


# ------------------------------------------------------------------ model


def test_the_model_predicts_as_its_state_dict_does(result):
    records = load_records(result.prepared.config.data, result.prepared.config.seed).clients[0].test
    model = result.model
    assert not model.training
    by_hand = nn.Sequential(nn.Flatten(), nn.Linear(128, 10, bias=False))
    by_hand.load_state_dict(result.state_dict)
    inputs = features("hog", records.x.shape[1:])(records.x)
    assert torch.equal(model(records.x), by_hand(inputs))
    accuracy = (model(records.x).argmax(1) == records.y).double().mean().item()
    assert accuracy == pytest.approx(result.record.clients[0].released)
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again(records.x), model(records.x))


def test_the_model_is_a_copy_of_its_own(result):
    model = result.model
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert all(value.any() for value in result.model.state_dict().values())
    assert all(value.any() for value in result.state_dict.values())


def test_a_module_of_ones_own_comes_back_trained():
    x = torch.randn(24, 5, dtype=torch.float64)
    own = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    before = {name: value.clone() for name, value in own.state_dict().items()}
    given = {"rounds": 2, "data": {"classes": 2, "test_fraction": 0}, "privacy": {"noise_multiplier": 2.0}}
    result = prifedsync.train(given, clients={"a": (x, torch.arange(24) % 2)}, model=own)
    assert type(result.model) is nn.Sequential
    assert {name: tuple(v.shape) for name, v in result.model.state_dict().items()} == {
        name: tuple(v.shape) for name, v in own.state_dict().items()
    }
    assert all(torch.equal(own.state_dict()[name], value) for name, value in before.items())
    assert not torch.equal(result.model.state_dict()["0.weight"], before["0.weight"])
    assert torch.equal(result.model.state_dict()["0.weight"], result.state_dict["0.weight"])
    assert torch.equal(result.model(x.float()), result.model(x.float()))  # dropout is off


def test_without_uploads_there_is_no_released_model():
    result = prifedsync.train(config_of("rule.name=alone"))
    with pytest.raises(BadValue, match=r'because no client sends one under rule "alone"; use result\.personal'):
        _ = result.model


# ------------------------------------------------------------------ guarantee


def test_the_guarantee_is_that_of_the_record(result):
    written = json.loads((result.folder / "record.json").read_text())
    found = result.guarantee
    for name in ("epsilon", "mu", "advantage"):
        assert getattr(found, name)._asdict() == {end: written["guarantee"][name][end] for end in ("lower", "upper")}
    assert found.as_json() == {key: value for key, value in written["guarantee"].items() if key != "sentence"} | {
        "sentence": written["sentence"]
    }
    assert found.simulation
    assert found.sentence() == result.record.sentence


def test_the_guarantee_is_the_worst_over_clients():
    result = prifedsync.train(config_of(*TWO_PLANS))
    uppers = [client.planned["epsilon"]["upper"] for client in result.record.clients]
    assert len(set(uppers)) == 2
    assert result.guarantee.epsilon.upper == max(uppers)
    assert result.guarantee.epsilon.lower <= result.guarantee.epsilon.upper


def test_without_privacy_there_is_none():
    result = prifedsync.train(config_of("privacy.mechanism=none"))
    assert result.guarantee is None
    assert result.plot().curve is None
    assert "no guarantee: trained without noise" in repr(result)
    assert "ε" not in repr(result)


# ------------------------------------------------------------------ what is printed


def shown(letter, text):
    """All upper bounds that a text states for this letter."""
    return [float(value) for value in re.findall(rf"{letter} ≤ ([\d.]+\d)", text)]


@pytest.mark.parametrize("text", [lambda result: repr(result), lambda result: repr(result.guarantee)])
def test_a_repr_rounds_up_and_says_that_it_is_a_simulation(result, text):
    said = " ".join(text(result).split())
    stated = result.record.guarantee
    epsilon, others_choose = shown("ε", said)
    (mu,) = shown("μ", said)
    for printed, exact in (
        (epsilon, stated["epsilon"]["upper"]),
        (others_choose, stated["worst_case_participation"]["epsilon"]["upper"]),
        (mu, stated["mu"]["upper"]),
    ):
        assert exact <= printed <= exact * 1.002
    assert result.record.sentence in said
    assert "(a simulation)" in said


def test_the_repr_of_a_result_fits_on_a_screen(result):
    said = repr(result)
    assert "Result of 4 rounds, 3 clients; accuracy" in said
    scores = result.record.scores["released"].own
    assert f"mean over clients {scores.mean:.3f}, over records {scores.record_mean:.3f}, worst {scores.worst:.3f}" in said
    assert f"written to {result.folder}" in said
    assert "0 warnings" in said
    assert len(said.splitlines()) <= 16
    assert max(map(len, said.splitlines())) <= 124


def test_the_repr_of_a_result_says_which_models_are_kept():
    assert "personal models (kept, not covered)" in repr(prifedsync.train(config_of("rule.name=ditto")))


def test_the_repr_of_a_config_lists_what_is_not_a_default():
    said = repr(load("digits", ["rounds=3", "rule.name=ditto", "rule.publish=true"])).splitlines()
    assert "  rounds = 3" in said
    assert '  rule.name = "ditto"' in said
    assert "  rule.publish = true" in said
    assert '  privacy.mechanism = "noisy-steps"' in said
    assert not any("server_rate" in line for line in said)
    assert len(said) < 12


@pytest.mark.parametrize(
    "plan",
    [
        PrivacyPlan(
            mechanism=NoisySteps(noise_multiplier=2.0, records=60, batch=6, local_steps=3, sampling=Sampling.FIXED),
            rounds=9,
        ),
        PrivacyPlan(mechanism=OutputPerturbation(noise_multiplier=2.0), rounds=9, neighbours=Neighbours.ADD_REMOVE),
    ],
)
def test_the_repr_of_a_plan_is_that_plan(plan):
    assert eval(repr(plan)) == plan


def test_a_statement_of_a_plan_is_no_simulation():
    plan = PrivacyPlan(mechanism=NoisySteps(noise_multiplier=2.0, records=60, batch="full", local_steps=3), rounds=9)
    said = repr(Statement.of(plan, delta=0.1))
    assert "simulation" not in said
    assert "warning: delta = 0.1 is not below 1/records" in said


# ------------------------------------------------------------------ figures


def test_scores_are_drawn_as_the_history_has_them(result):
    (axes,) = result.plot().scores.axes
    lines = {line.get_label(): line for line in axes.lines}
    for column, (label, *_) in rounds.COLUMNS.items():
        assert list(lines[label].get_xdata()) == [1, 2, 3, 4]
        assert list(lines[label].get_ydata()) == [row[column] for row in result.history]
    alone = result.record.scores["alone"].own.mean
    assert list(lines["baseline, each client alone"].get_ydata()) == [alone, alone]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "accuracy")


def test_the_curve_is_that_of_the_plans(result):
    (axes,) = result.plot().curve.axes
    lines = {line.get_label(): line for line in axes.lines}
    (plan,) = set(result.prepared.plans)
    for label, participation in ((curve.CERTIFIED, "honest"), (curve.WORST_CASE, "adversarial")):
        alpha = np.asarray(lines[label].get_xdata())
        assert (lines[label].get_ydata() == plan.guarantee(participation)(alpha)).all()
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("false positive rate α", "false negative rate β")
    assert any("(a simulation)" in " ".join(text.get_text().split()) for text in axes.texts)


def test_the_curve_is_below_that_of_every_client():
    result = prifedsync.train(config_of(*TWO_PLANS))
    (axes,) = result.plot().curve.axes
    drawn = next(line for line in axes.lines if line.get_label() == curve.CERTIFIED)
    alpha = np.asarray(drawn.get_xdata())
    each = [plan.guarantee()(alpha) for plan in set(result.prepared.plans)]
    assert len(each) == 2
    assert (drawn.get_ydata() == np.minimum(*each)).all()


def test_plotly_draws_the_same(result):
    plain = result.plot()
    html = result.plot(html=True)
    for one, other in ((plain.scores, html.scores), (plain.curve, html.curve)):
        lines = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in one.axes[0].lines}
        assert {trace.name: (list(trace.x), list(trace.y)) for trace in other.data} == lines
    assert html.curve.layout.xaxis.title.text == "false positive rate α"
    assert html.scores.layout.yaxis.title.text == "accuracy"


def test_a_notebook_shows_both_figures(result):
    assert result.plot()._repr_html_().count('src="data:image/png;base64,iVBOR') == 2


def test_without_test_records_no_scores_are_drawn():
    given = {"rounds": 2, "data": {"classes": 2, "test_fraction": 0}, "privacy": {"noise_multiplier": 2.0}}
    result = prifedsync.train(given, clients={"a": (torch.randn(24, 5), torch.arange(24) % 2)})
    assert result.plot().scores is None
    assert result.history[-1]["released_mean"] is None


# ------------------------------------------------------------------ progress


def on_a_terminal(monkeypatch):
    """An error stream that says that it is a terminal. Called in the test itself: pytest captures each phase anew."""
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    stream = io.StringIO()
    stream.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def test_progress_is_shown_on_a_terminal(monkeypatch):
    terminal = on_a_terminal(monkeypatch)
    prifedsync.train(config_of("rounds=1"))
    assert "private" in terminal.getvalue()  # the bar's first phase; which rounds are seen is a matter of time


def test_progress_can_be_switched_off(monkeypatch):
    terminal = on_a_terminal(monkeypatch)
    seen = []
    prifedsync.train(config_of("rounds=1"), progress=False, watch=seen.append)
    assert terminal.getvalue() == ""
    assert any(getattr(event, "round", None) == 1 for event in seen)


def test_elsewhere_progress_is_shown_if_it_is_asked_for(capsys):
    seen = []
    prifedsync.train(config_of("rounds=1"))
    assert capsys.readouterr() == ("", "")
    prifedsync.train(config_of("rounds=1"), progress=True, watch=seen.append)
    assert "private: round 1 of 1" in capsys.readouterr().err
    assert any(getattr(event, "round", None) == 1 for event in seen)


def test_a_resumed_run_shows_progress_too(monkeypatch, tmp_path):
    terminal = on_a_terminal(monkeypatch)

    def stops(event):
        if getattr(event, "round", 0) == 1:
            raise Stopped

    with pytest.raises(Stopped):
        prifedsync.train(config_of(), out=tmp_path / "run", watch=stops, progress=False)
    assert terminal.getvalue() == ""
    prifedsync.resume(tmp_path / "run")
    assert "private" in terminal.getvalue()
