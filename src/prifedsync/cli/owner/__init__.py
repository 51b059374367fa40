"""`prifedsync owner`: the side of whoever owns the records, one file a command."""

from __future__ import annotations

import typer

from ..wording import PlainCommand, PlainGroup
from . import check, key, new, status

app = typer.Typer(
    cls=PlainGroup,
    help="Own records: a policy, a ledger, and a daemon that answers.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for command in (new.new, check.check, key.key, status.status):
    app.command(cls=PlainCommand)(command)

__all__ = ["app"]
