"""The trade-off curve of a plan: as a PNG to put in a paper, or as one HTML file to point at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..fdp import TradeOff, gaussian
from ..fdp.bounds import Array
from ..values import BadValue

INK, ACCENT, WARN, PALE = "#1f2937", "#0f62a8", "#b45309", "#9ca3af"
TITLE = "What any attack must get wrong"
X_LABEL = "false alarms α: says yes of a record that is not so"
CERTIFIED = "certified, honest participation: no attack gets below"
Y_LABEL = "misses β: says no of a record that is so"


@dataclass(frozen=True)
class Line:
    """One curve of the picture."""

    label: str
    alpha: Array
    beta: Array
    colour: str
    dashes: str  # "solid", "dash" or "dot"


def lines(honest: TradeOff, worst_case: TradeOff, mu_paper: float | None) -> tuple[Line, ...]:
    """The curves worth showing: both certified lower bounds, blind guessing, and the paper's value, named asymptotic."""
    alpha = np.unique(np.concatenate((np.geomspace(1e-6, 0.1, 120), np.linspace(0.0, 1.0, 401))))
    found = [Line("blind guessing", alpha, 1 - alpha, PALE, "dot")]
    if worst_case is not honest:
        found.append(Line("certified, if others choose who takes part", alpha, worst_case(alpha), WARN, "solid"))
    found.append(Line(CERTIFIED, alpha, honest(alpha), ACCENT, "solid"))
    if mu_paper is not None and np.isfinite(mu_paper):
        found.append(
            Line(f"paper, asymptotic (no bound): μ = {mu_paper:.2f}", alpha, gaussian(mu_paper)(alpha), INK, "dash")
        )
    return tuple(found)


def draw(curves: tuple[Line, ...], note: str, path: Path) -> None:
    """Write the picture; the ending of the file's name chooses PNG or HTML."""
    if path.suffix == ".png":
        _png(curves, note, path)
    elif path.suffix == ".html":
        _html(curves, note, path)
    else:
        raise BadValue("out", path, "must end in .png or .html")


def _png(curves: tuple[Line, ...], note: str, path: Path) -> None:
    from matplotlib.figure import Figure

    styles = {"solid": "-", "dash": "--", "dot": ":"}
    figure = Figure(figsize=(7.2, 6.6), dpi=160, layout="constrained")
    axes = figure.add_subplot()
    for line in curves:
        axes.plot(line.alpha, line.beta, styles[line.dashes], color=line.colour, label=line.label, linewidth=1.8)
    certified = next(line for line in curves if line.label == CERTIFIED)
    axes.fill_between(certified.alpha, certified.beta, color=ACCENT, alpha=0.08, linewidth=0)
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel=X_LABEL, ylabel=Y_LABEL)
    axes.set_title(f"{TITLE}\n", fontsize=13, color=INK, loc="left")
    axes.text(0, 1.02, note, transform=axes.transAxes, fontsize=8.5, color=INK)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    figure.savefig(path)


def _html(curves: tuple[Line, ...], note: str, path: Path) -> None:
    import plotly.graph_objects as go

    figure = go.Figure()
    for line in curves:
        shade = {"fill": "tozeroy", "fillcolor": "rgba(15, 98, 168, 0.08)"} if line.label == CERTIFIED else {}
        figure.add_scatter(
            x=line.alpha,
            y=line.beta,
            name=line.label,
            line={"color": line.colour, "dash": line.dashes, "width": 2},
            hovertemplate="α = %{x:.3g}<br>β ≥ %{y:.4g}",
            **shade,
        )
    axis = {"range": [0, 1], "showgrid": True, "gridcolor": "#e5e7eb", "zeroline": False, "constrain": "domain"}
    figure.update_layout(
        title={"text": f"{TITLE}<br><sup>{note}</sup>"},
        xaxis={**axis, "title": X_LABEL},
        yaxis={**axis, "title": Y_LABEL, "scaleanchor": "x"},
        template="plotly_white",
        font={"color": INK},
        legend={"x": 0.98, "y": 0.98, "xanchor": "right"},
        width=820,
        height=780,
    )
    figure.write_html(path, include_plotlyjs=True, full_html=True)
