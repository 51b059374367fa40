"""`prifedsync deploy serve`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..options import Json
from ..reporting import leave_report


def serve(
    folder: Annotated[Path, typer.Argument(metavar="SERVER", help="The server's folder of a project.")],
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the run folder and nothing else.")] = False,
    as_json: Json = False,
) -> None:
    """Serve a run: start the SuperLink, and train with the clients. Started again, it goes on."""
    from ...deploy.places import ServerPlaces
    from ...deploy.serving import serve
    from ...terminal import View, print_record

    run = ServerPlaces(folder).run
    try:
        with View(quiet or as_json) as view:
            record = serve(folder, view)
    except KeyboardInterrupt:
        print(f"prifedsync: interrupted; go on with prifedsync deploy serve {folder}", file=sys.stderr)
        raise typer.Exit(130) from None
    leave_report(run)
    if as_json:
        print(json.dumps(record.as_json() | {"folder": str(run)}, allow_nan=False))
    elif quiet:
        print(run)
    else:
        print_record(record, run)
