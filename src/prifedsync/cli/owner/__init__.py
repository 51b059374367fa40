"""`prifedsync owner`, one file a command."""

from __future__ import annotations

import typer

from ..wording import PlainCommand, PlainGroup
from . import check, key, new

app = typer.Typer(
    cls=PlainGroup,
    help="The side of whoever owns records: policy, keys, daemon.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for command in (new.new, check.check, key.key):
    app.command(cls=PlainCommand)(command)
