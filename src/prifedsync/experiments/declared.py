"""What an experiment is: a preset, a sweep over some of its fields, and what the paper prints for each row."""

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
    """One row of a table: its number from 1, the fields it sets, and what the paper prints."""

    number: int
    values: Mapping[str, Any]
    paper: Mapping[str, float]


@dataclass(frozen=True)
class Experiment:
    """One table, as its TOML file declares it."""

    name: str
    title: str
    preset: str
    target: float  # accuracy at which a run ends
    planned: float  # rounds planned, in rounds of the paper
    records: int  # of a client
    rows: tuple[Row, ...]
    twins: bool = True  # trained without privacy too, for as many rounds

    @staticmethod
    def named(name: str) -> Experiment:
        given = tomllib.loads((resources.files(__package__) / f"{name}.toml").read_text(encoding="utf-8"))
        sweep, paper = given.pop("sweep"), given.pop("paper")
        settings = [_merged(choice) for choice in product(*(_together(block) for block in sweep))]
        printed = _together(paper)
        rows = [Row(i, *both) for i, both in enumerate(zip(settings, printed, strict=True), start=1)]
        return Experiment(name=name, rows=tuple(rows), **given)

    def config(
        self, row: Row, seed: int, overrides: Sequence[str] = (), data: Path | None = None, device: str | None = None
    ) -> Config:
        """The config of one run of a row; the user's overrides lie on top."""
        for text in overrides:
            if text.partition("=")[0].strip() == "seed":
                raise BadValue("override", text, "cannot be set here", "give --seeds")
        values = {**row.values, "rounds": math.ceil(self.planned * row.paper["rounds"]), "seed": seed}
        return load(self.preset, [*(f"{key}={json.dumps(v)}" for key, v in values.items()), *overrides], data, device)


def _together(block: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Lists of one block run side by side: {a: [1, 2], b: [3, 4]} is a = 1 with b = 3, then a = 2 with b = 4."""
    return [dict(zip(block, values, strict=True)) for values in zip(*block.values(), strict=True)]


def _merged(choice: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: value for part in choice for key, value in part.items()}
