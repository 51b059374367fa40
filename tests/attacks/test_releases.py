"""All that a run leaves behind under secret draws, against the same run on neighbouring records: nothing but noised models
may differ. Whatever else differs tells the two apart."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import prifedsync
from prifedsync import files, run
from prifedsync.engines import Vectorised
from prifedsync.local import host
from prifedsync.rules import LocalOnly, Noised, Unprotected
from prifedsync.run import RoundDone, recording
from prifedsync.run import folder as run_folder

ROUNDS = 12
LINE = {"round", "participants", "personal", "released"}
NO_SCORE = {"mean": None, "worst": None}  # there are no test records: what they tell is warned about
METADATA = {"publishing"}
FILES = {"config.toml", "preprocessing.json", "rounds.jsonl", "record.json", "models/global.safetensors"}
OWN_CLOCK = {"timings", "host"}  # of the record: the same run has others each time
KINDS = {
    "noisy steps": {},
    "fixed batches": {"local": {"sampling": "fixed"}},
    "output perturbation": {"privacy": {"mechanism": "output-laplace"}},
    "kept models": {"rule": {"name": "ditto"}},
    "published kept models": {"rule": {"name": "apfl", "publish": True}},
}


def config_of(kind):
    changed = KINDS[kind]
    return {
        "rounds": ROUNDS,
        "compare": [],
        "data": {"classes": 3, "test_fraction": 0},
        "local": {"batch": 8, "local_steps": 2, "learning_rate": 0.1} | changed.get("local", {}),
        "rule": {"name": "fedavg"} | changed.get("rule", {}),
        "privacy": {"noise_multiplier": 2.0, "randomness": "system"} | changed.get("privacy", {}),
        "performance": {"device": "cpu"},
    }


def clients(neighbour):
    """Two sites; of the second one a record is replaced: other features, another label."""
    draw = torch.Generator().manual_seed(0)
    found = {}
    for name in ("a", "b"):
        x = torch.randn(30, 5, generator=draw)
        y = torch.randint(0, 3, (30,), generator=draw)
        found[name] = (x, y)
    if neighbour:
        found["b"][0][7] = 4.0
        found["b"][1][7] = (found["b"][1][7] + 1) % 3
    return found


@dataclasses.dataclass
class Left:
    """A finished run's folder, and what was said while it went on."""

    folder: Path
    said: list

    @property
    def files(self):
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()}

    @property
    def lines(self):
        return [json.loads(line) for line in (self.folder / "rounds.jsonl").read_text().splitlines()]

    @property
    def record(self):
        record = json.loads((self.folder / "record.json").read_text())
        return {name: value for name, value in record.items() if name not in OWN_CLOCK}

    @property
    def heads(self):
        """Of each model: what is written besides the numbers."""
        found = {}
        for path in sorted(self.folder.rglob("*.safetensors")):
            with safe_open(path, "pt") as file:
                shapes = {name: (tuple(file.get_tensor(name).shape), file.get_tensor(name).dtype) for name in file.keys()}  # noqa: SIM118
                found[path.name] = (file.metadata(), shapes, path.stat().st_size)
        return found


def left_by(kind, folder, neighbour):
    said = []

    def watch(event):
        if isinstance(event, RoundDone):
            said.append(dataclasses.replace(event, seconds=0.0, spending=None))

    prifedsync.train(config_of(kind), clients=clients(neighbour), out=folder, watch=watch)
    return Left(folder, said)


def differences(kind, place):
    """What tells two runs on neighbouring records apart, besides the numbers of their models."""
    one = left_by(kind, place / "one", neighbour=False)
    other = left_by(kind, place / "other", neighbour=True)
    found = {name for name in ("files", "lines", "record", "heads", "said") if getattr(one, name) != getattr(other, name)}
    for name in ("config.toml", "preprocessing.json"):
        if (one.folder / name).read_bytes() != (other.folder / name).read_bytes():
            found.add(name)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_differ_in_nothing_but_the_models(kind, tmp_path):
    """Any file, field or line that depends on a record, or on which records were drawn."""
    assert not differences(kind, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_writes_nothing_that_is_not_on_the_list(kind, tmp_path):
    """A file, a field of a round or a field of a model that nobody has thought about."""
    left = left_by(kind, tmp_path / "run", neighbour=False)
    assert left.files == FILES | {"models/personal/a.safetensors", "models/personal/b.safetensors"}
    assert [set(line) for line in left.lines] == [LINE] * ROUNDS
    for line in left.lines:
        assert line["participants"] == 2
        assert line["personal"] == line["released"] == NO_SCORE
    prepared = run.prepare(prifedsync.config.from_mapping(config_of(kind)), clients(neighbour=False))
    sentences = {recording._publishing(prepared, mark(None)) for mark in (Noised, Unprotected, LocalOnly)}
    for metadata, shapes, _ in left.heads.values():
        assert set(metadata) == METADATA
        assert metadata["publishing"] in sentences
        assert set(shapes) == set(prepared.net.names)


# ------------------------------------------------------------------ planted


def test_the_realised_batch_size_in_the_log(tmp_path, monkeypatch):
    """Given its size, a Poisson batch is one of fixed size: the amplification is another."""
    choose = host.choose
    append = files.RoundLog.append
    sizes = []

    def noting(*given):
        picked = choose(*given)
        sizes.append(len(picked))
        return picked

    def with_size(self, line):
        append(self, line | {"batch": sizes[-1]})

    monkeypatch.setattr(host, "choose", noting)
    monkeypatch.setattr(files.RoundLog, "append", with_size)
    assert "lines" in differences("noisy steps", tmp_path)


def test_a_sum_of_private_labels_in_a_models_metadata(tmp_path, monkeypatch):
    """A model that may be published carries a number about the records, without noise."""
    save = recording.save
    started = Vectorised.__init__
    sums = []

    def starting(self, *given, **options):
        started(self, *given, **options)
        sums.append(int(self.records.y.sum()))

    def with_sum(tensors, metadata):
        return save(tensors, metadata | {"labels": str(sums[-1])})

    monkeypatch.setattr(Vectorised, "__init__", starting)
    monkeypatch.setattr(recording, "save", with_sum)
    assert differences("noisy steps", tmp_path) == {"heads"}


def test_a_count_of_records_in_the_record(tmp_path, monkeypatch):
    """The record states a mean of private labels among its public numbers."""
    right = run_folder.record_of

    def with_mean(prepared, *given):
        labels = torch.cat([client.train.y for client in prepared.federation.clients])
        return dataclasses.replace(right(prepared, *given), device=f"cpu {labels.float().mean()}")

    monkeypatch.setattr(run_folder, "record_of", with_mean)
    assert differences("noisy steps", tmp_path) == {"record"}
