"""How to run it again, and how to check the guarantee without the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..config.toml import toml
from ..limits import RECORD
from ..record import RunRecord, plan_from_json
from .sources import Sources


@dataclass(frozen=True)
class Reproducing:
    """Commands, versions and settings. `exactly`: whether the same numbers come out again, and why not."""

    commands: tuple[str, ...]
    exactly: str
    versions: Mapping[str, str]
    device: str
    host: str
    gradients: str
    parameters: int
    settings: tuple[str, ...]
    config: Mapping[str, Any]


def reproducing_of(sources: Sources, record: RunRecord) -> Reproducing:
    """Of a finished run."""
    commands = ["prifedsync train config.toml --out again"]
    account = account_of(record)
    commands += [account] if account else []
    return Reproducing(
        commands=tuple(commands),
        exactly=_exactly(sources, record),
        versions=record.versions,
        device=record.device,
        host=record.host,
        gradients=record.gradients,
        parameters=record.parameters,
        settings=record.settings,
        config=record.config,
    )


def _exactly(sources: Sources, record: RunRecord) -> str:
    if any("came from Python" in warning for warning in record.warnings):
        return "Parts of this run came from Python: the config alone does not repeat it."
    if sources.seeded:
        return "The draws are seeded: the same versions on the same kind of device give the same record, but for timings."
    return "Noise and batches are secret: a second run has the same guarantee and other scores."


def account_of(record: RunRecord) -> str:
    """The command that states the guarantee of the first client's plan; "" where `account` has no such plan."""
    plan = next((plan_from_json(client.plan) for client in record.clients if client.plan), None)
    steps = plan.mechanism.steps if plan else None
    if plan is None or steps is None or plan.unit != RECORD or plan.copies > 1 or plan.attempts:
        return ""
    options = {
        "records": steps.records,
        "batch": steps.batch,
        "noise-multiplier": repr(steps.noise_multiplier / (1 + steps.clip_margin)),  # rounding may move the sum so far
        "local-steps": steps.local_steps,
        "rounds": plan.rounds,
        "participation": plan.participation,
        "sampling": steps.sampling.value,
        "neighbours": plan.neighbours.value,
        "delta": toml((record.guarantee or {})["delta"]),
    }
    return " ".join(["prifedsync account", *(f"--{name} {value}" for name, value in options.items())])
