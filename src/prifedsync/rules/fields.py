"""The fields that a rule declares. Their values come from [rule] in the config; each has documentation and bounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import Field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from ..config.declaring import allowed, declared, field, hints
from ..config.layering import OF_EVERY_RULE
from ..config.reading import read
from ..config.toml import toml
from ..values import BadValue

if TYPE_CHECKING:
    from .rule import Rule

__all__ = ["NUMBERS", "PUBLISH", "described", "field", "fields_read", "own_fields", "own_values", "with_fields"]

NUMBERS = ("mixing", "strength")  # each client may have its own value of these
PUBLISH = "noise and count the training of the personal models, so that they may be published"


def own_fields(kind: type[Rule]) -> dict[str, Field[Any]]:
    """The rule's own fields by their names."""
    return {each.name: each for each in dataclasses.fields(kind)}


def own_values(rule: Rule) -> dict[str, Any]:
    """The values of the rule's own fields."""
    return {name: getattr(rule, name) for name in own_fields(type(rule))}


def with_fields(kind: type[Rule], given: Mapping[str, Any]) -> Rule:
    """The rule with these values of its own fields, which are checked. Other fields have their defaults."""
    own = own_fields(kind)
    for key, value in given.items():
        if key not in own:
            raise BadValue(f"rule.{key}", toml(value), f"is not a field of rule {kind.name}", _remedy(kind, key))
    types = hints(kind)
    checked = {key: read(types[key], value, f"rule.{key}", declared(own[key])) for key, value in given.items()}
    return kind(**checked)


def fields_read(kind: type[Rule]) -> list[str]:
    """The fields of [rule] that the rule reads: numbers of each client, its own fields, and delivery if it has uploads."""
    numbers = [name for name in NUMBERS if name in kind.numbers]
    return [*numbers, *own_fields(kind), *(["delivery"] if kind.uploads else [])]


def described(kind: type[Rule]) -> list[dict[str, Any]]:
    """The rule's own fields: name, default, documentation, and the allowed values in words."""
    return [
        {
            "name": name,
            "default": each.default,
            "about": declared(each).doc,
            "allowed": allowed(hints(kind)[name], declared(each)),
        }
        for name, each in own_fields(kind).items()
    ]


def _remedy(kind: type[Rule], key: str) -> str:
    own = list(own_fields(kind))
    near = get_close_matches(key, [*own, *sorted(OF_EVERY_RULE)], 1)
    has = f"its own fields are {', '.join(own)}" if own else "it has no fields of its own"
    return f"did you mean rule.{near[0]}? ({has})" if near else f"remove it ({has})"
