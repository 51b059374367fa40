"""The trade-off curve of a plan, as a PNG file or as an interactive HTML file."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..fdp import gaussian
from ..fdp.bounds import Array
from ..values import BadValue

INK = "#1f2937"
ACCENT = "#0f62a8"
WARN = "#b45309"
GREY = "#6b7280"
PALE = "#9ca3af"
TITLE = "Lower bounds on the error rates of any attack"
X_LABEL = "false positive rate α"
Y_LABEL = "false negative rate β"
GUESSING = "random guessing, β = 1 − α"
CERTIFIED = "certified lower bound, honest participation"
WORST_CASE = "certified lower bound, worst-case participation"
PAPER = "the paper's asymptotic value, not a bound"
Curve = Callable[[Array], Array]  # α → a lower bound on β: a `TradeOff`, or the lowest of several
NOTE_WIDTH = 96  # characters in one line under the title


@dataclass(frozen=True)
class Line:
    """One curve of the figure."""

    label: str
    alpha: Array
    beta: Array
    colour: str
    dashes: str  # "solid", "dash" or "dot"


def lines(honest: Curve, worst_case: Curve, mu_paper: float | None) -> tuple[Line, ...]:
    """Both certified lower bounds, random guessing, and the paper's value."""
    alpha = np.unique(np.concatenate((np.geomspace(1e-6, 0.1, 120), np.linspace(0.0, 1.0, 401))))
    found = [Line(GUESSING, alpha, 1 - alpha, PALE, "dot")]
    if worst_case is not honest:
        found.append(Line(WORST_CASE, alpha, worst_case(alpha), WARN, "solid"))
    found.append(Line(CERTIFIED, alpha, honest(alpha), ACCENT, "solid"))
    if mu_paper is not None and np.isfinite(mu_paper):
        found.append(Line(f"{PAPER}: μ = {mu_paper:.2f}", alpha, gaussian(mu_paper)(alpha), INK, "dash"))
    return tuple(found)


def draw(curves: tuple[Line, ...], note: str, path: Path) -> None:
    """Write the figure. The suffix of the file name chooses PNG or HTML."""
    if path.suffix == ".png":
        figure(curves, note).savefig(path)
    elif path.suffix == ".html":
        page(curves, note).write_html(path, include_plotlyjs=True, full_html=True)
    else:
        raise BadValue("out", path, "must end in .png or .html")


def figure(curves: tuple[Line, ...], note: str) -> Any:
    """The curves as a matplotlib figure."""
    from matplotlib.figure import Figure

    styles = {"solid": "-", "dash": "--", "dot": ":"}
    drawn = Figure(figsize=(7.2, 6.6), dpi=160, layout="constrained")
    axes = drawn.add_subplot()
    for line in curves:
        axes.plot(line.alpha, line.beta, styles[line.dashes], color=line.colour, label=line.label, linewidth=1.8)
    certified = next(line for line in curves if line.label == CERTIFIED)
    axes.fill_between(certified.alpha, certified.beta, color=ACCENT, alpha=0.08, linewidth=0)
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel=X_LABEL, ylabel=Y_LABEL)
    text = textwrap.fill(note, NOTE_WIDTH)
    axes.set_title(TITLE + "\n" * (1 + text.count("\n")), fontsize=13, color=INK, loc="left")
    axes.text(0, 1.02, text, transform=axes.transAxes, fontsize=8.5, color=INK)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    return drawn


def page(curves: tuple[Line, ...], note: str) -> Any:
    """The curves as a plotly figure."""
    import plotly.graph_objects as go

    drawn = go.Figure()
    for line in curves:
        shade = {"fill": "tozeroy", "fillcolor": "rgba(15, 98, 168, 0.08)"} if line.label == CERTIFIED else {}
        sign = "≥" if line.label in (CERTIFIED, WORST_CASE) else "="
        drawn.add_scatter(
            x=line.alpha,
            y=line.beta,
            name=line.label,
            line={"color": line.colour, "dash": line.dashes, "width": 2},
            hovertemplate=f"α = %{{x:.3g}}<br>β {sign} %{{y:.4g}}",
            **shade,
        )
    axis = {"range": [0, 1], "showgrid": True, "gridcolor": "#e5e7eb", "zeroline": False, "constrain": "domain"}
    drawn.update_layout(
        title={"text": f"{TITLE}<br><sup>{note}</sup>"},
        xaxis={**axis, "title": X_LABEL},
        yaxis={**axis, "title": Y_LABEL, "scaleanchor": "x"},
        template="plotly_white",
        font={"color": INK},
        legend={"x": 0.98, "y": 0.98, "xanchor": "right"},
        width=820,
        height=780,
    )
    return drawn
