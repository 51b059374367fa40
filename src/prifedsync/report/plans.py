"""What the clients' plans guarantee, computed anew from the record: curves and ε, each on its safe side.

With few different plans every number holds for every client. With very many it is that of the clients who leak most by the
record's own numbers, and `every` says so: a page must open within seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from ..accounting import PrivacyPlan
from ..accounting.plan import Participation
from ..accounting.progress import WorstEpsilon
from ..fdp import TradeOff
from ..fdp.bounds import Array
from ..fdp.closed import Gaussian
from ..record import ClientRecord, plan_from_json

MOST = 10  # different plans that are all computed
EVERY = "every client"
LOUDEST = "the clients who leak most by the record's numbers"
TINY = 1e-8  # below it, δ(ε) of a curve loses digits
KINDS = ("epsilon", "mu", "advantage")
ROUNDING = 1e-15  # of a subtraction from 1, several times what it can add


@dataclass(frozen=True)
class Plans:
    """The different plans of a run. `every`: whether each client's plan is among them, or one that leaks no less."""

    plans: tuple[PrivacyPlan, ...]
    every: bool
    most_units: int | None  # of the client with the most: its public number of units

    @staticmethod
    def of(clients: Iterable[ClientRecord]) -> Plans:
        """The plans of a record's clients."""
        noisy = [client for client in clients if client.plan is not None]
        read = {id(client.plan): plan_from_json(client.plan) for client in noisy if client.plan is not None}
        sizes = [client.records for client in noisy if client.records is not None]
        most_units = max(sizes, default=None)
        loudest = _leakiest(read.values())
        if len(loudest) <= MOST:
            return Plans(loudest, True, most_units)
        worst = [max(noisy, key=lambda client, kind=kind: _stated(client, kind)) for kind in KINDS]  # type: ignore[misc]
        return Plans(_leakiest(read[id(client.plan)] for client in worst), False, most_units)

    @property
    def holds_for(self) -> str:
        """Whose bounds the numbers of these plans are."""
        return EVERY if self.every else LOUDEST

    @cached_property
    def honest(self) -> tuple[TradeOff, ...]:
        """Each plan's guarantee, where each client decides by its own coin."""
        return tuple(plan.guarantee() for plan in self.plans)

    @cached_property
    def worst_case(self) -> tuple[TradeOff, ...]:
        """Each plan's guarantee, where somebody else decides who takes part."""
        if all(plan.participation == 1 for plan in self.plans):
            return self.honest
        return tuple(plan.guarantee("adversarial") for plan in self.plans)

    def curve(self, alpha: Array, participation: Participation = "honest") -> Array:
        """Certified lower bound on β at each α, for all of these plans."""
        made = self.honest if participation == "honest" else self.worst_case
        return np.asarray(np.min([f(alpha) for f in made], axis=0))

    def power(self, alpha: Array | float) -> Array:
        """Upper bound on the true positive rate of any attack, at each false positive rate."""
        return np.asarray(np.minimum(1.0, 1 - self.curve(np.asarray(alpha)) + ROUNDING))

    def epsilon(self, delta: float) -> float:
        """Upper bound on ε at δ."""
        return max(_epsilon(f, delta) for f in self.honest)

    @property
    def gaussian_mu(self) -> float | None:
        """μ where every guarantee is exactly a Gaussian one; None otherwise."""
        found = [f.mu().upper for f in self.honest if isinstance(f, Gaussian)]
        return max(found) if len(found) == len(self.honest) else None

    def progress(self, delta: float) -> WorstEpsilon:
        """ε after fewer rounds."""
        return WorstEpsilon(self.plans, delta)


def _epsilon(f: TradeOff, delta: float) -> float:
    """From the certified curve, which is computed once for all δ; for a tiny δ also directly, if that is smaller."""
    if isinstance(f, Gaussian):
        return f.epsilon(delta).upper
    alpha, beta = f.certified.lower_curve
    hits = 1 - beta + ROUNDING - delta
    inside = alpha > 0
    found = inf
    if hits[~inside].max(initial=-1.0) <= 0:  # a convex curve of lines is worst at its vertices
        above = inside & (hits > 0)
        found = float(np.max(np.log(hits[above] / alpha[above]), initial=0.0)) * (1 + ROUNDING)
    return found if delta >= TINY and found < inf else min(found, f.epsilon(delta).upper)


def _leakiest(plans: Iterable[PrivacyPlan]) -> tuple[PrivacyPlan, ...]:
    """Of plans that differ in nothing but noise, the one with the least: it leaks the most."""
    least: dict[PrivacyPlan, PrivacyPlan] = {}
    for plan in plans:
        own = plan.accounted
        alike = own.changed(noise_multiplier=1.0)
        other = least.get(alike)
        if other is None or own.mechanism.noise_multiplier < other.mechanism.noise_multiplier:
            least[alike] = own
    return tuple(least.values())


def _stated(client: ClientRecord, kind: str) -> float:
    upper = client.planned[kind]["upper"] if client.planned else 0.0
    return inf if upper is None else float(upper)
