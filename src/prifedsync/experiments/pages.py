"""The paper's tables as a page. Every privacy number is rounded to the safe side."""

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
OVERRIDDEN = "Overridden here: {}. The numbers from the paper, and their privacy, are for the paper's own settings."
COSTS = (
    "The μ in the paper is the limit of a central limit theorem for batches of a fixed size. It is no bound. The tables "
    "below have certified upper bounds (δ = {delta:g}; μ for α in 1e-5 … 1−1e-5), for batches of a fixed size, as in the "
    "paper, and for Poisson batches with the same noise. They hold if each client decides by its own coin whether it takes "
    "part. The last column is for the case that others choose who takes part."
)


def reached_cells(table: Mapping[str, Any]) -> list[list[str]]:
    """One line per row: the rounds until the target, and the accuracies."""
    lines = []
    for row in table["rows"]:
        runs = row["runs"]
        each = [f"{run['rounds']}" if run["reached"] else f"> {run['rounds']}" for run in runs]
        rounds = ", ".join(each) or "–"
        ratio = "–" if row["rounds_over_paper"] is None else f"{row['rounds_over_paper']:.2f}"
        accuracies = [_mean(runs, key) for key in ("accuracy", "global", "nonprivate")]
        mus = [f"{row['paper']['mu']:.2f}", f"{row['at_the_papers_rounds']['mu_clt']:.2f}"]
        lines.append([*_setting(row), str(row["paper"]["rounds"]), rounds, ratio, *accuracies, *mus])
    return lines


def certified_cells(table: Mapping[str, Any], which: str) -> list[list[str]]:
    """One line per row: certified bounds, rounded to the safe side. `which` names one of the costs of a row."""
    lines = []
    for row in table["rows"]:
        cost = row[which]
        if cost is None:  # not run
            continue
        fixed = cost["fixed"]
        poisson = cost["poisson"]
        worst = fixed["worst_case_participation"]["epsilon"]
        bounds = [fixed["mu"], fixed["epsilon"], poisson["mu"], poisson["epsilon"], worst]
        setting = _setting(row["paper"] if which == PRINTED else row)
        lines.append([*setting, str(cost["rounds"]), f"{row['paper']['mu']:.2f}", *map(_upper, bounds)])
    return lines


def _setting(row: Mapping[str, Any]) -> list[str]:
    return [f"{row['participation']:g}", f"{row['sigma']:g}", str(row["batch"])]


def _mean(runs: Sequence[Mapping[str, Any]], key: str) -> str:
    known = [run for run in runs if run[key] is not None]
    if not known:
        return "–"
    seeds = f" ({_seeds(known)})" if len(known) < len(runs) else ""
    return f"{statistics.fmean(run[key] for run in known):.2f}{seeds}"


def _upper(bound: Mapping[str, float | None]) -> str:
    return "∞" if bound["upper"] is None else up(bound["upper"], 4)


def summary(table: Mapping[str, Any]) -> list[tuple[str, Sequence[str], list[list[str]]]]:
    """The rows that were run, as two short tables for a terminal: title, headings and cells of each."""
    ran = dict(table, rows=[row for row in table["rows"] if row["runs"]])
    reached = [row[:-1] for row in reached_cells(ran)]  # the μ of the central limit theorem is on the page only
    planned = "Certified bounds for the planned rounds, beside the paper's μ (a limit, no bound)"
    copies = max((row["copies"] for row in ran["rows"]), default=1)
    if copies > 1:
        planned += f", for a record that up to {copies} clients hold"
    return [
        (f"{table['title']}: rounds until {table['target']:.0%}", HEADINGS[:-1], reached),
        (planned, CERTIFIED, certified_cells(ran, "planned")),
    ]


def write(table: Mapping[str, Any], command: str, folder: Path) -> None:
    """Write the table as JSON and as a page."""
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps(table, indent=1, allow_nan=False)
    write_file(folder / f"{table['table']}.json", f"{content}\n".encode())
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
        "## Privacy",
        COSTS.format(delta=table["delta"]),
        "For a plan with the rounds and settings of the paper, in exact arithmetic:",
        _lines(CERTIFIED, certified_cells(table, PRINTED)),
        *_planned(table),
    ]
    return "\n\n".join(parts) + "\n"


def _ran(table: Mapping[str, Any]) -> str:
    packages = [", ".join(f"{name} {version}" for name, version in each.items()) for each in table["versions"]]
    versions = "; ".join(packages)
    runs = [run for row in table["rows"] for run in row["runs"]]
    if not runs:
        return "No row has been run."
    return (
        f"{', '.join(table['device'])}; {versions}; {table['seconds']:.0f} s of runs; {_seeds(runs)}. "
        "The runs are simulations on public data: their draws are seeded and can be repeated, "
        "but the rounding of a GPU cannot."
    )


def _seeds(runs: Sequence[Mapping[str, Any]]) -> str:
    seeds = sorted({run["seed"] for run in runs})
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def _how(table: Mapping[str, Any]) -> str:
    several = any(len(row["runs"]) > 1 for row in table["rows"])
    each_seed = " R has one number per seed, and the ratio is that of the median." if several else ""
    over_seeds = " and over seeds" if several else ""
    return (
        f"R is the first round after which the clients' own models have a mean accuracy of {table['target']:.0%}, measured "
        f"just before synchronisation. As in the paper, a run ends there: the stop depends on the data.{each_seed} "
        f"The accuracies are those after that round, in percent, as means over clients{over_seeds}: of the clients' own "
        "models, of the global model on each client's test records, and of the clients' own models trained without privacy "
        "for as many rounds."
    )


def _planned(table: Mapping[str, Any]) -> list[str]:
    """The bounds for the planned rounds. Where clients overlap, also those that count one holder of a record only."""
    rows = [row for row in table["rows"] if row["runs"]]
    if not rows:
        return []
    drawn = " and ".join(sorted({row["sampling"] for row in rows}))
    text = f"For all rounds planned here ({drawn} batches). These bounds hold although the accuracy decides when a run ends"
    copies = max(row["copies"] for row in rows)
    if copies == 1:
        return [f"{text}:", _lines(CERTIFIED, certified_cells(table, "planned"))]
    return [
        f"{text}. Clients overlap, as in the authors' code: up to {copies} clients hold the same record, and it leaks "
        "through all of them:",
        _lines(CERTIFIED, certified_cells(table, "planned")),
        "If only one holder of a record is counted, as in the paper:",
        _lines(CERTIFIED, certified_cells(table, "planned_counting_one_holder")),
    ]


def _lines(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    rows = [headings, ["---"] * len(headings), *cells]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
