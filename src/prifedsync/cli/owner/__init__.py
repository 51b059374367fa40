"""`prifedsync owner`: the side of whoever owns the records, one file a command."""

from __future__ import annotations

import typer

from ..wording import PlainCommand, PlainGroup
from . import check, key, new, serve, status

app = typer.Typer(
    cls=PlainGroup,
    help="Hold records, and answer for them within a policy.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for command in (new.new, key.key, check.check, serve.serve, status.status):
    app.command(cls=PlainCommand)(command)

__all__ = ["app"]
