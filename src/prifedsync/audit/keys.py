"""The keys of secret draws: whether anybody could guess one."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np

from ..local import SystemDraws
from ..local.draws import KEY_BYTES
from ..run.checkpoint import Checkpoint
from .check import CHANCE, Check
from .statistics import Event

KEYS = 32  # of each kind
DISTANCES = (1, 2, 4, 8, 16)  # of bytes within a key


def check_keys() -> Check:
    """Keys of runs without a folder, and of successive runs in one folder that is removed after each."""
    events = [*_events(_without_folder()), *_events(_in_one_folder())]
    worst = min(events, key=lambda event: event.chance)
    return Check(
        "secret keys", f"{worst} (p = {worst.chance:.2g})", f"p at least {CHANCE:g}", worst.chance >= CHANCE,
        "Every run has a new key, and all bits of the key are random: whoever guesses it can subtract all noise.",
    )  # fmt: skip


def _without_folder() -> np.ndarray:
    return _bytes([SystemDraws().secret for _ in range(KEYS)])


def _in_one_folder() -> np.ndarray:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "checkpoint"
        made = []
        for _ in range(KEYS):
            folder.mkdir()
            made.append(Checkpoint(folder).secret(begun=False))
            shutil.rmtree(folder)
    return _bytes(made)


def _bytes(keys: list[bytes]) -> np.ndarray:
    """[keys, bytes]."""
    return np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), KEY_BYTES)


def _events(keys: np.ndarray) -> list[Event]:
    """Events with a known probability if all bytes are random and independent."""
    bits = np.unpackbits(keys)
    found = [
        Event("bits that are set", int(bits.sum()), bits.size, 0.5),
        _equal("equal bytes of two keys", keys[1:], keys[:-1]),
    ]
    for apart in DISTANCES:
        found.append(_equal(f"equal bytes {apart} apart", keys[:, apart:], keys[:, :-apart]))
    return found


def _equal(what: str, one: np.ndarray, other: np.ndarray) -> Event:
    return Event(what, int(np.sum(one == other)), one.size, 1 / 256)
