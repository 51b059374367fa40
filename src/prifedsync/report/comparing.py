"""Several runs beside each other: accuracy against μ, and tables to be copied as Markdown and LaTeX."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import __version__
from ..scores import Interval
from ..values import BadValue, one_line
from .card import table
from .contents import VERSION, Report
from .guarantee import Stated
from .reproducing import Reproducing, digest
from .sources import REMEDY
from .utility import COVERED, NAMES
from .wording import mean_between, score, small

HEADS = ("run", "μ ≤", "ε ≤", "δ", "metric", "model", "mean over clients", "worst client", "verdict")
COLUMNS = "lrrrllrrl"  # of the same in LaTeX
DIFFERENT = "These runs are on different data: their sources, paths or columns differ, as those of a copy elsewhere do."
ADD_UP = "Runs on the same records add up: together they leak more than any one of them."
UNKNOWN = "Whether some of these runs are on the same records cannot be told from their files."
LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
        "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "≤": r"$\leq$", "μ": r"$\mu$", "ε": r"$\varepsilon$",
        "δ": r"$\delta$", "–": "--", "∞": r"$\infty$", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
        "[": "{[}", "*": "{*}",  # which would belong to the end of the line before
    }
)  # fmt: skip


@dataclass(frozen=True)
class Compared:
    """One run: what it cost and how good the model in use is. μ and ε are None where there is no guarantee.

    mu, epsilon  given who took part, where these are larger: the verdict is about the same
    data     a digest of where the records came from and of the columns that were used
    records  a digest of where they came from; "" where the files do not say it
    model    the model in use, which the scores are of
    """

    folder: str
    title: str
    mu: Stated | None
    epsilon: Stated | None
    delta: float | None
    unit: str
    neighbours: str
    simulation: bool
    data: str
    records: str
    metric: str
    lower_is_better: bool
    model: str
    mean: float | None
    interval: Interval | None
    worst: float | None
    baselines: dict[str, float | None]
    decision: str


@dataclass(frozen=True)
class Comparison:
    """All runs, from the smallest μ to the largest. `warnings`: why some of them cannot be compared."""

    rows: tuple[Compared, ...]
    warnings: tuple[str, ...]
    markdown: str
    latex: str
    made_with: str = __version__
    report_version: int = VERSION

    def as_json(self) -> dict[str, Any]:
        """The same as JSON has it."""
        return dataclasses.asdict(self)

    def text(self) -> str:
        """The same as the text of a file."""
        return json.dumps(self.as_json(), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def comparison_of(reports: Sequence[Report]) -> Comparison:
    """Of finished runs."""
    unfinished = [report.folder for report in reports if not report.run.finished]
    if unfinished:
        raise BadValue("run", unfinished[0], "is not finished", "compare finished runs, or report on it alone")
    rows = tuple(sorted(map(_read, reports), key=_size))
    return Comparison(rows, tuple(_warnings(rows)), "\n".join(table(HEADS, map(_cells, rows))), _latex(rows))


def _size(row: Compared) -> float:
    return float("inf") if row.mu is None or row.mu.upper is None else row.mu.upper


def _read(report: Report) -> Compared:
    try:
        return _row(report)
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        raise BadValue("record", report.folder, f"cannot be read: {error!r}", REMEDY) from error


def _row(report: Report) -> Compared:
    utility = report.utility
    guarantee = report.guarantee
    made = report.reproducing
    assert utility is not None
    assert made is not None
    first = {each.model: each for each in utility.scores if each.metric == utility.metric}
    used = first.get(utility.in_use)
    return Compared(
        folder=report.folder,
        title=report.title,
        mu=guarantee.known["mu"] if guarantee else None,
        epsilon=guarantee.known["epsilon"] if guarantee else None,
        delta=guarantee.delta if guarantee else None,
        unit=report.run.unit,
        neighbours=guarantee.neighbours if guarantee else "",
        simulation=report.run.simulation,
        data=_data(made),
        records=made.records,
        metric=utility.metric,
        lower_is_better=utility.lower_is_better,
        model=utility.in_use,
        mean=used.mean if used else None,
        interval=used.interval if used else None,
        worst=used.worst if used else None,
        baselines={name: each.mean for name, each in first.items() if name not in COVERED},
        decision=report.verdict.decision,
    )


def _data(made: Reproducing) -> str:
    """The path is not printed: a digest tells tables apart."""
    data = made.config["data"]
    return digest([data["source"], made.records or data.get("path", ""), sorted(data.get("columns", ()))])


def _warnings(rows: Sequence[Compared]) -> Iterable[str]:
    """Numbers that look alike and are not."""
    private = [row for row in rows if row.mu is not None]
    if len({row.delta for row in private}) > 1:
        yield "These runs state ε at different δ: compare μ, or state ε at one δ."
    if len({row.neighbours for row in private}) > 1:
        yield "These runs have different adjacency relations: their numbers cannot be compared."
    if len({row.unit for row in private}) > 1:
        yield "Some runs protect records and others persons: their numbers cannot be compared."
    if len({row.metric for row in rows}) > 1:
        yield "These runs have different metrics."
    if len({row.data for row in rows}) > 1:
        yield DIFFERENT
    if any(row.simulation for row in rows):
        yield "Some runs are simulations: their numbers are of the algorithm, not of their files."
    yield from _adding_up(rows)


def _adding_up(rows: Sequence[Compared]) -> Iterable[str]:
    """Of simulations nothing adds up: their draws are known."""
    real = [row for row in rows if not row.simulation]
    known = [row.records for row in real if row.records]
    if len(known) > len(set(known)):
        yield ADD_UP
    elif len(real) > 1 and len(known) < len(real):
        yield f"{UNKNOWN} {ADD_UP}"


def _cells(row: Compared) -> list[str]:
    return [
        row.folder + (" (simulation)" if row.simulation else ""),
        row.mu.text if row.mu else "–",
        row.epsilon.text if row.epsilon else "–",
        "–" if row.delta is None else small(row.delta),
        row.metric,
        NAMES.get(row.model, row.model),
        mean_between(row.mean, row.interval),
        score(row.worst),
        row.decision,
    ]


def _latex(rows: Sequence[Compared]) -> str:
    lines = [rf"\begin{{tabular}}{{{COLUMNS}}}", r"\hline", _line(HEADS), r"\hline"]
    lines += [_line(_cells(row)) for row in rows]
    return "\n".join([*lines, r"\hline", r"\end{tabular}"])


def _line(cells: Iterable[str]) -> str:
    return " & ".join(one_line(cell).translate(LATEX) for cell in cells) + r" \\"
