"""Closed-form profiles against quadrature of the densities they claim to describe, in both orders."""

import numpy as np
import pytest
from scipy.stats import laplace as laplace_law
from scipy.stats import norm

from prifedsync.fdp.profile import (
    AntipodalHalf,
    EpsilonDeltaHalf,
    GaussianHalf,
    LaplaceHalf,
    PointsHalf,
    SubsampledHalf,
    UnsampledHalf,
    WorseHalf,
    reach,
)

Z = np.linspace(-60.0, 60.0, 1_200_001)
DZ = Z[1] - Z[0]


def hockey(q, p, eps):
    """∫ (q − e^ε p)₊ by the trapezoid rule, and e^ε P(q > e^ε p)."""
    return np.maximum(q - np.exp(eps) * p, 0.0).sum() * DZ, np.exp(eps) * p[q > np.exp(eps) * p].sum() * DZ


def mixed(mean, spread, rate):
    return (1 - rate) * norm.pdf(Z, 0, spread) + rate * norm.pdf(Z, mean, spread)


CASES = {
    "gaussian": (GaussianHalf(1.3), norm.pdf(Z, 1.3), norm.pdf(Z)),
    "gaussian small": (GaussianHalf(0.02), norm.pdf(Z, 0.02), norm.pdf(Z)),
    "gaussian large": (GaussianHalf(7.0), norm.pdf(Z, 7.0), norm.pdf(Z)),
    "laplace": (LaplaceHalf(1 / 1.5), laplace_law.pdf(Z, 1, 1.5), laplace_law.pdf(Z, 0, 1.5)),
    "poisson remove": (SubsampledHalf(GaussianHalf(1 / 0.9), 0.1), mixed(1, 0.9, 0.1), norm.pdf(Z, 0, 0.9)),
    "poisson add": (UnsampledHalf(GaussianHalf(1 / 0.9), 0.1), norm.pdf(Z, 0, 0.9), mixed(1, 0.9, 0.1)),
    "poisson replace": (AntipodalHalf(0.9, 0.1), mixed(-1, 0.9, 0.1), mixed(1, 0.9, 0.1)),
    "poisson replace, rare": (AntipodalHalf(2.0, 0.001), mixed(-1, 2.0, 0.001), mixed(1, 2.0, 0.001)),
    "poisson replace, little noise": (AntipodalHalf(0.3, 0.2), mixed(-1, 0.3, 0.2), mixed(1, 0.3, 0.2)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("eps", [0.0, 0.003, 0.05, 0.4, 1.7])
def test_profile_is_the_integral_of_its_densities(name, eps):
    half, q, p = CASES[name]
    delta, tail = (float(part[0]) for part in half.at(np.array([eps])))
    expected, expected_tail = hockey(q, p, eps)
    assert delta == pytest.approx(expected, abs=2e-8)
    if half.kink is None or abs(eps - half.kink) > 0.05:
        assert tail == pytest.approx(expected_tail, abs=5e-4)


SMOOTH = [
    GaussianHalf(1.0),
    SubsampledHalf(GaussianHalf(1.0), 0.03),
    UnsampledHalf(GaussianHalf(1.0), 0.3),
    AntipodalHalf(2.0, 0.03),
]


@pytest.mark.parametrize("half", SMOOTH, ids=lambda h: type(h).__name__)
def test_the_tail_is_minus_the_slope(half):
    eps = np.linspace(0.01, 0.8 * reach(half, 1e-12), 50)
    step = 1e-6
    ahead, behind = half.at(eps + step)[0], half.at(eps - step)[0]
    slope = -(ahead - behind) / (2 * step)  # e^ε·P-tail = −dδ/dε
    np.testing.assert_allclose(half.at(eps)[1], slope, rtol=2e-4, atol=1e-11)


@pytest.mark.parametrize("half", SMOOTH, ids=lambda h: type(h).__name__)
def test_far_tails_keep_relative_precision(half):
    """δ stays positive and log-smooth down to 1e−200: second differences of it never turn to noise."""
    eps = np.linspace(0.0, reach(half, 1e-200), 400)[1:-20]
    delta, _ = half.at(eps)
    assert np.all(delta > 0)
    assert np.all(np.diff(np.log(delta)) < 0)


def test_epsilon_delta_attains_its_name():
    delta, _ = EpsilonDeltaHalf(0.7, 0.01).at(np.array([0.0, 0.7, 2.0]))
    assert delta[1] == pytest.approx(0.01, abs=1e-15)
    assert delta[2] == pytest.approx(0.01, abs=1e-15)
    assert delta[0] == pytest.approx(0.01 + 0.99 * np.tanh(0.35), abs=1e-12)


def test_points_are_read_as_lines():
    half = PointsHalf(((0.0, 0.9), (0.2, 0.5), (0.6, 0.1), (1.0, 0.0)))
    for eps in (0.0, 0.3, 0.8, 3.0):
        by_hand = max(1 - b - np.exp(eps) * a for a, b in half.points)
        assert float(half.at(np.array([eps]))[0][0]) == pytest.approx(by_hand, abs=1e-14)
    assert half.limit == pytest.approx(0.1)


def test_worse_of_two():
    one, other = GaussianHalf(0.5), EpsilonDeltaHalf(0.2, 0.0)
    eps = np.array([0.0, 0.1, 1.0])
    np.testing.assert_array_equal(WorseHalf(one, other).at(eps)[0], np.maximum(one.at(eps)[0], other.at(eps)[0]))
