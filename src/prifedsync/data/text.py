"""The meaning of a text in a file: a missing value, a number, or something else."""

from __future__ import annotations

MISSING = {"", "na", "nan", "null", "?"}  # upper case counts as lower case


def is_missing(text: str) -> bool:
    """Whether the text stands for a missing value."""
    return text.casefold() in MISSING


def as_number(text: str) -> float | None:
    """The number that the text spells, perhaps infinite or NaN; None if it does not spell a number."""
    try:
        return float(text) if "_" not in text else None  # Python reads 1_000 as a number, but a file means a text
    except ValueError:
        return None
