"""`prifedsync deploy local`."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from ..options import Json
from ..reporting import leave_report


def local(
    project: Annotated[Path, typer.Argument(metavar="DIR", help="A project.")],
    out: Annotated[Path | None, typer.Option(help="New folder for the run; default: DIR/rehearsal-TIME.")] = None,
    reply_seconds: Annotated[
        float, typer.Option(min=0, help="Seconds after which owners' replies leave, if policies have more.")
    ] = 1.0,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the run folder and nothing else.")] = False,
    as_json: Json = False,
) -> None:
    """Rehearse a project on this machine, with all parties in it."""
    from ...deploy.rehearsal import rehearse
    from ...terminal import View, print_record

    folder = out or project / f"rehearsal-{datetime.now():%Y%m%d-%H%M%S}"
    try:
        with View(quiet or as_json) as view:
            record = rehearse(project, folder, view, reply_seconds)
    except KeyboardInterrupt:
        print("prifedsync: interrupted; everything that was started has ended", file=sys.stderr)
        raise typer.Exit(130) from None
    leave_report(folder)
    if as_json:
        print(json.dumps(record.as_json() | {"folder": str(folder)}, allow_nan=False))
    elif quiet:
        print(folder)
    else:
        print_record(record, folder)
