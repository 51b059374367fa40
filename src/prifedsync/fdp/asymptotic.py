"""Asymptotic values: the paper's μ, its Poisson counterpart, and the Edgeworth refinement. None of them is a guarantee.

For every finite number of steps, tests with very small α see the Gaussian without subsampling. So a CLT value is no bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from ..values import BadValue, choice, number, whole
from .bounds import Array, Neighbours
from .closed import Closed
from .lattice import Side, discretise


def clt_fixed_size(sigma: float, rate: float, steps: int) -> float:
    """The paper's μ (`thm:alg_1_and_2`): √2·q·√(KR)·√(e^(σ⁻²)Φ(1.5/σ) + 3Φ(−0.5/σ) − 2), σ half the noise multiplier."""
    sigma, rate = number("sigma", sigma, 0, ends="(]"), number("rate", rate, 0, 1, ends="(]")
    if sigma < 0.04:
        return math.inf
    chi = math.exp(sigma**-2) * float(ndtr(1.5 / sigma)) + 3 * float(ndtr(-0.5 / sigma)) - 2
    return math.sqrt(2 * whole("steps", steps, 0) * chi) * rate


def clt_poisson(noise_multiplier: float, rate: float, steps: int, neighbours: Neighbours) -> float:
    """The CLT for Poisson batches: μ² is the limit of steps·χ² of one step.

    Add/remove: q√(T(e^(1/s²) − 1)) (Bu, Dong, Long, Su 2020). Replace: the antipodal pair gives 2q√(T·sinh(1/s²)).
    """
    spread, rate = number("noise_multiplier", noise_multiplier, 0, ends="(]"), number("rate", rate, 0, 1, ends="(]")
    if spread < 0.04:
        return math.inf
    chi = (
        4 * math.sinh(spread**-2)
        if choice("neighbours", neighbours, Neighbours) is Neighbours.REPLACE
        else math.expm1(spread**-2)
    )
    return rate * math.sqrt(whole("steps", steps, 0) * chi)


@dataclass(frozen=True)
class Edgeworth:
    """Second-order Edgeworth approximation of a composition (Zheng, Dong, Long, Su 2020): cumulants under P and Q."""

    null: tuple[float, float, float, float]
    alternative: tuple[float, float, float, float]

    def type_errors(self, threshold: Array) -> tuple[Array, Array]:
        """(α, β) of the test that rejects if the loss exceeds the threshold."""
        return 1 - _cdf(threshold, self.null), _cdf(threshold, self.alternative)

    def delta(self, epsilon: float) -> float:
        alpha, beta = self.type_errors(np.array([epsilon]))
        return float(1 - beta[0] - math.exp(epsilon) * alpha[0])

    def epsilon(self, delta: float) -> float:
        """The largest ε on a grid where the approximation exceeds δ; 0 if there is none."""
        number("delta", delta, 0, 1, ends="()")
        mean, variance = self.alternative[:2]
        grid = np.linspace(0.0, max(mean, 0.0) + 12 * math.sqrt(variance), 20_001)
        alpha, beta = self.type_errors(grid)
        above = np.flatnonzero(1 - beta - np.exp(np.minimum(grid, 700.0)) * alpha > delta)
        return float(grid[above[-1]]) if above.size else 0.0


def edgeworth(*parts: tuple[Closed, int]) -> Edgeworth:
    """The Edgeworth approximation of f₁^⊗n₁ ⊗ f₂^⊗n₂ ⊗ … from the cumulants of one loss each."""
    totals = np.zeros((2, 4))
    for f, count in parts:
        if not isinstance(f, Closed):
            remedy = "give the elementary mechanisms and their counts"
            raise BadValue("part", type(f).__name__, "must be a mechanism in closed form", remedy)
        step = 1e-4
        pair = discretise(f.pair, step, Side.PESSIMISTIC)
        losses = pair.losses(step)
        for row, mass in enumerate((pair.p, pair.q)):
            mean = float(mass @ losses)
            second, third, fourth = (float(mass @ (losses - mean) ** power) for power in (2, 3, 4))
            totals[row] += whole("count", count, 0) * np.array([mean, second, third, fourth - 3 * second**2])
    null, alternative = (tuple(float(x) for x in row) for row in totals)
    return Edgeworth(null, alternative)  # type: ignore[arg-type]


def _cdf(threshold: Array, cumulants: tuple[float, float, float, float]) -> Array:
    mean, variance, third, fourth = cumulants
    z = (threshold - mean) / math.sqrt(variance)
    skewness, excess = third / variance**1.5, fourth / variance**2
    correction = skewness / 6 * (z**2 - 1) + excess / 24 * (z**3 - 3 * z) + skewness**2 / 72 * (z**5 - 10 * z**3 + 15 * z)
    return np.asarray(ndtr(z) - np.exp(-z * z / 2) / math.sqrt(2 * math.pi) * correction)
