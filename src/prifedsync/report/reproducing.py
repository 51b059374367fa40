"""How to run it again, on which records it was, and how to check the guarantee without the run."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.toml import toml
from ..files import CONFIG
from ..limits import RECORD
from ..record import RunRecord, plan_from_json
from .sources import Sources

DIGITS = 16  # of a digest


@dataclass(frozen=True)
class Reproducing:
    """Commands, versions and settings.

    exactly  whether the same numbers come out again, and why not
    records  a digest of where the records came from, the same for runs on one table; "" where the files do not say it
    """

    commands: tuple[str, ...]
    exactly: str
    versions: Mapping[str, str]
    device: str
    host: str
    gradients: str
    parameters: int
    settings: tuple[str, ...]
    config: Mapping[str, Any]
    records: str


def reproducing_of(sources: Sources, record: RunRecord) -> Reproducing:
    """Of a finished run."""
    commands = [_again(record)]
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
        records=_records(sources, record),
    )


def _again(record: RunRecord) -> str:
    """The command that repeats the run. Between machines that is the server's; owners' daemons take part as before."""
    if record.rehearsed:
        return "prifedsync deploy local PROJECT"
    if record.deployment:
        return "prifedsync deploy serve SERVER"
    return "prifedsync train config.toml --out again"


def _records(sources: Sources, record: RunRecord) -> str:
    """Owners and Python give records without saying where they lie. A record has no path; the folder's config has it."""
    source = record.config["data"]["source"]
    if sources.public_data:
        return digest([source])
    path = _path(sources.folder / CONFIG)
    if record.deployment or not path:
        return ""
    return digest([source, path])


def _path(config: Path) -> str:
    """The path of the data in a config file; "" where there is none."""
    try:
        return str(tomllib.loads(config.read_text(encoding="utf-8")).get("data", {}).get("path", ""))
    except (OSError, ValueError, AttributeError):
        return ""


def digest(parts: object) -> str:
    """A short name for what is not printed itself."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:DIGITS]


def _exactly(sources: Sources, record: RunRecord) -> str:
    if any("came from Python" in warning for warning in record.warnings):
        return "Parts of this run came from Python: the config alone does not repeat it."
    if sources.seeded:
        return "The draws are seeded: the same versions on the same kind of device give the same record, but for timings."
    secret = "Noise and batches are secret: a second run has the same guarantee and other scores."
    if record.deployment and not record.rehearsed:
        return f"The server runs this with all owners, whose ledgers charge the second run too. {secret}"
    return secret


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
