"""Runs on real machines: what a record says of the answers, and how a run is doing now."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from ..values import counted, one_line
from .lines import say, screen, show, table_of, warn

MOST_SHOWN = 20  # clients in the table of a record
MOST_REASONS = 3  # of one client
STALE = 15.0  # seconds: a server that lives writes its status more often
WORKING = ("waiting for clients", "training")
ALL_CAME = "Everybody who was asked answered in every round."
EVERYBODY = "The server asked every client in each round."
COLOURS = {"online": "green", "offline": "red", "not registered": "red", "sent": "green", "refused": "red", "lost": "red"}
Page = Mapping[str, Any]


# ---------------------------------------------------------------------- the record


def print_deployment(console: Console, deployment: Page) -> None:
    """Who carried the run, who chose the clients, and who was lost or refused how often, and why."""
    say(console, " ".join(_how(deployment)))
    missed = {name: it for name, it in deployment["answers"].items() if it["refused"] or it["lost"]}
    if not missed:
        say(console, ALL_CAME)
        return
    table = table_of(
        "Clients that were lost or refused to answer", ["client"], ["sent", "absent", "refused", "lost", "why"]
    )
    table.columns[-1].justify = "left"
    most = sorted(missed, key=lambda name: -missed[name]["refused"] - missed[name]["lost"])[:MOST_SHOWN]
    reasons = _reasons(deployment)
    for name in most:
        counts = (f"{missed[name][kind]:,}" for kind in ("sent", "absent", "refused", "lost"))
        table.add_row(one_line(name), *counts, "\n".join(reasons.get(name, ())))
    show(console, table)
    if len(missed) > len(most):
        say(console, f"{counted(len(missed) - len(most), 'more client')} were lost or refused to answer less often.")
    if deployment["events_left_out"]:
        say(console, f"The record leaves out the reasons of the last {counted(deployment['events_left_out'], 'answer')}.")


def _how(deployment: Page) -> Iterator[str]:
    if deployment["rehearsal"]:
        yield f"The run was rehearsed on one machine, carried by {one_line(deployment['carrier'])}."
    else:
        yield f"The run was between machines, carried by {one_line(deployment['carrier'])}."
    if deployment["participation"] == "server":
        yield f"The server asked {100 * deployment['share']:g} % of the clients in each round."
    else:
        yield EVERYBODY
    if deployment["resumed"]:
        yield f"The server was started again {counted(deployment['resumed'], 'time')}."


def _reasons(deployment: Page) -> dict[str, list[str]]:
    """The different reasons of each client, the first ones of many."""
    found: dict[str, dict[str, None]] = {}
    for event in deployment["events"]:
        found.setdefault(event["client"], {})[one_line(event["reason"])] = None
    return {name: _few(list(reasons)) for name, reasons in found.items()}


def _few(reasons: list[str]) -> list[str]:
    more = len(reasons) - MOST_REASONS
    return [*reasons[:MOST_REASONS], f"and {counted(more, 'more reason')}"] if more > 0 else reasons


# ---------------------------------------------------------------------- the status


def print_deploy_status(page: Page, now: float) -> None:
    """One page, of what `deploy status --json` prints."""
    console = screen()
    say(console, Text(_headline(page), "bold"))
    say(console, f"begun {_when(page['begun'])}, last written {_span(now - page['changed'])} ago")
    if page["error"]:
        say(console, Text.assemble(("error:", "red"), f" {one_line(page['error'])}"))
    _print_clients(console, page, now)
    if page["phase"] in WORKING and now - page["changed"] > STALE:
        warn(console, ["the status is old, so the server's process has probably ended; start it again, and it goes on"])


def _headline(page: Page) -> str:
    return f"Run {one_line(page['run'])[:12]}: {page['phase']}, round {page['round']:,} of {page['rounds']:,}"


def _print_clients(console: Console, page: Page, now: float) -> None:
    scored = any(client["shown"] is not None for client in page["clients"])
    right = ["asked", "rounds", "last answer", *(["scores"] if scored else [])]
    table = table_of("Clients", ["client", "SuperNode", "this round"], right)
    for client in page["clients"]:
        cells = [_ago(client["since"], now), f"{client['answered']:,}", _ago(client["last"], now)]
        cells += [_scores(client["shown"])] if scored else []
        table.add_row(one_line(client["name"]), _coloured(client["node"]), _answer(client), *cells)
    show(console, table)
    for client in page["clients"]:
        if client["reason"]:
            say(console, f"{one_line(client['name'])}: {client['answer']}, {one_line(client['reason'])}")


def _answer(client: Page) -> Text:
    if client["late"]:
        return Text(f"{client['answer']}, late", "yellow")
    return _coloured(client["answer"] or "–")


def _coloured(word: str) -> Text:
    return Text(word, COLOURS.get(word, ""))


def _scores(shown: Mapping[str, float | None] | None) -> str:
    if shown is None:
        return "–"
    return "\n".join(f"{one_line(metric)} {'–' if value is None else f'{value:.3f}'}" for metric, value in shown.items())


def _ago(then: float | None, now: float) -> str:
    return "–" if then is None else f"{_span(now - then)} ago"


def _span(seconds: float) -> str:
    """A time as people say it. Clocks of two machines may differ, so nothing is ever before now."""
    seconds = max(0.0, seconds)
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.0f} h"


def _when(then: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(then))
