"""Layer rules by name: functions of the user's that return per-sample gradient rules for module classes of theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from .. import named
from ..values import BadValue

FIELD = "model.layer_rules"
Rules = Mapping[type[nn.Module], Callable[..., Any]]


def layer_rules(names: Sequence[str], given: Rules | None = None) -> dict[type[nn.Module], Callable[..., Any]]:
    """The rules of all named functions, and those given from Python: one for each module class."""
    if given is not None and not isinstance(given, Mapping):
        remedy = "give {MyLayer: my_rule}"
        raise BadValue("layer_rules", type(given).__name__, "is not a mapping of module class → rule", remedy)
    rules = dict(given or {})
    for name in names:
        named_rules = named.call(FIELD, name)
        if not isinstance(named_rules, Mapping):
            rule = f"must return a mapping of module class → rule, and returned a {type(named_rules).__name__}"
            raise BadValue(FIELD, repr(name), rule, "return {MyLayer: my_rule}")
        for kind, rule_of_kind in named_rules.items():
            if kind in rules:
                remedy = "give one rule for each module class"
                raise BadValue(FIELD, repr(name), f"gives a second rule for {getattr(kind, '__name__', kind)}", remedy)
            rules[kind] = rule_of_kind
    return rules
