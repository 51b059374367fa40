"""`prifedsync deploy init`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..options import Json, Overrides

if TYPE_CHECKING:
    from ...deploy.project import Written


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the new project.")],
    source: Annotated[
        str | None, typer.Argument(metavar="[CONFIG.toml]", help="The run's config; without one, an example.")
    ] = None,
    overrides: Overrides = None,
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address of the server; repeatable; default: 127.0.0.1.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the server.")] = 9092,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS and no keys: on one machine only.")] = False,
    reply_seconds: Annotated[float, typer.Option(help="Seconds after which an owner's reply leaves.")] = 10.0,
    as_json: Json = False,
) -> None:
    """Write a project: a folder for the server and for each client."""
    from ...deploy.hosts import Reached

    reached = Reached(hosts=tuple(host or ["127.0.0.1"]), port=port, insecure=insecure)
    from ...deploy import project

    written = project.init(folder, source, overrides or (), reached, reply_seconds)
    if as_json:
        print(json.dumps(written.as_json()))
    else:
        _show(written)


def _show(written: Written) -> None:
    from ...values import counted

    print(f"{written.folder} is written: a server and {counted(len(written.policies), 'client')}")
    for name, policy in written.policies.items():
        records = counted(policy.source.records, policy.source.unit)
        print(f"  {name}: {records}, a budget of mu = {policy.budget.mu:g}")
    print(f"clients reach the server at {written.place}")
    for note in written.notes:
        print(f"note: {note}")
    if not written.records:
        print("no records are copied: each client puts its own into its folder owner")
    print(f"next: read {written.folder / 'README.md'}")
