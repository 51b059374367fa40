"""`prifedsync owner`: the side of a data owner, one file a command."""

from __future__ import annotations

import typer

from ..wording import PlainCommand, PlainGroup
from . import status

app = typer.Typer(
    cls=PlainGroup,
    help="Hold records, and answer for them within a policy.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for command in (status.status,):
    app.command(cls=PlainCommand)(command)
