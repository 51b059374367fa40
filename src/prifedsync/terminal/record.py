"""The end of `train`: how good the models are, what they cost in privacy, and where everything lies."""

from __future__ import annotations

from rich.table import Table

from ..accounting.statement import in_one_line
from ..record import KEPT, RunRecord
from .lines import say, say_place, screen, show, table_of, warn

LABELS = {
    "personal": "per client",
    "released": "one for all",
    "alone": "client alone",
    "non-private": "all together",
}
PRIVATE = ("personal", "released")  # models that the guarantee covers, unless they are kept


def print_record(record: RunRecord, folder: object) -> None:
    """The final table, the guarantee, and where everything lies."""
    console = screen()
    show(console, _table(record))
    if record.guarantee is not None:
        say(console, guarantee_line(record))
    say(console, record.sentence)
    warn(console, record.warnings)
    if folder is not None:
        say_place(console, f"run folder: {folder}")


def _table(record: RunRecord) -> Table:
    """A row a model: on each client's own test records, and on all clients'."""
    title = f"{record.metric} on each client's own test records, and on all clients'"
    table = table_of(title, ["model", ""], ["own mean", "own worst", "all mean", "all worst"])
    for name, scores in record.scores.items():
        cells = [scores.own.mean, scores.own.worst, scores.pooled.mean, scores.pooled.worst]
        table.add_row(name, f"{LABELS[name]}, {_protection(record, name)}", *map(score, cells))
    return table


def _protection(record: RunRecord, name: str) -> str:
    if name == "personal" and KEPT in record.personal_models:
        return "kept"
    return "private" if record.guarantee and name in PRIVATE else "not private"


def guarantee_line(record: RunRecord) -> str:
    """The largest ε and the largest μ of any client, on their safe sides."""
    assert record.guarantee is not None
    return in_one_line(record.guarantee, simulation=record.config["privacy"]["randomness"] == "seeded")


def score(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
