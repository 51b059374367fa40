"""The table of `owner check`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from .lines import say, screen, show, table_of

STYLES = {"ok": "green", "warn": "yellow", "wrong": "red"}


def print_checkup(found: Mapping[str, Any]) -> None:
    """A row a finding, of what `owner check --json` prints; then what to do about those that are not ok."""
    console = screen()
    table = table_of(f"The policy of {found['client']}, for its owner alone", ["check", "result", "found"])
    for each in found["findings"]:
        table.add_row(each["what"], Text(each["status"], STYLES[each["status"]]), each["said"])
    show(console, table)
    for each in found["findings"]:
        if each["remedy"]:
            say(console, Text.assemble((f"{each['what']}:", STYLES[each["status"]]), f" {each['remedy']}"))
    say(
        console, "an owner can serve with this policy" if found["passed"] else "the daemon would not serve with this policy"
    )
