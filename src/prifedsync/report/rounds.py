"""The figure of a run's scores over its rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .curve import ACCENT, GREY, INK, PALE, WARN

COLUMNS = {  # of a run's history → what the line is called, and how it looks
    "personal_mean": ("personal models, mean over clients", WARN, "solid"),
    "personal_worst": ("personal models, worst client", WARN, "dot"),
    "released_mean": ("released model, mean over clients", ACCENT, "solid"),
    "released_worst": ("released model, worst client", ACCENT, "dot"),
}
BASELINE_COLOURS = (INK, GREY, PALE)  # as many as there are kinds of baselines
X_LABEL = "round"
TITLE = "Scores on the clients' own test records"
STYLES = {"solid": "-", "dash": "--", "dot": ":"}


@dataclass(frozen=True)
class Series:
    """One line of the figure: a score after each round that was evaluated."""

    label: str
    rounds: tuple[int, ...]
    scores: tuple[float, ...]
    colour: str
    dashes: str


def series(history: Iterable[Mapping[str, Any]], baselines: Mapping[str, float | None]) -> tuple[Series, ...]:
    """A line for each score of the history, and a level line for each baseline; without scores there are no lines."""
    rows = tuple(history)
    found = []
    for column, (label, colour, dashes) in COLUMNS.items():
        points = [(row["round"], row[column]) for row in rows if row[column] is not None]
        if points:
            rounds, scores = zip(*points, strict=True)
            found.append(Series(label, rounds, scores, colour, dashes))
    if not found:
        return ()
    ends = (min(each.rounds[0] for each in found), max(each.rounds[-1] for each in found))
    known = {label: score for label, score in baselines.items() if score is not None}
    for (label, score), colour in zip(known.items(), BASELINE_COLOURS, strict=False):
        found.append(Series(label, ends, (score, score), colour, "dash"))
    return tuple(found)


def figure(lines: tuple[Series, ...], metric: str) -> Any:
    """The lines as a matplotlib figure."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    drawn = Figure(figsize=(7.2, 5.2), dpi=160, layout="constrained")
    axes = drawn.add_subplot()
    for line in lines:
        alone = "o" if len(line.rounds) == 1 else ""  # a single round would have no line
        axes.plot(line.rounds, line.scores, STYLES[line.dashes] + alone, color=line.colour, label=line.label, linewidth=1.8)
    axes.set_xlabel(X_LABEL)
    axes.set_ylabel(metric)
    axes.set_title(TITLE, fontsize=13, color=INK, loc="left")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    drawn.legend(loc="outside lower left", frameon=False, fontsize=9, ncols=2)
    return drawn


def page(lines: tuple[Series, ...], metric: str) -> Any:
    """The lines as a plotly figure."""
    import plotly.graph_objects as go

    drawn = go.Figure()
    for line in lines:
        drawn.add_scatter(
            x=line.rounds,
            y=line.scores,
            name=line.label,
            mode="lines" if len(line.rounds) > 1 else "markers",
            line={"color": line.colour, "dash": line.dashes, "width": 2},
            hovertemplate=f"round %{{x}}<br>{metric} %{{y:.3f}}",
        )
    drawn.update_layout(
        title={"text": TITLE},
        xaxis={"title": X_LABEL},
        yaxis={"title": metric},
        template="plotly_white",
        font={"color": INK},
        legend={"orientation": "h", "y": -0.18},
        width=820,
        height=560,
    )
    return drawn
