"""A config in the place of options: `account` and `plan` state what its run will be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..values import BadValue

if TYPE_CHECKING:
    from ..run import Forecast

FIELDS = {  # option → the field of a config that it stands for
    "batch": "local.batch",
    "noise_multiplier": "privacy.noise_multiplier",
    "local_steps": "local.local_steps",
    "rounds": "rounds",
    "participation": "participation",
    "sampling": "local.sampling",
    "neighbours": "privacy.neighbours",
    "delta": "privacy.delta",
    "merge": "merge",
    "target_epsilon": "privacy.target.epsilon",
    "target_mu": "privacy.target.mu",
    "target_advantage": "privacy.target.advantage",
    "coalition_mu": "privacy.target.coalition.mu",
    "masks": "privacy.masks",
    "attempts": "privacy.attempts",
    "least_clients": "privacy.least_clients",
}


def check_alone(source: str, options: Mapping[str, Any]) -> None:
    """Refuse options beside a config: it has them all, and `--set` changes them."""
    for name, value in options.items():
        if value is not None:
            field = FIELDS.get(name)
            remedy = f"use --set {field}={value}" if field else "leave it out: it comes from the config's data"
            raise BadValue(name, value, f"cannot be combined with the config {source}", remedy)


def forecast_of(source: str, overrides: Sequence[str] | None, data: Path | None, quiet: bool) -> Forecast:
    """What a run of this config will be, with progress while its clients are planned."""
    from ..config import load

    config = load(source, overrides or (), data)
    from ..run import forecast
    from ..terminal import View

    with View(quiet, notes=True) as view:
        return forecast(config, view)
