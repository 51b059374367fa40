"""The privacy plan of one client. It holds public numbers only; training and accounting both read it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import Literal, get_args, overload

from ..fdp import Neighbours, TradeOff, compose, minimum, participating
from ..fdp.tradeoff import DEFAULT_TOLERANCE
from ..limits import MOST_STEPS, RECORD, Unit
from ..values import BadValue, choice, number, whole
from .mechanisms import Mechanism, Sampling
from .views import NoClaim, View

Participation = Literal["honest", "adversarial"]
MOST_QUERIES = f"the accounting covers at most {MOST_STEPS:g} noisy queries"
NEVER_TAKES_PART = "a client that never takes part needs no plan; leave it out"


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """What one client will release: `mechanism` in each round that it takes part in, in at most `rounds` rounds.

    A round whose sum was lost may be repeated: `attempts` is the number of spare slots of the whole run. A slot is one
    attempt at one round, and releases `mechanism` anew. All spare slots are charged, whether or not they are used.
    The client takes part in a round with probability `participation`, independently of the data and of other rounds.
    The guarantee is the *transcript bound*. It holds against one other client, against all other clients together and
    against the server, because all they see is computed from this client's participation and its noisy releases.
    It is about one unit of the client: a record, or a person with all its records there. If `copies` clients hold the
    same unit, all of them have plans that leak alike, and the guarantee composes over the rounds of all of them.
    """

    mechanism: Mechanism
    rounds: int
    participation: float = 1.0
    neighbours: Neighbours = Neighbours.REPLACE
    copies: int = 1
    unit: Unit = RECORD
    attempts: int = 0

    def __post_init__(self) -> None:
        if self.unit not in get_args(Unit):
            raise BadValue("unit", self.unit, f"must be one of {', '.join(get_args(Unit))}")
        rows = self.mechanism.steps.rows_per_unit if self.mechanism.steps else 1
        if self.unit == RECORD and rows > 1:
            raise BadValue("rows_per_unit", rows, "must be 1 if the unit is a record", "set unit = person")
        most = MOST_STEPS // (self.mechanism.queries_per_round * whole("copies", self.copies, 1))
        most -= whole("attempts", self.attempts, 0, max(0, most - 1), remedy=MOST_QUERIES)
        whole("rounds", self.rounds, 1, most, remedy=MOST_QUERIES)
        number("participation", self.participation, 0, 1, ends="(]", remedy=NEVER_TAKES_PART)
        choice("neighbours", self.neighbours, Neighbours)
        self.mechanism.one_round(self.neighbours)  # refuses what cannot be accounted

    @property
    def slots(self) -> int:
        """How often the client may release the mechanism: once a round, and once in each spare attempt."""
        return self.rounds + self.attempts

    def one_round(self) -> tuple[tuple[TradeOff, int], ...]:
        """The elementary trade-off functions of one round, each with its count."""
        return self.mechanism.one_round(self.neighbours)

    @overload
    def guarantee(
        self, participation: Participation = ..., taken: int | None = ..., tolerance: float = ..., *, against: None = ...
    ) -> TradeOff: ...

    @overload
    def guarantee(
        self, participation: Participation = ..., taken: int | None = ..., tolerance: float = ..., *, against: View
    ) -> TradeOff | NoClaim: ...

    def guarantee(
        self,
        participation: Participation = "honest",
        taken: int | None = None,
        tolerance: float = DEFAULT_TOLERANCE,
        *,
        against: View | None = None,
    ) -> TradeOff | NoClaim:
        """The trade-off function of all releases of this client, and of the other clients that hold the record.

        honest       mix_p(f)^⊗R ⊗ f^⊗a: participation is drawn independently of the data and of this client's past
                     releases, once a round. Others choose when to use the a spare attempts.
        adversarial  f^⊗(R + a): others choose, perhaps adaptively, who takes part. The client must then enforce R + a.
        taken = k    f^⊗k, after the run: k counts the slots that were sent, whether or not they were received. Once k
                     is known, this is the guarantee; never report the smaller of this and the honest one. Under
                     adversarial participation others choose k, so `taken` is refused. With copies, k is the largest
                     number of slots that any holder of the record took.
        A run that stops early because of the data (say at 90 % accuracy) releases k: certify it at `rounds`. So does a
        run whose spare attempts were used because of what was released: certify it with all of them.

        against      who looks: None is everybody else together. Others, who see sums alone, may answer with `NoClaim`.
        """
        seen = self if against is None else against.seen(self)
        if isinstance(seen, NoClaim):
            return seen
        if taken is not None and seen.copies != self.copies:
            rule = "cannot be combined with a view of sums that several holders of one record are in"
            raise BadValue("taken", taken, rule, "state the guarantee of all rounds")
        return _guarantee(seen, participation, taken, tolerance)

    def _composed(self, participation: Participation, taken: int | None, tolerance: float) -> TradeOff:
        one_round = compose(*self.one_round(), tolerance=tolerance)
        if participation not in ("honest", "adversarial"):
            raise BadValue("participation", participation, "must be honest or adversarial")
        if taken is not None:
            if participation == "adversarial":
                raise BadValue(
                    "taken", taken, "cannot be combined with adversarial participation, because k is then a release itself"
                )
            count = whole("taken", taken, 0, self.slots, remedy="a client must refuse rounds beyond its plan")
            return compose((one_round, self.copies * count), tolerance=tolerance).symmetrised()
        asked = participating(one_round, self.participation) if participation == "honest" else one_round
        parts = (asked, self.copies * self.rounds), (one_round, self.copies * self.attempts)
        return compose(*parts, tolerance=tolerance).symmetrised()

    @property
    def accounted(self) -> PrivacyPlan:
        """The plan that stands for all with the same guarantee.

        Noise is relative to the clip norm. With full batches neither the number of units nor the way to draw them enters.
        """
        steps = self.mechanism.steps
        if steps is None or steps is not self.mechanism:
            return self
        alike = replace(steps, clip_norm=1.0)
        if steps.rate >= 1:
            alike = replace(alike, records=1, batch="full", sampling=Sampling.POISSON)
        return replace(self, mechanism=alike)

    def changed(self, **fields: object) -> PrivacyPlan:
        """A new plan with some fields replaced, of the plan or of its mechanism."""
        own = {key: value for key, value in fields.items() if key in self.__dataclass_fields__}
        inner = {key: value for key, value in fields.items() if key not in own}
        return replace(self, mechanism=replace(self.mechanism, **inner), **own)  # type: ignore[arg-type]


@lru_cache(maxsize=1)  # whoever has found a plan asks for its numbers next; more would hold large laws in memory
def _guarantee(plan: PrivacyPlan, participation: Participation, taken: int | None, tolerance: float) -> TradeOff:
    return plan._composed(participation, taken, tolerance)


def weak(plans: Iterable[PrivacyPlan]) -> TradeOff:
    """Weak federated f-DP (`def:privacy_weak`): what one client can learn about one record of any other client."""
    distinct = tuple(dict.fromkeys(plans))
    if not distinct:
        raise BadValue("plans", distinct, "must name at least one client")
    return reduce(minimum, (plan.guarantee() for plan in distinct))


def strong(plans: Iterable[PrivacyPlan]) -> TradeOff:
    """Strong federated f-DP (`def:privacy_strong`): what all other clients together can learn.

    This is the same function as `weak`. All that the others see is computed from one client's transcript, so collusion
    adds nothing and no factor m − 1 appears.
    """
    return weak(plans)
