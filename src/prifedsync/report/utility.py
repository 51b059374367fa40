"""Was it worth it: scores with their intervals, who gains by joining, accuracy over rounds, and how long it took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..files import LOG
from ..record import RunRecord
from ..scores import Interval, Score
from ..values import BadValue
from .leaving import has_scores, kept_models, uploads_of
from .sources import REMEDY, Line, Sources

MOST_POINTS = 400  # rounds of which a page draws the scores
WEIGHTS = {"start": "first weights", "end": "released model"}  # at which gradients were looked at
NAMES = {
    "personal": "personal models",
    "released": "released model",
    "alone": "each client alone, without noise",
    "alone-private": "each client alone, with its own noise",
    "non-private": "all clients together, without noise",
}
COVERED = ("personal", "released")


@dataclass(frozen=True)
class Scored:
    """One kind of model by one metric, over the clients' own test records."""

    model: str
    name: str
    metric: str
    mean: float | None
    interval: Interval | None
    record_mean: float | None
    record_interval: Interval | None
    worst: float | None
    clients: int
    pooled: float | None
    pooled_interval: Interval | None
    protection: str


@dataclass(frozen=True)
class Smallest:
    """What the client with the fewest records has. `scores`: of the models that have one."""

    client: str
    records: int | None
    scores: Mapping[str, float]


@dataclass(frozen=True)
class Rounds:
    """Scores over rounds by the first metric: means over clients, and the worst client's. At most `MOST_POINTS` rounds."""

    metric: str
    rounds: tuple[int, ...]
    mean: Mapping[str, tuple[float | None, ...]]
    worst: Mapping[str, tuple[float | None, ...]]
    participants: tuple[int, ...]
    baselines: Mapping[str, float | None]


@dataclass(frozen=True)
class Labels:
    """The share of each label at each client, as a simulation has it. `shares` has a row for each client."""

    names: tuple[str, ...]
    clients: tuple[str, ...]
    shares: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Clipping:
    """What clipping does to gradients of single records, or of persons, of a simulation.

    clipped  the share of gradients that are longer than the clip norm
    norms    the quartiles of their lengths, in clip norms
    """

    weights: str
    units: int
    clipped: float
    norms: tuple[float, float, float]


@dataclass(frozen=True)
class Utility:
    """Everything about how good the models are. None of it is covered by the guarantee on private records."""

    metric: str
    lower_is_better: bool
    in_use: str
    scores: tuple[Scored, ...]
    smallest: Smallest | None
    joining: Mapping[str, int]
    joining_sentences: tuple[str, ...]
    joining_shown: int
    labels: Labels | None
    clipping: tuple[Clipping, ...]
    seconds: Mapping[str, float]
    rounds_per_second: float | None
    uploads_per_second: float | None
    device: str
    note: str


def utility_of(sources: Sources, record: RunRecord) -> Utility:
    """Of a finished run."""
    metric = record.metric
    verdicts = [row.verdict for row in record.joining]
    seconds = dict(record.timings)
    uploads = sum(uploads_of(record, client) for client in record.clients)
    shown = record.joining_shown
    return Utility(
        metric=metric,
        lower_is_better=metric in record.lower_is_better,
        in_use=record.in_use,
        scores=tuple(_scored(record)) if has_scores(record) else (),
        smallest=_smallest(record),
        joining={verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)},
        joining_sentences=tuple(row.sentence for row in shown),
        joining_shown=len(shown),
        labels=_labels(record),
        clipping=tuple(_clipping(record)),
        seconds=seconds,
        rounds_per_second=_pace(sources.rounds_done, seconds),
        uploads_per_second=_pace(uploads, seconds),
        device=record.device,
        note=record.note,
    )


def _scored(record: RunRecord) -> Iterable[Scored]:
    for metric, models in record.by_metric.items():
        for model, both in models.items():
            own: Score = both.own
            yield Scored(
                model, NAMES.get(model, model), metric, own.mean, own.interval, own.record_mean, own.record_interval,
                own.worst, own.clients, both.pooled.mean, both.pooled.interval, protection(record, model),
            )  # fmt: skip


def protection(record: RunRecord, model: str) -> str:
    """Whether the guarantee covers a kind of model."""
    if model == "personal" and kept_models(record):
        return "kept by the client, not covered"
    if model in COVERED and record.config["privacy"]["randomness"] == "seeded" and record.guarantee:
        return "a simulation"
    if model in COVERED:
        return "covered" if record.guarantee else "not private"
    return "with the same noise, for comparison" if model == "alone-private" else "not private, for comparison"


def _smallest(record: RunRecord) -> Smallest | None:
    """Item 18: the client with the fewest records is the one that a mean hides."""
    known = [client for client in record.clients if client.records is not None]
    if not known:
        return None
    least = min(known, key=lambda client: client.records or 0)
    own = {model: by[record.metric].value for model, by in least.scores.items() if record.metric in by}
    scores = {model: value for model, value in own.items() if value is not None}
    return Smallest(least.name, least.records, scores)


def _labels(record: RunRecord) -> Labels | None:
    found = (record.statistics or {}).get("labels")
    if not found:
        return None
    clients = tuple(client.name for client in record.clients)
    return Labels(tuple(found["names"]), clients, tuple(map(tuple, found["shares"])))


def _clipping(record: RunRecord) -> Iterable[Clipping]:
    found = (record.statistics or {}).get("clipping") or {}
    for at, name in WEIGHTS.items():
        if at in found:
            one = found[at]
            quartiles = one["lower_quartile"], one["median"], one["upper_quartile"]
            yield Clipping(name, found["units"], one["clipped"], quartiles)


def rounds_of(sources: Sources, record: RunRecord | None) -> Rounds | None:
    """Of the log; None where no round has a score. Of very many rounds, some."""
    try:
        return _rounds(sources, record)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise BadValue("rounds", sources.folder / LOG, f"cannot be read: {error!r}", REMEDY) from None


def _rounds(sources: Sources, record: RunRecord | None) -> Rounds | None:
    scored = [line for line in sources.lines if any(_mean(line, model) is not None for model in COVERED)]
    if not scored:
        return None
    lines = _thinned(scored)
    models = [model for model in COVERED if any(_mean(line, model) is not None for line in lines)]
    first = record.by_metric[record.metric] if record else {}
    return Rounds(
        metric=record.metric if record else str(sources.config["metrics"][0]),
        rounds=tuple(int(line["round"]) for line in lines),
        mean={model: _column(lines, model, "mean") for model in models},
        worst={model: _column(lines, model, "worst") for model in models},
        participants=tuple(int(line["participants"]) for line in lines),
        baselines={model: both.own.mean for model, both in first.items() if model not in COVERED},
    )


def _mean(line: Line, model: str) -> Any:
    return (line.get(model) or {}).get("mean")


def _thinned(lines: list[Line]) -> list[Line]:
    step = -(-len(lines) // MOST_POINTS)
    kept = lines[::step]
    return kept if kept[-1] is lines[-1] else [*kept, lines[-1]]


def _column(lines: Iterable[Line], model: str, name: str) -> tuple[float | None, ...]:
    values: list[Any] = [line.get(model, {}).get(name) for line in lines]
    return tuple(None if value is None else float(f"{value:.5g}") for value in values)


def _pace(count: int, seconds: Mapping[str, float]) -> float | None:
    took = seconds.get("train", 0.0)
    return float(f"{count / took:.4g}") if took > 0 else None
