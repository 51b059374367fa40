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

    All are made before any is written. The entry for the registry comes first: where it cannot be written, nothing else is.
    """
    with _refusing(folder):
        entry = as_yaml(entry_of(report)).encode() if registry is not None else b""
        card = card_of(report).encode()
        page, no_page = _page("page_of", report)
    if registry is not None:
        _write_entry(registry, entry)
    _make(folder)
    write_file(folder / JSON, report.text().encode())
    write_file(folder / CARD, card)
    _write_page(folder / REPORT, page)
    return no_page


def save_comparison(comparison: Comparison, folder: Path) -> str:
    """Write the files of a comparison. Returns why there is no page, or ""."""
    with _refusing(folder):
        page, no_page = _page("comparison_page", comparison)
    _make(folder)
    write_file(folder / COMPARED, comparison.text().encode())
    _write_page(folder / COMPARED_PAGE, page)
    return no_page


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


def _page(function: str, shown: Any) -> tuple[bytes | None, str]:
    """The page, or why there is none. It is the only part that needs plotly, which is imported here and nowhere earlier."""
    try:
        html = import_module(".html", __package__)
    except ModuleNotFoundError as missing:
        return None, NO_PAGE.format(missing.name)
    return getattr(html, function)(shown).encode(), ""


def _write_page(path: Path, page: bytes | None) -> None:
    """A page of an earlier report would say something else than the files beside it."""
    if page is None:
        path.unlink(missing_ok=True)
    else:
        write_file(path, page)


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
