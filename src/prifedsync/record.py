"""The record of a finished run: its config, the privacy guarantee of each client, and the scores. It needs no torch.

In JSON each different plan and guarantee stands once, and clients refer to it by its place: a run of 10,000 clients stays
small. In Python every client has its own.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from .accounting import Crowd, Neighbours, NoisySteps, OutputPerturbation, PrivacyPlan, Sampling
from .accounting.plan import Participation
from .accounting.statement import SIMULATION as SIMULATION  # with the other words of a record, for those who read one
from .accounting.statement import Numbers, Statement
from .accounting.view_numbers import ViewNumbers, views_of
from .joining import Joining, joining, shown
from .limits import RECORD, Unit
from .scores import Interval, Measured, Score, Scores
from .values import BadValue

SCHEMA_VERSION = 5
EARLIER = (3, 4)  # with the same names: 3 is without spare attempts in plans and views, 4 without deployment
POOLED = {1: "everybody", 2: "pooled"}  # schema version → the name of `Scores.pooled` in its JSON
NO_GUARANTEE = "no guarantee: trained without noise"
NOTHING_LEAVES = (
    "nothing leaves a client, so nobody else learns anything about a record; that does not cover the personal models, "
    "which are kept and trained without noise"
)
KEPT = "kept by the client, trained without noise"
SCORES_LEAK = (
    "scores are computed without noise, and so are their intervals, the comparisons and what is said about joining: "
    "the guarantee does not cover them"
)
TIMINGS_LEAK = (
    "timings are measured without noise and may depend on the records, as on how many are in a batch: the guarantee does "
    "not cover them"
)
OVERLAP = "clients overlap (data.overlap), and a record leaks through every client that holds it"
SHARED_PERSONS = "a person may be at several clients (data.person_clients), and leaks through every one of them"
REHEARSED = "do not publish: this was a rehearsal, which no owner has charged"
REHEARSAL = (
    "this was a rehearsal: all parties were on one machine, and whoever ran it can read all records and all noise; the "
    "guarantee is about the same run between machines"
)
MASKS_SIMULATED = (
    "masks were simulated: all clients of this run were in one process, and whoever runs it sees every record; the claims "
    "against the server are about the same run between machines"
)
REPLIES_LEAK = (
    "timings were measured at the server; an owner's reply leaves at a moment that does not depend on its records, unless "
    "the reply is late: the guarantee does not cover late ones, and `prifedsync owner status` counts them"
)
SERVER_CHOSE = "the server chose who takes part in a round, so guarantees count every round of the plan"
EMPTY_ROUNDS = "nobody's answer entered the model in {} of {} rounds, and it stayed as it was"
UPPER_BOUNDS = (
    "the server was started again, so numbers of rounds, slots and noisy queries are upper bounds: what an owner may have "
    "charged counts"
)
WITH_OWNERS = "a client's own model stays with its owner, and the server has none"
NUMBERS = ("delta", "epsilon", "mu", "advantage", "worst_case_participation", "unit")  # of a statement, without its curve
MECHANISMS: Mapping[str, type[NoisySteps | OutputPerturbation]] = {  # by the name that a plan in JSON has
    "NoisySteps": NoisySteps,
    "OutputPerturbation": OutputPerturbation,
}
SHARED = ("plan", "planned", "taken")  # of a client: in JSON the place in a list of all different ones


@dataclass(frozen=True)
class ClientRecord:
    """One client: its plan, what it did, the guarantee of each, and its scores."""

    name: str
    records: int | None  # None where the number is not public
    plan: dict[str, Any] | None
    rounds_taken: int
    slots_taken: int  # rounds, and further attempts at them
    noisy_queries: int
    planned: dict[str, Any] | None  # the guarantee for all rounds, where an honest coin decides participation
    taken: dict[str, Any] | None  # the guarantee for the slots that the client took
    test_records: int | None = None  # test persons where they are the unit; None where the number is not public
    scores: Mapping[str, Mapping[str, Measured]] = field(default_factory=dict)  # model → metric → score on its test records
    difference: Interval | None = None  # of its score with the others less that alone, by the first metric

    @property
    def personal(self) -> float | None:
        """The score of its own model, by the first metric."""
        return self._first("personal")

    @property
    def released(self) -> float | None:
        """The score of the released model, by the first metric."""
        return self._first("released")

    def _first(self, model: str) -> float | None:
        return next((score.value for score in self.scores.get(model, {}).values()), None)


@dataclass(frozen=True)
class RunRecord:
    """A finished run. If the same run is repeated in one process, only `timings` and `host` may differ."""

    config: dict[str, Any]
    clients: tuple[ClientRecord, ...]
    guarantee: dict[str, Any] | None  # holds for every client: each number is the worst over all clients
    sentence: str  # the guarantee in words
    by_metric: Mapping[str, Mapping[str, Scores]]  # metric → personal models, the released model and the baselines
    warnings: tuple[str, ...]
    versions: Mapping[str, str]
    device: str
    gradients: str  # the method for per-sample gradients: bookkeeping, vmap or loop
    parameters: int
    attempts_used: int = 0  # spare attempts, of the whole run
    uploads_lost: int = 0  # uploads that never arrived
    settings: tuple[str, ...] = ()  # the numbers of the config that were chosen from public numbers, and why
    lower_is_better: tuple[str, ...] = ()  # metrics of which less is better
    in_use: str = "released"  # the model that clients use after joining: the released one, or each its "personal" one
    unit: Unit = RECORD  # what a guarantee is about and what is counted: records, or persons
    note: str = ""  # what a score is measured in, where that is not plain
    statistics: Mapping[str, Any] | None = None  # of a simulation: shares of labels and clipping, computed without noise
    personal_models: str = ""  # whether the personal models may be published
    timings: Mapping[str, float] = field(default_factory=dict)
    host: str = ""
    deployment: Mapping[str, Any] | None = None  # what happened between machines; None: the run was in one process
    schema_version: int = SCHEMA_VERSION

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics. The first one is shown while a run trains."""
        return tuple(self.by_metric)

    @property
    def metric(self) -> str:
        """The first metric."""
        return self.metrics[0]

    @property
    def scores(self) -> Mapping[str, Scores]:
        """The scores by the first metric."""
        return self.by_metric[self.metric]

    @property
    def masked(self) -> bool:
        """Whether uploads were masked, so that the server got sums alone. Older records do not have the field."""
        return bool(self.config["privacy"].get("masks"))

    @property
    def rehearsed(self) -> bool:
        """Whether all parties were on one machine, to try the run out."""
        return bool((self.deployment or {}).get("rehearsal"))

    @property
    def server_chose(self) -> bool:
        """Whether the server decided who takes part in a round."""
        return (self.deployment or {}).get("participation") == "server"

    @cached_property
    def joining(self) -> tuple[Joining, ...]:
        """Whether joining is worth it, by the first metric: a row for each client."""
        return self._joining(self.clients)

    @property
    def joining_shown(self) -> tuple[Joining, ...]:
        """The rows of the printed table: all of up to 20 clients, else the smallest, median, largest and worst."""
        places = shown(self.clients, self.metric, self.in_use, self.metric in self.lower_is_better)
        return self._joining([self.clients[place] for place in places])

    def _joining(self, clients: Sequence[ClientRecord]) -> tuple[Joining, ...]:
        return joining(clients, self.metric, self.in_use, self.metric in self.lower_is_better, self.unit)

    @property
    def undefined(self) -> dict[tuple[str, str, str], tuple[str, ...]]:
        """(metric, model, reason) → the clients whose score is undefined, and left out of the means."""
        found: dict[tuple[str, str, str], list[str]] = {}
        for client in self.clients:
            for model, scores in client.scores.items():
                for metric, score in scores.items():
                    if score.value is None:
                        found.setdefault((metric, model, score.why), []).append(client.name)
        return {key: tuple(names) for key, names in found.items()}

    def as_json(self) -> dict[str, Any]:
        """The record as JSON has it: what many clients share stands once, and clients have its place."""
        shared = {name: _Once() for name in SHARED}
        clients = [_client_as_json(client, shared) for client in self.clients]
        plain = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        replaced = {
            "by_metric": {
                metric: {model: {name: _score_as_json(getattr(both, name)) for name in ("own", "pooled")}
                         for model, both in models.items()}
                for metric, models in self.by_metric.items()
            },
            "lower_is_better": list(self.lower_is_better),
            "warnings": list(self.warnings),
            "joining": [_row_as_json(row) for row in self.joining_shown],
            "shared": {name: once.values for name, once in shared.items()},
            "clients": clients,
        }  # fmt: skip
        return plain | replaced

    def text(self) -> str:
        """The same as the text of a file, with a line for each client."""
        return f"{_laid_out(self.as_json(), 0)}\n"

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> RunRecord:
        """The record that `as_json` wrote, in this schema version or in an earlier one."""
        version = data.get("schema_version")
        if version not in (*POOLED, *EARLIER, SCHEMA_VERSION):
            rule = f"must be a schema version that this program can read, 1 to {SCHEMA_VERSION}"
            remedy = "read the record with the program version that wrote it"
            raise BadValue("schema_version", version, rule, remedy)
        found = _upgraded(data, POOLED[version]) if version in POOLED else dict(data)
        shared = found.pop("shared")
        found.pop("joining", None)  # follows from the clients
        metrics = tuple(found["by_metric"])
        changed = {
            "by_metric": {
                metric: {model: Scores(_score_of(both["own"]), _score_of(both["pooled"])) for model, both in models.items()}
                for metric, models in found["by_metric"].items()
            },
            "clients": tuple(_client_of(client, shared, metrics) for client in found["clients"]),
            "warnings": tuple(found["warnings"]),
            "lower_is_better": tuple(found["lower_is_better"]),
            "settings": tuple(found.get("settings", ())),
            "schema_version": SCHEMA_VERSION,
        }
        return RunRecord(**{**found, **changed})

    @staticmethod
    def read(path: Path) -> RunRecord:
        """The record in a file."""
        try:
            return RunRecord.from_json(json.loads(path.read_bytes(), parse_float=_finite, parse_constant=_finite))
        except BadValue:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            remedy = "restore the file from a copy"
            raise BadValue("record", path, f"cannot be read: {error!r}", remedy) from None

    def repeatable(self) -> dict[str, Any]:
        """The part that must be equal if the same run is repeated."""
        return {key: value for key, value in self.as_json().items() if key not in ("timings", "host", "deployment")}


def _finite(text: str) -> float:
    """A number of a record. NaN is not above any threshold, so none may be read."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


# ---------------------------------------------------------------------- the record as JSON


class _Once:
    """Values that many clients share, each once."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._place: dict[str, int] = {}
        self._text: dict[int, str] = {}  # of values that were met before: clients share objects

    def place(self, value: Any) -> int | None:
        if value is None:
            return None
        if id(value) not in self._text:
            self._text[id(value)] = json.dumps(value, sort_keys=True)
        text = self._text[id(value)]
        if text not in self._place:
            self._place[text] = len(self.values)
            self.values.append(value)
        return self._place[text]


def _client_as_json(client: ClientRecord, shared: Mapping[str, _Once]) -> dict[str, Any]:
    plain = {name: value for name, value in vars(client).items() if name not in (*SHARED, "scores")}
    places = {name: shared[name].place(getattr(client, name)) for name in SHARED}
    scores = {model: [_measured_as_json(score) for score in by.values()] for model, by in client.scores.items()}
    return {**plain, **places, "scores": scores}


def _client_of(data: Mapping[str, Any], shared: Mapping[str, Sequence[Any]], metrics: Sequence[str]) -> ClientRecord:
    places = {name: data[name] for name in SHARED}
    values = {name: None if place is None else shared[name][place] for name, place in places.items()}
    scores = {
        model: {metric: _measured_of(score) for metric, score in zip(metrics, row, strict=True)}
        for model, row in data["scores"].items()
    }
    ends = data.get("difference")
    slots = data.get("slots_taken", data["rounds_taken"])  # the same where there were no attempts, as in older records
    return ClientRecord(
        **{**data, **values, "slots_taken": slots, "scores": scores, "difference": Interval(*ends) if ends else None}
    )


def _measured_as_json(score: Measured) -> list[float] | str:
    """[value], [value, low, high], or the reason why there is none."""
    if score.value is None:
        return score.why
    return [score.value, *(score.interval or ())]


def _measured_of(data: Sequence[float] | str) -> Measured:
    if isinstance(data, str):
        return Measured(None, None, data)
    value, *ends = data
    return Measured(value, Interval(*ends) if ends else None)


SCORE_NAMES = {  # of a `Score` → in JSON
    "mean": "mean_over_clients",
    "interval": "mean_over_clients_interval",
    "record_mean": "mean_over_records",
    "record_interval": "mean_over_records_interval",
    "worst": "worst",
    "clients": "clients",
    "records": "records",
}


def _score_as_json(score: Score) -> dict[str, Any]:
    return {name: getattr(score, field) for field, name in SCORE_NAMES.items()}


def _score_of(data: Mapping[str, Any]) -> Score:
    values = {field: data[name] for field, name in SCORE_NAMES.items()}
    intervals = {field: Interval(*values[field]) for field in ("interval", "record_interval") if values[field]}
    return Score(**{**values, **intervals})


def _row_as_json(row: Joining) -> dict[str, Any]:
    return {"client": row.client, "verdict": row.verdict, "sentence": row.sentence}


def _upgraded(data: Mapping[str, Any], pooled: str) -> dict[str, Any]:
    """The JSON of schema version 1 or 2, which had one metric and everything of a client with it, as that of version 3,
    which is that of version 5 without spare attempts, views and deployment."""
    metric = data["metric"]
    models = data["scores"]
    shared: dict[str, list[Any]] = {name: [client[name] for client in data["clients"]] for name in SHARED}
    names = {"mean": "mean_over_clients", "worst": "worst", "clients": "clients"}
    empty = dict.fromkeys(SCORE_NAMES.values())

    def score(old: Mapping[str, Any]) -> dict[str, Any]:
        return {**empty, **{name: old[field] for field, name in names.items()}}

    def client(place: int, old: Mapping[str, Any]) -> dict[str, Any]:
        rest = {name: value for name, value in old.items() if name not in ("personal", "released")}
        own = {model: ["" if old[model] is None else [old[model]]] for model in ("personal", "released") if model in models}
        return {**rest, **dict.fromkeys(SHARED, place), "scores": own}

    changed = {
        "by_metric": {metric: {model: {"own": score(both["own"]), "pooled": score(both[pooled])}
                               for model, both in models.items()}},
        "lower_is_better": ["rmse"] if metric == "rmse" else [],
        "clients": [client(place, old) for place, old in enumerate(data["clients"])],
        "shared": shared,
    }  # fmt: skip
    return {**{name: value for name, value in data.items() if name not in ("metric", "scores")}, **changed}


def _laid_out(value: Any, depth: int) -> str:
    """JSON with a line for each of the outer fields and for each client."""
    if depth < 2 and isinstance(value, Mapping) and value:
        lines = [f"{json.dumps(key, ensure_ascii=False)}: {_laid_out(item, depth + 1)}" for key, item in value.items()]
        return _lines("{", lines, "}", depth)
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return _lines("[", [_compact(item) for item in value], "]", depth)
    return _compact(value)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _lines(opening: str, lines: Sequence[str], closing: str, depth: int) -> str:
    indent = " " * (depth + 1)
    return "\n".join([opening, ",\n".join(f"{indent}{line}" for line in lines), f"{' ' * depth}{closing}"])


# ---------------------------------------------------------------------- guarantees


class Guarantees:
    """The guarantees of many clients. Clients with equal plans and counts share one computation."""

    def __init__(self, delta: float, clients: int) -> None:
        self.delta = delta
        self.clients = clients
        self._planned: dict[PrivacyPlan, Statement] = {}
        self._numbers: dict[tuple[PrivacyPlan, Participation, int | None], Numbers] = {}

    def planned(self, plan: PrivacyPlan) -> Statement:
        if plan not in self._planned:
            others = self.clients if self.clients > 1 else None  # with one client there is nobody to collude
            self._planned[plan] = Statement.of(plan, self.delta, others, self._computed)
        return self._planned[plan]

    def taken(self, plan: PrivacyPlan, slots: int) -> Numbers:
        if plan.participation == 1 and slots == plan.slots:
            return self.planned(plan).honest  # all slots, as planned
        return self._computed(plan, taken=slots)

    def _computed(self, plan: PrivacyPlan, participation: Participation = "honest", taken: int | None = None) -> Numbers:
        asked = plan.accounted, participation, taken
        if asked not in self._numbers:
            self._numbers[asked] = Numbers.of(asked[0].guarantee(participation, taken), self.delta)
        return self._numbers[asked]

    def views(self, crowd: Crowd, plans: Sequence[PrivacyPlan], colluders: int | None = None) -> tuple[ViewNumbers, ...]:
        """What holds for every client against fewer than everybody. `plans` are in the order of the crowd."""
        return views_of(crowd, plans, self._computed, colluders)

    def worst(self, plans: Iterable[PrivacyPlan]) -> Statement:
        """One statement that holds for every client."""
        return Statement.worst(self.planned(plan) for plan in dict.fromkeys(plans))


def without_curve(stated: Mapping[str, Any]) -> dict[str, Any]:
    """A client's statement in numbers alone. Its curve follows from its plan: `plan_from_json(client.plan).guarantee()`."""
    return {name: stated[name] for name in NUMBERS}


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
        "attempts": plan.attempts,
    }


def plan_from_json(data: Mapping[str, Any]) -> PrivacyPlan:
    """The plan that `plan_as_json` wrote."""
    kind = MECHANISMS.get(data.get("mechanism", ""))
    if kind is None:
        rule = f"must be one of {', '.join(MECHANISMS)}"
        raise BadValue("plan.mechanism", data.get("mechanism"), rule)
    own = {field.name for field in dataclasses.fields(kind)}
    foreign = set(data) - own - {"mechanism", *PrivacyPlan.__dataclass_fields__}
    if foreign:
        raise BadValue("plan.mechanism", data["mechanism"], f"has no {', '.join(sorted(foreign))}")
    numbers = {name: value for name, value in data.items() if name in own}
    if "sampling" in numbers:
        numbers["sampling"] = Sampling(numbers["sampling"])
    return PrivacyPlan(
        mechanism=kind(**numbers),
        rounds=data["rounds"],
        participation=data["participation"],
        neighbours=Neighbours(data["neighbours"]),
        copies=data["copies"],
        unit=data.get("unit", RECORD),  # older records are all about records
        attempts=data.get("attempts", 0),
    )
