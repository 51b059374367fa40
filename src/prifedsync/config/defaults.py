"""Defaults that depend on where the records come from: your own data, or a known data set."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from .fields import EMBEDDED, PUBLIC, Compared

if TYPE_CHECKING:
    from .whole import Config

Automatic = Literal["rounds", "local.learning_rate", "local.batch", "privacy.clip_norm"]
AUTOMATIC: tuple[Automatic, ...] = get_args(Automatic)  # the fields that may be "auto"
AUTO: Any = "auto"
_KNOWN: dict[str, Any] = {
    "rounds": 30, "local.learning_rate": 1.0, "local.batch": "full", "privacy.clip_norm": 1.0
}  # fmt: skip


def filled(config: Config) -> dict[str, Any]:
    """The parts of the config in which a field without a value gets its default: a number, or "auto" with your own data."""
    own = config.data.source not in PUBLIC
    missing = [name for name in AUTOMATIC if value_of(config, name) is None]
    parts = with_values(config, {name: AUTO if own else _KNOWN[name] for name in missing})
    if config.compare is None:
        parts["compare"] = get_args(Compared) if config.data.source in EMBEDDED else ()
    return parts


def value_of(config: Config, name: str) -> Any:
    """The value at a dotted name."""
    part: Any = config
    for each in name.split("."):
        part = getattr(part, each)
    return part


def with_values(config: Config, values: dict[str, Any]) -> dict[str, Any]:
    """The parts of the config that hold these dotted names, with these values."""
    parts: dict[str, Any] = {}
    for name, value in values.items():
        part, _, field = name.rpartition(".")
        if part:
            parts[part] = replace(parts.get(part, getattr(config, part)), **{field: value})
        else:
            parts[field] = value
    return parts
