"""The rounds alone, for experiments: ended by a score, gone on with, and the run that `train` would have been."""

import json
import os
import signal

import pytest

from prifedsync.config import load
from prifedsync.run import resume, trace, train
from prifedsync.run.checkpoint import Checkpoint
from prifedsync.values import BadValue

FEW = ("rounds=5", "data.clients=3", "performance.checkpoint_seconds=0", "compare=[]")


@pytest.fixture
def config():
    return load("digits-paper", [*FEW, "data.shards_per_client=2"])


def test_the_rounds_are_those_of_a_whole_run(config, tmp_path):
    train(config, out=tmp_path / "whole")
    found = trace(config, tmp_path / "trace")
    lines = (tmp_path / "whole" / "rounds.jsonl").read_text().splitlines()
    assert found.rounds == [json.loads(line) for line in lines]
    assert {plan.rounds for plan in found.plans} == {5}
    assert {plan.copies for plan in found.plans} == {1}
    assert found.versions["prifedsync"]
    assert not (tmp_path / "trace" / "models").exists()
    assert not (tmp_path / "trace" / "record.json").exists()


def test_it_ends_where_it_is_told_to(config, tmp_path):
    whole = trace(config, tmp_path / "whole")
    part = trace(config, tmp_path / "part", until=lambda done: done.round == 2)
    assert part.rounds == whole.rounds[:2]
    assert part.plans == whole.plans  # of all rounds planned: the stop depended on what was seen


@pytest.mark.parametrize("seconds", [0.0, 1e9])
@pytest.mark.parametrize("last", [2, 5])
def test_what_nobody_goes_on_from_is_not_saved(config, tmp_path, last, seconds, monkeypatch):
    """A hundred clients' models take seconds to write."""
    saved = saves(monkeypatch)
    config = config.changed(**{"performance.checkpoint_seconds": seconds})
    trace(config, tmp_path / "run", until=lambda done: done.round == last)
    assert saved == (list(range(last)) if seconds == 0 else [0])


def test_nor_is_the_last_round_of_all(config, tmp_path, monkeypatch):
    saved = saves(monkeypatch)
    trace(config, tmp_path / "run")
    assert saved == [0, 1, 2, 3, 4]


def test_but_of_a_whole_run_it_is(config, tmp_path):
    """Scores, accounting and models are still to come, and may take long."""
    config, ran = config.changed(**{"performance.checkpoint_seconds": 1e9}), []

    def dies(event):
        if getattr(event, "what", None) == "accounting":
            raise OSError("killed")

    with pytest.raises(OSError, match="killed"):
        train(config, out=tmp_path / "run", watch=dies)
    resume(tmp_path / "run", watch=lambda event: ran.append(getattr(event, "round", None)))
    assert set(ran) == {None}


@pytest.mark.parametrize("seconds", [0.0, 1e9])
@pytest.mark.parametrize("pressed", [1, 2, 3])  # in this round; the run is ended after round 3
def test_an_interrupted_run_goes_on_and_ends_where_the_whole_one_does(config, tmp_path, pressed, seconds, monkeypatch):
    config = config.changed(**{"performance.checkpoint_seconds": seconds})
    enough = {"until": lambda done: done.round == 3}
    whole, saved = trace(config, tmp_path / "whole", **enough), saves(monkeypatch)

    def interrupts(event):
        if getattr(event, "round", None) == pressed:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        trace(config, tmp_path / "part", watch=interrupts, **enough)
    assert saved == (list(range(pressed + 1)) if seconds == 0 else [0, pressed])  # once, and nothing is lost
    saved.clear()
    assert trace(config, tmp_path / "part", **enough).rounds == whole.rounds
    assert saved == [] or (seconds == 0 and saved == list(range(pressed + 1, 3)))


def saves(monkeypatch):
    """The rounds after which a checkpoint is saved."""
    saved, honest = [], Checkpoint.save
    monkeypatch.setattr(Checkpoint, "save", lambda *given: saved.append(given[1].round) or honest(*given))
    return saved


def test_it_goes_on_with_another_way_of_running_it_but_not_with_another_plan(config, tmp_path):
    whole = trace(config, tmp_path / "whole")

    def dies(event):
        if getattr(event, "round", None) == 4:
            raise OSError("killed")

    with pytest.raises(OSError, match="killed"):
        trace(config, tmp_path / "part", watch=dies)
    with pytest.raises(BadValue, match=r"privacy.noise_multiplier = 1.0 \(was 2.0\)"):
        trace(config.changed(**{"privacy.noise_multiplier": 1.0}), tmp_path / "part")
    assert trace(config.changed(**{"performance.checkpoint_seconds": 9.0}), tmp_path / "part").rounds == whole.rounds


def test_a_finished_runs_folder_is_left_alone(config, tmp_path):
    train(config, out=tmp_path / "run")
    before = (tmp_path / "run" / "rounds.jsonl").read_text()
    with pytest.raises(BadValue, match="finished run"):
        trace(config, tmp_path / "run")
    assert (tmp_path / "run" / "rounds.jsonl").read_text() == before


def test_what_was_prepared_for_another_run_changes_nothing(config, tmp_path):
    """Records and net are shared where they are the same, and only there."""
    first = trace(config, tmp_path / "first")
    same = [{"privacy.noise_multiplier": 1.0}, {"participation": 0.5}, {"privacy.mechanism": "none"}, {"averaging": 0.5}]
    others = [{"seed": 1}, {"data.clients": 4}, {"model.name": "mlp"}]
    for at, change in enumerate([*same, *others]):
        other = config.changed(**change)
        shared = trace(other, tmp_path / f"shared {at}", like=first.prepared)
        apart = trace(other, tmp_path / f"apart {at}")
        assert (shared.rounds, shared.plans) == (apart.rounds, apart.plans)
        assert (shared.prepared.net is first.prepared.net) == (change in same)
        assert (shared.plans == ()) == ("privacy.mechanism" in change)
