"""Checked values, and the refusal of a bad one: field, value, rule and remedy in one line."""

from __future__ import annotations

import math
from enum import Enum
from numbers import Integral
from typing import TypeVar

LONGEST = 200  # characters of a value that a refusal repeats


class NotGiven(Enum):
    """Stands for the value of a field that has none: the refusal is then about the field itself."""

    NOT_GIVEN = "not given"


NOT_GIVEN = NotGiven.NOT_GIVEN


class BadValue(ValueError):
    """An input that breaks a rule. Its message names the field, the value if there is one, the rule and the remedy."""

    def __init__(self, field: str, value: object, rule: str, remedy: str = "") -> None:
        self.field, self.value, self.rule, self.remedy = field, value, rule, remedy
        shown = str(value)
        if len(shown) > LONGEST:
            shown = f"{shown[:LONGEST]}…"
        subject = field if value is NOT_GIVEN else f"{field} = {shown}"
        super().__init__(one_line(f"{subject} {rule}" + (f"; {remedy}" if remedy else "")))


def counted(count: int, thing: str) -> str:
    """The number with its noun: 1 client, 1,000 clients, 0 clients."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def one_line(text: str) -> str:
    """The text with line breaks and everything else that cannot be printed written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def number(field: str, value: float, low: float, high: float = math.inf, *, ends: str = "[]", remedy: str = "") -> float:
    """The value as a float, if it is finite and lies between `low` and `high`; refused otherwise, NaN included."""
    try:
        as_float = float(value)
    except (TypeError, ValueError):
        raise BadValue(field, value, "must be a number", remedy) from None
    above = as_float >= low if ends[0] == "[" else as_float > low
    below = as_float <= high if ends[1] == "]" else as_float < high
    if above and below and math.isfinite(as_float):
        return as_float
    if math.isinf(high):
        rule = f"must be finite and {'at least' if ends[0] == '[' else 'above'} {low:g}"
    else:
        rule = f"must lie in {ends[0]}{low:g}, {high:g}{ends[1]}"
    raise BadValue(field, value, rule, remedy)


def whole(field: str, value: int, low: int, high: int | None = None, *, remedy: str = "") -> int:
    """The value as an int, if it is a whole number from `low` to `high`; a bool or 2.5 is refused."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if is_whole and value >= low and (high is None or value <= high):
        return int(value)
    rule = f"must be a whole number of at least {low}" + ("" if high is None else f" and at most {high}")
    raise BadValue(field, value, rule, remedy)


Choice = TypeVar("Choice", bound=Enum)


def choice(field: str, value: object, kind: type[Choice]) -> Choice:
    """The value, if it is a member of the enumeration; the string "fixed" is not `Sampling.FIXED` and is refused."""
    if isinstance(value, kind):
        return value
    members = ", ".join(str(member) for member in kind)
    raise BadValue(field, repr(value), f"must be one of {members}", f"import {kind.__name__} and name the member")
