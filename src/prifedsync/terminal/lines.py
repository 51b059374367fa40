"""Lines below a table: sentences, warnings and places. Nothing that is printed is read as markup."""

from __future__ import annotations

from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text


def screen(stderr: bool = False) -> Console:
    """A console that prints names of clients and files as they are, brackets and colons included."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def table_of(title: str, left: Iterable[str], right: Iterable[str] = ()) -> Table:
    """An empty table: columns of words to the left, then columns of numbers."""
    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True
    )
    for heading in left:
        table.add_column(heading, overflow="fold")
    for heading in right:
        table.add_column(heading, justify="right", overflow="fold")
    return table


def show(console: Console, table: Table) -> None:
    """A table, and an empty line after it."""
    console.print(table)
    console.print()


def say(console: Console, text: str | Text) -> None:
    """A sentence: broken between words on a terminal; one line elsewhere, so that it can be searched for."""
    console.print(text, soft_wrap=not console.is_terminal)


def say_place(console: Console, text: str) -> None:
    """A line with a path, which is never broken, so that it can be copied."""
    console.print(text, soft_wrap=True)


def warn(console: Console, warnings: Iterable[str]) -> None:
    for warning in warnings:
        say(console, Text.assemble(("warning:", "yellow"), f" {warning}"))


def print_warnings(warnings: Iterable[str]) -> None:
    """Warnings alone, on the error stream: for commands whose output is the name of a file."""
    warn(screen(stderr=True), warnings)
