"""Layer rules by name: users' functions that return rules for the per-sample gradients of their own module classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from .. import named
from ..values import BadValue

FIELD = "model.layer_rules"
Rules = Mapping[type[nn.Module], Callable[..., Any]]


def layer_rules(names: Sequence[str], given: Rules | None = None) -> dict[type[nn.Module], Callable[..., Any]]:
    """The rules of all named functions, and those passed from Python: one for each module class."""
    if given is not None and not isinstance(given, Mapping):
        rule = "must be a mapping of module class → rule"
        raise BadValue("layer_rules", type(given).__name__, rule, "pass {MyLayer: my_rule}")
    rules = dict(given or {})
    for name in names:
        named_rules = named.call(FIELD, name)
        if not isinstance(named_rules, Mapping):
            rule = f"must return a mapping of module class → rule, but returned a {type(named_rules).__name__}"
            raise BadValue(FIELD, repr(name), rule, "return {MyLayer: my_rule}")
        for kind, rule_of_kind in named_rules.items():
            if kind in rules:
                rule = f"returns a second rule for {getattr(kind, '__name__', kind)}"
                raise BadValue(FIELD, repr(name), rule, "return one rule for each module class")
            rules[kind] = rule_of_kind
    return rules
