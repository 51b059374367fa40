"""Pieces that many sections have: marks, lists of terms, tables, figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ...scores import LEVEL
from ..contents import Report
from ..guarantee import BEFORE_COINS
from .markup import MISSING, Html, Inside, tag

MOST_TERM = 60  # characters of a term beside others
SHORT = 6  # rows of a table that a print keeps on one page
Tone = Literal["good", "open", "bad", "plain"]
ICONS = {  # paths on a square of 24: a tick, a triangle with an exclamation mark, a crossed octagon, a ring
    "good": "M12 2a10 10 0 1 0 0 20 10 10 0 0 0 0-20zm-1.6 14.6-4.2-4.2 1.7-1.7 2.5 2.5 5.7-5.7 1.7 1.7z",
    "open": "M12 2 1 21h22zm-1.1 7h2.2v6h-2.2zm0 7.6h2.2v2.2h-2.2z",
    "bad": "M8 2h8l6 6v8l-6 6H8l-6-6V8zm.9 5.3L7.3 8.9l3.1 3.1-3.1 3.1 1.6 1.6 3.1-3.1 3.1 3.1 1.6-1.6-3.1-3.1 "
    "3.1-3.1-1.6-1.6-3.1 3.1z",
    "plain": "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zm0 2.2a6.8 6.8 0 1 1 0 13.6 6.8 6.8 0 0 1 0-13.6z",
}


def icon(tone: Tone) -> Html:
    """A sign with a shape of its own, so that no mark is told by its colour alone. The word beside it says the same."""
    path = tag("path", d=ICONS[tone], fill="currentColor", fill_rule="evenodd")
    return tag("svg", path, class_="icon", viewBox="0 0 24 24", aria_hidden="true", focusable="false")


def mark(tone: Tone, word: str) -> Html:
    """A word with its sign and colour."""
    return tag("span", icon(tone), tag("span", word), class_=f"mark {tone}")


def paragraph(text: Inside, class_: str | None = None) -> Html:
    """A paragraph."""
    return tag("p", text, class_=class_)


def capital(text: str) -> str:
    """The text with a capital. A Greek letter is a symbol, and stays as it is."""
    return text[:1].upper() + text[1:] if text[:1].isascii() else text


def sentence(text: str) -> str:
    """The text with a capital and a full stop."""
    text = text.strip()
    if not text:
        return ""
    return capital(text) + ("" if text[-1] in ".!?…" else ".")


def spoken(text: str) -> Inside:
    """Text in which commands stand between backticks."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        return text
    return [tag("code", piece) if at % 2 else piece for at, piece in enumerate(pieces)]


def listed(items: Iterable[Inside], class_: str | None = None) -> Html:
    """A list."""
    return tag("ul", [tag("li", each) for each in items], class_=class_)


def terms(pairs: Iterable[tuple[str, Inside]], class_: str = "terms") -> Html:
    """Names and what they are."""
    return tag("dl", [_term(name, said) for name, said in pairs], class_=class_)


def _term(name: str, said: Inside) -> Html:
    """Whole sentences of an owner take a line of their own."""
    broad = isinstance(said, str) and not isinstance(said, Html) and len(said) > MOST_TERM
    return tag("div", tag("dt", name), tag("dd", said), class_="broad" if broad else None)


def before_coins(report: Report) -> Html | None:
    """Beside bounds that were not computed anew for those who know who took part."""
    known = report.guarantee is not None and report.guarantee.more_is_known
    return paragraph(BEFORE_COINS) if known else None


def intervals(units: Iterable[str]) -> str:
    """What the interval of a score is."""
    tested = " or ".join(f"{unit}s" for unit in sorted(units))
    return (
        f"Intervals are {LEVEL:.0%} bootstrap intervals over test {tested}. They leave out how much scores vary between "
        "runs."
    )


class Section(Html):
    """A part of the page that the table of contents leads to."""

    name: str
    title_text: str


def section(name: str, title: str, *inside: Inside, class_: str | None = None) -> Section:
    """A part of the page, under its heading."""
    heading = tag("h2", title, id=f"{name}-title")
    made = Section(tag("section", heading, *inside, id=name, aria_labelledby=f"{name}-title", class_=class_))
    made.name = name
    made.title_text = title
    return made


@dataclass(frozen=True)
class Column:
    """A column of a table. `alone`: what its head says where it stands beside a cell, if that is something else."""

    head: Inside
    numeric: bool = False
    wide: bool = False
    alone: str | None = None


def table(caption: str, columns: Iterable[Column | str], rows: Iterable[Sequence[Inside]]) -> Html:
    """A table in a region of its own, which scrolls where the page is narrow. The first cell heads its row."""
    heads = [each if isinstance(each, Column) else Column(each) for each in columns]
    made = [tag("tr", _cells(row, heads), role="row") for row in rows]
    names = [tag("th", each.head, scope="col", class_=_class(each), role="columnheader") for each in heads]
    top = tag("thead", tag("tr", names, role="row"), role="rowgroup")
    stacked = any(each.wide for each in heads)  # a phone has no room for sentences beside other columns
    inside = tag(
        "table", heading(caption), top, tag("tbody", made, role="rowgroup"), role="table",
        class_="stacked" if stacked else None,
    )  # fmt: skip
    return region(caption, inside, short=len(made) <= SHORT)


def heading(caption: str) -> Html:
    """The caption of a table. Its words stay in sight where the table is scrolled."""
    return tag("caption", tag("span", caption))


def region(label: str, inside: Inside, short: bool = False) -> Html:
    """What may be wider than the page. It takes the focus, so that arrow keys scroll it."""
    return tag("div", inside, class_="scroll short" if short else "scroll", role="region", aria_label=label, tabindex="0")


def shown(value: Inside) -> Inside:
    """The value, or the sign for one that is missing."""
    return MISSING if value is None or value == "" else value


def more(summary: str, *inside: Inside, class_: str | None = None) -> Html:
    """What is folded away until somebody wants it. A print has it open, and leaves out what has the class `screen`."""
    return tag("details", tag("summary", summary), *inside, class_=class_)


def _cells(row: Sequence[Inside], heads: Sequence[Column]) -> Iterable[Html]:
    """The first cell heads the row. Roles are said, because a phone shows some tables as blocks, each under its head."""
    for at, (each, column) in enumerate(zip(row, heads, strict=True)):
        words = shown(each)
        if at == 0:
            yield tag("th", words, scope="row", class_=_class(column), role="rowheader")
        else:
            head = column.alone or (column.head if isinstance(column.head, str) else None)
            yield tag("td", words, class_=_class(column, words is MISSING), role="cell", data_head=head)


def _class(column: Column, missing: bool = False) -> str | None:
    kinds = {"number": column.numeric, "long": column.wide and not column.numeric, "missing": missing}
    return " ".join(kind for kind, so in kinds.items() if so) or None
