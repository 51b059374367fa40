"""`prifedsync owner check`."""

from __future__ import annotations

import json

import typer

from ..options import Json, PolicyFile


def check(policy: PolicyFile, as_json: Json = False) -> None:
    """Say whether data, models, files and policy fit."""
    from ...owner.policy import read

    found = read(policy)
    from ...owner.checkup import checkup
    from ...terminal import print_checkup

    findings = checkup(found)
    passed = all(finding.status != "wrong" for finding in findings)
    said = {"client": found.client, "passed": passed, "findings": [finding._asdict() for finding in findings]}
    if as_json:
        print(json.dumps(said))
    else:
        print_checkup(said)
    if not passed:
        raise typer.Exit(1)
