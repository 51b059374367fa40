"""The meaning of a cell of a table: a missing value, a number, a category, or something else."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from numbers import Real

MISSING = {"", "na", "nan", "null", "?", "<na>"}  # upper case counts as lower case

Cell = object  # a text of a file, or a value of a data frame
Category = Decimal | str  # what two cells have in common if they are the same category

# A number as a category. With a leading zero it is a code: "01" is not "1".
PLAIN_NUMBER = re.compile(r"[+-]?(0|[1-9][0-9]*)(\.[0-9]+)?")


def shown(cell: Cell) -> str:
    """The cell in a message: a text in quotes, and everything else as it is printed."""
    return repr(str(cell)) if isinstance(cell, str) else str(cell)


def is_missing(cell: Cell) -> bool:
    """Whether the cell stands for a missing value."""
    return cell is None or str(cell).strip().casefold() in MISSING


def as_number(cell: Cell, decimal: str = ".") -> float | None:
    """The number that the cell holds or spells, perhaps infinite or NaN; None if it is not a number."""
    if not isinstance(cell, str) and isinstance(cell, Real) and not isinstance(cell, bool):  # in this order for speed
        try:
            return float(cell)
        except OverflowError:  # of a whole number
            return math.inf
    text = str(cell).strip()
    if "_" in text or (decimal != "." and "." in text):
        return None  # Python would read the text 1_000 as a number; and 1.234 may be a thousand where decimals have commas
    try:
        return float(text.replace(decimal, "."))
    except ValueError:
        return None


def category(cell: Cell, decimal: str = ".") -> Category:
    """What the cell is as a category: cells that spell the same number are the same, as "1" and "1.0"."""
    text = "" if cell is None else str(cell).strip()
    plain = text if isinstance(cell, Real) else text.replace(decimal, ".")
    return Decimal(plain) if PLAIN_NUMBER.fullmatch(plain) else text
