"""The discrete pairs: on the right side of the profile, all mass accounted for, second order in the step."""

import numpy as np
import pytest

from prifedsync.fdp.lattice import Side, discretise, masses
from prifedsync.fdp.profile import (
    AntipodalHalf,
    EpsilonDeltaHalf,
    GaussianHalf,
    LaplaceHalf,
    PointsHalf,
    Profile,
    SubsampledHalf,
    UnsampledHalf,
    both_ways,
)

PAIRS = {
    "gaussian": both_ways(GaussianHalf(1.0)),
    "laplace off the lattice": both_ways(LaplaceHalf(1.00345)),
    "randomised response off the lattice": both_ways(EpsilonDeltaHalf(0.5123, 1e-3)),
    "fixed-size": both_ways(SubsampledHalf(GaussianHalf(1.0), 16 / 600)),
    "poisson add/remove": Profile(SubsampledHalf(GaussianHalf(1.0), 0.05), UnsampledHalf(GaussianHalf(1.0), 0.05)),
    "poisson replace": both_ways(AntipodalHalf(2.0, 0.05)),
    "points": both_ways(PointsHalf(((0.0, 0.95), (0.2, 0.6), (0.6, 0.2), (0.95, 0.0)))),
}
STEP = 0.01


def profile_of(pair, step, eps):
    """δ of the discrete pair at each ε, summed by hand."""
    losses = pair.losses(step)
    return np.array([np.maximum(pair.q - np.exp(e) * pair.p, 0)[losses > e].sum() + pair.q_infinite for e in eps])


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("name", PAIRS)
def test_no_mass_is_lost_or_made(name, side):
    pair = discretise(PAIRS[name], STEP, side)
    assert pair.q.sum() + pair.q_infinite == pytest.approx(1.0, abs=1e-12)
    assert pair.p.sum() + pair.p_infinite == pytest.approx(1.0, abs=1e-12)
    assert pair.q.min() >= 0
    assert pair.p.min() >= 0
    np.testing.assert_allclose(pair.p, pair.q * np.exp(-pair.losses(STEP)), rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("step", [1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("name", ["fixed-size", "poisson add/remove", "poisson replace"])
def test_rounding_does_not_add_up_over_the_nodes(name, step):
    """A million compositions multiply whatever is missing from one step: it must be a few units in the last place."""
    for side in Side:
        pair = discretise(PAIRS[name], step, side)
        assert abs(pair.q.sum() + pair.q_infinite - 1) < 3e-15
        assert abs(pair.p.sum() + pair.p_infinite - 1) < 3e-15


def test_fine_lattices_leave_no_spurious_mass():
    """Second differences of δ ≈ 1 for ε < 0 would leave 2e−6 of mass a step at this lattice."""
    for side in Side:
        pair = discretise(both_ways(SubsampledHalf(GaussianHalf(1.0), 0.001)), 1e-5, side)
        assert pair.q.sum() + pair.q_infinite == pytest.approx(1.0, abs=1e-12)
        assert pair.p.sum() + pair.p_infinite == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("name", PAIRS)
def test_each_side_is_on_its_side(name):
    """Between the nodes and beyond them, in both orders."""
    eps = np.sort(np.random.default_rng(1).uniform(0.0, 4.0, 200))
    exact, exact_back = PAIRS[name].forward.at(eps)[0], PAIRS[name].backward.at(eps)[0]
    for side, sign in ((Side.PESSIMISTIC, 1.0), (Side.OPTIMISTIC, -1.0)):
        pair = discretise(PAIRS[name], STEP, side)
        swapped = type(pair)(-(pair.first + pair.q.size - 1), pair.p[::-1], pair.q[::-1], pair.p_infinite, pair.q_infinite)
        assert np.all(sign * (profile_of(pair, STEP, eps) - exact) >= -1e-15)
        assert np.all(sign * (profile_of(swapped, STEP, eps) - exact_back) >= -1e-15)


@pytest.mark.parametrize("name", ["gaussian", "fixed-size", "poisson add/remove", "poisson replace"])
def test_halving_the_step_quarters_the_bracket(name):
    eps = np.linspace(0.05, 0.8, 37)

    def width(step):
        return sum(sign * profile_of(discretise(PAIRS[name], step, side), step, eps).sum()
                   for side, sign in ((Side.PESSIMISTIC, 1), (Side.OPTIMISTIC, -1)))  # fmt: skip

    assert width(0.002) / width(0.001) == pytest.approx(4.0, rel=0.15)


def test_nodes_above_the_hull_are_dropped_even_at_zero():
    """A hump over ε = 0 is cut off by the chord from one order to the other."""
    fore = np.array([0.30, 0.20, 0.12, 0.05, 0.0])
    bumped = fore.copy()
    bumped[0] = 0.32
    pair = masses(bumped, bumped, 0.1, Side.PESSIMISTIC)
    assert pair.q.min() >= 0
    assert pair.q.sum() + pair.q_infinite == pytest.approx(1.0, abs=1e-12)
    assert pair.p.sum() + pair.p_infinite == pytest.approx(1.0, abs=1e-12)
    assert profile_of(pair, 0.1, [0.1])[0] <= 0.2 + 1e-12
