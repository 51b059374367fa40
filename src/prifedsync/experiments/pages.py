"""The paper's tables as a page: every privacy number rounded to its safe side."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..accounting.statement import up
from ..files import write_file

HEADINGS = ("p", "σ", "B", "R paper", "R here", "ratio", "own", "global", "non-private", "μ paper", "μ CLT")
CERTIFIED = ("p", "σ", "B", "R", "μ paper", "fixed: μ ≤", "ε ≤", "Poisson: μ ≤", "ε ≤", "others choose, fixed: ε ≤")
PRINTED = "at_the_papers_rounds"
OVERRIDDEN = "Overridden here: {}. What the paper prints, and what that costs, is of its own settings."
COSTS = (
    "The μ that the paper prints is the limit of a central limit theorem for batches of a fixed size, and no bound. Below "
    "is what is certified (δ = {delta:g}; μ for α in 1e-5 … 1−1e-5; upper ends) for batches of a fixed size, as in the "
    "paper, and for Poisson batches at the same noise. Clients toss their own coins; the last column is for when somebody "
    "else chooses who takes part."
)


def reached_cells(table: Mapping[str, Any]) -> list[list[str]]:
    """A line a row: what was reached when."""
    lines = []
    for row in table["rows"]:
        runs = row["runs"]
        rounds = ", ".join(f"{run['rounds']}" if run["reached"] else f"> {run['rounds']}" for run in runs) or "–"
        ratio = "–" if row["rounds_over_paper"] is None else f"{row['rounds_over_paper']:.2f}"
        shown = [_mean(runs, key) for key in ("accuracy", "global", "nonprivate")]
        mu = f"{row['at_the_papers_rounds']['mu_clt']:.2f}"
        lines.append([*_setting(row), str(row["paper"]["rounds"]), rounds, ratio, *shown, f"{row['paper']['mu']:.2f}", mu])
    return lines


def certified_cells(table: Mapping[str, Any], which: str) -> list[list[str]]:
    """A line a row: what so many rounds cost, on the safe side; `which` is one of the costs of a row."""
    lines = []
    for row in table["rows"]:
        cost = row[which]
        if cost is None:  # not run
            continue
        fixed, poisson = cost["fixed"], cost["poisson"]
        worst = fixed["worst_case_participation"]["epsilon"]
        shown = [fixed["mu"], fixed["epsilon"], poisson["mu"], poisson["epsilon"], worst]
        setting = _setting(row["paper"] if which == PRINTED else row)
        lines.append([*setting, str(cost["rounds"]), f"{row['paper']['mu']:.2f}", *(_upper(each) for each in shown)])
    return lines


def _setting(row: Mapping[str, Any]) -> list[str]:
    return [f"{row['participation']:g}", f"{row['sigma']:g}", str(row["batch"])]


def _mean(runs: Sequence[Mapping[str, Any]], key: str) -> str:
    there = [run for run in runs if run[key] is not None]
    if not there:
        return "–"
    fewer = f" ({_seeds(there)})" if len(there) < len(runs) else ""
    return f"{statistics.fmean(run[key] for run in there):.2f}{fewer}"


def _upper(bound: Mapping[str, float | None]) -> str:
    return "∞" if bound["upper"] is None else up(bound["upper"], 4)


def summary(table: Mapping[str, Any]) -> list[tuple[str, Sequence[str], list[list[str]]]]:
    """The rows that were run in two short tables for a terminal, each as a title, headings and cells."""
    ran = dict(table, rows=[row for row in table["rows"] if row["runs"]])
    reached = [row[:-1] for row in reached_cells(ran)]  # what the central limit theorem says is on the page
    planned = "At the rounds planned: what is certified, beside what the paper prints (a limit, no bound)"
    copies = max((row["copies"] for row in ran["rows"]), default=1)
    if copies > 1:
        planned += f", for a record that up to {copies} clients hold"
    return [
        (f"{table['title']}: rounds until {table['target']:.0%}", HEADINGS[:-1], reached),
        (planned, CERTIFIED, certified_cells(ran, "planned")),
    ]


def write(table: Mapping[str, Any], command: str, folder: Path) -> None:
    """The table for programs, and as a page."""
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / f"{table['table']}.json", f"{json.dumps(table, indent=1, allow_nan=False)}\n".encode())
    write_file(folder / f"{table['table']}.md", markdown(table, command).encode())


def markdown(table: Mapping[str, Any], command: str) -> str:
    """The table as a page."""
    parts = [
        f"# {table['title']}",
        f"`{command}`",
        _ran(table),
        _how(table),
        *([OVERRIDDEN.format(", ".join(table["overrides"]))] if table["overrides"] else []),
        _lines(HEADINGS, reached_cells(table)),
        *([table["sentence"]] if table.get("sentence") else []),
        "## What it costs",
        COSTS.format(delta=table["delta"]),
        "At the rounds and settings that the paper prints, had they been planned, in exact arithmetic:",
        _lines(CERTIFIED, certified_cells(table, PRINTED)),
        *_planned(table),
    ]
    return "\n\n".join(parts) + "\n"


def _ran(table: Mapping[str, Any]) -> str:
    versions = "; ".join(", ".join(f"{name} {version}" for name, version in each.items()) for each in table["versions"])
    runs = [run for row in table["rows"] for run in row["runs"]]
    if not runs:
        return "Nothing of it has been run."
    return (
        f"{', '.join(table['device'])}; {versions}; {table['seconds']:.0f} s of runs; {_seeds(runs)}. Simulations on "
        "public data: the draws are seeded and can be repeated, the rounding of a GPU cannot."
    )


def _seeds(runs: Sequence[Mapping[str, Any]]) -> str:
    seeds = sorted({run["seed"] for run in runs})
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def _how(table: Mapping[str, Any]) -> str:
    several = any(len(row["runs"]) > 1 for row in table["rows"])
    return (
        f"R is the first round after which the clients' own models have a mean accuracy of {table['target']:.0%} just "
        f"before synchronisation{' (a number a seed; the ratio is that of the median)' if several else ''}: a stop that "
        "depends on the data, as in the paper. Beside it are the mean accuracies (in percent"
        f"{', means over seeds' if several else ''}) after that round of the clients' own models, of the global model on "
        "every client's test records, and of the clients' own models trained without privacy for as many rounds."
    )


def _planned(table: Mapping[str, Any]) -> list[str]:
    """What holds for the runs; where clients overlap, for a record that many hold, and what that makes of it."""
    rows = [row for row in table["rows"] if row["runs"]]
    if not rows:
        return []
    drawn = " and ".join(sorted({row["sampling"] for row in rows}))
    text = f"At the rounds planned here ({drawn} batches), which is what holds for runs that were ended by their accuracy"
    copies = max(row["copies"] for row in rows)
    if copies == 1:
        return [f"{text}:", _lines(CERTIFIED, certified_cells(table, "planned"))]
    return [
        f"{text}. Clients were drawn with overlap, as the authors draw them; one record lies with up to {copies} clients "
        "and leaks through all of them:",
        _lines(CERTIFIED, certified_cells(table, "planned")),
        "Counting one of its holders only, as the paper does:",
        _lines(CERTIFIED, certified_cells(table, "planned_counting_one_holder")),
    ]


def _lines(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    rows = [headings, ["---"] * len(headings), *cells]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
