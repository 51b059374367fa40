"""`prifedsync audit`."""

from __future__ import annotations

import json

import typer

from .options import DataFolder, Device, Json, Overrides, Source
from .wording import PlainCommand, PlainGroup

app = typer.Typer(
    cls=PlainGroup,
    help="Attack what the engine really does.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(cls=PlainCommand)
def step(
    source: Source = None,
    overrides: Overrides = None,
    data: DataFolder = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Measure one noisy step: sensitivity, noise, batches, counts."""
    from ..config import load

    config = load(source, overrides or (), data, device)
    from ..audit import audit_config
    from ..terminal import print_audit

    found = audit_config(config)
    if as_json:
        print(json.dumps(found.as_json()))
    else:
        print_audit(found.as_json())
    if not found.passed:
        raise typer.Exit(1)
