"""How much privacy a run has spent so far."""

from __future__ import annotations

import time
from collections.abc import Iterable

from .plan import PrivacyPlan

QUICK = 1e-2  # tolerance of bounds that a run is followed by


class WorstEpsilon:
    """Upper bounds on ε after so many rounds, the largest over all clients, participation by their own coins.

    All plans are asked anew for each number of rounds: the client with the largest ε in the end need not be the one that
    has spent most on the way.
    """

    def __init__(self, plans: Iterable[PrivacyPlan], delta: float) -> None:
        self.plans = tuple(dict.fromkeys(plans))
        self.delta = delta
        self.seconds = 0.0  # how long the last bound took: there may be as many plans as clients
        self._known: dict[int, float] = {}

    def after(self, rounds: int) -> float:
        if rounds not in self._known:
            begun = time.perf_counter()
            self._known[rounds] = max(self._epsilon(plan.changed(rounds=rounds)) for plan in self.plans)
            self.seconds = time.perf_counter() - begun
        return self._known[rounds]

    def _epsilon(self, plan: PrivacyPlan) -> float:
        return plan.guarantee(tolerance=QUICK).epsilon(self.delta).upper
