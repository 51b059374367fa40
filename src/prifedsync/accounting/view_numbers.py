"""What each view of a run comes to in numbers: the worst over its clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .plan import Participation, PrivacyPlan
from .statement import Numbers, NumbersOf
from .views import Crowd, NoClaim, View, Who


@dataclass(frozen=True)
class ViewNumbers:
    """One line of the table: who looks, what that assumes, and the numbers that hold for every client then.

    honest      each client decides by its own secret coin whether it takes part; None where there is no claim.
    worst_case  somebody else decides who takes part.
    why         why there is no claim; "" where there is one.
    """

    who: Who
    colluders: int
    assumes: str
    honest: Numbers | None
    worst_case: Numbers | None
    why: str = ""

    def as_json(self, simulation: bool = False) -> dict[str, object]:
        """A line of `"views"`. A number never stands without what it assumes."""
        said: dict[str, object] = {"who": self.who, "colluders": self.colluders, "claim": self.honest is not None}
        if self.honest is None or self.worst_case is None:
            return said | {"why": self.why}
        said |= self.honest.as_json()
        if self.worst_case != self.honest:
            said["worst_case_participation"] = self.worst_case.as_json()
        return said | {"assumes": self.assumes} | ({"simulation": True} if simulation else {})


def views_of(
    crowd: Crowd, plans: Sequence[PrivacyPlan], numbers: NumbersOf, colluders: int | None = None
) -> tuple[ViewNumbers, ...]:
    """The table of a run: the worst over all clients, one line for each view. `plans` are in the order of the crowd.

    A single plan may stand for a crowd of clients that are all alike.
    numbers: what computes the numbers of a plan; it should remember them, because clients share plans.
    """
    return tuple(_worst(crowd, plans, numbers, who, count) for who, count in crowd.asked(colluders))


def _worst(crowd: Crowd, plans: Sequence[PrivacyPlan], numbers: NumbersOf, who: Who, colluders: int) -> ViewNumbers:
    seen: dict[PrivacyPlan, View] = {}
    for place, plan in enumerate(plans):
        view = crowd.against(who, colluders, place)
        found = view.seen(plan)
        if isinstance(found, NoClaim):
            return ViewNumbers(who, colluders, view.assumes, None, None, found.why)
        seen[found.accounted] = view

    def worst(participation: Participation) -> Numbers:
        return Numbers.worst(numbers(plan, participation) for plan in seen)

    honest = worst("honest")
    chosen = honest if all(plan.participation == 1 for plan in seen) else worst("adversarial")
    return ViewNumbers(who, colluders, next(iter(seen.values())).assumes, honest, chosen)
