"""`prifedsync partition`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .options import DataFolder, Json, Overrides, Source, picture


def partition(
    source: Source = None,
    overrides: Overrides = None,
    data: DataFolder = None,
    out: Annotated[Path | None, typer.Option(help="Draw it too; the name ends in .png.")] = None,
    as_json: Json = False,
) -> None:
    """Count each client's records and labels."""
    from ..config import PUBLIC, load

    if out is not None:
        picture(out, ".png")
    config = load(source, overrides or (), data)
    from ..data import load as load_records
    from ..data.census import census
    from ..report.partition import Bar, draw
    from ..terminal import print_partition

    found = census(load_records(config.data, config.seed), tuple(map(str, config.data.label_values)))
    if out is not None:
        bars = [Bar(client.name, client.train, client.labels) for client in found.clients]
        shared = f", one and the same with up to {found.copies} clients" if found.copies > 1 else ""
        draw(bars, f"{config.data.source}: {found.records:,} training records{shared}", out)
    if as_json:
        print(json.dumps(found.as_json()))
    else:
        print_partition(found, out, own=config.data.source not in PUBLIC)
