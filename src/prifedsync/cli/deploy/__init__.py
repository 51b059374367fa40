"""`prifedsync deploy`: runs on real machines, one file a command."""

from __future__ import annotations

import typer

from ..wording import PlainCommand, PlainGroup
from . import certificate, init, join, key, local, serve, status

app = typer.Typer(
    cls=PlainGroup,
    help="Run on real machines, carried by Flower.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for command in (
    init.init,
    local.local,
    serve.serve,
    join.join,
    status.status,
    key.key,
    certificate.certificate,
):
    app.command(cls=PlainCommand)(command)

__all__ = ["app"]
