"""Is joining worth it? A table by client, and a sentence for each."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from ..accounting.statement import up
from ..joining import MODELS, NOT_COMPARED, Joining
from ..scores import Measured
from .lines import say, show, table_of

TITLE = "Is joining worth it?"
HEADINGS = {"alone": "alone", "alone-private": "alone, same ε", "released": "released", "personal": "personal"}


def print_joining(console: Console, rows: Sequence[Joining], clients: int) -> None:
    """The table, and one sentence for each client; where clients alone were not trained, one line on how to get it."""
    if not any(row.scores for row in rows):
        return
    show(console, _table(rows, clients))
    if all(row.verdict == "not compared" for row in rows):
        say(console, NOT_COMPARED)
        return
    for row in rows:
        say(console, row.sentence)


def _table(rows: Sequence[Joining], clients: int) -> Table:
    models = [model for model in MODELS if any(model in row.scores for row in rows)]
    some = "" if len(rows) == clients else f"; {len(rows)} of {clients:,} clients: smallest, median, largest and worst"
    title = f"{TITLE} ({rows[0].metric} on each client's own test records{some})"
    table = table_of(title, ["client"], [f"{rows[0].unit}s", "ε ≤", *(HEADINGS[model] for model in models)])
    for row in rows:
        records = "–" if row.records is None else f"{row.records:,}"
        epsilon = "–" if row.epsilon is None else up(row.epsilon)
        table.add_row(row.client, records, epsilon, *(_cell(row.scores.get(model)) for model in models))
    return table


def _cell(score: Measured | None) -> str:
    return "–" if score is None or score.value is None else f"{score.value:.3f}"
