"""The table of `audit step`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from .lines import say, screen, show, table_of


def print_audit(audit: Mapping[str, Any]) -> None:
    """A row a check, of what `audit step --json` prints; then what each failed one means."""
    console = screen()
    table = table_of("One noisy step, measured", ["check", "measured", "allowed", "result"])
    for check in audit["checks"]:
        verdict = Text("ok", "green") if check["passed"] else Text("FAILED", "red")
        table.add_row(check["name"], check["measured"], check["allowed"], verdict)
    show(console, table)
    for check in audit["checks"]:
        if not check["passed"]:
            say(console, Text.assemble((f"{check['name']}:", "red"), f" {check['explanation']}"))
    say(console, "all checks passed" if audit["passed"] else "the guarantee does not hold for this step")
