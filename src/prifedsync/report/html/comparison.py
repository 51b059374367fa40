"""Several runs on one page: scores against μ, one figure for each metric, and tables to copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...files import write_file
from ..utility import NAMES
from ..wording import many, small
from .charts import BLUE, GREY, ORANGE, Line, axis, figure, layout, legend, plain, short, wrapped
from .markup import Html, Inside, tag
from .page import whole
from .parts import Column, Section, capital, intervals, mark, paragraph, section, table
from .research import between, number
from .scale import TONES

if TYPE_CHECKING:
    from ..comparing import Compared, Comparison

TITLE = "Runs compared"
LEVEL = "non-private"  # the model that is drawn as a line
MOST_NAMED = 8  # points that are named in the figure
LONGEST = 22  # characters of a name in the figure
WIDTH = 590  # pixels of the axis of μ in a wide window; a narrow one has no names
HEIGHT = 313  # pixels between the lowest and the highest that is drawn
REACH = 1.15  # where the axis of μ ends, in largest μ
LINE = 14  # pixels that a name needs upwards
LETTER = 8  # pixels of a letter
SPACES = 2  # letters that the spaces around a name take
MARGIN = 24  # pixels beside the axis of μ, on its right
DOT = 6  # pixels from the middle of a point to its edge
LEVELS = {"middle": 0, "top": 15, "bottom": -15}  # of a name → pixels above its point


def write_comparison(comparison: Comparison, path: Path) -> None:
    """Write the comparison as a page."""
    write_file(path, comparison_page(comparison).encode())


def comparison_page(comparison: Comparison) -> str:
    """The page as text."""
    made = (_pictures(comparison.rows), _table(comparison), _copies(comparison))
    sections = [each for each in made if each is not None]
    count = paragraph(many(len(comparison.rows), "run"), "kicker")
    warned = [tag("p", mark("open", "warning"), " ", each) for each in comparison.warnings]
    opened = tag("div", count, tag("h1", TITLE), warned, class_="masthead")
    return whole(TITLE, sections, opened, None)


# ---------------------------------------------------------------------- figures


def _pictures(rows: Sequence[Compared]) -> Section | None:
    """A figure for each metric: scores by different metrics have no axis in common."""
    metrics = dict.fromkeys(row.metric for row in rows)
    by_metric = {metric: [row for row in rows if row.metric == metric] for metric in metrics}
    made = [_picture(f"comparison-{at}", metric, alike) for at, (metric, alike) in enumerate(by_metric.items(), start=1)]
    drawn = [each for each in made if each is not None]
    if not drawn:
        return None
    title = f"{capital(rows[0].metric)} against μ" if len(metrics) == 1 else "Scores against μ"
    return section("picture", title, drawn)


def _picture(name: str, metric: str, rows: Sequence[Compared]) -> Html | None:
    """One point for each run with a guarantee. `rows` share their metric."""
    private = [row for row in rows if row.mu is not None and row.mu.upper is not None and row.mean is not None]
    if not private:
        return None
    level = _level_of(rows)
    furthest = max(row.mu.upper or 0.0 for row in private if row.mu)
    across = axis("μ, upper bound", range=[0, REACH * furthest])
    shapes = [] if level is None else [_level(level[1])]
    drawn = layout(across, axis(plain(metric)), shapes=shapes, height=420)
    better = " Lower is better." if any(row.lower_is_better for row in private) else ""
    alt = f"{capital(metric)} of {many(len(private), 'run')}, against μ.{better} The table of runs has the same numbers."
    left_out = len(rows) - len(private)
    said = [
        paragraph(_which_model(private)),
        paragraph(f"{many(left_out, 'run')} without a μ or without a score: see the table.") if left_out else None,
        paragraph(intervals({row.unit for row in private})),
    ]
    return figure(
        name, f"{metric}, mean over clients, with its interval", alt, [_points(private, furthest, level)], drawn, said,
        legend=_legend(private, level),
    )  # fmt: skip


def _which_model(rows: Sequence[Compared]) -> str:
    models = dict.fromkeys(NAMES.get(row.model, row.model) for row in rows)
    return f"Scored is the model in use: {' or '.join(models)}."


def _legend(rows: Sequence[Compared], level: tuple[str, float] | None) -> Html:
    """Shapes tell runs from simulations, not colours alone."""
    kinds = {row.simulation for row in rows}
    points = [
        tag("li", _point(simulation), tag("span", "a simulation" if simulation else "a run that is not a simulation"))
        for simulation in (False, True)
        if simulation in kinds
    ]
    lines = []
    if level is not None:
        folder, score = level
        lines.append(Line(f"{NAMES[LEVEL]}, of {folder}: {score:.3f}", (), (), GREY, "dash"))
    return legend(lines, points)


def _point(simulation: bool) -> Html:
    """The shape that a run has in the figure."""
    if simulation:
        shape = tag("path", d="M17 0 23 6 17 12 11 6z", fill=ORANGE)
    else:
        shape = tag("circle", cx=17, cy=6, r=5, fill=BLUE)
    return tag("svg", shape, class_="swatch", viewBox="0 0 34 12", aria_hidden="true", focusable="false")


def _points(rows: Sequence[Compared], furthest: float, level: tuple[str, float] | None) -> dict[str, object]:
    above = [row.interval.high - (row.mean or 0.0) if row.interval else 0.0 for row in rows]
    below = [(row.mean or 0.0) - row.interval.low if row.interval else 0.0 for row in rows]
    places = _places(rows, furthest, [] if level is None else [level[1]])
    names = [f"  {plain(short(row.folder, LONGEST))}  " for row in rows]
    return {
        "type": "scatter", "mode": "markers+text" if len(rows) <= MOST_NAMED else "markers",
        "x": [row.mu.upper if row.mu else None for row in rows], "y": [row.mean for row in rows],
        "text": [name if place else "" for name, place in zip(names, places, strict=True)], "cliponaxis": False,
        "textposition": [place or "middle right" for place in places],
        "hovertext": [wrapped(_said(row)) for row in rows], "hoverinfo": "text",
        "error_y": {"type": "data", "array": above, "arrayminus": below, "color": GREY, "thickness": 1.5},
        "marker": {
            "size": 11, "color": [ORANGE if row.simulation else BLUE for row in rows],
            "symbol": ["diamond" if row.simulation else "circle" for row in rows],
        },
    }  # fmt: skip


@dataclass(frozen=True)
class _Box:
    """A name or a point of the figure, one line high, in pixels."""

    left: float
    right: float
    height: float

    def meets(self, other: _Box) -> bool:
        """Whether one lies over the other."""
        return abs(self.height - other.height) < LINE and self.left < other.right and other.left < self.right


def _places(rows: Sequence[Compared], furthest: float, levels: Sequence[float]) -> list[str | None]:
    """Where the name of each run stands: on the side that has more room, and where nothing is in its way. None: nowhere."""
    scores = [row.mean or 0.0 for row in rows]
    ends = [end for row in rows if row.interval for end in (row.interval.low, row.interval.high)]
    drawn = [*scores, *ends, *levels]
    up = HEIGHT / ((max(drawn) - min(drawn)) or 1.0)
    across = WIDTH / (REACH * (furthest or 1.0))
    points = [(_mu(row) * across, score * up) for row, score in zip(rows, scores, strict=True)]
    taken = [_Box(x - DOT, x + DOT, y) for x, y in points]
    found: list[str | None] = []
    for row, (x, y) in zip(rows, points, strict=True):
        sides = ("left", "right") if _mu(row) > furthest / 2 else ("right", "left")
        width = LETTER * (len(short(row.folder, LONGEST)) + SPACES)
        places = {f"{level} {side}": _box(side, x, y + LEVELS[level], width) for side in sides for level in LEVELS}
        inside = {place: box for place, box in places.items() if box.left >= 0 and box.right <= WIDTH + MARGIN}
        place = next((each for each, box in inside.items() if not any(map(box.meets, taken))), None)
        taken += [places[place]] if place else []
        found.append(place)
    return found


def _box(side: str, x: float, height: float, width: float) -> _Box:
    """A name beside the point at x."""
    return _Box(x + DOT, x + DOT + width, height) if side == "right" else _Box(x - DOT - width, x - DOT, height)


def _mu(row: Compared) -> float:
    return (row.mu.upper if row.mu else None) or 0.0


def _said(row: Compared) -> str:
    ends = f" ({row.interval.low:.3f}–{row.interval.high:.3f})" if row.interval else ""
    kind = ", a simulation" if row.simulation else ""
    cost = f"μ ≤ {row.mu.text}" if row.mu else "no guarantee"
    return f"{row.folder}{kind}: {cost}, {row.metric} {row.mean or 0.0:.3f}{ends}"


def _level_of(rows: Sequence[Compared]) -> tuple[str, float] | None:
    """The first run with a non-private model, and its score. Runs on different data have no such line in common."""
    if len({row.data for row in rows}) > 1:
        return None
    for row in rows:
        level = row.baselines.get(LEVEL)
        if level is not None:
            return row.folder, level
    return None


def _level(at: float) -> dict[str, object]:
    line = {"color": GREY, "width": 2, "dash": "dash"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": at, "y1": at, "line": line}


# ---------------------------------------------------------------------- tables


def _table(comparison: Comparison) -> Section:
    """Two things share a cell where one explains the other: so the table is no wider than the page."""
    numbers = [Column(head, numeric=True) for head in ("μ ≤", "ε ≤", "δ")]
    scores = [Column(head, numeric=True) for head in ("mean over clients, interval", "worst client")]
    columns: list[Column | str] = [Column("Run", wide=True), "Verdict", *numbers, "Metric, model in use", *scores]
    rows = [_row(row) for row in comparison.rows]
    said = intervals({row.unit for row in comparison.rows})
    return section("runs", "The runs", table("Runs, from the smallest μ", columns, rows), paragraph(said))


def _row(row: Compared) -> tuple[Inside, ...]:
    return (
        [row.folder, tag("span", row.title, class_="under"), mark("open", "simulation") if row.simulation else None],
        mark(TONES[row.decision], row.decision), row.mu.text if row.mu else None,
        row.epsilon.text if row.epsilon else None, None if row.delta is None else small(row.delta),
        [f"{row.metric}, lower is better" if row.lower_is_better else row.metric, _under(NAMES.get(row.model, row.model))],
        None if row.mean is None else [number(row.mean), _under(between(row.interval))], number(row.worst),
    )  # fmt: skip


def _under(said: str | None) -> Html | None:
    return tag("span", said, class_="under") if said else None


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
