"""The tables of `reproduce`: what the paper prints beside what was found."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE
from rich.table import Table

from .lines import say, say_place, screen

Titled = tuple[str, Sequence[str], Sequence[Sequence[str]]]  # a title, headings, and rows of cells


def print_tables(tables: Sequence[Titled], sentence: str | None, page: object) -> None:
    """A table of the paper in its parts, and where the whole page lies."""
    console = screen()
    for title, headings, rows in tables:
        table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 0, 0, 1))
        for at, heading in enumerate(headings):
            # numbers stay whole; headings, and lists of numbers between them, may be broken
            widest = max((len(word) for row in rows for word in row[at].split()), default=0)
            table.add_column(heading, justify="right", min_width=widest, overflow="fold")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    if sentence:
        say(console, sentence)
    say_place(console, f"the whole table: {page}")
