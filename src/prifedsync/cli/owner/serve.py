"""`prifedsync owner serve`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ...owner.policy import Policy


def serve(
    policy: Annotated[Path, typer.Argument(metavar="POLICY", help="The owner's policy, a TOML file.")],
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
) -> None:
    """Answer questions on the owner's socket, until a signal ends it."""
    from ...owner import daemon

    def ready(found: Policy) -> None:
        if not quiet:
            print(f"{found.client} listens on {found.path('socket')}", flush=True)

    if daemon.serve(policy, ready) == signal.SIGINT:
        raise typer.Exit(130)
