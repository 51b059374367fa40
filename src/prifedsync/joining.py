"""Is joining worth it? Each client's scores with the others and alone, and one sentence about them.

Scores have no noise, and neither has anything that is said here: it is for whoever may see the scores.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from .limits import RECORD, Unit
from .scores import LEVEL, Interval, Measured

MODELS = ("alone", "alone-private", "released", "personal")  # columns of the table, where they are known
ALL_SHOWN = 20  # clients; of more, the smallest, the median, the largest and the worst are shown
FEWEST_RECORDS = 20  # test records, or test persons where they are the unit, below which nothing is said about a client
HOW = {"alone-private": "alone at the same privacy", "alone": "alone without privacy"}
NOT_COMPARED = (
    "What clients would have alone was not trained: --set compare=alone,alone-private adds it to this table. "
    "It takes about as long as the run for each baseline, and its scores are covered by no guarantee either."
)

Verdict = Literal["gains", "loses", "cannot be told", "not compared"]


class Client(Protocol):
    """What is read of a client's record."""

    @property
    def name(self) -> str: ...
    @property
    def records(self) -> int | None: ...
    @property
    def test_records(self) -> int | None: ...
    @property
    def planned(self) -> dict[str, Any] | None: ...
    @property
    def scores(self) -> Mapping[str, Mapping[str, Measured]]: ...
    @property
    def difference(self) -> Interval | None: ...


@dataclass(frozen=True)
class Joining:
    """What one client has by joining, by the first metric of the run, on its own test records.

    records   training records, or persons where they are the unit; None where the number is not public.
    epsilon   upper bound on its ε; None without a bound.
    scores    "alone", "alone-private", "released" and "personal", as far as they were trained.
    verdict   "gains" or "loses" where the interval of the difference between its scores with the others and alone excludes
              0, otherwise "cannot be told".
    sentence  the same in words.
    unit      what `records` counts.
    """

    client: str
    records: int | None
    epsilon: float | None
    metric: str
    scores: Mapping[str, Measured]
    verdict: Verdict
    sentence: str
    unit: Unit = RECORD


def joining(
    clients: Sequence[Client], metric: str, in_use: str, lower_is_better: bool, unit: Unit = RECORD
) -> tuple[Joining, ...]:
    """One row for each client. `in_use`: the model that clients use after joining, "released" or "personal"."""
    return tuple(_row(client, metric, in_use, lower_is_better, unit) for client in clients)


def shown(clients: Sequence[Client], metric: str, in_use: str, lower_is_better: bool) -> tuple[int, ...]:
    """The places of the clients in the table: all of up to 20; else the smallest, median, largest and worst."""
    if len(clients) <= ALL_SHOWN:
        return tuple(range(len(clients)))
    by_size = sorted(range(len(clients)), key=lambda place: clients[place].records or 0)
    places = [by_size[0], by_size[(len(by_size) - 1) // 2], by_size[-1]]
    values = {place: _of(client, in_use, metric).value for place, client in enumerate(clients)}
    known = {place: value for place, value in values.items() if value is not None}
    if known:
        places.append((max if lower_is_better else min)(known, key=lambda place: known[place]))
    return tuple(dict.fromkeys(places))


def alone_of(models: Container[str]) -> str | None:
    """Which models of clients alone a run is compared with, of those that were trained."""
    return next((kind for kind in HOW if kind in models), None)


def _of(client: Client, model: str, metric: str) -> Measured:
    return client.scores.get(model, {}).get(metric, Measured(None))


def _row(client: Client, metric: str, in_use: str, lower_is_better: bool, unit: Unit) -> Joining:
    scores = {model: client.scores[model][metric] for model in MODELS if metric in client.scores.get(model, {})}
    verdict, said = _verdict(client, scores, metric, in_use, lower_is_better, unit)
    count = "" if client.records is None else f" ({client.records:,} {unit}{'s' * (client.records != 1)})"
    epsilon = client.planned["epsilon"]["upper"] if client.planned else None
    return Joining(client.name, client.records, epsilon, metric, scores, verdict, f"{client.name}{count}{said}.", unit)


def _verdict(
    client: Client, scores: Mapping[str, Measured], metric: str, in_use: str, lower_is_better: bool, unit: Unit
) -> tuple[Verdict, str]:
    """What follows the client's name."""
    joined = scores.get(in_use, Measured(None))
    kind = alone_of(scores)
    if kind is None:
        return "not compared", f" has {metric} {_shown(joined)} with the others; what it would have alone was not trained"
    alone = scores[kind]
    both = f"{metric} {_shown(joined)} with the others against {_shown(alone)} {HOW[kind]}"
    unknown = _unknown(client, joined, alone, unit)
    if unknown or joined.value is None or alone.value is None:
        return "cannot be told", f": it cannot be told whether joining helps: {both} ({unknown})"
    assert client.difference is not None
    verdict: Verdict = "gains" if (client.difference.high < 0) == lower_is_better else "loses"
    return verdict, f" {verdict}: {both} ({_of_difference(client.difference)} excludes 0)"


def _unknown(client: Client, joined: Measured, alone: Measured, unit: Unit) -> str:
    """Why these two scores cannot be told apart; nothing if they can."""
    why = joined.why or alone.why
    if joined.value is None or alone.value is None:
        return f"undefined: {why}" if why else "undefined"
    tested = client.test_records
    if tested is not None and tested < FEWEST_RECORDS:
        return f"{tested} test {unit}{'s are' if tested != 1 else ' is'} too few"
    if client.difference is None:
        return "the difference has no interval"
    return f"{_of_difference(client.difference)} includes 0" if client.difference.contains(0) else ""


def _of_difference(interval: Interval) -> str:
    return f"the {LEVEL:.0%} interval of the difference, {interval.low:+.3f} to {interval.high:+.3f},"


def _shown(score: Measured) -> str:
    return "–" if score.value is None else f"{score.value:.3f}"
