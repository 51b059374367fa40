"""`prifedsync rules`."""

from __future__ import annotations

import json
import sys
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
    from ..rules.fields import described, fields_read

    row = {key: getattr(kind, key) for key in SHOWN}
    text = cleandoc(sys.modules[kind.__module__].__doc__ or "")
    row |= {"needs_sum_alone": kind().needs_sum_alone}
    return row | {"about": text, "fields": fields_read(kind), "own_fields": described(kind)}
