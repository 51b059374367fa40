"""What a run leaves behind: who ran what, what it cost each client in privacy, and how good it became. No torch."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .accounting import Neighbours, NoisySteps, PrivacyPlan, Sampling
from .accounting.statement import SIMULATION as SIMULATION  # with the other words of a record, for those who read one
from .accounting.statement import Numbers, Statement
from .values import BadValue

SCHEMA_VERSION = 1
NO_GUARANTEE = "no guarantee: trained without noise"
NOTHING_LEAVES = (
    "nothing leaves a client, so nobody else learns anything about a record; that does not cover the personal models, "
    "which are kept and trained without noise"
)
KEPT = "kept by the client, trained without noise"
SCORES_LEAK = "scores, comparisons too, are computed without noise: the guarantee does not cover them"
TIMINGS_LEAK = (
    "timings are measured without noise and may depend on the records, as on how many are in a batch: the guarantee does "
    "not cover them"
)
OVERLAP = "clients overlap (data.overlap), and a record leaks through every client that holds it"


@dataclass(frozen=True)
class Score:
    """One model, or one model a client, on the clients' test records: over the clients that have any."""

    mean: float | None
    worst: float | None
    clients: int

    @staticmethod
    def over(values: Iterable[float | None], lower_is_better: bool) -> Score:
        known = [value for value in values if value is not None and math.isfinite(value)]
        if not known:
            return Score(None, None, 0)
        return Score(math.fsum(known) / len(known), max(known) if lower_is_better else min(known), len(known))


@dataclass(frozen=True)
class Scores:
    """How good one kind of model is: on each client's own test records, and on everybody's."""

    own: Score
    everybody: Score


@dataclass(frozen=True)
class ClientRecord:
    """One client: what was planned, what was done, what each costs."""

    name: str
    records: int | None  # None where the number is not public
    plan: dict[str, Any] | None
    rounds_taken: int
    noisy_queries: int
    planned: dict[str, Any] | None  # the guarantee if all rounds are run, participation by an honest coin
    taken: dict[str, Any] | None  # the guarantee once it is known how many rounds were taken
    personal: float | None
    released: float | None


@dataclass(frozen=True)
class RunRecord:
    """A finished run. Timings and host stand apart: all else is the same whenever the same run is repeated."""

    config: dict[str, Any]
    clients: tuple[ClientRecord, ...]
    guarantee: dict[str, Any] | None  # true of every client: each number is the worst of that quantity over clients
    sentence: str  # made from those numbers
    metric: str
    scores: Mapping[str, Scores]  # personal, released, and what was trained for comparison
    warnings: tuple[str, ...]
    versions: Mapping[str, str]
    device: str
    gradients: str  # how per-sample gradients were computed: bookkeeping, vmap or loop
    parameters: int
    personal_models: str = ""  # whether they may be published
    timings: Mapping[str, float] = field(default_factory=dict)
    host: str = ""
    schema_version: int = SCHEMA_VERSION

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> RunRecord:
        if data.get("schema_version") != SCHEMA_VERSION:
            rule = f"is not the version this program reads, {SCHEMA_VERSION}"
            raise BadValue("schema_version", data.get("schema_version"), rule)
        scores = {name: Scores(Score(**both["own"]), Score(**both["everybody"])) for name, both in data["scores"].items()}
        clients = tuple(ClientRecord(**client) for client in data["clients"])
        return RunRecord(**{**data, "scores": scores, "clients": clients, "warnings": tuple(data["warnings"])})

    @staticmethod
    def read(path: Path) -> RunRecord:
        try:
            return RunRecord.from_json(json.loads(path.read_bytes()))
        except BadValue:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadValue("record", path, f"cannot be read: {error!r}", "put back a copy of it") from None

    def repeatable(self) -> dict[str, Any]:
        """All that the same run must give again."""
        return {key: value for key, value in self.as_json().items() if key not in ("timings", "host")}


class Guarantees:
    """The guarantees of many clients; those with equal plans and counts are computed once."""

    def __init__(self, delta: float, clients: int) -> None:
        self.delta, self.clients = delta, clients
        self._planned: dict[PrivacyPlan, Statement] = {}
        self._taken: dict[tuple[PrivacyPlan, int], Numbers] = {}

    def planned(self, plan: PrivacyPlan) -> Statement:
        if plan not in self._planned:
            others = self.clients if self.clients > 1 else None  # with one client there is nobody to collude
            self._planned[plan] = Statement.of(plan, self.delta, others)
        return self._planned[plan]

    def taken(self, plan: PrivacyPlan, rounds: int) -> Numbers:
        if (plan, rounds) not in self._taken:
            self._taken[plan, rounds] = Numbers.of(plan.guarantee(taken=rounds), self.delta)
        return self._taken[plan, rounds]

    def worst(self, plans: Iterable[PrivacyPlan]) -> Statement:
        """One statement that is true of every client."""
        return Statement.worst(self.planned(plan) for plan in dict.fromkeys(plans))


def plan_as_json(plan: PrivacyPlan) -> dict[str, Any]:
    """A plan in public numbers."""
    mechanism = {key: getattr(value, "value", value) for key, value in dataclasses.asdict(plan.mechanism).items()}
    return {
        "mechanism": type(plan.mechanism).__name__,
        **mechanism,
        "rounds": plan.rounds,
        "participation": plan.participation,
        "neighbours": plan.neighbours.value,
        "copies": plan.copies,
    }


def plan_from_json(data: Mapping[str, Any]) -> PrivacyPlan:
    """The plan that `plan_as_json` wrote; noisy steps only."""
    if data.get("mechanism") != NoisySteps.__name__:
        raise BadValue("plan.mechanism", data.get("mechanism"), f"must be {NoisySteps.__name__}")
    steps = {field.name: data[field.name] for field in dataclasses.fields(NoisySteps)}
    return PrivacyPlan(
        mechanism=NoisySteps(**(steps | {"sampling": Sampling(data["sampling"])})),
        rounds=data["rounds"],
        participation=data["participation"],
        neighbours=Neighbours(data["neighbours"]),
        copies=data["copies"],
    )
