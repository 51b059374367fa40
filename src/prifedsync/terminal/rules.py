"""The table of `rules`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.table import Table

from .lines import say, screen

COLUMNS = {  # a rule's attribute → its heading in the table, and how much of the spare width it gets
    "name": ("rule", 0),
    "server_sends": ("server sends", 4),
    "client_does": ("client does", 5),
    "leaves": ("leaves the client", 3),
    "cost": ("noisy gradients a round", 4),
}
SYMBOLS = (
    "K is local.local_steps, L is rule.inner_steps and γ is local.learning_rate. Each client i has a mixing α_i, a "
    "strength λ_i and a share a_i. It sends w̃_i and is sent h_i. Each noisy gradient has a batch of its own and is "
    "counted; what is computed from it costs nothing more. docs/rules.md says when to use which rule."
)
WIDEST = 132  # columns; longer lines are hard to read


def print_rules(rows: Sequence[Mapping[str, Any]]) -> None:
    """The table, wrapped between words where the longest have room, within them where not; nothing is cut off."""
    console = screen()
    table = Table(title="Personalisation rules", title_justify="left", show_lines=True)
    longest = [
        max(cell_len(word) for row in rows for word in f"{heading} {row[key]}".split())
        for key, (heading, _) in COLUMNS.items()
    ]
    lines = 3 * len(COLUMNS) + 1  # between columns, and the room beside them
    spare = max(0, min(console.width, WIDEST) - lines - sum(longest))
    shares = sum(share for _, share in COLUMNS.values())
    for least, (heading, share) in zip(longest, COLUMNS.values(), strict=True):
        table.add_column(heading, overflow="fold", width=least + spare * share // shares)
    for row in rows:
        table.add_row(*(row[key] for key in COLUMNS))
    console.print(table)
    say(console, SYMBOLS)
    alone = ", ".join(_maskable(row) for row in rows if row["needs_sum_alone"])
    if alone:
        say(
            console,
            f"The server needs the sum of the uploads alone, so they can be masked (privacy.masks): {alone}.",
        )
    for row in rows:
        for own in row["own_fields"]:
            say(console, f"{row['name']}: rule.{own['name']} = {shown(own['default'])}: {own['about']} ({own['allowed']})")


def _maskable(row: Mapping[str, Any]) -> str:
    """A rule that can publish personal models sends more than one vector where it does, and then no sum is enough."""
    can_publish = any(own["name"] == "publish" for own in row["own_fields"])
    return f"{row['name']}{' (unless rule.publish = true)' * can_publish}"


def shown(value: object) -> str:
    """A default as a config has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
