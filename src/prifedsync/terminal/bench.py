"""The tables of `bench`, made of what `bench --json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from .lines import say, say_place, screen, show, table_of

TIMED = {  # what is timed, in the order of the table
    "iteration_ms": "ours, private",
    "nonprivate_ms": "ours, not private",
    "opacus_ms": "Opacus, client by client",
    "opacus_ghost_ms": "Opacus with ghost clipping",
    "plain_loop_ms": "plain PyTorch, not private",
    "reference_ms": "our reference, record by record",
}


def print_bench(found: Mapping[str, Any], folder: object) -> None:
    """How long each variant takes, and how many times as long as ours; then scaling, and notes on the numbers."""
    console = screen()
    show(console, _variants(found))
    if len(found["scaling"]) > 1:
        show(console, _scaling(found))
    say(console, _round(found))
    for note in found["notes"]:
        say(console, f"note: {note}")
    if folder is not None:
        say_place(console, f"written: {folder}/bench.json and bench.png")


def _variants(found: Mapping[str, Any]) -> Table:
    title = (
        f"{found['preset']} on {found['device']}: one step of each of {found['clients']} clients "
        f"(batch {found['batch']}, {found['parameters']:,} parameters)"
    )
    table = table_of(title, ["variant"], ["median ms", "middle half", "against ours"])
    ours = found["iteration_ms"]
    for name, label in TIMED.items():
        if found[name] is not None:
            low, high = found["spread"][name]
            times = "" if name == "iteration_ms" else f"{found[name] / ours:.2f} ×"
            table.add_row(label, _ms(found[name]), f"{_ms(low)} … {_ms(high)}", times)
    return table


def _scaling(found: Mapping[str, Any]) -> Table:
    table = table_of("ours, private, by number of clients", [], ["clients", "median ms", "ms a client"])
    for row in found["scaling"]:
        table.add_row(str(row["clients"]), _ms(row["iteration_ms"]), _ms(row["client_step_ms"]))
    return table


def _round(found: Mapping[str, Any]) -> str:
    how = (
        f"{found['repetitions']} repetitions",
        found["arithmetic"],
        f"{found['draws']} draws",
        f"{found['threads']} thread{'s' * (found['threads'] != 1)}",
        f"peak memory {found['peak_memory_mib']:.0f} MiB",
    )
    return (
        f"A round of {found['local_steps']} steps takes {_ms(found['round_ms'])} ms, the first one "
        f"{found['first_round_s']:.1f} s ({', '.join(how)})."
    )


def _ms(value: float) -> str:
    """Three figures, whatever the size."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"
