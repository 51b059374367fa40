"""One client's plan: public numbers only, read by the training and by the accounting alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal

from ..fdp import Neighbours, TradeOff, compose, minimum, participating
from ..fdp.tradeoff import DEFAULT_TOLERANCE
from ..values import BadValue, choice, number, whole
from .mechanisms import MOST_STEPS, Mechanism

Participation = Literal["honest", "adversarial"]


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """What one client will release: `mechanism` in each round it takes part in, `rounds` at most, each with a fair coin.

    The guarantee is the *transcript bound*: it holds against one other client, all other clients together, and the
    server itself, because what any of them sees is computed from this client's participation bits and noisy gradients.
    A record that lies with `copies` clients, all of this plan, is released in the rounds of each, and what is guaranteed is
    about it.
    """

    mechanism: Mechanism
    rounds: int
    participation: float = 1.0
    neighbours: Neighbours = Neighbours.REPLACE
    copies: int = 1

    def __post_init__(self) -> None:
        most = MOST_STEPS // (self.mechanism.queries_per_round * whole("copies", self.copies, 1))
        whole("rounds", self.rounds, 1, most, remedy=f"at most {MOST_STEPS:g} steps are accounted")
        number("participation", self.participation, 0, 1, ends="(]", remedy="a client that never takes part needs no plan")
        choice("neighbours", self.neighbours, Neighbours)
        self.mechanism.one_round(self.neighbours)  # refuses what cannot be accounted

    def one_round(self) -> tuple[tuple[TradeOff, int], ...]:
        """The elementary mechanisms of one round, with their counts."""
        return self.mechanism.one_round(self.neighbours)

    def guarantee(
        self,
        participation: Participation = "honest",
        taken: int | None = None,
        tolerance: float = DEFAULT_TOLERANCE,
    ) -> TradeOff:
        """The trade-off function of everything this client releases, and others that hold the record.

        honest       mix_p(f)^⊗R: the coin is drawn independently of the data and of this client's past releases.
        adversarial  f^⊗R: somebody else chooses, perhaps adaptively, who takes part; R must then be enforced by the client.
        taken = k    f^⊗k, after the fact: the rounds *committed* to (sent, whether or not received). Once k is known,
                     this is the guarantee; never report the smaller of this and the honest one. With adversarial
                     participation k itself is chosen by others, so `taken` is refused there. With copies, k is the
                     largest number of rounds that one of the holders took.
        Stopping early on the data (say when 90 % accuracy is reached) makes k a release: certify at `rounds`.
        """
        one_round = compose(*self.one_round(), tolerance=tolerance)
        if participation not in ("honest", "adversarial"):
            raise BadValue("participation", participation, "must be honest or adversarial")
        if taken is not None:
            if participation == "adversarial":
                raise BadValue("taken", taken, "cannot go with adversarial participation: k is then a release itself")
            count = whole("taken", taken, 0, self.rounds, remedy="a client must refuse rounds beyond its plan")
            return compose((one_round, self.copies * count), tolerance=tolerance).symmetrised()
        if participation == "honest":
            one_round = participating(one_round, self.participation)
        return compose((one_round, self.copies * self.rounds), tolerance=tolerance).symmetrised()

    def changed(self, **fields: object) -> PrivacyPlan:
        """A new plan with some fields replaced, of the plan or of its mechanism."""
        own = {key: value for key, value in fields.items() if key in self.__dataclass_fields__}
        inner = {key: value for key, value in fields.items() if key not in own}
        return replace(self, mechanism=replace(self.mechanism, **inner), **own)  # type: ignore[arg-type]


def weak(plans: Iterable[PrivacyPlan]) -> TradeOff:
    """Weak federated f-DP (`def:privacy_weak`): what one client can learn of one record of any other client."""
    distinct = tuple(dict.fromkeys(plans))
    if not distinct:
        raise BadValue("plans", distinct, "must name at least one client")
    return reduce(minimum, (plan.guarantee() for plan in distinct))


def strong(plans: Iterable[PrivacyPlan]) -> TradeOff:
    """Strong federated f-DP (`def:privacy_strong`): what all other clients together can learn.

    The same function as `weak`: everything anybody sees is computed from one client's transcript, so colluding adds
    nothing and no factor m − 1 appears.
    """
    return weak(plans)
