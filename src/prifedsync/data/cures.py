"""Why a cell is not a number, and what cures it."""

from __future__ import annotations

import re

from .scale import key
from .text import Cell

NUMBER = r"[+-]?[0-9]+(?:[.,][0-9]+)*"  # as people write it, decimal mark and thousands separators included
DATE = r"[0-9]{4}[-/.][0-9]{1,2}[-/.][0-9]{1,2}|[0-9]{1,2}[-/.][0-9]{1,2}[-/.](?:[0-9]{4}|[0-9]{2})"
CURRENCY = "€$£¥"

SAID_MISSING = {"n/a", "n.a.", "none", "nil", "missing", "unknown", "not done", "not available", "-", "--", "."}
SAID_TRUTH = {"true", "false", "yes", "no", "t", "f", "y", "n"}

Cure = tuple[str, str]  # rule and remedy


def not_a_number(cell: Cell, column: str, decimal: str) -> Cure:
    """The cure of a feature that should be a number."""
    known = badly_written(cell, decimal)
    if known:
        return known
    said = str(cell).strip().casefold()
    if said in SAID_MISSING:
        return "must be a number", f"leave the cell empty if it is missing, and set {key('missing', column)}"
    listed = key("categories", column)
    if said in SAID_TRUTH:
        return "must be a number", f"list both values in {listed}"
    return "must be a number", f"list the values of a text column in {listed}, or leave it out with data.columns"


def badly_written(cell: Cell, decimal: str) -> Cure | None:
    """The cure of a number that is written with something else; None for other texts."""
    text = str(cell).strip()
    same_unit = "alone, in the same unit in the whole column"
    if text.startswith("#"):
        return "is the error of a spreadsheet's formula", "correct the formula, or leave the cell empty"
    if re.match(rf"(?:{DATE})(?![0-9])|[0-9]{{1,2}}:[0-9]{{2}}\b", text):
        return "is a date or a time", "write a number, such as a year, an age or a number of days"
    if found := re.fullmatch(rf"({NUMBER}) ?%", text):
        return "has a percent sign", f"write {found[1]} alone, with the whole column in percent"
    if re.fullmatch(rf"[<>≤≥~≈]=? ?{NUMBER}", text):
        return "is a bound, not a number", "write the number that your analysis takes for it, or leave the cell empty"
    if found := re.fullmatch(rf"({NUMBER}) ?[/–-] ?({NUMBER})", text):
        return "holds two numbers", f"write {found[1]} and {found[2]} in two columns"
    if remedy := _other_marks(text, decimal):
        return "must be a number", remedy
    if found := re.fullmatch(rf"({NUMBER}) ?((?:[^\W0-9_]|[°{CURRENCY}]|x?10\^)\S*)", text):
        return f"has the unit {found[2]!r}", f"write {found[1]} {same_unit}"
    if found := re.fullmatch(rf"([{CURRENCY}]) ?({NUMBER})", text):
        return f"has the unit {found[1]!r}", f"write {found[2]} {same_unit}"
    return None


def _other_marks(text: str, decimal: str) -> str:
    """The remedy for a number with another decimal mark or with thousands separators; nothing for other texts."""
    other = "," if decimal == "." else "."
    if not re.fullmatch(r"[+-]?[0-9][0-9.,'’_ \u00a0\u202f]*", text):
        return ""
    if re.fullmatch(rf"[+-]?[0-9]+{re.escape(other)}[0-9]+", text):
        cure = f'set data.decimal = "{other}" if that is the decimal mark'
        if re.fullmatch(r"[+-]?[1-9][0-9]{0,2}.[0-9]{3}", text):
            return f"{cure}, or write {text.replace(other, '')} if it separates thousands"
        return f"{cure}, or write {text.replace(other, decimal)}"
    return "write it without thousands separators"
