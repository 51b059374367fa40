"""`prifedsync predict`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from ..values import BadValue
from .options import Code, RunFolder, UsedModel

MOST_SHOWN = 20  # reasons for refused rows on the error stream


def predict(
    folder: RunFolder,
    rows: Annotated[Path, typer.Argument(metavar="ROWS", help="Rows to answer: CSV with a header, or npz.")],
    model: UsedModel = "global",
    out: Annotated[Path | None, typer.Option(help="Write the answers to this file instead of printing them.")] = None,
    code: Code = None,
) -> None:
    """Answer new rows with a trained model, as CSV."""
    if out is not None and not out.parent.is_dir():
        raise BadValue("out", out, "lies in a folder that does not exist", f"make {out.parent} first")
    if out is not None and out.is_dir():
        raise BadValue("out", out, "is a folder", f"name a file, as in {out / 'answers.csv'}")
    if out is not None and rows.exists() and out.exists() and out.samefile(rows):
        raise BadValue("out", out, "is the file of the rows, which would be lost", "name another file")
    from ..files import write_file
    from ..predicting import open_run

    run = open_run(folder, code)
    answers = run.answers(rows, model)
    if not answers.answered:
        first = next(iter(answers.refused.values()), None)
        rule = f"has no row that can be answered; the first refusal is: {first}" if first else "has no rows"
        raise BadValue("rows", rows, rule)
    complain(map(str, answers.refused.values()), len(answers.refused))
    warn_of(run.publishing(model), model)
    text = answers.as_csv()
    if out is None:
        print(text, end="")
    else:
        write_file(out, text.encode())


def complain(reasons: Iterable[str], count: int) -> None:
    """Say on the error stream why rows are refused: the first reasons, and how many more there are."""
    for number, reason in enumerate(reasons):
        if number == MOST_SHOWN:
            print(f"prifedsync: {count - MOST_SHOWN} more rows are refused", file=sys.stderr)
            return
        print(f"prifedsync: refused: {reason}", file=sys.stderr)


def warn_of(publishing: str, model: str) -> None:
    """Say on the error stream that a model must not be published, where that is so."""
    if publishing:
        print(f"prifedsync: model {model} must not be published: {publishing}", file=sys.stderr)
