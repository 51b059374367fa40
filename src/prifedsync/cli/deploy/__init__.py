"""`prifedsync deploy`: runs on real machines, one file a command."""

from __future__ import annotations

import typer

from ..wording import PlainCommand, PlainGroup
from . import certificate, init, key

app = typer.Typer(
    cls=PlainGroup,
    help="Train on several machines, with Flower between them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for command in (init.init, key.key, certificate.certificate):
    app.command(cls=PlainCommand)(command)

__all__ = ["app"]
