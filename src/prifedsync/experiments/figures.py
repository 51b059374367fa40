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
    """Accuracies after each round, once for each seed."""

    label: str
    kind: Kind
    group: int  # lines of one row belong together
    runs: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Figure:
    """What one picture shows."""

    name: str
    title: str
    target: float
    lines: tuple[Line, ...]
    note: str


@dataclass(frozen=True)
class Declared:
    """A figure as the TOML file has it: rows of a table by their numbers, each with a label."""

    name: str
    title: str
    table: str
    rows: dict[str, str]
    kinds: list[Kind]


def declared() -> tuple[Declared, ...]:
    given = tomllib.loads((resources.files(__package__) / "figures.toml").read_text(encoding="utf-8"))
    return tuple(Declared(**figure) for figure in given["figures"])


def figures(asked: Asked, runs: Runs) -> Iterator[Figure]:
    """Each figure as soon as the rows it shows are there; those that are not are run. Twins are not shown."""
    for figure in declared():
        experiment = replace(Experiment.named(figure.table), twins=False)
        pairs = run_rows(experiment, replace(asked, rows=tuple(map(int, figure.rows))), runs)
        if all(pairs.values()):  # not so where only finished runs are wanted
            yield _figure(figure, experiment, pairs, asked.overrides)


def _figure(figure: Declared, experiment: Experiment, pairs: dict[int, list[Pair]], overrides: Sequence[str]) -> Figure:
    lines = tuple(
        Line(f"{label}, {_named(kind)}" if len(figure.kinds) > 1 else label, kind, group, _curves(pairs[int(row)], kind))
        for group, (row, label) in enumerate(figure.rows.items())
        for kind in figure.kinds
    )
    seeds = " and ".join(map(str, sorted({pair.seed for row in pairs.values() for pair in row})))
    note = f"Each run ends at {experiment.target:.0%}. Seed: {seeds}."
    note += f" Overridden: {', '.join(overrides)}." if overrides else ""
    return Figure(figure.name, figure.title, experiment.target, lines, note)


def _named(kind: Kind) -> str:
    return "clients' own models" if kind == "personal" else "global model"


def _curves(pairs: list[Pair], kind: Kind) -> tuple[tuple[float, ...], ...]:
    def curve(run: Run) -> list[float]:
        return run.personal if kind == "personal" else run.released

    return tuple(tuple(curve(pair.private)) for pair in pairs)
