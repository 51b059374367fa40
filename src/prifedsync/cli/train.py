"""`prifedsync train`."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..values import BadValue
from .options import DataFolder, Device, Json, Overrides, Source
from .reporting import leave_report

if TYPE_CHECKING:
    from ..config import Config
    from ..record import RunRecord

RUNS = Path("runs")


def train(
    source: Source = None,
    overrides: Overrides = None,
    data: DataFolder = None,
    out: Annotated[Path | None, typer.Option(help="New folder for the run; default: runs/NAME-TIME.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Run folder of an interrupted run to go on with.")] = None,
    device: Device = None,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Print what this config gets, explained, and exit.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the run folder and nothing else.")] = False,
    as_json: Json = False,
) -> None:
    """Train a model privately, and say what it cost."""
    from ..config import load

    if resume is not None:
        if source is not None or overrides or data is not None or out is not None or device is not None or show_config:
            raise BadValue("resume", resume, "goes on with the config in that folder", "give --resume alone")
        _train(None, resume, quiet, as_json)
        return
    config = load(source, overrides or (), data, device)
    if show_config:
        from .showing import as_it_runs

        print(as_it_runs(config), end="")
        return
    _train(config, out or _run_folder(source), quiet, as_json)


def _train(config: Config | None, folder: Path, quiet: bool, as_json: bool) -> None:
    """Train, or go on where there is no config, and print what came of it."""
    from .. import files, run
    from ..terminal import View, print_record

    try:
        with View(quiet or as_json, notes=True) as view:
            if config is None:
                result = run.resume(folder, watch=view, progress=False)
            else:
                result = run.train(config, out=folder, watch=view, progress=False)
    except run.Finished as finished:
        if as_json:
            print(_as_json(finished.record, folder))
        else:
            print(folder if quiet else f"{folder} is finished; its record is {finished.path}")
        return
    except KeyboardInterrupt:
        how = f"; resume with --resume {folder}" if (folder / files.CONFIG).is_file() else ""
        print(f"prifedsync: interrupted{how}", file=sys.stderr)
        raise typer.Exit(130) from None
    leave_report(folder)
    if as_json:
        print(_as_json(result.record, result.folder))
    elif quiet:
        print(result.folder)
    else:
        print_record(result.record, result.folder)


def _as_json(record: RunRecord, folder: object) -> str:
    said: dict[str, Any] = record.as_json() | {"folder": str(folder)}
    return json.dumps(said, allow_nan=False)


def _run_folder(source: str | None) -> Path:
    """A folder named after what and when, made here so that no other run can take it; a number where that is taken."""
    from ..config import DEFAULT_PRESET

    name = f"{Path(source or DEFAULT_PRESET).stem}-{datetime.now():%Y%m%d-%H%M%S}"
    for each in [name, *(f"{name}-{n}" for n in range(2, 100))]:
        try:
            (RUNS / each).mkdir(parents=True)
            return RUNS / each
        except FileExistsError:
            continue
    raise FileExistsError(f"{RUNS}/{name} and 98 more are taken")
