"""The rounds of a run as rows of a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import LOG

Row = dict[str, Any]  # column → value; every row has the same columns


def row_of(line: Mapping[str, Any], seconds: float | None, others: Sequence[str]) -> Row:
    """One round. Scores are None where the round was not evaluated; `line` is the round's line in the log.

    `others`: the metrics after the first. The columns of their scores begin with their names.
    """
    row = {"round": line["round"], "participants": line["participants"]}
    row |= {"attempts": line.get("attempts", 1), "lost": line.get("lost", 0), **_columns(line, "")}
    for metric in others:
        row |= _columns(line.get("others", {}).get(metric, {}), f"{metric}_")
    return row | {"seconds": seconds}


def _columns(scores: Mapping[str, Any], prefix: str) -> Row:
    return {
        f"{prefix}{model}_{name}": scores.get(model, {}).get(name)
        for model in ("personal", "released")
        for name in ("mean", "worst")
    }


def logged_lines(folder: Path | None) -> list[dict[str, Any]]:
    """The lines of the log in a run folder; none where there is no log."""
    path = folder / LOG if folder else None
    if path is None or not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def logged_rows(folder: Path | None, others: Sequence[str]) -> list[Row]:
    """The rounds that a resumed run has behind it. The log holds no times, so `seconds` is None."""
    return [row_of(line, None, others) for line in logged_lines(folder)]
