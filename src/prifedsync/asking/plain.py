"""Frozen dataclasses as plain JSON values, and back, by their type hints.

`written` gives every field its own type, so that the same value always has the same text. `read` builds each dataclass
through its own checks. It takes nothing for anything else: 1 is no truth value, and 1 is not 1.0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from ..accounting import NoisySteps, OutputPerturbation
from ..accounting.mechanisms import Mechanism
from ..local.optimisers import Optimiser
from ..values import BadValue

MECHANISMS = {"noisy-steps": NoisySteps, "output": OutputPerturbation}
NAME_OF = {kind: name for name, kind in MECHANISMS.items()}
KIND = "kind"  # the key that says which mechanism a table is
CODE = {(Optimiser, "own")}  # fields that would hold code: a document has none
MOST_DEEP = 8
MOST_TEXT = 300  # characters
MOST_VALUES = 500_000
MOST_WHOLE = 2**63 - 1


class _Refused:
    """Stands for a value that a type does not take."""


REFUSED = _Refused()


def written(hint: Any, value: Any) -> Any:
    """The value as JSON has it."""
    if hint is Mechanism:
        return {KIND: NAME_OF[type(value)], **written(type(value), value)}
    if is_dataclass(hint) and not isinstance(value, NoneType):
        return {name: written(inner, getattr(value, name)) for name, inner in field_hints(hint).items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [written(_item_hint(hint), item) for item in value]
    if _arms(hint) != (hint,):
        fitting = [arm for arm in _arms(hint) if _fits(arm, value)]
        return written(fitting[0], value)
    return float(value) if hint is float else value


def read(hint: Any, value: Any, name: str) -> Any:
    """The value that this JSON stands for; refused if its type is another one, or if the dataclass refuses it."""
    for arm in _arms(hint):
        found = _read_as(arm, value, name)
        if found is not REFUSED:
            return found
    raise BadValue(name, _shown(value), "is of another type than the field", "write what `asking.document` writes")


def table(value: Any, keys: Sequence[str], name: str) -> Mapping[str, Any]:
    """The value, if it is a table with exactly these keys."""
    if not isinstance(value, Mapping):
        raise BadValue(name, _shown(value), "must be a table", "write what `asking.document` writes")
    wrong = sorted(set(keys) ^ set(value))
    if wrong:
        about = "is missing" if wrong[0] in keys else "is not a field"
        raise BadValue(f"{name}.{wrong[0]}", len(value), f"fields are there, and one {about}", f"the fields are {keys}")
    return value


def check_size(value: Any) -> None:
    """Refuse what is too deep or too large to be looked at, what is not JSON, and numbers that are none. Level by level,
    without recursion."""
    level = [value]
    seen = 0
    for _ in range(MOST_DEEP):
        seen += len(level)
        if seen > MOST_VALUES:
            raise BadValue("document", f"more than {MOST_VALUES} values", "is too large", "ask for fewer clients")
        for each in level:
            _check_value(each)
        level = [inner for each in level for inner in _inside(each)]
    if level:
        raise BadValue("document", "tables in tables", f"is nested more than {MOST_DEEP} levels deep")


def _inside(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [*value, *value.values()]
    return value if isinstance(value, list) else []


def _check_value(value: Any) -> None:
    if value is None or isinstance(value, (bool, list, Mapping)):
        return
    if isinstance(value, str):
        if len(value) > MOST_TEXT or not value.isprintable():
            raise BadValue("document", repr(value[:20]), f"has a text that is not printable or over {MOST_TEXT} characters")
    elif isinstance(value, int):
        if abs(value) > MOST_WHOLE:
            raise BadValue("document", "a whole number", f"must lie within ±{MOST_WHOLE}")
    elif not (isinstance(value, float) and math.isfinite(value)):
        raise BadValue(
            "document", type(value).__name__, "must be a finite number, a text, a truth value, a list or a table"
        )


def _read_as(arm: Any, value: Any, name: str) -> Any:
    """The value as one type, or REFUSED."""
    if arm is Mechanism:
        return _mechanism(value, name)
    if is_dataclass(arm) and isinstance(value, Mapping):
        hints = field_hints(arm)
        given = table(value, tuple(hints), name)
        return cast(Any, arm)(**{key: read(hint, given[key], f"{name}.{key}") for key, hint in hints.items()})
    if isinstance(arm, type) and issubclass(arm, Enum):
        return next((member for member in arm if type(value) is str and member.value == value), REFUSED)
    if get_origin(arm) is tuple and isinstance(value, list):
        inner = get_args(arm)
        if inner[-1] is not ... and len(value) != len(inner):
            return REFUSED
        return tuple(read(inner[0], item, name) for item in value)
    return value if _fits(arm, value) else REFUSED


def _fits(arm: Any, value: Any) -> bool:
    """Whether a value that has no parts is of this type."""
    if get_origin(arm) is Literal:
        return type(value) is str and value in get_args(arm)
    if is_dataclass(arm):
        return isinstance(value, cast(type, arm))
    return arm in (int, float, bool, str, NoneType) and type(value) is arm


def _mechanism(value: Any, name: str) -> Any:
    kind = value.get(KIND) if isinstance(value, Mapping) else None
    if not (isinstance(kind, str) and kind in MECHANISMS):
        raise BadValue(f"{name}.{KIND}", _shown(kind), f"must be one of {', '.join(MECHANISMS)}")
    return read(MECHANISMS[kind], {key: each for key, each in value.items() if key != KIND}, name)


def field_hints(kind: Any) -> dict[str, Any]:
    """The fields of a dataclass that are written, with their types."""
    return _field_hints(kind)


@cache
def _field_hints(kind: Any) -> dict[str, Any]:
    types = get_type_hints(kind)
    return {each.name: types[each.name] for each in fields(kind) if (kind, each.name) not in CODE}


def _arms(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _item_hint(hint: Any) -> Any:
    (many,) = [arm for arm in _arms(hint) if get_origin(arm) is tuple]
    return get_args(many)[0]


def _shown(value: Any) -> str:
    """A short text of a value from outside."""
    return repr(value)[:60] if isinstance(value, (str, int, float, NoneType)) else type(value).__name__
