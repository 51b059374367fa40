"""The table of views: who is protected from whom. No smaller number stands without what it assumes in the same line.

Why there is no number against others stands below the table, since a column is too narrow for a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..accounting.statement import loss_up
from ..values import counted
from .lines import say, screen, show, table_of

TITLE = "Who learns how much about one {}"
WIDE = 220  # columns where there is no terminal: a line is then found whole, with what it assumes
CHOSEN = "worst_case_participation"
View = Mapping[str, Any]  # a line of `"views"`, as `--json` prints it


def print_views(console: Console, stated: Mapping[str, Any], simulation: bool) -> None:
    """The table, from what `Statement.as_json` returns; one sentence if there is a claim against everybody only."""
    views: Sequence[View] = stated.get("views", ())
    if not views:
        return
    claimed = [view for view in views if view["claim"]]
    if all(view["who"] == "everybody" for view in claimed):
        why = next(view["why"] for view in views if not view["claim"])
        say(console, f"This holds against everybody together. No smaller number is claimed against fewer: {why}.")
        return
    if not console.is_terminal:
        console = screen()
        console.width = WIDE
    show(console, _table(stated, claimed, simulation))
    for line in _not_claimed([view for view in views if not view["claim"]]):
        say(console, Text(line, "dim"))


def _not_claimed(views: Sequence[View]) -> list[str]:
    """A sentence for each reason why there is no number, with all those whom it is about."""
    about: dict[str, dict[str, list[int]]] = {}
    for view in views:
        about.setdefault(view["why"], {}).setdefault(view["who"], []).append(view["colluders"])
    return [
        f"No claim against {' or '.join(_named(who, counts) for who, counts in those.items())}: {why}."
        for why, those in about.items()
    ]


def _named(who: str, colluders: Sequence[int]) -> str:
    """Readers, 1 or 5 clients, the server and 1 client."""
    if who == "readers":
        return who
    *others, last = colluders
    clients = ", ".join(map(str, others)) + (" or " if others else "") + counted(last, "client")
    return clients if who == "clients" else f"the server and {clients}"


def _table(stated: Mapping[str, Any], views: Sequence[View], simulation: bool) -> Table:
    chance = any(CHOSEN in view for view in views)
    numbers = ["colluders", f"ε ≤, δ = {stated['delta']:g}", "μ ≤", *(["ε ≤, others choose"] if chance else [])]
    title = TITLE.format(stated["unit"]) + (" (a simulation)" if simulation else "")
    table = table_of(title, ["who"], numbers)
    table.add_column("assumes that", overflow="fold")
    for view in views:
        cells = [loss_up(view["epsilon"]["upper"]), loss_up(view["mu"]["upper"])]
        cells += [loss_up(view.get(CHOSEN, view)["epsilon"]["upper"])] if chance else []
        table.add_row(view["who"], str(view["colluders"]), *cells, view["assumes"])
    return table
