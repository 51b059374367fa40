"""Figures: what plotly draws, a legend in words, and the same as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from .markup import Html, Inside, as_json, joined, tag
from .parts import capital, more, paragraph

# Each stands out by 3 to 1 from the page in light and in dark, so a figure need not be drawn again.
BLUE = "#2f7fc4"
ORANGE = "#c26a14"
GREEN = "#2c8a57"
PURPLE = "#8b63c9"
PINK = "#d1477f"
GREY = "#7b8794"
FEW_TICKS = 10  # rounds that have a tick each
PALE = 0.14  # how much of its colour an area has
DASHES = {"solid": "none", "dash": "7 5", "dot": "2 4", "dashdot": "7 4 2 4"}


@dataclass(frozen=True)
class Line:
    """A line of a figure.

    label  its words in the legend; a line without them is not in it
    says   what is shown when a point is pointed at; None where nothing is
    other  its heights in the figure's other view, where it has one
    """

    label: str
    x: Sequence[float | int | None]
    y: Sequence[float | None]
    colour: str
    dash: str = "solid"
    says: Sequence[str] | None = None
    width: float = 2
    shape: str = "linear"
    markers: bool = False
    fill: str | None = None
    fades: bool = False  # a band: drawn pale
    other: Sequence[float | None] | None = None

    def as_trace(self) -> dict[str, Any]:
        """As plotly has it."""
        trace: dict[str, Any] = {
            "type": "scatter",
            "name": plain(self.label),
            "x": list(self.x),
            "y": list(self.y),
            "mode": "lines+markers" if self.markers else "lines",
            "line": {"color": self.colour, "dash": self.dash, "width": self.width, "shape": self.shape},
            "hoverinfo": "skip" if self.says is None else "text",
        }
        if self.says is not None:
            trace["text"] = [wrapped(each) for each in self.says]
        if self.other is not None:
            trace["meta"] = list(self.other)
        if self.fill:
            trace |= {"fill": self.fill, "fillcolor": faded(self.colour)}
        return trace


def plain(text: str) -> str:
    """Text as plotly must have it: it reads some tags in labels."""
    return escape(text, quote=False)


def short(text: str, most: int) -> str:
    """Text that fits beside a figure."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def wrapped(text: str, width: int = 44) -> str:
    """Text in lines that a small window has room for, as plotly must have it."""
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > width and lines[-1]:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return "<br>".join(map(plain, lines))


def faded(colour: str) -> str:
    """The colour of an area beside a line of this colour."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{PALE})"


def axis(title: str, **more_of_it: Any) -> dict[str, Any]:
    """An axis in the style of the page."""
    return {
        "title": {"text": title, "standoff": 10}, "automargin": True, "zeroline": False, "fixedrange": True,
        "gridcolor": "rgba(123,135,148,0.25)", "linecolor": GREY, "ticks": "outside", "tickcolor": GREY, **more_of_it,
    }  # fmt: skip


def rounds_axis(last: int, **more_of_it: Any) -> dict[str, Any]:
    """An axis of rounds, on which no tick is between two rounds."""
    ticks = {"dtick": 1} if last <= FEW_TICKS else {}
    return axis("round", tickformat=",", **ticks, **more_of_it)


def layout(x: Mapping[str, Any], y: Mapping[str, Any], **more_of_it: Any) -> dict[str, Any]:
    """The layout of a figure in the style of the page."""
    return {
        "xaxis": x, "yaxis": y, "showlegend": False, "hovermode": "closest", "dragmode": False,
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "margin": {"l": 56, "r": 24, "t": 14, "b": 52},
        "font": {"family": "system-ui, sans-serif", "size": 13}, "height": 320,
        "hoverlabel": {
            "align": "left", "bgcolor": "#14202b", "bordercolor": GREY, "font": {"color": "#ffffff", "size": 13},
        },
        **more_of_it,
    }  # fmt: skip


def legend(lines: Iterable[Line], points: Iterable[Html] = ()) -> Html:
    """What each line is, in words beside a piece of it, after what kinds of points there are."""
    named = [tag("li", _swatch(line), tag("span", line.label)) for line in lines if line.label]
    return tag("ul", points, named, class_="legend")


def figure(
    name: str, title: str | Html, alt: str, traces: Sequence[Mapping[str, Any]], drawn: Mapping[str, Any], *around: Inside,
    legend: Inside = None, table: Inside = None,
) -> Html:  # fmt: skip
    """A figure with its title, what it shows in a sentence, and the same as a table."""
    picture = tag("div", class_="chart", role="img", aria_label=alt, data_chart=name, style=f"--height:{drawn['height']}px")
    said = paragraph(alt, "alt")
    rows = more("The same as a table", table) if table else None
    caption = tag("figcaption", title if isinstance(title, Html) else capital(title))
    data = as_json(f"chart-{name}", {"data": list(traces), "layout": dict(drawn)})
    return tag("figure", caption, legend, picture, said, joined(around), rows, data, id=f"figure-{name}")


def _swatch(line: Line) -> Html:
    drawn = _band(line) if line.fades else _stroke(line, 6, 3)
    return tag("svg", drawn, class_="swatch", viewBox="0 0 34 12", aria_hidden="true", focusable="false")


def _band(line: Line) -> Inside:
    """A pale area between two edges, as the figure has it."""
    area = tag("rect", x=1, y=1, width=32, height=10, fill=line.colour, fill_opacity=PALE)
    return [area, _stroke(line, 1, line.width), _stroke(line, 11, line.width)]


def _stroke(line: Line, y: int, width: float) -> Html:
    return tag("line", x1=1, y1=y, x2=33, y2=y, stroke=line.colour, stroke_width=width, stroke_dasharray=DASHES[line.dash])
