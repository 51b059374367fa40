"""What a run writes into its folder before the first round, and what it leaves there after the last."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config import Config, to_toml
from ..data.preprocessing import Preprocessing
from ..events import Watch
from ..files import CONFIG, PREPROCESSING, RECORD, write_file
from ..scores import Measurement
from .checkpoint import Checkpoint
from .loop import Session
from .prepare import Prepared
from .recording import guarantees_of, record_of, statement_of, write_models
from .result import Result


def begin(folder: Path, config: Config, preprocessing: Preprocessing) -> None:
    """All that a finished run is opened with."""
    write_config(folder, config)
    write_file(folder / PREPROCESSING, json.dumps(preprocessing.as_json(), indent=1, allow_nan=False).encode())


def write_config(folder: Path, config: Config) -> None:
    """The config with absolute paths, so that the run can be resumed from anywhere."""
    write_file(folder / CONFIG, to_toml(config.located(Path.cwd())).encode())


def finish(
    prepared: Prepared, run: Session, folder: Path | None, watch: Watch, timings: Mapping[str, float], *,
    measured: Mapping[str, tuple[Measurement, ...]], given: Sequence[str] = (),
    deployment: Mapping[str, Any] | None = None,
) -> Result:  # fmt: skip
    """The record and the models of a run whose rounds are over. The record is written last, and then there is no way back.

    timings     "train" and "all" → seconds
    measured    model → one measurement for each metric, of this run and of its comparisons; empty where none is shown
    given       what came from Python, for people
    deployment  `deployment_of`, where the clients are with their owners
    """
    guarantees = guarantees_of(prepared)
    record = record_of(prepared, run, guarantees, measured, given, watch, deployment)
    record = replace(record, timings=timings, host=platform.platform())
    if folder:
        rehearsal = deployment is not None and deployment["rehearsal"]
        write_models(folder / "models", prepared, run, personal=deployment is None, rehearsal=rehearsal)
        write_file(folder / RECORD, record.text().encode())
        Checkpoint(folder / "checkpoint").remove()
    return Result(record, prepared, run.server, run.engine, folder, run.history, statement_of(prepared, guarantees))
