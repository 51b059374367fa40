"""The files of a report: report.json, MODEL_CARD.md, and the page where plotly is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from ..files import REPORT, write_file
from ..values import BadValue
from .card import card_of
from .comparing import Comparison
from .contents import Report
from .registry import as_yaml, entry_of
from .sources import REMEDY

JSON = "report.json"
CARD = "MODEL_CARD.md"
COMPARED = "comparison.json"
COMPARED_PAGE = "comparison.html"
NO_PAGE = "no page was written: {} is not installed"


def save(report: Report, folder: Path, registry: Path | None = None) -> str:
    """Write all files of a report. Returns why there is no page, or "".

    The entry for the registry comes first: where it cannot be written, nothing else is.
    """
    with _refusing(folder):
        entry = as_yaml(entry_of(report)).encode() if registry is not None else b""
        card = card_of(report).encode()
    if registry is not None:
        _write_entry(registry, entry)
    _make(folder)
    write_file(folder / JSON, report.text().encode())
    write_file(folder / CARD, card)
    return _page("write_page", report, folder / REPORT)


def save_comparison(comparison: Comparison, folder: Path) -> str:
    """Write the files of a comparison. Returns why there is no page, or ""."""
    _make(folder)
    write_file(folder / COMPARED, comparison.text().encode())
    return _page("write_comparison", comparison, folder / COMPARED_PAGE)


def _write_entry(path: Path, content: bytes) -> None:
    try:
        write_file(path, content)
    except OSError as error:
        rule = f"cannot be written: {error.strerror}"
        raise BadValue("registry", path, rule, "name a file in a folder that you may write into") from None


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadValue(
            "out", folder, f"cannot be made: {error.strerror}", "name a folder that you may write into"
        ) from None


def _page(function: str, shown: Any, path: Path) -> str:
    """The page is the only part that needs plotly, so it is imported here and nowhere earlier."""
    try:
        html = import_module(".html", __package__)
    except ModuleNotFoundError as missing:
        return NO_PAGE.format(missing.name)
    with _refusing(path.parent):
        getattr(html, function)(shown, path)
    return ""


@contextmanager
def _refusing(folder: Path) -> Iterator[None]:
    """What is shown comes from a record, whose texts may be no texts."""
    try:
        yield
    except BadValue:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        rule = f"cannot be written, because the record has a wrong part: {error!r}"
        raise BadValue("report", folder, rule, REMEDY) from error
