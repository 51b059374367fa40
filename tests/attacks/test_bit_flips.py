"""Bit flips: one bit of a saved run turned over; resuming refuses the file by its name, or nothing changes.

An ordinary run of the tests tries a few dozen; `make test-slow` tries 300 of each kind.
"""

import os
import random
import shutil
from pathlib import Path

import pytest
import torch

from prifedsync import run
from prifedsync.store import Store
from prifedsync.values import BadValue

from .test_crashes import clients, config, outcome

FLIPS = int(os.environ.get("PRIFEDSYNC_FLIPS", "28"))


class Killed(BaseException):
    """The process ends here, as far as anything written is concerned."""


def saved(folder: Path, rule: str, randomness: str) -> list[Path]:
    """A run that was ended in its last round, and the files that it goes on from."""

    def watch(event: object) -> None:
        if getattr(event, "round", 0) == 3:
            raise Killed

    with pytest.raises(Killed):
        run.train(config(rule, randomness) | {"rounds": 3}, clients=clients(), out=folder, watch=watch)
    return [folder / "rounds.jsonl", *sorted((folder / "checkpoint").iterdir())]


def flipped(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.mark.parametrize(("rule", "randomness"), [("ditto", "system"), ("apfl", "seeded")])
def test_a_flipped_bit_is_refused_or_changes_nothing(rule, randomness, tmp_path):
    """Turn over one bit of what a run is resumed from: it never goes on to another result."""
    files = saved(tmp_path / "saved", rule, randomness)
    shutil.copytree(tmp_path / "saved", tmp_path / "undisturbed")
    run.resume(tmp_path / "undisturbed", clients=clients())
    expected = outcome(tmp_path / "undisturbed")
    chance = random.Random(0)
    refused, faults = set(), []
    for trial in range(FLIPS):
        path = files[trial % len(files)]
        bit = chance.randrange(8 * path.stat().st_size)
        folder = tmp_path / f"trial {trial}"
        shutil.copytree(tmp_path / "saved", folder)
        flipped(folder / path.relative_to(tmp_path / "saved"), bit)
        try:
            run.resume(folder, clients=clients())
        except BadValue as error:
            refused.add(path.name)
            if path.name not in str(error) and path.name != "secret.key":  # with another key, all draws are others
                faults.append(f"{path.name}, bit {bit}: the refusal does not name it: {error}")
        else:
            if outcome(folder) != expected:
                faults.append(f"{path.name}, bit {bit}: resumed into another result")
        shutil.rmtree(folder)
    assert not faults, "\n".join(faults)
    assert len(refused) > len(files) / 2  # a flip in a place that no checkpoint names is harmless


def test_a_state_that_is_damaged_after_the_run_began_is_refused_when_it_is_read(tmp_path):
    """Turn over a bit of a client's state on the disk while a run goes on: whoever reads it next refuses it."""
    path = tmp_path / "clients.safetensors"
    held = Store(2, 1, 4, torch.float32, 1.0, path)
    held.write(0, torch.ones(1, 4))
    held.write(1, torch.ones(1, 4))  # there is room for one in memory
    flipped(path, 8 * held._offset(0, 0) + 3)
    with pytest.raises(BadValue, match=r"clients\.safetensors is damaged"):
        held.read(0)
