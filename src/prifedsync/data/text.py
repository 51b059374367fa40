"""What a text in a file says: nothing, a number, or something else."""

from __future__ import annotations

MISSING = {"", "na", "nan", "null", "?"}  # in any case


def is_missing(text: str) -> bool:
    """Whether the text stands for a value that is not there."""
    return text.casefold() in MISSING


def as_number(text: str) -> float | None:
    """The number a text says, infinite ones included; None if it does not say one."""
    try:
        return float(text) if "_" not in text else None  # Python reads 1_000 as a number; files do not mean it so
    except ValueError:
        return None
