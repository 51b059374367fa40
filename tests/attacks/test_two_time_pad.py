"""The same noise under two gradients: whoever subtracts the two results sees the gradients' difference without noise.

Every attack copies the folder of an unfinished run, secret key included, and goes on with the copies in two ways.
"""

import decimal
import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file, save
from torch import nn

import prifedsync
from prifedsync.config import load, to_toml
from prifedsync.engines import Reference, Vectorised
from prifedsync.files import checksum
from prifedsync.local import SystemDraws
from prifedsync.rules import Attentive, FedAvg
from prifedsync.run import loop
from prifedsync.run.checkpoint import _canonical
from prifedsync.values import BadValue

from ..engines.settings import MLP, ask, heard_messages, jobs_of, net_of, records_of, served

RECORDS, FEATURES = 8, 256
NOISE = 50.0  # clip norms: nothing of a sum shows in a result
CONFIG = {
    "rounds": 3,
    "data": {"task": "binary", "test_fraction": 0},
    "local": {"learning_rate": 1.0, "batch": "full"},
    "privacy": {"noise_multiplier": NOISE, "clip_norm": 1.0},
    "performance": {"checkpoint_seconds": 0},
}


class Killed(BaseException):
    """The process ends here."""


def killed_in_round(number):
    def watch(event):
        if getattr(event, "round", 0) == number:
            raise Killed

    return watch


def clients_of(seed=0, flipped=False):
    draw = torch.Generator().manual_seed(seed)
    labels = (torch.arange(RECORDS) % 2).float()
    return {
        name: (torch.randn(RECORDS, FEATURES, generator=draw), 1 - labels if flipped else labels) for name in ("a", "b")
    }


class Scaled(nn.Module):
    """A linear model whose input is scaled in one of several ways."""

    def __init__(self, **how):
        super().__init__()
        self.layer = nn.Linear(FEATURES, 1)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self.attribute = how.get("attribute", 1.0)
        self.hidden = decimal.Decimal(how.get("hidden", 1))  # holds its value where no Python code can look
        self.register_buffer("buffer", torch.tensor(how.get("buffer", 1.0)), persistent=False)
        if "hook" in how:
            self.register_forward_pre_hook(lambda module, given: (given[0] * how["hook"],))
        else:
            self.register_forward_pre_hook(lambda module, given: given)

    def forward(self, x):
        return self.layer(x * self.attribute * float(self.hidden) * self.buffer.to(x.dtype))


def with_closure(scale):
    class Closed(Scaled):
        def forward(self, x):
            return super().forward(scale * x)

    return Closed()


def with_forward(doubled):
    class Once(Scaled):
        def forward(self, x):
            return super().forward(x)

    class Twice(Scaled):
        def forward(self, x):
            return super().forward(x + x)

    return Twice() if doubled else Once()


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run that was killed in its second round."""
    folder = tmp_path_factory.mktemp("begun") / "run"
    with pytest.raises(Killed):
        prifedsync.train(CONFIG, clients=clients_of(), model=Scaled(), out=folder, watch=killed_in_round(2))
    assert (folder / "checkpoint/secret.key").is_file()
    return folder


@pytest.fixture
def copy(begun, tmp_path):
    shutil.copytree(begun, tmp_path / "copy")
    return tmp_path / "copy"


def edit(folder, **changes):
    path = folder / "config.toml"
    path.write_text(to_toml(load(path).changed(**changes)))


def resumed(folder, clients=None, model=None):
    return prifedsync.resume(folder, clients=clients or clients_of(), model=model or Scaled())


# ---------------------------------------------------------------------- what is refused

FIELDS = {
    "server_rate": 0.5,
    "data.task": "regression",
    "averaging": 0.0,
    "metrics": ["auc"],
    "rule.strength": 0.5,
    "model.dropout": False,
    "performance.engine": "reference",
    "privacy.delta": 1e-6,
    "evaluate_every": 2,
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_copy_with_another_config(copy, name):
    """Go on with a copy under one other field of its config: the rounds to come meet other gradients."""
    edit(copy, **{name: FIELDS[name]})
    with pytest.raises(BadValue, match=rf"differs from the run that was begun: .*{name} = \S+ \(was "):
        resumed(copy)


MODULES = {
    "forward": lambda: with_forward(True),
    "attribute": lambda: Scaled(attribute=2.0),
    "closure": lambda: with_closure(2.0),
    "hook": lambda: Scaled(hook=2.0),
    "buffer": lambda: Scaled(buffer=2.0),
}


@pytest.mark.parametrize("what", MODULES)
def test_a_copy_with_a_module_of_the_same_shape(copy, what):
    """Give a copy a module with the same weights that computes something else."""
    with pytest.raises(BadValue, match=r"differs from the run that was begun: .*model code"):
        resumed(copy, model=MODULES[what]())


def test_a_copy_with_a_module_that_differs_where_nobody_can_look(copy):
    """Give a copy a module whose code and attributes look the same, and whose answers differ."""
    with pytest.raises(BadValue, match="differs from the run that was begun: the model's answers"):
        resumed(copy, model=Scaled(hidden=2))


@pytest.mark.parametrize("change", [{"seed": 1}, {"flipped": True}], ids=["records", "labels"])
def test_a_copy_with_other_records(copy, change, request):
    """Give a copy other records, or the same ones with other labels."""
    with pytest.raises(BadValue, match=rf"differs from the run that was begun: {request.node.callspec.id};"):
        resumed(copy, clients=clients_of(**change))


@pytest.mark.parametrize("change", [{"seed": 1}, {"flipped": True}], ids=["records", "labels"])
def test_a_key_whose_manifest_is_lost(copy, change):
    """Remove what says which records a key was used for, and give it others."""
    (copy / "checkpoint/manifest.json").unlink()
    with pytest.raises(BadValue, match=r"has rounds but no manifest\.json: its checkpoint is lost"):
        resumed(copy, clients=clients_of(**change))


def test_a_key_whose_run_is_hidden(copy, monkeypatch):
    """Remove the log too, so that the run seems never to have begun: then the key is another."""
    secret = (copy / "checkpoint/secret.key").read_bytes()
    (copy / "checkpoint/manifest.json").unlink()
    (copy / "rounds.jsonl").unlink()
    keys = []
    monkeypatch.setattr(loop, "SystemDraws", lambda key: keys.append(key) or SystemDraws(key))
    resumed(copy, clients=clients_of(seed=1))
    assert keys
    assert secret not in keys


def test_a_manifest_without_its_key(copy):
    """Remove the key, so that rounds that were released are drawn a second time."""
    (copy / "checkpoint/secret.key").unlink()
    with pytest.raises(BadValue, match=r"has no secret\.key: its noise cannot be repeated"):
        resumed(copy)


# ---------------------------------------------------------------------- what is drawn where nothing is refused


@pytest.fixture
def unguarded(monkeypatch):
    """Whatever was changed is accepted, as if the manifest had been forged."""
    monkeypatch.setattr("prifedsync.engines.binding.Binding.check", lambda *given: None)


def noisy_sums(folder, **given):
    """What a server that is sent bare messages knows from the last round: each client's sum of gradients and noise."""
    rounds = {}
    with heard_messages(lambda client, round, total: rounds.setdefault(round, {}).update({client.index: total})):
        resumed(folder, **given)
    last = rounds[max(rounds)]
    return torch.stack([last[i] for i in sorted(last)])


def subtracted(one, other):
    """How far apart two sums of gradients and noise are, and how they correlate."""
    apart = (one - other).norm(dim=1).min().item()
    return apart, max(abs(torch.corrcoef(torch.stack(pair))[0, 1].item()) for pair in zip(one, other, strict=True))


def changed_config(copy, **changes):
    edit(copy, **changes)
    return {}


def changed_server(copy):
    (path,) = (copy / "checkpoint").glob("server-*.safetensors")
    tensors = load_file(path)
    tensors["weights"][0] += 1e-3
    content = save(tensors)
    path.write_bytes(content)
    manifest_path = copy / "checkpoint/manifest.json"
    manifest = json.loads(manifest_path.read_bytes())
    del manifest["checksum"]
    manifest["server_checksum"] = checksum(content)
    manifest["checksum"] = checksum(_canonical(manifest))
    manifest_path.write_bytes(_canonical(manifest))
    return {}


PADS = {
    "server_rate": lambda copy: changed_config(copy, server_rate=0.5),
    "task": lambda copy: changed_config(copy, **{"data.task": "regression"}),
    "averaging": lambda copy: changed_config(copy, averaging=0.0),
    "threads": lambda copy: changed_config(copy, **{"performance.threads": torch.get_num_threads() + 1}),
    "chunk": lambda copy: changed_config(copy, **{"performance.chunk": 1}),
    "records": lambda copy: {"clients": clients_of(seed=1)},
    "labels": lambda copy: {"clients": clients_of(flipped=True)},
    "forward": lambda copy: {"model": with_forward(True)},
    "hidden attribute": lambda copy: {"model": Scaled(hidden=2)},
    "one global weight": changed_server,
}


@pytest.mark.parametrize("what", PADS)
@pytest.mark.usefixtures("unguarded")
def test_two_copies_subtracted(begun, tmp_path, what):
    """Go on with a copy as it is and with a changed one, and subtract what they send: independent noise is left.

    Equal noise would leave sums of gradients, at most 2·RECORDS clip norms apart, and a correlation of 1. The distance of
    independent noise is about √(2·257)·50 ≈ 1,100, and below 100 with a chance of less than 1e-100. A correlation of 257
    pairs exceeds 7/√257 with a chance of 3e-12; there are twenty in all.
    """
    folders = [tmp_path / "as it is", tmp_path / "changed"]
    for folder in folders:
        shutil.copytree(begun, folder)
    threads = torch.get_num_threads()
    given = PADS[what](folders[1])
    found = [noisy_sums(folders[0]), noisy_sums(folders[1], **given)]
    torch.set_num_threads(threads)
    apart, correlation = subtracted(*found)
    assert apart > 100
    assert correlation < 7 / math.sqrt(found[0].shape[1])


# ---------------------------------------------------------------------- a server that sends two things


class OnDevice(Vectorised):
    """Everything as on a GPU, wherever it runs."""

    @property
    def streams(self):
        return self.draws


KINDS = pytest.mark.parametrize("kind", [Vectorised, Reference, OnDevice])


def engine_under(kind, rule):
    """An engine under a key that all copies share: one step on all records, with noise that drowns them."""
    jobs = jobs_of(noise_multiplier=100.0, local_steps=1, batch="full", mixing=0.5)
    return kind(net_of(MLP), jobs, records_of(MLP), rule, SystemDraws(b"k" * 32))


def apart(one, other):
    """How far two copies' uploads are apart, in what one record may move them: learning rate · clip norm / records."""
    records = torch.tensor([len(x) for x, _ in records_of(MLP)])
    return ((one - other).norm(dim=1) * records / (0.5 * 0.3)).min().item()


# Equal noise leaves at most twice the nine records of the largest client, and the little that a start differs by.
# Independent noise of 100 clip norms in at least 20 parameters leaves less than 100 with a chance below 1e-6:
# P(χ²_20 < 0.5) = 2e-13.
LEFT = 100


@KINDS
def test_a_client_that_was_sent_another_model_before(kind):
    """Send two copies of a client different models once, and then the same one: what they carry may differ now."""
    sent = []
    for moved in (0.0, 1e-3):
        engine = engine_under(kind, FedAvg())
        assert engine.net.count >= 20
        everybody, first = range(len(engine.jobs)), engine.start.clone()
        first[0] += moved
        ask(engine, 0, everybody, first)
        sent.append(ask(engine, 1, everybody, engine.start).rows.value)
    assert apart(*sent) > LEFT


@KINDS
def test_a_client_whose_helper_is_made_of_other_uploads(kind):
    """Let one client send something else, where everybody's helper is made of everybody's uploads."""
    sent = []
    for moved in (0.0, 1e-3):
        engine = engine_under(kind, Attentive())
        everybody = range(len(engine.jobs))
        ask(engine, 0, everybody, engine.start)
        last = served(engine)._stores["uploads"]
        last.write(3, last.read(3) + moved)
        sent.append(ask(engine, 1, everybody, engine.start).rows.value)
    assert apart(*sent) > LEFT
