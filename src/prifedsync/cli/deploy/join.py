"""`prifedsync deploy join`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ...deploy.settings import SiteSettings


def join(
    folder: Annotated[Path, typer.Argument(metavar="SITE", help="The folder site of a client.")],
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
) -> None:
    """Carry questions from the server to the owner."""
    from ...deploy.site import join

    def ready(settings: SiteSettings) -> None:
        if not quiet:
            print(f"{settings.client} joins at {settings.server}", flush=True)

    if join(folder, ready) == signal.SIGINT:
        raise typer.Exit(130)
