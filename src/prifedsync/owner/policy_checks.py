"""Rules between fields of a policy: values that are allowed by themselves, and not together."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, get_args

from ..config.checks import check_data
from ..config.fields import Model
from ..config.reading import FUNCTION
from ..config.toml import joined, toml
from ..values import NOT_GIVEN, BadValue

if TYPE_CHECKING:
    from .policy import Policy

ARCHITECTURES = get_args(get_args(Model)[0])
PUBLIC_KEY = re.compile("[0-9a-f]{64}")


def check(policy: Policy) -> None:
    """Refuse a policy whose fields contradict each other, or that lacks what it cannot do without."""
    _check_names(policy)
    _check_budget(policy)
    _check_data(policy)
    _check_code(policy)
    _check_masks(policy)
    _check_files(policy)


def _check_names(policy: Policy) -> None:
    names = {"client": policy.client, "source.name": policy.source.name}
    for name, value in names.items():
        if not value:
            raise BadValue(name, toml(value), "must be set", f'give it in the policy: {name} = "…"')
        if not value.isprintable():
            raise BadValue(name, toml(value), "must be text that can be printed", "choose another name")


def _check_budget(policy: Policy) -> None:
    given = [name for name in ("mu", "epsilon") if getattr(policy.budget, name) is not None]
    if len(given) != 1:
        rule = "sets no budget" if not given else "sets the budget twice, by mu and by epsilon"
        raise BadValue("[budget]", NOT_GIVEN, rule, "give exactly one of budget.mu and budget.epsilon")


def _check_data(policy: Policy) -> None:
    data, source = policy.data, policy.source
    check_data(data)
    if data.client_column:
        rule = "names a column of clients, but all records of an owner are its own"
        raise BadValue(
            "data.client_column", toml(data.client_column), rule, "remove it, and give a file of this owner alone"
        )
    if data.overlap:
        raise BadValue(
            "data.overlap", "true", "is about several clients in one process", "remove it, and set source.holders"
        )
    if (source.unit == "person") != bool(data.person):
        rule = f"does not fit data.person = {toml(data.person)}"
        remedy = 'set both for a budget of persons: unit = "person", and data.person = the column that names the person'
        raise BadValue("source.unit", source.unit, rule, remedy)
    if source.unit == "person" and data.person_clients != source.holders:
        rule = f"is not source.holders = {source.holders}"
        raise BadValue("data.person_clients", data.person_clients, rule, "give the same number in both places")
    if source.neighbours == "add-remove" and data.test_fraction > 0:
        rule = (
            'cannot be combined with source.neighbours = "add-remove", '
            "because the records held out would depend on the private number of records"
        )
        raise BadValue("data.test_fraction", data.test_fraction, rule, "set it to 0")


def _check_code(policy: Policy) -> None:
    if not policy.limits.models:
        raise BadValue("limits.models", "[]", "must name at least one model", f"choose from {', '.join(ARCHITECTURES)}")
    for name in policy.limits.models:
        if name not in ARCHITECTURES:
            _check_installed("limits.models", name, f"a built-in model ({', '.join(ARCHITECTURES)})")
    if not policy.limits.rules:
        raise BadValue("limits.rules", "[]", "must name at least one rule", "prifedsync rules lists them")
    for name in policy.limits.rules:
        if ":" in name or name.endswith(".py"):  # whether there is a built-in rule of that name, `owner check` says
            _check_installed("limits.rules", name, "a built-in rule")


def _check_installed(field: str, name: str, built_in: str) -> None:
    """Code is named as an installed module. A path would run whatever lies there."""
    if not FUNCTION.fullmatch(name) or "/" in name or ".py:" in name:
        rule = f"must be {built_in} or an installed function"
        raise BadValue(field, toml(name), rule, 'write it as "module:function"')


def _check_masks(policy: Policy) -> None:
    masks = policy.masks
    for name, key in masks.peers.items():
        field = joined("masks.peers", name)
        if not PUBLIC_KEY.fullmatch(key):
            remedy = "copy what `prifedsync owner key` printed for that owner"
            raise BadValue(field, toml(key), "must be 64 hexadecimal digits in lower case", remedy)
        if name == policy.client:
            raise BadValue(field, toml(key), "is this owner's own name", "list the other owners only")
    twice = [key for key, count in Counter(masks.peers.values()).items() if count > 1]
    if twice:
        rule = "is the key of two peers: one owner that has two names would count as two"
        raise BadValue("masks.peers", toml(twice[0]), rule, "ask each owner for its own key")
    if not masks.required:
        return
    if not masks.identity:
        remedy = "name a file, and let `prifedsync owner key POLICY` make the key"
        raise BadValue("masks.identity", '""', "must be set with masks.required = true", remedy)
    if policy.limits.participants < 2:
        rule = "must be at least 2 with masks.required = true: a client alone in a sum is not masked"
        raise BadValue("limits.participants", policy.limits.participants, rule, "set it to 2 or more")


def _check_files(policy: Policy) -> None:
    named = {f"files.{name}": value for name, value in vars(policy.files).items()}
    named["masks.identity"] = policy.masks.identity
    for name, value in named.items():
        if not value and name not in ("files.anchor", "masks.identity"):
            raise BadValue(name, '""', "must be set", "name a file")
    used: dict[str, str] = {}
    for name, value in named.items():
        if value and value in used:
            raise BadValue(name, toml(value), f"is {used[value]} too", "give each file a name of its own")
        used[value] = name
