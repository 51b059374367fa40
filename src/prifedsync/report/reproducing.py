"""How to run it again, and how to check the guarantee without the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..config.toml import toml
from ..record import RunRecord
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
    plan = next((client.plan for client in record.clients if client.plan), None)
    if plan is None or plan["mechanism"] != "NoisySteps" or plan["unit"] != "record" or plan["copies"] > 1:
        return ""
    options = {
        "records": plan["records"],
        "batch": plan["batch"],
        "noise-multiplier": repr(plan["noise_multiplier"] / (1 + plan["clip_margin"])),  # rounding may move the sum so far
        "local-steps": plan["local_steps"],
        "rounds": plan["rounds"],
        "participation": plan["participation"],
        "sampling": plan["sampling"],
        "neighbours": plan["neighbours"],
        "delta": toml((record.guarantee or {})["delta"]),
    }
    if plan.get("attempts"):
        return ""
    return " ".join(["prifedsync account", *(f"--{name} {value}" for name, value in options.items())])
