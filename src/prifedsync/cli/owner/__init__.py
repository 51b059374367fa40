"""`prifedsync owner`: the side of whoever owns the records, one file a command."""

from __future__ import annotations

import typer

from ..wording import PlainCommand, PlainGroup
from . import serve

app = typer.Typer(
    cls=PlainGroup,
    help="Own records: a policy, a ledger, and a daemon that answers.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command(cls=PlainCommand)(serve.serve)

__all__ = ["app"]
