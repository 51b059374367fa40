"""All sources of records behind one function."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from ..values import BadValue
from . import images, labels
from .arrays import from_npz
from .embedded import EMBEDDED, ENCODINGS, embedded
from .federation import Federation, check
from .given import from_function
from .images import IMAGES
from .partition import divided
from .persons import stated
from .table import from_csv

if TYPE_CHECKING:
    from ..config import DataConfig


def load(config: DataConfig, seed: int) -> Federation:
    """The checked federation that the config describes. `seed` decides how records are split, and nothing else."""
    if config.source in EMBEDDED:
        records, task = embedded(config)
        return check(replace(divided(config, records, task, seed), encoding=ENCODINGS[config.source]))
    if config.source in IMAGES:
        return check(images.load(config, seed))
    if config.source == "csv":
        return stated(check(from_csv(config, labels.task(config), seed)), config)
    if config.source == "npz":
        return stated(check(from_npz(config, labels.task(config), seed)), config)
    if ":" in config.source:
        return stated(check(from_function(config, seed)), config)
    known = [*EMBEDDED, *IMAGES, "csv", "npz"]
    near = get_close_matches(config.source, known, 1)
    other = 'choose one of these, or name your own function as "module:function"'
    remedy = f"did you mean {near[0]}?" if near else other
    raise BadValue("data.source", repr(config.source), f"must be one of {', '.join(known)}", remedy)
