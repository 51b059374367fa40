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
    asked: bool = False  # owners were asked for rounds

    @staticmethod
    def again(places: ServerPlaces) -> Started:
        """One more start, written down before anything is asked.

        Refused where rounds were asked for and the checkpoint is gone: nobody here would know what owners have spent.
        """
        known = _known(places.begun)
        if known is None:
            started = Started(os.urandom(RUN_BYTES).hex(), 0)
        elif known.asked and not has_checkpoint(places):
            remedy = "restore a copy of the server's folder, or make a new project"
            raise BadValue("run", places.run, "has lost its checkpoint, and owners have answered rounds of it", remedy)
        else:
            started = replace(known, resumed=known.resumed + has_checkpoint(places))
        started.write(places)
        return started

    def asks(self, places: ServerPlaces) -> None:
        """Write down that owners are asked for rounds from now on. There is a checkpoint by now."""
        if not self.asked:
            replace(self, asked=True).write(places)

    def write(self, places: ServerPlaces) -> None:
        write_file(places.begun, json.dumps(vars(self)).encode())


def _known(path: Path) -> Started | None:
    """The run that was begun in this folder; None before the first start."""
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_bytes())
        return Started(str(found["run"]), int(found["resumed"]), bool(found["asked"]))
    except (ValueError, KeyError, TypeError):
        remedy = "restore it from a copy; without it, owners take the run for another one"
        raise BadValue("run", path, "is damaged", remedy) from None


def has_checkpoint(places: ServerPlaces) -> bool:
    """Whether there are rounds to go on from."""
    return _manifest(places).is_file()


def rounds_done(places: ServerPlaces) -> int:
    """How many rounds are saved. Whether the checkpoint is whole is found out when it is loaded."""
    try:
        return int(json.loads(_manifest(places).read_bytes())["round"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _manifest(places: ServerPlaces) -> Path:
    return places.run / "checkpoint" / MANIFEST
