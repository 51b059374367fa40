"""Rules from outside the package. A class that is no rule, or whose gradients cannot be counted, is refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, is_dataclass
from inspect import Parameter, signature
from typing import Any

from ..config.declaring import hints
from ..config.layering import OF_EVERY_RULE
from ..named import one_line
from ..values import BadValue
from .fields import NUMBERS, own_fields, with_fields
from .rule import Kept, Rule, Steps

DECORATE = "decorate it with @dataclass(frozen=True)"


def checked_class(kind: Any, field: str, shown: object, taken: Collection[str]) -> type[Rule]:
    """The class, if it is a rule. `field` and `shown` say where it was named; `taken` are the names of other rules."""
    if not (isinstance(kind, type) and issubclass(kind, Rule)):
        raise BadValue(field, shown, "is not a rule", "name or pass a subclass of prifedsync.rules.Rule")
    if not (is_dataclass(kind) and "__dataclass_fields__" in vars(kind)):
        raise BadValue(field, shown, "is not a frozen dataclass, so its fields are unknown", DECORATE)
    if not isinstance(kind.name, str) or not kind.name or kind.name in taken:
        rule = f"has the name {kind.name!r}, which is empty or belongs to another rule"
        raise BadValue(field, shown, rule, 'give the class a name of its own: name = "…"')
    if kind.noisy_gradients is not Rule.noisy_gradients:
        rule = "overrides noisy_gradients, which the accounting must derive from the steps that are taken"
        raise BadValue(field, shown, rule, "override upload_steps and publishes instead")
    if kind.needs_sum_alone is not Rule.needs_sum_alone:
        rule = "overrides needs_sum_alone, which is derived from what the rule does: smaller numbers are claimed by it"
        raise BadValue(field, shown, rule, "remove it; override helper, start, finish, merge or steps instead")
    unknown = [name for name in kind.numbers if name not in NUMBERS]
    if unknown:
        raise BadValue(field, shown, f"lists {unknown[0]!r} in numbers", f"the numbers are {', '.join(NUMBERS)}")
    _check_fields(kind, field, shown)
    return kind


def _check_fields(kind: type[Rule], field: str, shown: object) -> None:
    try:
        hints(kind)
    except NameError as error:
        rule = f"has a field of unknown type: {error}"
        raise BadValue(field, shown, rule, "import the type in the rule's module") from None
    for name, each in own_fields(kind).items():
        if name in OF_EVERY_RULE:
            rule = f"declares the field {name}, which every rule has"
            raise BadValue(field, shown, rule, f'list it in numbers = ("{name}",) or choose another name')
        if each.default is MISSING or not each.init:
            rule = f"declares the field {name} without a default"
            raise BadValue(field, shown, rule, f'write {name}: float = field(default, "what it is")')


def check_takes_weights(rule: Rule) -> None:
    """Refuse a rule that could not weigh uploads: its merge would treat all alike, and nobody would know."""
    parameters = signature(rule.merge).parameters
    if "weights" not in parameters and all(each.kind is not Parameter.VAR_KEYWORD for each in parameters.values()):
        broken = f"cannot be combined with rule {rule.name}, whose merge takes no weights"
        raise BadValue("merge", '"records"', broken, 'let its merge take weights=None, or set merge = "equal"')


def made(kind: type[Rule], values: Mapping[str, Any], field: str, shown: object) -> Rule:
    """The rule with these values of its own fields, if its steps are of the types that engines can run."""
    try:
        rule = with_fields(kind, values)
        steps = rule.steps
        kept = rule.kept
        publishes = rule.publishes
    except BadValue:
        raise
    except Exception as error:
        remedy = "construct the rule on its own to see the traceback"
        raise BadValue(field, shown, f"raised {one_line(error)}", remedy) from error
    if not isinstance(steps, Steps):
        wrong = f"has steps of type {type(steps).__name__}"
        raise BadValue(field, shown, wrong, "return a prifedsync.rules.Steps")
    if not (kept is None or isinstance(kept, Kept)):
        wrong = f"has kept of type {type(kept).__name__}"
        raise BadValue(field, shown, wrong, "return None or a prifedsync.rules.Kept")
    if publishes and kept is None:
        raise BadValue(field, shown, "publishes a personal model, but trains none", "return a Kept from kept")
    return rule
