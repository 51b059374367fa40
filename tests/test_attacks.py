"""Attacks that once worked: what a clever module, an odd record or a second process could do to the guarantee."""

import multiprocessing
import subprocess
import sys

import pytest
import torch
from torch import nn

import prifedsync
from prifedsync import run
from prifedsync.config import load
from prifedsync.local import Key, Net, SeededDraws, losses
from prifedsync.local.draws import BLOCK
from prifedsync.metrics import METRICS, scores
from prifedsync.run.checkpoint import Checkpoint
from prifedsync.values import BadValue

OWN = {"rounds": 2, "data": {"classes": 2, "test_fraction": 0}, "privacy": {"noise_multiplier": 2.0}}


def moved(net, x, changed, y):
    """How far the clipped sum (clip 1) moves when the records change."""
    valid, clip, start = torch.ones(1, len(x), dtype=torch.bool), torch.ones(1).double(), net.initial()[None]
    sums = [net.clipped_sums(start, v[None], y[None], valid, clip, {})[0] for v in (x, changed)]
    return (sums[0] - sums[1]).norm().item()


class Sorted(nn.Module):
    """Sorts the batch, encodes, and sorts back: no output depends on another record, and the order of rows does."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 8), nn.Linear(8, 2)
        with torch.no_grad():
            self.a.weight[:, 1] *= 1e-3
            self.a.bias += 1

    def forward(self, x):
        order = torch.argsort(x[:, 0], stable=True)
        return self.b(torch.tanh(self.a(x))[order])[torch.argsort(order)]


def test_rows_in_another_order_than_records_do_not_break_the_clip():
    torch.manual_seed(0)
    x = torch.stack([torch.arange(40) * 1e-3, torch.where(torch.arange(40) % 2 == 0, 1e4, 1e-3)], 1)
    y, changed = torch.arange(40) % 2, x.clone()
    changed[0, 0] = 9.0  # now the last in order, where it was the first
    net = Net(Sorted(), losses.classes, x, y, torch.float32)
    assert moved(net, x, changed, y) <= 2 * (1 + 1e-9)


class Shifted(nn.Module):
    """Takes off the largest value of the batch before it takes exponentials: exact on paper, not in floating point."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 2)

    def forward(self, x):
        z = torch.exp(x - x.max())
        return self.out(z / z.sum(1, keepdim=True))


def test_one_large_record_cannot_silence_the_others():
    torch.manual_seed(0)
    x, y = torch.randn(50, 3), torch.randint(0, 2, (50,))
    changed = x.clone()
    changed[7] = 500.0
    assert moved(Net(Shifted(), losses.classes, x, y, torch.float32), x, changed, y) <= 2 * (1 + 1e-9)


class Centred(nn.Module):
    """Remembers the mean of the first batch it sees, in a plain attribute."""

    def __init__(self):
        super().__init__()
        self.mean, self.head = None, nn.Linear(3, 2)

    def forward(self, x):
        if self.mean is None:
            self.mean = x.detach().mean(0)
        return self.head(x - self.mean.to(x.dtype))


def test_a_module_that_remembers_its_first_batch_is_refused():
    with pytest.raises(BadValue, match=r"remembers the records|mixes records"):
        Net(Centred(), losses.classes, torch.randn(9, 3), torch.zeros(9, dtype=torch.long), torch.float32)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.extra, self.head = nn.Embedding(10, 4), nn.Parameter(torch.zeros(4)), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.table(x).mean(1) + self.extra)


@pytest.mark.parametrize("token", [-1, 10])
@pytest.mark.parametrize("mechanism", ["noisy-steps", "output-gaussian"])
def test_a_token_outside_its_table_is_refused_with_the_clients_name(token, mechanism):
    """Mapped over records and clients, it would read and write a neighbour's row."""
    clients = {name: (torch.randint(0, 10, (30, 5)), torch.randint(0, 2, (30,))) for name in ("a", "b")}
    clients["b"][0][17, 2] = token
    privacy = {"noise_multiplier": 2.0, "mechanism": mechanism}
    with pytest.raises(BadValue, match="client b = records cannot be fed to the model"):
        prifedsync.train({**OWN, "privacy": privacy}, clients=clients, model=Words())


@pytest.mark.parametrize("wrong", ["width", "double", "tuple", "lazy", "assertion", "complex"])
def test_a_model_that_fails_is_one_line(wrong):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LazyLinear(2) if wrong == "lazy" else nn.Linear(4 if wrong == "width" else 3, 2)
            if wrong == "complex":
                self.phase = nn.Parameter(torch.zeros(2, dtype=torch.complex64))

        def forward(self, x):
            assert wrong != "assertion", "not today"
            out = self.layer(x.float() if wrong == "double" else x)
            return (out, out) if wrong == "tuple" else out

    clients = {"a": (torch.randn(9, 3), torch.zeros(9, dtype=torch.long))}
    with pytest.raises(BadValue) as refused:
        prifedsync.train(OWN, clients=clients, model=Model())
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith("model")


# ---------------------------------------------------------------------- processes and folders


def test_two_runs_cannot_share_a_folder(tmp_path):
    """They would share a key, and their noise would cancel."""
    config = load("digits", ["rounds=2", "compare=[]", "privacy.randomness=system"])

    def second(event):
        if not hasattr(event, "round"):
            return
        with pytest.raises(BadValue, match="is in use by another process"):
            run.resume(tmp_path / "run")
        with pytest.raises(BadValue, match="is in use by another process"):
            run.train(config, out=tmp_path / "run")

    run.train(config, out=tmp_path / "run", watch=second)


def test_runs_begun_in_one_second_have_folders_of_their_own(tmp_path):
    words = [sys.executable, "-m", "prifedsync.cli", "train", "--quiet", "--set", "rounds=1", "--set", "compare=[]"]
    both = [subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    folders = {process.communicate(timeout=180)[0].strip() for process in both}
    assert len(folders) == 2
    assert all((tmp_path / folder / "record.json").is_file() for folder in folders)


def test_the_key_goes_first_and_a_run_ended_while_tidying_up_is_tidied(tmp_path, monkeypatch):
    config = load("digits", ["rounds=2", "compare=[]", "privacy.randomness=system"])

    def ended(path):
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", ended)
        with pytest.raises(SystemExit):
            run.train(config, out=tmp_path / "run")
    assert not (tmp_path / "run/checkpoint/secret.key").exists()
    with pytest.raises(BadValue, match="is finished"):
        run.resume(tmp_path / "run")
    assert not (tmp_path / "run/checkpoint").exists()


def test_a_damaged_checkpoint_is_one_line(tmp_path):
    config = load("digits", ["rounds=3", "compare=[]", "performance.checkpoint_seconds=0"])

    class Ended(BaseException):
        pass

    def stop(event):
        if getattr(event, "round", 0) == 2:
            raise Ended

    with pytest.raises(Ended):
        run.train(config, out=tmp_path / "run", watch=stop)
    assert Checkpoint(tmp_path / "run/checkpoint").exists()
    (tmp_path / "run/checkpoint/manifest.json").write_text("{")
    with pytest.raises(BadValue, match=r"manifest.json is damaged"):
        run.resume(tmp_path / "run")


def draw_much(queue):
    queue.put(float(SeededDraws(0).normal(Key("a", 0, 0, "noise"), 3 * BLOCK).sum()))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_can_draw_what_its_parent_drew():
    here = float(SeededDraws(0).normal(Key("a", 0, 0, "noise"), 3 * BLOCK).sum())
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=draw_much, args=(queue,))
    child.start()
    assert queue.get(timeout=60) == here
    child.join()


# ---------------------------------------------------------------------- what must not fail at the end


def test_one_client_is_a_federation_too():
    assert run.train(load("digits", ["data.clients=1", "rounds=2", "compare=[]"])).record.guarantee


def test_a_diverged_model_has_no_score_and_a_record(tmp_path):
    draw = torch.Generator().manual_seed(0)
    clients = {"a": (torch.randn(30, 2, generator=draw), torch.randn(30, generator=draw))}
    config = {"rounds": 3, "data": {"task": "regression"}, "privacy": {"noise_multiplier": 1.0}}
    config["local"] = {"learning_rate": 1e300}
    record = prifedsync.train(config, clients=clients, out=tmp_path / "run").record
    assert record.scores["released"].own.mean is None
    assert record.clients[0].personal is None


def test_a_long_name_is_refused_before_training():
    clients = {"больница номер один " * 3: (torch.randn(9, 3), torch.zeros(9, dtype=torch.long))}
    with pytest.raises(BadValue, match="client name"):
        prifedsync.train(OWN, clients=clients)


def test_area_under_the_curve_of_many_classes_is_refused_before_training():
    with pytest.raises(BadValue, match="metrics = auc needs two classes, not 10"):
        run.train(load("digits", ["metrics=auc"]))


def test_scores_of_two_outputs_are_those_of_one():
    outputs, y = torch.randn(50, 2), torch.randint(0, 2, (50,))
    one = (outputs[:, 1] - outputs[:, 0])[:, None]
    for metric in ("auc", "f1", "accuracy"):
        found = [scores(METRICS[metric], *given, [50]).item() for given in ((outputs, y), (one, y.float()))]
        assert found[0] == pytest.approx(found[1])


def test_a_seeded_run_says_so_wherever_its_guarantee_stands():
    record = run.train(load("digits", ["rounds=2", "compare=[]", "data.clients=2"])).record
    for text in (record.guarantee["sentence"], *(client.planned["sentence"] for client in record.clients)):
        assert "whoever knows the seed" in text
