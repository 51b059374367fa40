"""The meaning of a text in a file: a missing value, a number, or something else."""

from __future__ import annotations

MISSING = {"", "na", "nan", "null", "?"}  # upper case counts as lower case


def is_missing(text: str) -> bool:
    """Whether the text stands for a missing value."""
    return text.casefold() in MISSING


def as_number(text: str) -> float | None:
    """The number that the text spells, perhaps infinite or NaN; None if it does not spell a number."""
    try:
        return None if "_" in text else float(text)  # Python would read the text 1_000 as a number
    except ValueError:
        return None
