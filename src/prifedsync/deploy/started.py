"""The name of a run, which lies in its server's folder, and how often the run went on."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

from ..files import write_file
from ..run.checkpoint import MANIFEST
from ..values import BadValue
from .places import ServerPlaces

RUN_BYTES = 16


@dataclass(frozen=True)
class Started:
    """The name of a run, which all questions carry, and how often it went on."""

    run: str  # 32 hexadecimal digits
    resumed: int

    @staticmethod
    def again(places: ServerPlaces) -> Started:
        """One more start, written down before anything is asked."""
        known = _known(places.begun)
        if known is None:
            started = Started(os.urandom(RUN_BYTES).hex(), 0)
        else:
            started = replace(known, resumed=known.resumed + has_checkpoint(places))
        write_file(places.begun, json.dumps(vars(started)).encode())
        return started


def _known(path: Path) -> Started | None:
    """The run that was begun in this folder; None before the first start."""
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_bytes())
        return Started(str(found["run"]), int(found["resumed"]))
    except (ValueError, KeyError, TypeError):
        remedy = "restore it from a copy; without it, owners take the run for another one"
        raise BadValue("run", path, "is damaged", remedy) from None


def has_checkpoint(places: ServerPlaces) -> bool:
    """Whether there are rounds to go on from."""
    return (places.run / "checkpoint" / MANIFEST).is_file()
