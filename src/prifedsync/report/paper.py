"""The figures of the paper's evaluation: subsampling, accuracy over rounds, and the counterexample to Theorem 1."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.special import ndtr

from ..fdp import fixed_size, gaussian
from ..fdp.bounds import Array
from ..values import BadValue, number, whole
from .curve import ACCENT, INK, PALE, WARN, X_LABEL, Y_LABEL, Line

SIGNAL, SAMPLED = 1.8, 0.35  # μ and p of `fig:cpf`
# of groups; they differ in lightness too, for readers with colour blindness
COLOURS = (ACCENT, WARN, "#5fb49c", INK)
DASHES = {"personal": "-", "global": "--", "non-private": ":"}
LEGEND_WIDTH = 112  # characters in one line of the legend; a key with its gaps counts as nine


@dataclass(frozen=True)
class Accuracy:
    """The accuracy of one setting over rounds, measured every `every` rounds, once for each seed."""

    label: str
    runs: Sequence[Sequence[float]]
    kind: Literal["personal", "global", "non-private"] = "personal"  # chooses the dashes
    group: int = 0  # lines of one group have one colour
    every: int = 1

    def __post_init__(self) -> None:
        whole("every", self.every, 1)
        if not self.runs or not all(len(run) for run in self.runs):
            rule = "must hold a sequence of accuracies for each seed"
            raise BadValue("runs", self.runs, rule, "give at least one accuracy for each")
        if self.kind not in DASHES:
            raise BadValue("kind", self.kind, f"must be one of {', '.join(DASHES)}")
        if self.group not in range(len(COLOURS)):
            raise BadValue("group", self.group, f"must be one of 0 … {len(COLOURS) - 1}", "draw fewer lines")
        for value in np.concatenate([np.asarray(run, float) for run in self.runs]):
            number("accuracy", value, 0, 1, remedy="give 0.9 for 90 %")

    def mean(self) -> Array:
        """The mean over the seeds, up to the last round that all of them reached."""
        common = min(len(run) for run in self.runs)
        return np.asarray(np.mean([run[:common] for run in self.runs], axis=0))


def amplified() -> tuple[Line, ...]:
    """The identity, f_p, its inverse, and the certified lower bound of C_p(f) = min{f_p, f_p⁻¹}**."""
    alpha = np.unique(np.concatenate((np.geomspace(1e-6, 0.1, 120), np.linspace(0.0, 1.0, 1001))))  # steep at 0
    sampled = SAMPLED * gaussian(SIGNAL)(alpha) + (1 - SAMPLED) * (1 - alpha)
    name = rf"$C_p(f)$ for $f = G_{{{SIGNAL:g}}}$, $p = {SAMPLED:g}$"
    return (
        Line(r"identity $1 - \alpha$: no leakage", alpha, 1 - alpha, PALE, "dot"),
        Line(name, alpha, fixed_size(gaussian(SIGNAL), SAMPLED)(alpha), ACCENT, "solid"),
        Line(r"$f_p = p f + (1 - p)\,\mathrm{Id}$", alpha, sampled, WARN, "dash"),
        Line(r"$f_p^{-1}$", sampled[::-1], alpha[::-1], INK, "dash"),  # the same points, coordinates exchanged
    )


def amplification_figure() -> Any:
    """C_p(G_1.8) for p = 0.35 and the two curves that it is made from (`fig:cpf`)."""
    figure, axes = _paper(
        (7.2, 7.0),
        "Privacy amplification by subsampling",
        r"$C_p(f)$ = min{$f_p$, $f_p^{-1}$}**: the largest convex function below both",
    )
    for line in amplified():
        thick, style = line.dashes == "solid", {"solid": "-", "dash": "--", "dot": ":"}[line.dashes]
        axes.plot(
            line.alpha,
            line.beta,
            style,
            color=line.colour,
            label=line.label,
            linewidth=3.4 if thick else 1.6,
            alpha=0.55 if thick else 1.0,
        )
    _straight_part(axes)
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel=X_LABEL, ylabel=Y_LABEL)
    axes.legend(frameon=False, fontsize=10.5, loc="upper right")  # all curves are below the identity
    return figure


def _straight_part(axes: Any) -> None:
    """Mark where C_p is straight: it has slope −1 across the corner that the minimum has where the two curves cross."""
    left = float(ndtr(-SIGNAL / 2))  # f_p has slope −1 where G_μ has, which is where G_μ(α) = α
    right = SAMPLED * left + (1 - SAMPLED) * (1 - left)
    axes.plot([left, right], [right, left], "o", color=ACCENT, markersize=5.5)
    axes.annotate(
        "straight between the dots",
        ((left + right) / 2, (left + right) / 2),
        xytext=(-28, -34),
        textcoords="offset points",
        ha="right",
        fontsize=9.5,
        color=ACCENT,
        arrowprops={"arrowstyle": "-", "color": ACCENT, "linewidth": 0.9},
    )


def accuracy_figure(title: str, lines: Sequence[Accuracy], target: float, note: str) -> Any:
    """Accuracies over rounds, with the target as a horizontal line."""
    target = number("target", target, 0, 1, remedy="give 0.9 for 90 %")
    figure, axes = _paper((7.6, 5.4), title, note)
    for line in lines:
        look = {"color": COLOURS[line.group], "linestyle": DASHES[line.kind]}
        if len(line.runs) > 1:
            for run in line.runs:
                axes.plot(_rounds(run, line), 100 * np.asarray(run), linewidth=0.8, alpha=0.45, **look)
        mean = line.mean()
        axes.plot(_rounds(mean, line), 100 * mean, linewidth=2.2, label=line.label, **look)
    axes.axhline(100 * target, color=PALE, linewidth=1.2, zorder=0)
    axes.annotate(  # outside the plot, where it covers no line
        f"target\n{100 * target:g} %",
        (1.0, 100 * target),
        xycoords=("axes fraction", "data"),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        fontsize=9.5,
        color=INK,
    )
    axes.set_ylabel("mean accuracy on test records, in percent")
    _over_rounds(axes)
    figure.legend(
        loc="outside lower center",
        ncols=_columns(lines),
        frameon=False,
        fontsize=9.5,
        title="thin: one seed; thick: mean over the seeds" if any(len(x.runs) > 1 for x in lines) else None,
        title_fontsize=9,
    )
    return figure


def _columns(lines: Sequence[Accuracy]) -> int:
    """One column for each group, or for each line if there is one group; fewer if that is too wide."""
    groups, longest = len({line.group for line in lines}), max(len(line.label) for line in lines)
    return max(1, min(groups if groups > 1 else len(lines), LEGEND_WIDTH // (longest + 9)))


def _over_rounds(axes: Any, last: float | None = None) -> None:
    axes.set_xlabel("synchronisation rounds")
    axes.set_xlim(0, last)
    axes.xaxis.get_major_locator().set_params(integer=True)


def _rounds(values: Sequence[float] | Array, line: Accuracy) -> Array:
    return line.every * np.arange(1.0, len(values) + 1)


def leak_figure(
    rounds: Sequence[int],
    promised: Sequence[float] | Array,
    exact: Sequence[float] | Array,
    measured: Sequence[tuple[float, float]],
    note: str,
    certified: Sequence[float] | Array | None = None,
) -> Any:
    """The bound of `thm:alg_1` and the true leakage to one other client; `measured` has estimates and standard errors."""
    last, claim, truth = rounds[-1], promised[-1], exact[-1]
    said = f"After {last} rounds: claimed {claim:.3f}, true {truth:.3f}; {note}"
    figure, axes = _paper((8.4, 5.2), "Theorem 1: claimed bound and true leakage to one other client", said)
    shares, errors = np.asarray(measured, float).T
    ends = [(claim, f"claimed by\nTheorem 1: {claim:.3f}", WARN)]
    axes.plot(rounds, promised, "--", color=WARN, linewidth=2.0, label="claimed")
    axes.plot(rounds, exact, "-", color=ACCENT, linewidth=2.0, label="exact")
    ends.append((truth, f"true: {truth:.3f}\ndots: measured,\n± 2 standard errors", ACCENT))
    axes.errorbar(
        rounds, shares, 2 * errors, fmt="o", color=INK, markersize=3.2, elinewidth=0.9, capsize=1.8, label="measured"
    )
    if certified is not None:
        axes.plot(rounds, certified, ":", color=INK, linewidth=1.6, label="certified")
        ends.append((certified[-1], f"certified, against\nall others\ntogether: {certified[-1]:.3f}", INK))
    axes.set_ylabel("total variation distance of client i's view\nbetween two values of client j's record")
    _over_rounds(axes, last * 1.01)
    axes.set_ylim(0, min(1.0, 1.1 * max(value for value, _, _ in ends)))
    _beside(axes, ends)
    return figure


def _beside(axes: Any, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write a label to the right of the end of each line."""
    ends, top = sorted(ends), axes.get_ylim()[1]
    for at, (_, text, colour) in zip(_apart([value / top for value, _, _ in ends]), ends, strict=True):
        axes.annotate(
            text,
            (1.0, at),
            xycoords="axes fraction",
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=9.5,
            color=colour,
        )


def _apart(heights: Sequence[float], room: float = 0.16) -> list[float]:
    """Sorted heights in [0, 1], moved up and then down until each has space for three lines of text."""
    found, floor, ceiling = [], room / 2, 1 - room / 2
    for height in heights:
        found.append(max(height, floor))
        floor = found[-1] + room
    for place in reversed(range(len(found))):
        found[place] = min(found[place], ceiling)
        ceiling = found[place] - room
    return found


def _paper(size: tuple[float, float], title: str, note: str) -> tuple[Any, Any]:
    """A figure with a title, a note and axes in the common style."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=size, dpi=160, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08))
    axes = figure.add_subplot()
    text = textwrap.fill(note, int(11.5 * size[0]))
    axes.annotate(text, (0, 1), (0, 8), xycoords="axes fraction", textcoords="offset points", fontsize=9.5, color=INK)
    axes.set_title(title, fontsize=13, color=INK, loc="left", pad=16 + 13 * (1 + text.count("\n")))
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes
