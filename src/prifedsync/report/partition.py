"""The figure of a data split: one bar for each client, one colour for each label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..values import BadValue
from .curve import ACCENT, INK

MOST_BARS = 10
OTHERS = "others"
# Paul Tol's "muted" scheme, readable with all common kinds of colour blindness; grey is for the other labels
COLOURS = ("#332288", "#88CCEE", "#117733", "#DDCC77", "#CC6677", "#44AA99", "#AA4499", "#999933", "#882255")  # fmt: skip
GREY = "#DDDDDD"
DARK = {"#332288", "#117733", "#AA4499", "#882255"}  # text on these is white
LEAST_WRITTEN = 0.035  # fraction of a bar below which a label does not fit


@dataclass(frozen=True)
class Bar:
    """One client: its number of training records, in all and for each label."""

    name: str
    records: int
    labels: Mapping[str, int]


def draw(bars: Sequence[Bar], note: str, path: Path) -> None:
    """Write the figure of at most ten clients, evenly spaced over all clients."""
    if path.suffix != ".png":
        raise BadValue("out", path, "must end in .png")
    figure(bars, note).savefig(path)


def figure(bars: Sequence[Bar], note: str) -> Any:
    """The figure: the fraction of each label, or the number of records if there are no labels."""
    from matplotlib.figure import Figure

    shown = spaced(bars)
    labels = shown_labels(bars)
    found = Figure(figsize=(9.2, 1.9 + 0.38 * len(shown)), dpi=160, layout="constrained")
    axes = found.add_subplot()
    if labels:
        _shares(axes, shown, labels)
    else:
        _sizes(axes, shown)
    axes.set_yticks(range(len(shown)), [_short(bar.name) for bar in shown], fontsize=10, color=INK)
    axes.set_ylim(len(shown) - 0.5, -0.5)  # the first client on top
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    some = f"{len(shown)} of {len(bars)} clients" if len(shown) < len(bars) else f"all {len(bars)} clients"
    some = some if len(bars) > 1 else "the one client"
    title = f"Labels of {some}" if labels else f"Training records of {some}"
    found.suptitle(title, x=0.01, ha="left", fontsize=13, color=INK)
    axes.set_title(note, fontsize=9.5, color=INK, loc="left")
    return found


def spaced(bars: Sequence[Bar]) -> list[Bar]:
    """At most ten bars, evenly spaced, with the first and the last."""
    if len(bars) <= MOST_BARS:
        return list(bars)
    return [bars[round(i * (len(bars) - 1) / (MOST_BARS - 1))] for i in range(MOST_BARS)]


def shown_labels(bars: Sequence[Bar]) -> list[str]:
    """The labels with a colour of their own: all labels, or the most frequent ones and one name for the others."""
    labels = list(dict.fromkeys(label for bar in bars for label in bar.labels))
    if len(labels) <= len(COLOURS) + 1:
        return labels
    often = sorted(labels, key=lambda label: -sum(bar.labels.get(label, 0) for bar in bars))[: len(COLOURS)]
    return [*(label for label in labels if label in often), OTHERS]


def _shares(axes: Any, shown: Sequence[Bar], labels: Sequence[str]) -> None:
    from matplotlib.patches import Patch
    from matplotlib.transforms import offset_copy

    colours = dict(zip(labels, (*COLOURS, GREY), strict=False))
    for place, bar in enumerate(shown):
        done = 0.0
        for label, share in _parts(bar, labels).items():
            axes.barh(place, share, left=done, height=0.74, color=colours[label], edgecolor="white", linewidth=0.8)
            if share >= LEAST_WRITTEN * max(1, len(_short(label)) / 2):
                ink = "white" if colours[label] in DARK else INK
                axes.text(done + share / 2, place, _short(label), ha="center", va="center", fontsize=8.5, color=ink)
            done += share
        axes.annotate(f"{bar.records:,}", (1, place), xytext=(6, 0), textcoords="offset points", va="center", color=INK)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    label = "fraction of a client's training records; the number of records is at the end of the bar"
    axes.set_xlabel(label, fontsize=9.5, color=INK)
    patches = [Patch(facecolor=colours[label], label=_short(label)) for label in labels]
    columns = -(-len(labels) // (2 * len(shown)))  # enough columns that the legend is no higher than the bars
    points = 12 + 7 * max(len(f"{bar.records:,}") for bar in shown)  # space for the numbers at the ends of the bars
    beside = offset_copy(axes.transAxes, axes.figure, points, units="points")
    axes.legend(
        handles=patches, title="label", loc="upper left", frameon=False, fontsize=9, ncols=columns, handlelength=1.2,
        columnspacing=1, bbox_to_anchor=(1, 1.02), bbox_transform=beside,
    )  # fmt: skip


def _parts(bar: Bar, labels: Sequence[str]) -> dict[str, float]:
    """The fraction of each label that the client has, in the order of the legend."""
    counts = dict.fromkeys(labels, 0)
    for label, count in bar.labels.items():
        counts[label if label in counts else OTHERS] += count
    return {label: count / bar.records for label, count in counts.items() if count}


def _sizes(axes: Any, shown: Sequence[Bar]) -> None:
    for place, bar in enumerate(shown):
        axes.barh(place, bar.records, height=0.74, color=ACCENT)
        axes.annotate(
            f"{bar.records:,}", (bar.records, place), xytext=(6, 0), textcoords="offset points", va="center", color=INK
        )
    axes.set_xlim(0, 1.12 * max(bar.records for bar in shown))
    axes.set_xlabel("training records", fontsize=9.5, color=INK)


def _short(text: str) -> str:
    """A name that is short enough for the axis and that matplotlib does not read as a formula."""
    return (text if len(text) <= 24 else f"{text[:23]}…").replace("$", r"\$")
