"""What a field is: its default, its documentation and the values it allows. Declared once; all else follows from that."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from .toml import toml

DECLARED = "declared"  # where a dataclass field keeps its `Declared`


@dataclass(frozen=True)
class Declared:
    """What a field's type does not say. The bounds hold for each number in a list or table too."""

    doc: str = ""
    low: float = -math.inf
    high: float = math.inf
    ends: str = "[]"  # a square bracket: that end is allowed
    remedy: str = ""
    is_open: bool = False  # takes the keys of its table that no other field has

    def allows(self, value: Any) -> bool:
        """Whether a number is finite and within the bounds; a bool is not a number."""
        above = self.low < value or (value == self.low and self.ends[0] == "[")
        below = value < self.high or (value == self.high and self.ends[1] == "]")
        return above and below and abs(value) <= sys.float_info.max and not isinstance(value, bool)

    @property
    def bounds(self) -> str:
        """The bounds in words, to follow "a number"."""
        if self.high < math.inf:
            return f" in {self.ends[0]}{self.low:g}, {self.high:g}{self.ends[1]}"
        if self.low > -math.inf:
            return f" {'of at least' if self.ends[0] == '[' else 'above'} {self.low:g}"
        return ""


def field(
    default: Any, doc: str = "", low: float = -math.inf, high: float = math.inf, ends: str = "[]", remedy: str = ""
) -> Any:
    """A dataclass field with a line of documentation and bounds. A part of the config is documented by its docstring."""
    declared = Declared(doc or default.__doc__, low, high, ends, remedy)
    if callable(default):
        return dataclasses.field(default_factory=default, metadata={DECLARED: declared})
    return dataclasses.field(default=default, metadata={DECLARED: declared})


def field_like(part: type, name: str, without: str = "") -> Any:
    """One client's own value of a field of `part`, with the same documentation and bounds; None: the shared value.

    without: the end of the documentation, where it is not true of one client.
    """
    (shared,) = (each for each in fields(part) if each.name == name)
    own = dataclasses.replace(declared(shared), doc=declared(shared).doc.removesuffix(without))
    return dataclasses.field(default=None, metadata={DECLARED: own})


def open_field(doc: str) -> Any:
    """A field that takes every key of its table that no other field has, as it is."""
    return dataclasses.field(default_factory=dict, metadata={DECLARED: Declared(doc, is_open=True)})


def declared(each: Field[Any]) -> Declared:
    """What was declared of a field; of a plain dataclass field, nothing."""
    return cast(Declared, each.metadata.get(DECLARED, Declared()))


def declared_fields(part: Any) -> tuple[Field[Any], ...]:
    """The fields of a dataclass that a file may set; a plain dataclass field is set by the program alone."""
    return tuple(each for each in fields(part) if DECLARED in each.metadata)


def open_name(part: Any) -> str:
    """The name of the open field of a dataclass, or nothing."""
    return next((each.name for each in fields(part) if declared(each).is_open), "")


def keys_of(value: Any) -> dict[str, Any]:
    """A dataclass as the table it is written as: the keys of an open field stand beside the other fields."""
    table = dict(vars(value))
    rest = table.pop(open_name(value), {})
    return table | dict(rest)


def hints(part: Any) -> dict[str, Any]:
    """The type hints of a dataclass; of anything else, none."""
    return _hints(part)


@cache
def _hints(part: Any) -> dict[str, Any]:
    return get_type_hints(part) if is_dataclass(part) else {}


def arms(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def is_free(hint: Any) -> bool:
    """Whether a text may be anything. Beside words to choose from, it names a function."""
    return not any(get_origin(arm) is Literal for arm in arms(hint))


def allowed(hint: Any, of: Declared) -> str:
    """What a value may be, in words."""
    return alternatives([text for arm in arms(hint) for text in _allowed_by(arm, of, is_free(hint))])


def alternatives(texts: Sequence[str]) -> str:
    """ "a", "a or b", "a, b or c"."""
    return " or ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def _allowed_by(arm: Any, of: Declared, free: bool) -> list[str]:
    kind = cast(Any, get_origin(arm) or arm)
    inner = get_args(arm)
    if kind is Literal:
        return [toml(word) for word in inner]
    if kind is tuple:
        return [f"a {'list' if inner[-1] is ... else 'pair'}, each item {allowed(inner[0], of)}"]
    if kind is str:
        return ["text" if free else '"module:function"']
    if kind is NoneType:
        return []
    names = {int: f"a whole number{of.bounds}", float: f"a number{of.bounds}", bool: "true or false", Mapping: "a table"}
    return [names.get(kind, "a table")]
