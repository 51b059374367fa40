"""The figure of a benchmark: one bar for each variant on a logarithmic axis and, if it was timed, the scaling."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .curve import ACCENT, INK, PALE, WARN

BARS = {  # from top to bottom
    "iteration_ms": ("ours, private", ACCENT),
    "nonprivate_ms": ("ours, no privacy", "#7fb2de"),
    "opacus_ms": ("Opacus,\nclient by client", WARN),
    "opacus_ghost_ms": ("Opacus,\nghost clipping", "#d99a5b"),
    "plain_loop_ms": ("plain PyTorch,\nno privacy", PALE),
    "reference_ms": ("our reference,\nrecord by record", "#d1d5db"),
}


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Write the figure of the results that `bench --json` prints."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    room = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)
    scales = len(found["scaling"]) > 1
    shown = [name for name in BARS if found[name] is not None]
    figure = Figure(figsize=(12.5 if scales else 8.5, 1.7 + 0.62 * len(shown)), dpi=160, layout=room)
    panels = figure.subplots(1, 2, width_ratios=(8.5, 4)) if scales else [figure.add_subplot()]
    _bars(panels[0], found, shown)
    if scales:
        _scaling(panels[1], found["scaling"])
    title = f"One step of each of {found['clients']} clients, {found['about']}, on {found['device']}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, color=INK)
    figure.savefig(path)


def _bars(axes: Any, found: Mapping[str, Any], shown: list[str]) -> None:
    ours = found["iteration_ms"]
    for place, name in enumerate(shown):
        value, (low, high) = found[name], found["spread"][name]
        axes.barh(place, value, color=BARS[name][1], height=0.66)
        axes.plot([low, high], [place, place], color=INK, linewidth=1.4)
        text = f"{figures(value)} ms" + ("" if name == "iteration_ms" else f"   {figures(value / ours)} × ours")
        axes.annotate(
            text, (max(value, high), place), xytext=(6, 0), textcoords="offset points", va="center", fontsize=10, color=INK
        )
    note = (
        f"{found['parameters']:,} parameters, batch {found['batch']}, {found['optimiser']}, {found['arithmetic']}; "
        f"median of {found['repetitions']}; lines show the interquartile range"
    )
    axes.set_title(note, fontsize=9.5, color=INK, loc="left")
    axes.set_xscale("log")
    # a log axis has no zero: start it so that the shortest bar is visible, end it so that the longest has room for text
    least, most = min(found["spread"][name][0] for name in shown), max(found["spread"][name][1] for name in shown)
    reach = max(most / least, 2.0)
    axes.set_xlim(least / reach**0.2 / 1.3, most * reach**0.5 * 1.3)
    axes.set_yticks(range(len(shown)), [BARS[name][0] for name in shown], fontsize=10, color=INK)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds for one step of all clients (logarithmic)", fontsize=9.5, color=INK)
    axes.xaxis.set_major_formatter(lambda value, position: figures(value))
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _scaling(axes: Any, rows: list[Mapping[str, Any]]) -> None:
    counts, each = [row["clients"] for row in rows], [row["client_step_ms"] for row in rows]
    axes.plot(counts, each, "o-", color=ACCENT, linewidth=1.8)
    for count, value in zip(counts, each, strict=True):
        axes.annotate(figures(value), (count, value), xytext=(5, 6), textcoords="offset points", fontsize=9.5)
    axes.set(xscale="log", yscale="log", xlabel="clients in a round")
    axes.set_ylim(min(each) / 2, max(each) * 2.5)
    axes.set_xlim(min(counts) / 1.8, max(counts) * 2.4)
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, position: figures(value))
    axes.set_title("private: milliseconds for one client's step", fontsize=10, color=INK, loc="left")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def figures(value: float) -> str:
    """The value with three significant digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
