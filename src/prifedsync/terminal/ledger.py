"""The pages of an owner: what was spent by whom, and the entries of the ledger."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from ..accounting.budget import SIGN
from ..accounting.statement import loss_up
from ..values import counted
from .lines import say, screen, show, table_of, warn

ALONE = "One run has the whole budget, by its own exact guarantee. No other run is accepted beside it or after it."
WIDTH = 50  # characters of the bar
NO_ANCHOR = "the policy names no anchor: a ledger that was rolled back cannot be told from this one; set files.anchor"
HASH = 16  # hexadecimal digits of a hash that are shown
Page = Mapping[str, Any]


def print_status(page: Page) -> None:
    """One page, of what `owner status --json` prints."""
    console = screen()
    _print_budget(page)
    if page["runs"]:
        table = table_of("Runs", ["run", "by", "begun (UTC)", "state"], ["rounds", "attempts", "late", "spent", "reserved"])
        for run in page["runs"]:
            table.add_row(
                run["run"][:12],
                run["by"],
                run["begun"],
                Text(run["state"], "green" if run["state"].startswith("open") else "dim"),
                f"{run['rounds_asked']:,} of {run['rounds']:,}",
                f"{run['attempts_used']:,} of {run['attempts']:,}",
                f"{run['late']:,}",
                _share(run["spent"], page["limit"], run),
                _share(run["reserved"], page["limit"], run),
            )
        show(console, table)
        say(console, "Spent and reserved are shares of the budget; runs add up.")
    else:
        say(console, "No run was enrolled yet.")
    late = sum(run["late"] for run in page["runs"])
    if late:
        warn(console, [f"{late:,} of the replies left late; set a larger replies.seconds"])
    _print_anchor(page)


def print_entries(page: Page, entries: Sequence[Page], last: int) -> None:
    """The last entries of a ledger, below its budget."""
    console = screen()
    _print_budget(page)
    shown = entries[-last:]
    table = table_of(f"Last {len(shown)} of {len(entries)} entries", ["entry", "kind", "run", "what", "hash"])
    for entry in shown:
        body = entry["body"]
        table.add_row(str(entry["number"]), entry["kind"], body.get("run", "")[:12], _what(entry), entry["hash"][:HASH])
    show(console, table)


def _print_budget(page: Page) -> None:
    console = screen()
    sign = SIGN[page["unit"]]
    at = "" if page["delta"] is None else f" at δ = {page['delta']:g}"
    say(console, Text(f"Source {page['source']}: budget {sign} = {page['budget']:g}{at}, over all runs", "bold"))
    say(console, _bar(page))
    spent, committed = (loss_up(page[f"{page['unit']}_{name}"]) for name in ("spent", "committed"))
    say(console, f"{sign} ≤ {spent} was spent; {sign} ≤ {committed} if all that is reserved is asked.")
    if page["alone"]:
        say(console, ALONE)
    say(console, "")


def _bar(page: Page) -> Text:
    """Spent and reserved are rounded up, so that what is left is never shown too long."""
    limit = page["limit"] or 1.0
    spent = min(WIDTH, math.ceil(WIDTH * page["spent"] / limit - 1e-9))
    reserved = min(WIDTH - spent, math.ceil(WIDTH * page["reserved"] / limit - 1e-9))
    left = WIDTH - spent - reserved
    parts = [f"{name} {_percent(page[name] / limit, up=name != 'left')}" for name in ("spent", "reserved", "left")]
    bar = Text.assemble(("█" * spent, "red"), ("▒" * reserved, "yellow"), ("░" * left, "green"))
    return Text.assemble(bar, f"  {', '.join(parts)}")


def _percent(share: float, up: bool) -> str:
    tenths = 1000 * share
    rounded = math.ceil(tenths - 1e-6) if up else math.floor(tenths + 1e-6)
    return f"{rounded / 10:.1f} %"


def _share(amount: float | None, limit: float, run: Page) -> str:
    if run["state"].endswith("alone") or run["state"].startswith("carried"):
        return "–"  # it is in the bar above, and has no share of its own
    return "∞" if amount is None or limit == 0 else _percent(amount / limit, up=True)


def _what(entry: Page) -> str:
    body = entry["body"]
    if entry["kind"] == "reserved":
        plan = body["plan"]
        spare = f" and {counted(plan['attempts'], 'attempt')}" if plan["attempts"] else ""
        return f"{counted(plan['rounds'], 'round')}{spare}, by {body['by']}{', alone' if body['alone'] else ''}"
    if entry["kind"] == "charged":
        again = f", attempt {body['attempt']}" if body["attempt"] else ""
        return f"round {body['round']}{again}, {body['status']}"
    if entry["kind"] == "carried":
        return "entries were lost; all that was committed is spent"
    return str(body.get("why", body.get("source", body.get("version", ""))))


def _print_anchor(page: Page) -> None:
    console = screen()
    head = f"entry {page['head']['number']:,}, hash {page['head']['hash'][:HASH]}"
    anchor = page["anchor"]
    if anchor is None:
        say(console, f"The chain ends at {head}.")
        warn(console, [NO_ANCHOR])
    elif anchor["agrees"]:
        say(console, f"Chain and anchor agree. The chain ends at {head}.")
    else:
        say(console, Text.assemble(("chain and anchor do not agree:", "red"), f" {anchor['why']}"))
