"""An experiment: a preset, a sweep over some of its fields, and the numbers that the paper prints for each row."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

from ..config import Config, load
from ..values import BadValue

TABLES = ("table1", "table2", "table3")


@dataclass(frozen=True)
class Row:
    """One row of a table: its number (from 1), the fields it sets, and the numbers that the paper prints."""

    number: int
    values: Mapping[str, Any]
    paper: Mapping[str, float]


@dataclass(frozen=True)
class Experiment:
    """One table of the paper, as its TOML file declares it."""

    name: str
    title: str
    preset: str
    target: float  # the accuracy at which a run ends
    planned: float  # planned rounds, as a multiple of the rounds in the paper
    records: int  # per client
    rows: tuple[Row, ...]
    twins: bool = True  # whether each row also has a run without privacy, with as many rounds

    @staticmethod
    def named(name: str) -> Experiment:
        """The experiment in the TOML file of that name."""
        file = resources.files(__package__) / f"{name}.toml"
        fields = tomllib.loads(file.read_text(encoding="utf-8"))
        sweep = [_together(block) for block in fields.pop("sweep")]
        settings = [_merged(choice) for choice in product(*sweep)]
        printed = _together(fields.pop("paper"))
        rows = [Row(i, *both) for i, both in enumerate(zip(settings, printed, strict=True), start=1)]
        return Experiment(name=name, rows=tuple(rows), **fields)

    def config(
        self, row: Row, seed: int, overrides: Sequence[str] = (), data: Path | None = None, device: str | None = None
    ) -> Config:
        """The config of one run of a row. The user's overrides take precedence."""
        for text in overrides:
            if text.partition("=")[0].strip() == "seed":
                rule = "cannot be set here: a table has its own seeds"
                raise BadValue("override", text, rule, "use --seeds")
        values = {**row.values, "rounds": math.ceil(self.planned * row.paper["rounds"]), "seed": seed}
        own = [f"{key}={json.dumps(value)}" for key, value in values.items()]
        return load(self.preset, [*own, *overrides], data, device)


def _together(block: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The lists of one block vary together: {a: [1, 2], b: [3, 4]} means a = 1 with b = 3, then a = 2 with b = 4."""
    return [dict(zip(block, values, strict=True)) for values in zip(*block.values(), strict=True)]


def _merged(choice: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: value for part in choice for key, value in part.items()}
