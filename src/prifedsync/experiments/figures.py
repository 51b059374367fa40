"""The paper's figures of accuracy over rounds, from the runs of its tables."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Literal

from .declared import Experiment
from .running import Run, Runs
from .tables import Asked, Pair
from .tables import run as run_rows

Kind = Literal["personal", "global"]


@dataclass(frozen=True)
class Line:
    """One line of a figure: the accuracy after each round, for each seed."""

    label: str
    kind: Kind
    group: int  # lines of one row have the same group
    runs: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Figure:
    """The content of one figure."""

    name: str
    title: str
    target: float
    lines: tuple[Line, ...]
    note: str


@dataclass(frozen=True)
class Declared:
    """A figure as the TOML file declares it: the numbers of rows of a table, each with a label."""

    name: str
    title: str
    table: str
    rows: dict[str, str]
    kinds: list[Kind]


def declared() -> tuple[Declared, ...]:
    """All figures of the TOML file."""
    file = resources.files(__package__) / "figures.toml"
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    return tuple(Declared(**figure) for figure in content["figures"])


def figures(asked: Asked, runs: Runs) -> Iterator[Figure]:
    """Each figure, as soon as its rows have been run. Runs without privacy are not shown."""
    for figure in declared():
        experiment = replace(Experiment.named(figure.table), twins=False)
        pairs = run_rows(experiment, replace(asked, rows=tuple(map(int, figure.rows))), runs)
        if all(pairs.values()):  # some are missing if only finished runs are used
            yield _figure(figure, experiment, pairs, asked.overrides)


def _figure(figure: Declared, experiment: Experiment, pairs: dict[int, list[Pair]], overrides: Sequence[str]) -> Figure:
    several = len(figure.kinds) > 1
    lines = tuple(
        Line(f"{label}, {_model(kind)}" if several else label, kind, group, _curves(pairs[int(row)], kind))
        for group, (row, label) in enumerate(figure.rows.items())
        for kind in figure.kinds
    )
    seeds = " and ".join(map(str, sorted({pair.seed for row in pairs.values() for pair in row})))
    note = f"Each run ends at {experiment.target:.0%}. Seed: {seeds}."
    note += f" Overridden: {', '.join(overrides)}." if overrides else ""
    return Figure(figure.name, figure.title, experiment.target, lines, note)


def _model(kind: Kind) -> str:
    return "clients' own models" if kind == "personal" else "global model"


def _curves(pairs: list[Pair], kind: Kind) -> tuple[tuple[float, ...], ...]:
    def curve(run: Run) -> list[float]:
        return run.personal if kind == "personal" else run.released

    return tuple(tuple(curve(pair.private)) for pair in pairs)
