"""Several runs on one page: accuracy against μ, and tables to copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...files import write_file
from ..wording import many, small
from .charts import BLUE, GREY, ORANGE, axis, figure, layout, plain, wrapped
from .markup import Html, Inside, tag
from .page import whole
from .parts import Column, Section, mark, paragraph, section, table
from .scale import TONES

if TYPE_CHECKING:
    from ..comparing import Compared, Comparison

TITLE = "Runs compared"


def write_comparison(comparison: Comparison, path: Path) -> None:
    """Write the comparison as a page."""
    write_file(path, comparison_page(comparison).encode())


def comparison_page(comparison: Comparison) -> str:
    """The page as text."""
    made = (_picture(comparison.rows), _table(comparison), _copies(comparison))
    sections = [each for each in made if each is not None]
    count = paragraph(many(len(comparison.rows), "run"), "kicker")
    warned = [tag("p", mark("open", "warning"), " ", each) for each in comparison.warnings]
    opened = tag("div", count, tag("h1", TITLE), warned, class_="masthead")
    return whole(TITLE, sections, opened, None)


def _picture(rows: Sequence[Compared]) -> Section | None:
    """One point for each run with a guarantee, and a level line for the best run that has none."""
    private = [row for row in rows if row.mu is not None and row.mu.upper is not None and row.mean is not None]
    if not private:
        return None
    metric = private[0].metric
    level = next(_levels(rows), None)
    text = plain(metric)
    shapes = [] if level is None else [_level(level)]
    furthest = max(row.mu.upper or 0.0 for row in private if row.mu)
    across = axis("μ, upper bound", range=[0, 1.3 * furthest])  # names stand to the right of their points
    drawn = layout(across, axis(text), shapes=shapes, height=420)
    alt = (
        f"{metric[:1].upper()}{metric[1:]} of {many(len(private), 'run')}, against μ. The table below has the same numbers."
    )
    note = None
    if level is not None:
        note = paragraph(f"The dashed line is the non-private model of the first run that has one: {metric} {level:.3f}.")
    return section(
        "picture", f"{metric[0].upper()}{metric[1:]} against μ",
        figure("comparison", f"{metric}, mean over clients, with its interval", alt, [_points(private)], drawn,
               note),
    )  # fmt: skip


def _points(rows: Sequence[Compared]) -> dict[str, object]:
    above = [row.interval.high - (row.mean or 0.0) if row.interval else 0.0 for row in rows]
    below = [(row.mean or 0.0) - row.interval.low if row.interval else 0.0 for row in rows]
    return {
        "type": "scatter", "mode": "markers+text" if len(rows) <= 8 else "markers",
        "x": [row.mu.upper if row.mu else None for row in rows], "y": [row.mean for row in rows],
        "text": [f"  {plain(row.folder)}" for row in rows], "textposition": "middle right", "cliponaxis": False,
        "hovertext": [wrapped(_said(row)) for row in rows], "hoverinfo": "text",
        "error_y": {"type": "data", "array": above, "arrayminus": below, "color": GREY, "thickness": 1.5},
        "marker": {
            "size": 11, "color": [ORANGE if row.simulation else BLUE for row in rows],
            "symbol": ["diamond" if row.simulation else "circle" for row in rows],
        },
    }  # fmt: skip


def _said(row: Compared) -> str:
    ends = f" ({row.interval.low:.3f}–{row.interval.high:.3f})" if row.interval else ""
    kind = ", a simulation" if row.simulation else ""
    cost = f"μ ≤ {row.mu.text}" if row.mu else "no guarantee"
    return f"{row.folder}{kind}: {cost}, {row.metric} {row.mean or 0.0:.3f}{ends}"


def _levels(rows: Sequence[Compared]) -> Iterator[float]:
    for row in rows:
        level = row.baselines.get("non-private")
        if level is not None:
            yield level


def _level(at: float) -> dict[str, object]:
    line = {"color": GREY, "width": 2, "dash": "dash"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": at, "y1": at, "line": line}


def _table(comparison: Comparison) -> Section:
    numbers = [Column(head, numeric=True) for head in ("μ ≤", "ε ≤", "δ")]
    scores = [Column(head, numeric=True) for head in ("mean over clients", "its interval", "worst client")]
    columns: list[Column | str] = [Column("Run", wide=True), *numbers, "Metric", *scores, "Verdict"]
    return section("runs", "The runs", table("Runs, from the smallest μ", columns, [_row(row) for row in comparison.rows]))


def _row(row: Compared) -> tuple[Inside, ...]:
    kind = ", ".join([row.title, *(["simulation"] if row.simulation else [])])
    return (
        [row.folder, tag("span", kind, class_="under")],
        row.mu.text if row.mu else None, row.epsilon.text if row.epsilon else None,
        None if row.delta is None else small(row.delta), row.metric, _score(row.mean),
        f"{row.interval.low:.3f}–{row.interval.high:.3f}" if row.interval else None, _score(row.worst),
        mark(TONES[row.decision], row.decision),
    )  # fmt: skip


def _score(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"


def _copies(comparison: Comparison) -> Section:
    return section(
        "copies", "The table to copy",
        _copy("markdown", "Markdown", comparison.markdown), _copy("latex", "LaTeX", comparison.latex),
    )  # fmt: skip


def _copy(name: str, kind: str, text: str) -> Html:
    """A button, and the text itself for where a page may not write to the clipboard."""
    button = tag("button", f"Copy as {kind}", type="button", data_copy=name, class_="needs-script")
    said = tag("output", for_=name, class_="copied", role="status")
    lines = min(16, text.count("\n") + 2)
    area = tag("textarea", text, id=name, readonly=True, rows=lines, spellcheck="false", wrap="off")
    return tag("div", tag("h3", tag("label", kind, for_=name)), button, said, area, class_="copy")
