"""The privacy loss of a run so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from math import inf

from ..fdp.tradeoff import DEFAULT_TOLERANCE
from .plan import PrivacyPlan

QUICK = 1e-2  # tolerance of the bounds that are shown on the way


class WorstEpsilon:
    """Upper bounds on ε after a number of rounds: the largest over all clients, with honest participation.

    Every plan is evaluated again for each number of rounds, because the client with the largest ε at the end need not
    have the largest ε on the way. Bounds on the way are quick and wide. The bound after all rounds is the one that a
    statement has; it holds for fewer rounds as well, so no bound on the way is above it. Spare attempts are charged from
    the first round on, because they may be used at any time.
    """

    def __init__(self, plans: Iterable[PrivacyPlan], delta: float) -> None:
        self.plans = tuple(dict.fromkeys(plan.accounted for plan in plans))
        self.delta = delta
        self.rounds = max((plan.rounds for plan in self.plans), default=0)
        self.seconds = 0.0  # how long the last bound took, since there may be as many plans as clients
        self._known: dict[int, float] = {}

    def after(self, rounds: int, told: Callable[[int], None] = lambda done: None) -> float:
        """The bound after this many rounds. `told` is called with the number of plans that are done."""
        if rounds not in self._known:
            most = inf if rounds >= self.rounds else self.after(self.rounds)
            begun = time.perf_counter()
            worst = 0.0
            for done, plan in enumerate(self.plans, start=1):
                worst = max(worst, self._epsilon(plan.changed(rounds=rounds)))
                told(done)
            self._known[rounds] = min(worst, most)
            self.seconds = time.perf_counter() - begun
        return self._known[rounds]

    def _epsilon(self, plan: PrivacyPlan) -> float:
        tolerance = QUICK if plan.rounds < self.rounds else DEFAULT_TOLERANCE
        return plan.guarantee(tolerance=tolerance).epsilon(self.delta).upper
