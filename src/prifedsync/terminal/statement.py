"""The table of `account`: one guarantee, as it is if clients draw their own coins and if somebody else chooses."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from ..accounting.statement import SHOWN_LEVELS, Statement, down, percent_up, up
from .lines import say, screen, show, table_of, warn
from .views import print_views

TITLE = "How much one {} of {} leaks, to anyone"  # unit, whose
ALWAYS = "takes part in every round"
HONEST = "client's own coin"
WORST_CASE = "others choose"
BY_CHANCE = (
    f'"{HONEST}": each client decides by its own secret coin whether it takes part. "{WORST_CASE}": somebody else decides.'
)


def print_statement(statement: Statement) -> None:
    """The table, the same in one sentence, what the paper would print, and warnings."""
    console = screen()
    show(console, _table(statement))
    if statement.worst_case != statement.honest:
        say(console, BY_CHANCE)
    print_views(console, statement.as_json(), statement.simulation)
    say(console, statement.sentence())
    if statement.mu_weak is not None:
        strong = "" if statement.mu_strong is None else f" (strong: {statement.mu_strong:.2f})"
        text = f"The paper prints μ = {statement.mu_weak:.2f}{strong}: an asymptotic value, not a guarantee."
        say(console, Text(text, "dim"))
    warn(console, statement.warnings)


def _table(statement: Statement) -> Table:
    columns = {HONEST: statement.honest, WORST_CASE: statement.worst_case}
    if statement.worst_case == statement.honest:
        columns = {ALWAYS: statement.honest}
    table = table_of(TITLE.format(statement.unit, statement.whose), [""], columns)
    both = columns.values()
    table.add_row(f"ε at δ = {statement.delta:g}", *(f"≤ {up(n.epsilon.upper, 5)}" for n in both))
    table.add_row("", *(Text(f"≥ {down(n.epsilon.lower, 5)}", "dim") for n in both))
    table.add_row("μ for α in 1e-5 … 1−1e-5", *(f"≤ {up(n.mu.upper)}" for n in both))
    table.add_row("advantage of the best attack", *(f"≤ {percent_up(n.advantage.upper)}" for n in both))
    for level in SHOWN_LEVELS:
        label = f"true positives at {level:.1%} false positives"
        table.add_row(label, *(f"≤ {percent_up(n.hits(level))}" for n in both))
    return table
