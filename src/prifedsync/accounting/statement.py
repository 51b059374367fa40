"""A guarantee in numbers and in one sentence. Every printed number is the safe end of its bracket, rounded outwards."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from ..fdp import Bound, Neighbours, TradeOff
from ..limits import RECORD, Unit
from ..values import BadValue, counted, number
from . import paper
from .plan import Participation, PrivacyPlan

if TYPE_CHECKING:
    from .view_numbers import ViewNumbers

ALPHA_MIN = 1e-5
SHOWN_LEVELS = (0.001, 0.01)  # false positive rates at which the true positive rate of an attack is printed
_LEVELS = (*SHOWN_LEVELS, *np.geomspace(1e-5, 0.05, 23), *np.linspace(0.1, 0.9, 17), *(1 - np.geomspace(0.05, 1e-5, 11)))
ADJACENCY = {Neighbours.REPLACE: "one {} replaced", Neighbours.ADD_REMOVE: "one {} added or removed"}  # of a unit
_KNOWN: dict[Unit, str] = {"record": "every other record", "person": "all records of every other person"}
_HELD: dict[Unit, str] = {"record": "it", "person": "records of that person"}
_ASKED: dict[tuple[Unit, Neighbours], str] = {
    ("record", Neighbours.REPLACE): "which of two values the record has",
    ("record", Neighbours.ADD_REMOVE): "whether the record is in the data",
    ("person", Neighbours.REPLACE): "which of two sets of records the person has there",
    ("person", Neighbours.ADD_REMOVE): "whether the person's records are in the data",
}
REPR_WIDTH = 100  # characters in a line of a repr
SIMULATION = "of the algorithm, not of these files: the draws are seeded, and whoever knows the seed can subtract the noise"
CURVE_LEVELS = tuple(sorted({float(f"{level:.6g}") for level in _LEVELS}))


@dataclass(frozen=True)
class Numbers:
    """One guarantee as (ε, δ), as μ on a range of α, as the advantage of any attack, and as a trade-off curve."""

    epsilon: Bound
    mu: Bound
    advantage: Bound
    curve: tuple[tuple[float, float], ...]  # (α, certified lower bound on β): no attack gets below it

    @staticmethod
    def of(f: TradeOff, delta: float) -> Numbers:
        curve = zip(CURVE_LEVELS, f(np.array(CURVE_LEVELS)).tolist(), strict=True)
        return Numbers(f.epsilon(delta), f.mu(ALPHA_MIN), f.advantage(), tuple(curve))

    @staticmethod
    def worst(many: Iterable[Numbers]) -> Numbers:
        """The worst value of each number over several guarantees. It holds for all of them."""
        every = tuple(many)
        levels = zip(*(each.curve for each in every), strict=True)
        return Numbers(
            epsilon=largest(each.epsilon for each in every),
            mu=largest(each.mu for each in every),
            advantage=largest(each.advantage for each in every),
            curve=tuple(min(points) for points in levels),  # at one α, the lowest β
        )

    def hits(self, alpha: float) -> float:
        """Upper bound on the true positive rate of any attack, at one of the false positive rates of the curve."""
        return 1 - dict(self.curve)[alpha]

    def as_json(self) -> dict[str, object]:
        return {
            "epsilon": bracket(self.epsilon),
            "mu": {**bracket(self.mu), "alpha_min": ALPHA_MIN},
            "advantage": bracket(self.advantage),
        }


NumbersOf = Callable[[PrivacyPlan, Participation], Numbers]


@dataclass(frozen=True, repr=False)
class Statement:
    """The guarantee of one client's plan, as `prifedsync account` prints it, or of all clients of a run.

    honest      each client decides by its own secret coin whether it takes part; `epsilon`, `mu` and `advantage` are these.
    worst_case  somebody else decides who takes part.
    simulation  the draws were seeded: the numbers hold for the algorithm, not for what this run has written.
    views       the same against fewer people than everybody, each with what it assumes; empty if clients are unknown.
    """

    delta: float
    neighbours: Neighbours
    honest: Numbers
    worst_case: Numbers
    mu_weak: float | None
    mu_strong: float | None
    copies: int = 1
    whose: str = "this client"
    warnings: tuple[str, ...] = field(default=())
    simulation: bool = False
    unit: Unit = RECORD
    views: tuple[ViewNumbers, ...] = ()

    @property
    def epsilon(self) -> Bound:
        """ε at `delta`. The upper end is the one to report."""
        return self.honest.epsilon

    @property
    def mu(self) -> Bound:
        """μ for false positive rates from 1e-5 to 1 − 1e-5. The upper end is the one to report."""
        return self.honest.mu

    @property
    def advantage(self) -> Bound:
        """The true positive rate of the best attack minus its false positive rate."""
        return self.honest.advantage

    @staticmethod
    def of(
        plan: PrivacyPlan, delta: float = 1e-5, clients: int | None = None, numbers: NumbersOf | None = None
    ) -> Statement:
        """The statement of one client's plan. With `clients`, it also has the paper's value for colluding clients.

        numbers: what computes the numbers of a plan, if it is shared by many plans.
        """
        number("delta", delta, 0, 1, ends="()", remedy="choose a small probability such as 1e-5")
        in_paper = plan.mechanism.steps is not None
        weak = paper.mu_weak([plan]) if in_paper else None
        strong = paper.mu_strong([plan], clients) if in_paper and clients is not None else None
        computed = numbers or (lambda plan, participation: Numbers.of(plan.guarantee(participation), delta))
        honest = computed(plan, "honest")
        worst = honest if plan.participation == 1 else computed(plan, "adversarial")
        return Statement(
            delta, plan.neighbours, honest, worst, weak, strong, copies=plan.copies, warnings=warnings(plan, delta),
            unit=plan.unit,
        )  # fmt: skip

    @staticmethod
    def worst(many: Iterable[Statement]) -> Statement:
        """One statement that holds for every client: each number is the worst value over the clients.

        No single client can represent the others: the client with the largest ε may have the smallest advantage.
        """
        every = tuple(many)
        shared = {(each.delta, each.neighbours, each.unit) for each in every}
        if len(shared) != 1:
            rule = "must all have one delta, one adjacency relation and one unit"
            raise BadValue("statements", shared, rule, "state them separately")
        return Statement(
            delta=every[0].delta,
            neighbours=every[0].neighbours,
            honest=Numbers.worst(each.honest for each in every),
            worst_case=Numbers.worst(each.worst_case for each in every),
            mu_weak=_largest_value([each.mu_weak for each in every]),
            mu_strong=_largest_value([each.mu_strong for each in every]),
            copies=max(each.copies for each in every),
            whose="any client",
            warnings=tuple(dict.fromkeys(warning for each in every for warning in each.warnings)),
            simulation=any(each.simulation for each in every),
            unit=every[0].unit,
        )

    def as_json(self) -> dict[str, object]:
        """What `prifedsync account --json` prints."""
        return {
            "delta": self.delta,
            **self.honest.as_json(),
            "worst_case_participation": self.worst_case.as_json(),
            "paper": {"mu_weak": finite(self.mu_weak), "mu_strong": finite(self.mu_strong), "kind": "asymptotic"},
            "curve": [list(point) for point in self.honest.curve],
            "neighbours": self.neighbours.value,
            "copies": self.copies,
            "unit": self.unit,
            "sentence": self.sentence(),
            "warnings": list(self.warnings),
            **({"views": [view.as_json(self.simulation) for view in self.views]} if self.views else {}),
        }

    def sentence(self) -> str:
        """What an attacker who already knows all other records, or persons, can achieve, in one paragraph."""
        question = _ASKED[self.unit, self.neighbours]
        holders = f"the {self.copies} clients that hold {_HELD[self.unit]} send"
        senders = "its client sends" if self.copies == 1 else holders
        correct = 0.5 + self.honest.advantage.upper / 2
        return (
            f"For any {self.unit} of {self.whose}: an attacker knows {_KNOWN[self.unit]}, sees everything that {senders}, "
            f"and colludes with all other clients and the server. Such an attacker guesses {question} correctly at most "
            f"{percent_up(correct)} of the time (50% is random guessing). At a false positive rate of 1%, the attacker's "
            f"true positive rate is at most {percent_up(self.honest.hits(0.01))}."
            + (f" (A simulation: {SIMULATION}.)" if self.simulation else "")
        )

    def __repr__(self) -> str:
        lines = [f"Guarantee: {in_one_line(self.as_json(), self.simulation)}"]
        lines += in_views(self.as_json())
        lines += textwrap.wrap(self.sentence(), REPR_WIDTH)
        lines += [line for warning in self.warnings for line in textwrap.wrap(f"warning: {warning}", REPR_WIDTH)]
        return "\n  ".join(lines)


def in_one_line(stated: Mapping[str, Any], simulation: bool) -> str:
    """ε, μ and the adjacency relation, from what `Statement.as_json` returns. Every number is on its safe side."""
    epsilon = stated["epsilon"]["upper"]
    others_choose = stated["worst_case_participation"]["epsilon"]["upper"]
    text = f"ε ≤ {loss_up(epsilon)} at δ = {stated['delta']:g}, μ ≤ {loss_up(stated['mu']['upper'])} for α in 1e-5 … 1−1e-5"
    text += _if_chosen(epsilon, others_choose)
    text += f", adjacency: {ADJACENCY[Neighbours(stated['neighbours'])].format(stated.get('unit', RECORD))}"
    return f"{text} (a simulation)" if simulation else text


def in_views(stated: Mapping[str, Any]) -> list[str]:
    """Each number that is smaller against fewer than everybody, with what it assumes, from `Statement.as_json`."""
    lines = []
    for view in stated.get("views", ()):
        if view["claim"] and view["mu"] != stated["mu"]:  # where it is no smaller, it is said already
            epsilon = view["epsilon"]["upper"]
            numbers = f"ε ≤ {loss_up(epsilon)}, μ ≤ {loss_up(view['mu']['upper'])}"
            numbers += _if_chosen(epsilon, view.get("worst_case_participation", view)["epsilon"]["upper"])
            simulated = ", a simulation" if "simulation" in view else ""
            others = counted(view["colluders"], "client")
            who = {"clients": others, "server": f"server and {others}"}.get(view["who"], view["who"])
            lines += textwrap.wrap(f"{who}: {numbers}{simulated}, if {view['assumes']}", REPR_WIDTH)
    return lines


def _if_chosen(epsilon: float | None, others_choose: float | None) -> str:
    """What ε is where clients do not toss their own coins, if that is another number."""
    return "" if others_choose == epsilon else f" (ε ≤ {loss_up(others_choose)} if others choose who takes part)"


def loss_up(value: float | None) -> str:
    """The value rounded up; None stands for infinity, as in JSON."""
    return "∞" if value is None else up(value)


def warnings(plan: PrivacyPlan, delta: float) -> tuple[str, ...]:
    """What a reader of this guarantee should know."""
    found = []
    records = plan.mechanism.records
    if records is not None and delta * records >= 1:
        found.append(
            f"delta = {delta:g} is not below 1/{plan.unit}s = {1 / records:.2g}: a mechanism "
            f"that publishes one {plan.unit} in the clear could satisfy such a guarantee; choose a smaller delta"
        )
    return tuple(found)


def largest(bounds: Iterable[Bound]) -> Bound:
    """A bracket of the largest of several values, each given by its own bracket."""
    every = tuple(bounds)
    return Bound(max(each.lower for each in every), max(each.upper for each in every))


def _largest_value(values: list[float | None]) -> float | None:
    """The largest value, or None if any value is unknown."""
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def bracket(bound: Bound) -> dict[str, float | None]:
    return {"lower": finite(bound.lower), "upper": finite(bound.upper)}


def finite(value: float | None) -> float | None:
    """The value for JSON, which has no infinity: None (null) means "no bound"."""
    return value if value is not None and math.isfinite(value) else None


def up(value: float, digits: int = 4) -> str:
    """The value rounded up to this many significant digits: the safe direction for a privacy loss."""
    return _rounded(value, digits, ROUND_CEILING)


def down(value: float, digits: int = 4) -> str:
    """The value rounded down to this many significant digits."""
    return _rounded(value, digits, ROUND_FLOOR)


def percent_up(share: float) -> str:
    """A fraction as a percentage, rounded up to one decimal."""
    return f"{min(Decimal(100), (Decimal(share) * 100).quantize(Decimal('0.1'), ROUND_CEILING))}%"


def _rounded(value: float, digits: int, towards: str) -> str:
    if not math.isfinite(value):
        return "∞"
    exact = Decimal(value)  # exact: every double is a finite decimal
    if exact == 0:
        return "0"
    return f"{exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1), towards):f}"
