"""The rounds of a run as rows of a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..files import LOG

Row = dict[str, Any]  # column → value; every row has the same columns


def row_of(line: Mapping[str, Any], seconds: float | None) -> Row:
    """One round. Scores are None where the round was not evaluated; `line` is the round's line in the log."""
    row = {"round": line["round"], "participants": line["participants"]}
    for kind in ("personal", "released"):
        score = line.get(kind, {})
        row |= {f"{kind}_mean": score.get("mean"), f"{kind}_worst": score.get("worst")}
    return row | {"seconds": seconds}


def logged_rows(folder: Path | None) -> list[Row]:
    """The rounds that a resumed run has behind it. The log holds no times, so `seconds` is None."""
    path = folder / LOG if folder else None
    if path is None or not path.is_file():
        return []
    return [row_of(json.loads(line), None) for line in path.read_text(encoding="utf-8").splitlines()]
