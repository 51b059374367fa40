"""docs/tour.ipynb: runs the code cells of the notebook in order, and keeps what they show.

`python scripts/tour.py` writes the outputs into the notebook. It needs no Jupyter. `tests/test_tour.py` uses the same
functions, and fails if a cell shows something else than the notebook says.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "tour.ipynb"
NAME = "tour"  # of the module that the cells are run in: classes that they define need one

Cell = dict[str, Any]


def read() -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(PAGE.read_text(encoding="utf-8"))
    return notebook


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """A new notebook with the outputs of all code cells."""
    done = copy.deepcopy(notebook)
    module = ModuleType(NAME)
    sys.modules[NAME] = module
    try:
        for count, cell in enumerate(code_cells(done), start=1):
            cell["execution_count"] = count
            cell["outputs"] = list(_outputs(cell, vars(module), count))
    finally:
        del sys.modules[NAME]
    return done


def code_cells(notebook: dict[str, Any]) -> list[Cell]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def shown(cell: Cell) -> str:
    """All text that a cell shows."""
    parts = [part.get("text") or part["data"]["text/plain"] for part in cell["outputs"]]
    return "\n".join("".join(part) for part in parts)


def _outputs(cell: Cell, namespace: dict[str, Any], count: int) -> Iterator[dict[str, Any]]:
    """What the cell prints, then the value of its last line, as in Jupyter."""
    lines = [line for line in "".join(cell["source"]).splitlines() if not line.startswith("%")]  # commands of Jupyter's
    body = ast.parse("\n".join(lines)).body
    last = ast.Expression(body.pop().value) if body and isinstance(body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), NAME, "exec"), namespace)
        value = eval(compile(last, NAME, "eval"), namespace) if last else None
    if printed.getvalue():
        yield {"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())}
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = _lines(value._repr_html_())
        yield {"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def written(notebook: dict[str, Any]) -> str:
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PAGE.write_text(written(run(read())), encoding="utf-8")
