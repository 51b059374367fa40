"""`prifedsync rules`."""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

from .options import Json

if TYPE_CHECKING:
    from ..rules import Rule

SHOWN = ("name", "server_sends", "client_does", "leaves", "cost")  # attributes of a rule


def rules(as_json: Json = False) -> None:
    """List the personalisation rules, what they send and cost."""
    from ..rules import RULES

    rows = [about(kind) for kind in RULES.values()]
    if as_json:
        print(json.dumps({"rules": rows}))
        return
    from ..terminal import print_rules

    print_rules(rows)


def about(kind: type[Rule]) -> dict[str, Any]:
    """One row of the table, and which fields of [rule] (and of one client's own) the rule reads."""
    row = {key: getattr(kind, key) for key in SHOWN}
    return row | {"about": cleandoc(sys.modules[kind.__module__].__doc__ or ""), "fields": fields_read(kind)}


def fields_read(kind: type[Rule]) -> list[str]:
    """The client's numbers that its functions ask for, its own fields, and delivery where something is sent."""
    from ..rules import Steps

    rule = kind()
    asked = {name for function in (kind.helper, kind.attention) for name in function.__code__.co_names}
    if any(each and type(each).pull is not Steps.pull for each in (rule.steps, rule.kept)):
        asked.add("strength")
    shared = [name for name in ("mixing", "strength") if name in asked]
    return [*shared, *(field.name for field in fields(kind)), *(["delivery"] if kind.uploads else [])]
