"""`prifedsync evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .options import Code, Json, RunFolder, UsedModel
from .predict import complain, warn_of


def evaluate(
    folder: RunFolder,
    data: Annotated[Path, typer.Option(help="Labelled records: a CSV or npz file, or a folder of them.")],
    model: UsedModel = "global",
    metrics: Annotated[str | None, typer.Option(help="Metrics, as in auc,accuracy; default: those of the run.")] = None,
    code: Code = None,
    as_json: Json = False,
) -> None:
    """Score a trained model on other records."""
    from ..predicting import open_run

    run = open_run(folder, code)
    found = run.evaluate(data, model, metrics.split(",") if metrics else None)
    if as_json:
        print(json.dumps(found.as_json(), allow_nan=False))
        return
    from ..terminal import print_evaluation

    complain(map(str, found.refusals), len(found.refusals))
    warn_of(run.publishing(model), model)
    print_evaluation(found)
