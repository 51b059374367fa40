"""The guarantee in plain sentences: who is protected against whom, in which unit, and what an attacker can still do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, expm1
from typing import Any

import numpy as np

from ..accounting import Neighbours, OutputPerturbation
from ..accounting.statement import ADJACENCY, SIMULATION
from ..fdp import gaussian
from ..record import RunRecord
from .leaving import in_one_place, rehearsed, trusted
from .plans import ROUNDING, Plans
from .sources import Sources
from .wording import loss_up, many, share_up, small, unit_is

GROUPS = (2, 5, 10)  # records of one person, in the table of groups
LEAST_DELTA = 1e-300
MOST_STEPS = 1000  # of a power function that is applied again and again
ALMOST = 1 - 1e-12  # a power that is not told from 1
SLACK = 1e-9  # outweighs the rounding of exponentials
_TINY = np.concatenate(([1e-30], np.geomspace(1e-18, 1.0, 8001)))
_FINE = np.unique(np.concatenate((np.geomspace(1e-9, 0.1, 400), np.linspace(0.1, 1.0, 901))))
JUDGEMENT = (
    (1.0, "NIST SP 800-226 calls an ε of at most 1 strong in most cases"),
    (20.0, "NIST SP 800-226 finds an ε of 1 to 20 in use, and its protection unclear at the upper end"),
)
BEYOND = "NIST SP 800-226 finds an ε of at most 20 in use: this one is beyond that"
BEFORE_COINS = "These bounds are from before coins said who took part: given that, they can be larger."
WHAT: Mapping[tuple[str, str], tuple[str, str]] = {  # (unit, neighbours) → what holds, and what holds instead
    ("record", "replace"): (
        "one of the records of {client} is as it is",
        "that record is another one, with any other values that are allowed, and everything else is the same",
    ),
    ("record", "add-remove"): (
        "one certain record is among those of {client}",
        "that record is not among them, and everything else is the same",
    ),
    ("person", "replace"): (
        "the records of one person at {client} are as they are",
        "they are those of another person, as many as the public bound allows, and everything else is the same",
    ),
    ("person", "add-remove"): (
        "all records of one certain person are among those of {client}",
        "none of that person's records is among them, and everything else is the same",
    ),
}


@dataclass(frozen=True)
class Stated:
    """A privacy number: its upper bound, None if there is none, and the same in words, rounded up."""

    upper: float | None
    text: str


@dataclass(frozen=True)
class Group:
    """What holds for several records of one person together, at one client."""

    records: int
    mu: Stated | None  # None: not known in closed form
    epsilon: Stated
    correct: Stated  # how often an attacker guesses right, of two equally likely cases


@dataclass(frozen=True)
class View:
    """What one kind of attacker learns at most, and what that assumes; `why` there is no smaller number."""

    who: str
    colluders: int
    claim: bool
    mu: Stated | None
    epsilon: Stated | None
    epsilon_if_others_choose: Stated | None
    assumes: str
    why: str


@dataclass(frozen=True)
class Guarantee:
    """What holds for every client. The first numbers hold where each client decides by its own coin.

    about       "these files", or "the algorithm" where the run is a simulation
    paper_mu    the paper's asymptotic value. It is not a guarantee
    given_who_took_part  the largest of the clients' numbers, each for the slots that it took
    coins       whether coins have said who took part: given that, any bound from before them can be larger
    groups_hold_for  every client, or of very many different plans the clients who leak most
    """

    sentences: tuple[str, ...]
    about: str
    unit: str
    neighbours: str
    adjacency: str
    mu: Stated
    alpha_min: float
    epsilon: Stated
    delta: float
    advantage: Stated
    correct: Stated
    hits_at_1_percent: Stated
    if_others_choose: Mapping[str, Stated]
    given_who_took_part: Mapping[str, Stated]
    coins: bool
    judgement: str
    delta_warning: str
    hypotheses: tuple[str, str]
    groups: tuple[Group, ...]
    views: tuple[View, ...]
    copies: int
    paper_mu: float | None
    groups_hold_for: str

    @property
    def more_is_known(self) -> bool:
        """Whether a bound can be larger for those who know who took part. μ can stay while the curve gets worse."""
        return self.coins or any(_exceeds(self.known[name].upper, said.upper) for name, said in self._numbers.items())

    @property
    def known(self) -> Mapping[str, Stated]:
        """What holds for those who know who took part, which the server does: the larger numbers."""
        return {name: _larger(said, self.given_who_took_part[name]) for name, said in self._numbers.items()}

    @property
    def known_correct(self) -> Stated:
        """How often they are right, of two equally likely cases."""
        return _correct(self.known["advantage"])

    @property
    def _numbers(self) -> Mapping[str, Stated]:
        return {"mu": self.mu, "epsilon": self.epsilon, "advantage": self.advantage}


def stated(value: float | None) -> Stated:
    """A loss; None stands for "no bound"."""
    return Stated(value, loss_up(value))


def chance(share: float | None) -> Stated:
    """A probability of an attacker; None stands for "no bound"."""
    at_most = 1.0 if share is None else min(1.0, share)
    return Stated(at_most, share_up(at_most))


def _correct(advantage: Stated) -> Stated:
    """How often whoever has this advantage is right, of two equally likely cases."""
    return chance(None if advantage.upper is None else 0.5 + advantage.upper / 2)


def _larger(one: Stated, other: Stated) -> Stated:
    return other if _exceeds(other.upper, one.upper) else one


def guarantee_of(sources: Sources, record: RunRecord, plans: Plans) -> Guarantee | None:
    """The guarantee of a finished run; None where it has none."""
    said = record.guarantee
    if said is None or not plans.plans:
        return None
    hits = 1 - dict(map(tuple, said["curve"]))[0.01]
    taken = _given_who_took_part(record)
    advantage = chance(said["advantage"]["upper"])
    found = Guarantee(
        sentences=(),
        about="the algorithm" if sources.seeded else "these files",
        unit=record.unit,
        neighbours=said["neighbours"],
        adjacency=ADJACENCY[Neighbours(said["neighbours"])].format(record.unit),
        mu=stated(said["mu"]["upper"]),
        alpha_min=said["mu"]["alpha_min"],
        epsilon=stated(said["epsilon"]["upper"]),
        delta=said["delta"],
        advantage=advantage,
        correct=_correct(advantage),
        hits_at_1_percent=chance(hits),
        if_others_choose={name: stated(said["worst_case_participation"][name]["upper"]) for name in ("mu", "epsilon")},
        given_who_took_part=taken,
        coins=any(client.plan["participation"] < 1 for client in record.clients if client.plan),
        judgement=judgement(largest([said["epsilon"]["upper"], taken["epsilon"].upper])),
        delta_warning=_delta_warning(said["delta"], plans.most_units, record.unit),
        hypotheses=_hypotheses(record),
        groups=tuple(_groups(sources, record, plans)),
        views=tuple(_view(each) for each in said.get("views", ())),
        copies=said.get("copies", 1),
        paper_mu=said.get("paper", {}).get("mu_weak"),
        groups_hold_for=plans.holds_for,
    )
    return replace(found, sentences=tuple(_sentences(sources, record, found)))


def _given_who_took_part(record: RunRecord) -> Mapping[str, Stated]:
    taken = {id(client.taken): client.taken for client in record.clients if client.taken}.values()
    most = {name: largest([each[name]["upper"] for each in taken]) for name in ("mu", "epsilon", "advantage")}
    return {"mu": stated(most["mu"]), "epsilon": stated(most["epsilon"]), "advantage": chance(most["advantage"])}


def largest(values: Sequence[float | None]) -> float | None:
    """The largest bound. None, which stands for no bound, is larger than any."""
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None


def judgement(epsilon: float | None) -> str:
    """How NIST SP 800-226 judges an ε."""
    for most, said in JUDGEMENT:
        if epsilon is not None and epsilon <= most:
            return said
    return BEYOND


def _sentences(sources: Sources, record: RunRecord, found: Guarantee) -> Iterable[str]:
    yield _protected(sources, record)
    if in_one_place(record):
        place = "machine" if rehearsed(record) else "process"
        yield f"{trusted(record)} The guarantee is about what left that {place}."
    least = small(found.alpha_min)
    yield (
        f"The measure is μ ≤ {found.mu.text}, for false positive rates from {least} to 1 − {least}. "
        f"As (ε, δ) it is ε ≤ {found.epsilon.text} at δ = {small(found.delta)}."
    )
    yield (
        f"Two data sets are compared that differ in {found.adjacency}. Whoever has to tell them apart is right at most "
        f"{found.correct.text} of the time; guessing is right half of the time."
    )
    if found.copies > 1:
        yield f"Up to {found.copies} clients may hold the same {found.unit}. The numbers count the releases of all of them."
    others_choose = found.if_others_choose["epsilon"]
    if others_choose.upper != found.epsilon.upper:
        yield (
            f"Each client decides by its own secret coin whether it takes part. If others decide, ε ≤ {others_choose.text}."
        )
    if found.more_is_known:
        yield _given(found)
    if found.unit == "record" and not together(record):
        yield "A person with several records is protected less: see the table of groups."
    if sources.seeded:
        yield f"This run is a simulation. The guarantee is {SIMULATION}."


def _protected(sources: Sources, record: RunRecord) -> str:
    """Whose records, and against whom. Where all was in one place, the server was whoever ran it."""
    alone = len(record.clients) == 1
    whose = "the one client" if alone else f"each of {many(len(record.clients), 'client')}"
    server = [] if in_one_place(record) else ["the server"]
    clients = [] if alone else ["all other clients"]
    *others, last = [*server, *clients, "whoever receives the model"]
    listed = f"{', '.join(others)}{',' if len(others) > 1 else ''} and {last}"
    against = f"everybody else together: {listed}" if others else last
    unit = unit_is(record.unit, sources.words.record_is)
    return f"Protected is each {unit} of {whose}, against {against}."


def _given(found: Guarantee) -> str:
    """What holds after the coins. Only three numbers are known for that."""
    known = found.known
    return (
        "Coins have said who took part, and the server has seen it. Given that, "
        f"μ ≤ {known['mu'].text} and ε ≤ {known['epsilon'].text} hold for every client, and whoever has to tell two data "
        f"sets apart is right at most {found.known_correct.text} of the time. The bounds on attacks and on several "
        "records, the curve, and ε over rounds and at other δ are from before that: given who took part they can be larger."
    )


def _exceeds(value: float | None, other: float | None) -> bool:
    return other is not None and (value is None or value > other)


def together(record: RunRecord) -> bool:
    """Whether noise is added to the change of a whole round only: then all records of a client are protected as one."""
    return all(client.plan is None or client.plan["mechanism"] == OutputPerturbation.__name__ for client in record.clients)


def _delta_warning(delta: float, most: int | None, unit: str) -> str:
    """Item 3: a δ that is not below a client's 1/n would allow to publish a record of it in the clear."""
    if most is None or not beyond_one(delta, most):
        return ""
    return (
        f"δ = {small(delta)} is not below 1/{most:,}, one over the {unit}s of the largest client: a mechanism that "
        f"publishes one {unit} in the clear could satisfy such a guarantee"
    )


def beyond_one(delta: float, units: int | None) -> bool:
    """Whether δ is not below one over the number of units; the product of δ and n may be rounded below 1."""
    return units is not None and (delta * units >= 1 or delta >= 1 / units)


def _hypotheses(record: RunRecord) -> tuple[str, str]:
    """Item 7, about the smallest client."""
    smallest = min(record.clients, key=lambda client: client.records or 0)
    said = record.guarantee or {}
    how = "nominally " if said["neighbours"] == "add-remove" else ""
    client = smallest.name if smallest.records is None else f"{smallest.name} ({how}{many(smallest.records, record.unit)})"
    first, second = WHAT[record.unit, said["neighbours"]]
    return _sentence(first.format(client=client)), _sentence(second)


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _view(said: Mapping[str, Any]) -> View:
    if not said["claim"]:
        return View(said["who"], said["colluders"], False, None, None, None, "", said["why"])
    epsilon = said["epsilon"]["upper"]
    chosen = said.get("worst_case_participation", said)["epsilon"]["upper"]
    return View(
        said["who"], said["colluders"], True, stated(said["mu"]["upper"]), stated(epsilon), stated(chosen),
        said["assumes"], "",
    )  # fmt: skip


# ---------------------------------------------------------------------- several records of one person


def _groups(sources: Sources, record: RunRecord, plans: Plans) -> Iterable[Group]:
    """2, 5 and 10 records, and as many as the owner states. Where a person is the unit, all its records are in it."""
    if record.unit != "record" or together(record):
        return
    delta = float((record.guarantee or {})["delta"])
    own = sources.words.records_of_person
    for records in sorted({*GROUPS, *([own] if own > 1 else [])}):
        yield group(plans, records, delta)


def group(plans: Plans, records: int, delta: float) -> Group:
    """So many records of one person: their guarantee follows from that of one (Dong, Roth, Su 2022, Theorem 2.14)."""
    mu = plans.gaussian_mu
    if mu is not None:
        together = gaussian(records * mu)
        advantage = together.advantage().upper
        return Group(records, stated(records * mu), stated(together.epsilon(delta).upper), chance(0.5 + advantage / 2))
    return Group(
        records, None, stated(group_epsilon(plans, records, delta)), chance(0.5 + group_advantage(plans, records) / 2)
    )


def group_power(plans: Plans, records: int, alpha: np.ndarray) -> np.ndarray:
    """Upper bound on the true positive rate against a group: the power function applied once for each record.

    It rises from record to record. Where it cannot rise any more the others change nothing, and where nobody will wait for
    that the bound is 1.
    """
    power = alpha
    for _ in range(min(records, MOST_STEPS)):
        before, power = power, np.asarray(plans.power(power))
        if np.array_equal(before, power):
            return power
        if power.min() >= ALMOST:
            break
    else:
        if records <= MOST_STEPS:
            return power
    return np.ones_like(alpha)


def group_advantage(plans: Plans, records: int) -> float:
    """Upper bound on true positive rate minus false positive rate. Both rise, so an interval has its ends' difference."""
    power = group_power(plans, records, _FINE)
    return float(min(1.0, max(power[0], np.max(power[1:] - _FINE[:-1]))))


def group_epsilon(plans: Plans, records: int, delta: float) -> float | None:
    """ε at δ of a group, from the curve, or where that is infinite from pairs (ε, δ); None where both are."""
    found = _from_curve(plans, records, delta)
    return _from_pairs(plans, records, delta) if found is None else found


def _from_curve(plans: Plans, records: int, delta: float) -> float | None:
    """sup of log((power − δ) ÷ α). Power rises, so between two levels it is at most that of the upper one."""
    power = group_power(plans, records, _TINY)
    if power[0] > delta:
        return None
    above = power[1:] > delta
    return float(np.max(np.log((power[1:] - delta)[above] / _TINY[:-1][above]), initial=0.0) * (1 + ROUNDING))


def _growth(epsilon: float, records: int) -> float:
    """(e^{kε} − 1)/(e^ε − 1), rounded up."""
    if records <= MOST_STEPS:
        return sum(exp(step * epsilon) for step in range(records)) * (1 + ROUNDING)
    return float(records if epsilon == 0 else expm1(records * epsilon) / expm1(epsilon)) * (1 + SLACK)


def _from_pairs(plans: Plans, records: int, delta: float) -> float | None:
    """(ε, δ′) of one record is (kε, δ′·(e^{kε} − 1)/(e^ε − 1)) of k; δ′ is lowered until that is at most δ."""
    smaller = delta
    while smaller > LEAST_DELTA:
        epsilon = plans.epsilon(smaller)
        if not np.isfinite(epsilon):
            return None
        if (records - 1) * epsilon > 700:  # δ′ would have to be below δ·e^−700
            return None
        growth = _growth(epsilon, records)
        if smaller * growth <= delta:
            return records * epsilon
        smaller = min(smaller / 2, delta / growth / 2)
    return None
