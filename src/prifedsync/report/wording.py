"""How a report writes numbers and names. Every privacy number is rounded to its safe side."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_CEILING, Decimal
from math import inf

from ..accounting.statement import loss_up, up
from ..scores import Interval
from ..values import counted as many

MOST_NAMED = 5
DIGITS = 6  # of a δ


def share_up(share: float, digits: int = 2) -> str:
    """A fraction as a percentage with so many digits at least, rounded up: 0.00123 → "0.13%", 0.0926 → "9.3%"."""
    if share <= 0:
        return "0%"
    exact = Decimal(share) * 100
    places = max(digits - 1 - exact.adjusted(), 1) if exact < 10 else 1
    rounded = exact.quantize(Decimal(1).scaleb(-places), ROUND_CEILING)
    return f"{min(Decimal(100), rounded).normalize():f}%"


def percent(share: float) -> str:
    """A fraction that is exact, such as a false positive rate: 0.01 → "1%"."""
    return f"{float(f'{100 * share:.6g}'):.10g}%"


def one_in(base: float) -> str:
    """A probability in words: "1 in 1,000"."""
    return f"1 in {round(1 / base):,}"


def small(value: float) -> str:
    """A δ or a false positive rate: 1e-5. More than 6 digits are rounded up, so that no δ is printed smaller than it is."""
    if not 0 < value < inf:
        return f"{value:g}"
    exact = Decimal(repr(float(value)))  # the digits that were written: those of the double would round 1e-5 up
    rounded = exact.quantize(Decimal(1).scaleb(exact.adjusted() - DIGITS + 1), ROUND_CEILING)
    return f"{float(rounded):.{DIGITS}g}".replace("e-0", "e-")


def named(names: Sequence[str], thing: str = "client") -> str:
    """Some names, and how many more things there are."""
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {many(more, f'more {thing}')}" if more > 0 else "")


def unit_is(unit: str, record_is: str) -> str:
    """A unit, and what one record is in the owner's words, where these are there."""
    if not record_is:
        return unit
    return f"{unit} ({record_is})" if unit == "record" else f"{unit} (one record is {record_is})"


def score(value: float | None) -> str:
    """A score with three digits."""
    return "–" if value is None else f"{value:.3f}"


def between(interval: Interval) -> str:
    """The ends of an interval of a score."""
    return f"{score(interval.low)}–{score(interval.high)}"


def mean_between(mean: float | None, interval: Interval | None) -> str:
    """A score, and its interval where there is one."""
    return score(mean) + (f" ({between(interval)})" if interval else "")


__all__ = [
    "between", "loss_up", "many", "mean_between", "named", "one_in", "percent", "score", "share_up", "small",
    "unit_is", "up",
]  # fmt: skip
