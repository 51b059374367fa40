"""Values as their fields want them, by type hint and bounds; everything else is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher, get_close_matches
from numbers import Integral, Real
from types import NoneType
from typing import Any, Literal, cast, get_args, get_origin

from ..values import BadValue
from .declaring import Declared, allowed, arms, declared, declared_fields, hints, is_free, keys_of, open_name
from .toml import joined, toml

FUNCTION = re.compile(r"(\w[\w.]*|.+\.py):\w+")
RENAMED = {"metric": 'it is called metrics, and is a list: metrics = ["auc", "accuracy"]'}
WHERE_FIELDS_ARE = "prifedsync train --show-config lists the fields"


class _Refused:
    """Stands for a value that a type does not take."""


REFUSED = _Refused()


def values(part: type, given: Mapping[str, Any], name: str, whole: type) -> dict[str, Any]:
    """The given fields of a dataclass, checked. Unknown keys go into its open field; if it has none, they are refused."""
    known = {each.name: declared(each) for each in declared_fields(part) if not declared(each).is_open}
    rest = open_name(part)
    found: dict[str, Any] = {rest: {}} if rest else {}
    for key, value in given.items():
        full = joined(name, key)
        if key in known:
            found[key] = read(hints(part)[key], value, full, known[key], whole)
        elif not rest:
            raise BadValue(full, toml(value), "is not a field", _nearest(name, key, part, whole))
        elif value is not None:
            found[rest][str(key)] = _plain_value(value, full)
    return found


def read(hint: Any, value: Any, name: str, of: Declared, whole: type | None = None) -> Any:
    """The value as its type hint and bounds want it, or a refusal."""
    for arm in arms(hint):
        taken = _read_as(arm, value, name, of, whole, free=is_free(hint))
        if taken is not REFUSED:
            return taken
    words = [word for arm in arms(hint) if get_origin(arm) is Literal for word in get_args(arm)]
    near = get_close_matches(value, words, 1) if isinstance(value, str) else []
    remedy = f"did you mean {near[0]}?" if near else of.remedy
    raise BadValue(name, toml(value), f"must be {allowed(hint, of)}", remedy)


def _read_as(arm: Any, value: Any, name: str, of: Declared, whole: type | None, free: bool) -> Any:
    """The value as one type, or REFUSED. A text that is not free names a function."""
    kind = cast(Any, get_origin(arm) or arm)
    inner = get_args(arm)
    if hints(kind) and isinstance(value, (Mapping, kind)):
        return kind(**values(kind, value if isinstance(value, Mapping) else keys_of(value), name, whole or kind))
    if kind is Mapping and isinstance(value, Mapping):
        return {str(key): read(inner[1], item, joined(name, key), of, whole) for key, item in value.items()}
    if kind is tuple and isinstance(value, (list, tuple)) and (inner[-1] is ... or len(value) == len(inner)):
        return tuple(read(inner[0], item, name, of, whole) for item in value)
    if kind in (int, float) and isinstance(value, Integral if kind is int else Real) and of.allows(value):
        return kind(value)
    if kind is str and isinstance(value, str) and (free or FUNCTION.fullmatch(value)):
        return value
    fits = value in inner if kind is Literal else kind in (bool, NoneType) and isinstance(value, kind)
    return value if fits else REFUSED


def _plain_value(value: Any, name: str) -> Any:
    """A value for code that the config does not know: what TOML has for numbers, text, truth values and lists of them."""
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    if isinstance(value, (list, tuple)):
        return tuple(_plain_value(item, name) for item in value)
    raise BadValue(name, toml(value), "must be a finite number, text, true or false, or a list of these")


def _names(part: Any, name: str = "") -> Iterator[str]:
    """The dotted names of all fields of a dataclass that a file may set."""
    for each in declared_fields(part) if hints(part) else ():
        if not declared(each).is_open:
            yield joined(name, each.name)
            yield from _names(hints(part)[each.name], joined(name, each.name))


def _nearest(name: str, key: str, part: type, whole: type) -> str:
    """Which field an unknown key may have meant: alike in full, or alike in its last word but elsewhere."""
    if joined(name, key) in RENAMED:
        return RENAMED[joined(name, key)]

    def alike(candidate: str) -> float:
        last = SequenceMatcher(None, str(key), candidate.rpartition(".")[2]).ratio()
        return max(SequenceMatcher(None, joined(name, key), candidate).ratio(), 0.9 * last)

    best = max([*_names(part, name), *_names(whole)], key=alike)
    return f"did you mean {best}?" if alike(best) > 0.6 else getattr(whole, "where_fields_are", WHERE_FIELDS_ARE)
