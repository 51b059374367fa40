"""What each view of a run comes to in numbers: the worst over its clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from .plan import Participation, PrivacyPlan
from .statement import Numbers, NumbersOf
from .views import Crowd, NoClaim, Who


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
    assumes = crowd.against(who, colluders).assumes
    noise: dict[PrivacyPlan, float] = {}  # of plans that differ in nothing else, the least: it leaks the most
    for place, plan in enumerate(plans):
        seen = crowd.against(who, colluders, place).seen(plan)
        if isinstance(seen, NoClaim):
            return ViewNumbers(who, colluders, assumes, None, None, seen.why)
        alike = seen.accounted.changed(noise_multiplier=1.0)
        noise[alike] = min(seen.mechanism.noise_multiplier, noise.get(alike, inf))
    leakiest = [alike.changed(noise_multiplier=least) for alike, least in noise.items()]

    def worst(participation: Participation) -> Numbers:
        return Numbers.worst(numbers(plan, participation) for plan in leakiest)

    honest = worst("honest")
    chosen = honest if all(plan.participation == 1 for plan in leakiest) else worst("adversarial")
    return ViewNumbers(who, colluders, assumes, honest, chosen)
