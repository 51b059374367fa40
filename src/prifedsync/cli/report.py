"""`prifedsync report`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..files import REPORT
from ..values import NOT_GIVEN, BadValue, one_line
from .options import Json

Folders = Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="Run folders. Several are compared.")]
Words = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="report.KEY=VALUE", help="The owner's words: a field of [report]."),
]
Policies = Annotated[list[Path] | None, typer.Option("--policy", help="The policy of an owner.")]
Receipts = Annotated[list[Path] | None, typer.Option("--receipt", help="What `ledger export` wrote.")]
Audits = Annotated[list[Path] | None, typer.Option("--audit", help="What `audit … --json` printed.")]
Registry = Annotated[Path | None, typer.Option(help="Write an entry for the registry of deployments: YAML.")]
Out = Annotated[
    Path | None,
    typer.Option(help="Where to write; default: RUN_DIR, for several the current folder."),
]


def report(
    folders: Folders,
    words: Words = None,
    policies: Policies = None,
    receipts: Receipts = None,
    audits: Audits = None,
    registry: Registry = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Say what a run cost, and whether its model may leave."""
    if len(folders) > 1:
        alone = {"set": words, "policy": policies, "receipt": receipts, "audit": audits, "registry": registry}
        _compare(folders, [name for name, value in alone.items() if value], out or Path(), as_json)
        return
    from ..report.contents import report_of
    from ..report.registry import sector_note
    from ..report.saving import JSON, save

    (folder,) = folders
    _check_folder(folder)
    found = report_of(
        folder, words=words or (), policies=policies or (), receipts=receipts or (), audits=audits or ()
    )  # fmt: skip
    to = out or folder
    no_page = save(found, to, registry)
    if as_json:
        print(json.dumps(found.as_json(), ensure_ascii=False, allow_nan=False))
    else:
        print(one_line(f"{found.verdict.decision}: {found.verdict.reason}"))
        print(f"report: {to / (JSON if no_page else REPORT)}")
    _warn(sector_note(found) if registry else "")
    _warn(no_page)


def _compare(folders: list[Path], given: list[str], out: Path, as_json: bool) -> None:
    """Several runs beside each other. `given`: options that belong to one of them, which are refused."""
    from ..report.comparing import comparison_of
    from ..report.contents import report_of
    from ..report.saving import COMPARED, save_comparison

    if given:
        raise BadValue(given[0], NOT_GIVEN, "belongs to one run", "name one run folder, or leave it out")
    for folder in folders:
        _check_folder(folder)
    found = comparison_of([report_of(folder) for folder in folders])
    no_page = save_comparison(found, out)
    if as_json:
        print(json.dumps(found.as_json(), ensure_ascii=False, allow_nan=False))
    else:
        print(found.markdown)
        print("\n".join(["", *found.warnings, f"comparison: {out / COMPARED}"]))
    _warn(no_page)


def _warn(line: str) -> None:
    if line:
        print(f"prifedsync: {line}", file=sys.stderr)


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise BadValue("run", folder, "is not a folder", "name the folder of a run")
