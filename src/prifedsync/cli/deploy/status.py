"""`prifedsync deploy status`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from ..options import Json


def status(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A project, or its server's folder.")],
    as_json: Json = False,
) -> None:
    """Show how a run is doing: its round, and what each client did."""
    from ...deploy.status import place_of, read

    now = time.time()
    page = read(place_of(folder)).as_json()
    if as_json:
        print(json.dumps({**page, "age": max(0.0, now - page["changed"])}))
    else:
        from ...terminal import print_deploy_status

        print_deploy_status(page, now)
