from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ..files import write_file

Phase = Literal["waiting for clients", "training", "finished", "stopped by an error", "ended"]
NodeState = Literal["online", "offline", "not registered"]


@dataclass(frozen=True, kw_only=True)
class ClientStatus:
    name: str
    node: str
    answer: str
    reason: str
    late: bool
    since: Any
    rounds: int
    last: Any
    shown: Any


@dataclass(frozen=True, kw_only=True)
class Status:
    run: str
    phase: str
    round: int
    rounds: int
    begun: float
    changed: float
    error: str
    clients: Any


def late(now, since, question):
    return now - since > question


def write(path, status):
    write_file(path, json.dumps(asdict(status)).encode())
