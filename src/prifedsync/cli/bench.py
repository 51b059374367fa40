"""`prifedsync bench`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ..values import BadValue
from .options import Device, Json, Overrides, whole_numbers


def bench(
    preset: Annotated[str | None, typer.Argument(metavar="[PRESET]", help="What to time; default: mnist-paper.")] = None,
    device: Device = None,
    clients: Annotated[str | None, typer.Option(help="Clients per round; 10,100 compares 10 and times 100 too.")] = None,
    overrides: Overrides = None,
    seconds: Annotated[float | None, typer.Option(help="Seconds of timed rounds; default: 25, on a GPU 40.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for bench.json and bench.png.")] = None,
    as_json: Json = False,
) -> None:
    """Time a private step against a non-private one and Opacus.

    Presets: mnist-paper, cifar-paper, pfl-cifar10, mlp, general. Opacus is timed where it is installed.
    """
    counts = () if clients is None else whole_numbers("clients", clients)
    if out is not None and out.exists() and not out.is_dir():
        raise BadValue("out", out, "is not a folder", "name a folder")
    from ..bench import measure
    from ..report.bench import draw
    from ..terminal import View, print_bench

    with View(quiet=as_json) as view:
        found = measure(preset, device=device, clients=counts, overrides=overrides or (), limit=seconds, watch=view)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "bench.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        draw(found, out / "bench.png")
    if as_json:
        print(json.dumps(found, allow_nan=False))
    else:
        print_bench(found, out)
