"""The table of what each client adds to the server's mean, in signal and in noise."""

from __future__ import annotations

from rich.console import Console

from ..accounting.contributions import Contributions
from .lines import say, screen, show, table_of, warn

TITLE = "What each client adds to the mean"
HEADINGS = ["noise multiplier", "signal", "noise", "signal ÷ noise"]


def print_contributions(found: Contributions, console: Console | None = None) -> None:
    """A row a client, or one sentence where all add about the same; then a warning where noise drowns the others."""
    console = console or screen()
    many = len(found.clients)
    if found.alike:
        say(console, f"Each of the {many} clients adds about {1 / many:.1%} of the signal and of the noise.")
    else:
        table = table_of(f"{TITLE} ({many} clients)", ["client"], [f"{found.unit}s", *HEADINGS])
        for name, each in found.shown().items():
            records = "–" if each.records is None else f"{each.records:,}"
            shares = [f"{each.signal:.1%}", f"{each.noise:.1%}", f"{each.signal_to_noise:.3g}"]
            table.add_row(name, records, f"{each.noise_multiplier:.5g}", *shares)
        show(console, table)
    warn(console, found.warnings)
