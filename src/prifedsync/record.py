"""The record of a finished run: its config, the privacy guarantee of each client, and the scores. It needs no torch."""

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
from .limits import RECORD
from .values import BadValue

SCHEMA_VERSION = 2
POOLED = {1: "everybody", 2: "pooled"}  # schema version → the name of `Scores.pooled` in its JSON
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
SHARED_PERSONS = "a person may be at several clients (data.person_clients), and leaks through every one of them"


@dataclass(frozen=True)
class Score:
    """The score of one model, or of one model per client, over the clients that have a score."""

    mean: float | None
    worst: float | None
    clients: int

    @staticmethod
    def over(values: Iterable[float | None], lower_is_better: bool) -> Score:
        known = [value for value in values if value is not None and math.isfinite(value)]
        if not known:
            return Score(None, None, 0)
        worst = max(known) if lower_is_better else min(known)
        return Score(math.fsum(known) / len(known), worst, len(known))


@dataclass(frozen=True)
class Scores:
    """The scores of one kind of model: on each client's own test records, and on all clients' test records together."""

    own: Score
    pooled: Score


@dataclass(frozen=True)
class ClientRecord:
    """One client: its plan, what it did, and the guarantee of each."""

    name: str
    records: int | None  # None where the number is not public
    plan: dict[str, Any] | None
    rounds_taken: int
    noisy_queries: int
    planned: dict[str, Any] | None  # the guarantee for all rounds, where an honest coin decides participation
    taken: dict[str, Any] | None  # the guarantee for the number of rounds in which the client took part
    personal: float | None
    released: float | None


@dataclass(frozen=True)
class RunRecord:
    """A finished run. If the same run is repeated, only `timings` and `host` may differ."""

    config: dict[str, Any]
    clients: tuple[ClientRecord, ...]
    guarantee: dict[str, Any] | None  # holds for every client: each number is the worst over all clients
    sentence: str  # the guarantee in words
    metric: str
    scores: Mapping[str, Scores]  # of personal models, the released model and the baselines
    warnings: tuple[str, ...]
    versions: Mapping[str, str]
    device: str
    gradients: str  # the method for per-sample gradients: bookkeeping, vmap or loop
    parameters: int
    personal_models: str = ""  # whether the personal models may be published
    timings: Mapping[str, float] = field(default_factory=dict)
    host: str = ""
    schema_version: int = SCHEMA_VERSION

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> RunRecord:
        """The record that `as_json` wrote, in this schema version or in an earlier one."""
        version = data.get("schema_version")
        if version not in tuple(POOLED):
            rule = f"must be a schema version that this program can read, 1 to {SCHEMA_VERSION}"
            remedy = "read the record with the program version that wrote it"
            raise BadValue("schema_version", version, rule, remedy)
        changed = {
            "scores": {
                name: Scores(own=Score(**both["own"]), pooled=Score(**both[POOLED[version]]))
                for name, both in data["scores"].items()
            },
            "clients": tuple(ClientRecord(**client) for client in data["clients"]),
            "warnings": tuple(data["warnings"]),
            "schema_version": SCHEMA_VERSION,
        }
        return RunRecord(**{**data, **changed})

    @staticmethod
    def read(path: Path) -> RunRecord:
        """The record in a file."""
        try:
            return RunRecord.from_json(json.loads(path.read_bytes()))
        except BadValue:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            remedy = "restore the file from a copy"
            raise BadValue("record", path, f"cannot be read: {error!r}", remedy) from None

    def repeatable(self) -> dict[str, Any]:
        """The part that must be equal if the same run is repeated."""
        return {key: value for key, value in self.as_json().items() if key not in ("timings", "host")}


class Guarantees:
    """The guarantees of many clients. Clients with equal plans and counts share one computation."""

    def __init__(self, delta: float, clients: int) -> None:
        self.delta = delta
        self.clients = clients
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
        """One statement that holds for every client."""
        return Statement.worst(self.planned(plan) for plan in dict.fromkeys(plans))


def plan_as_json(plan: PrivacyPlan) -> dict[str, Any]:
    """The public numbers of a plan."""
    numbers = dataclasses.asdict(plan.mechanism)
    mechanism = {key: getattr(value, "value", value) for key, value in numbers.items()}
    return {
        "mechanism": type(plan.mechanism).__name__,
        **mechanism,
        "rounds": plan.rounds,
        "participation": plan.participation,
        "neighbours": plan.neighbours.value,
        "copies": plan.copies,
        "unit": plan.unit,
    }


def plan_from_json(data: Mapping[str, Any]) -> PrivacyPlan:
    """The plan that `plan_as_json` wrote. Its mechanism must be noisy steps."""
    if data.get("mechanism") != NoisySteps.__name__:
        remedy = "use a plan of noisy steps"
        rule = f"must be {NoisySteps.__name__}"
        raise BadValue("plan.mechanism", data.get("mechanism"), rule, remedy)
    numbers = {field.name: data[field.name] for field in dataclasses.fields(NoisySteps) if field.name in data}
    sampling = Sampling(data["sampling"])
    return PrivacyPlan(
        mechanism=NoisySteps(**(numbers | {"sampling": sampling})),
        rounds=data["rounds"],
        participation=data["participation"],
        neighbours=Neighbours(data["neighbours"]),
        copies=data["copies"],
        unit=data.get("unit", RECORD),  # older records are all about records
    )
