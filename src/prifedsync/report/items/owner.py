"""Items that an owner fills: names, purpose, data and reasons."""

from __future__ import annotations

from ..wording import many, named
from .known import NOT_SAID, Filled, Known, as_said


def names(known: Known) -> Filled:
    """Item 1."""
    words = known.words
    return as_said(
        [
            ("name", words.name), ("owner", words.owner), ("purpose", words.purpose), ("sector", words.sector),
            ("region", words.region), ("law", words.law), ("date", words.date),
        ]
    )  # fmt: skip


def receivers(known: Known) -> Filled:
    """Item 2."""
    kind = f"a machine learning model ({known.record.config['model']['name']}, {known.record.parameters:,} parameters)"
    if not known.words.receivers:
        return "open", f"{kind}; who may receive it is {NOT_SAID}", "record"
    return "filled", f"{kind}; it may be received by: {known.words.receivers}", "owner's words"


def preparing(known: Known) -> Filled:
    """Item 15."""
    words = known.words
    rules = "raw rows become records by the public rules in preprocessing.json"
    tuning = "" if words.tuning == "not said" else words.tuning
    status, text, taken_from = as_said([("exploration", words.exploration), ("tuning", tuning)])
    return status, f"{rules}; {text}", taken_from or "record"


def raw_data(known: Known) -> Filled:
    """Item 19."""
    policies = known.sources.policies
    words = known.words
    if words.data_location and words.data_access:
        return "filled", f"{words.data_location}; access: {words.data_access}", "owner's words"
    if policies:
        owners = [f"{each.holds.get('client', '?')} (source {_source_of(each.holds)})" for each in policies]
        place = words.data_location or f"with their owners, behind a daemon: {named(owners, 'owner')}"
        access = words.data_access and f"access, and keys: {words.data_access}"
        text = f"{place}; {access or f'who has access besides, and to keys, is {NOT_SAID}'}"
        return "filled" if access else "open", text, "policy"
    return as_said([("place", words.data_location), ("access, and keys", words.data_access)])


def _source_of(policy: object) -> str:
    source = policy.get("source", {}) if isinstance(policy, dict) else {}
    return str(source.get("name", "?"))


def columns(known: Known) -> Filled:
    """Item 20."""
    why = known.words.columns
    reason = f"why: {why}" if why else f"why is {NOT_SAID}"
    text = "; ".join(filter(None, [_used(known), reason]))
    return "filled" if why else "open", text, "owner's words" if why else "record"


def _used(known: Known) -> str:
    """What a record is made of, by the public rules."""
    rules = known.sources.preprocessing or {}
    found = [str(each.get("name", each)) if isinstance(each, dict) else str(each) for each in rules.get("columns", ())]
    if found:
        return f"{many(len(found), 'column')}: {named(found, 'column')}"
    shape = "×".join(map(str, rules.get("shape", ())))
    return f"arrays of shape {shape}" if shape else ""


def chosen(known: Known) -> Filled:
    """Item 22."""
    return as_said([("chosen by", known.words.chosen_by), ("reason", known.words.reason)])
