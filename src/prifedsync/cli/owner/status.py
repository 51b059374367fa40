"""`prifedsync owner status`."""

from __future__ import annotations

import json

import typer

from ..options import Json, PolicyFile


def status(policy: PolicyFile, as_json: Json = False) -> None:
    """Show what was spent by whom, what is reserved, and what is left."""
    from ...owner.ledger.pages import status_of
    from ...owner.policy import read

    page = status_of(read(policy))
    if as_json:
        print(json.dumps(page))
    else:
        from ...terminal import print_status

        print_status(page)
    if page["anchor"] is not None and not page["anchor"]["agrees"]:
        raise typer.Exit(1)
