"""Trade-off functions as values: constructors, orders, lattice operations, comparison, attacks, refusals."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from prifedsync.fdp import (
    Answer,
    Neighbours,
    compose,
    epsilon_delta,
    fixed_size,
    from_points,
    gaussian,
    identity,
    laplace,
    leak,
    maximum,
    minimum,
    participating,
    poisson_gaussian,
)
from prifedsync.values import BadValue

ALPHA = np.array([0.0, 1e-6, 0.01, 0.2, 0.5, 0.8, 0.99, 1.0])
REMOVE = poisson_gaussian(1.0, 0.2, Neighbours.ADD_REMOVE)


def test_gaussian_curve():
    exact = ndtr(-ndtri(ALPHA) - 1.5)
    np.testing.assert_allclose(gaussian(1.5)(ALPHA), exact, atol=1e-12)
    assert np.all(gaussian(1.5)(ALPHA) <= exact)
    assert np.all(gaussian(1.5).upper(ALPHA) >= exact)
    assert gaussian(1.5).mu().lower < 1.5 < gaussian(1.5).mu().upper < 1.5 + 1e-14


def test_laplace_curve():
    """T(Lap(0), Lap(1)) with ε₀ = 1/b: 1 − e^ε₀ α, then e^−ε₀/(4α), then e^−ε₀(1 − α)."""
    e0 = 0.8
    alpha = np.array([0.05, 0.3, 0.45, 0.7])
    exact = np.where(
        alpha < np.exp(-e0) / 2,
        1 - np.exp(e0) * alpha,
        np.where(alpha < 0.5, np.exp(-e0) / (4 * alpha), np.exp(-e0) * (1 - alpha)),
    )
    np.testing.assert_allclose(laplace(1 / e0)(alpha), exact, atol=1e-11)


def test_epsilon_delta_curve():
    f = epsilon_delta(0.5, 0.1)
    exact = np.maximum(0, np.maximum(1 - 0.1 - np.exp(0.5) * ALPHA, np.exp(-0.5) * (1 - 0.1 - ALPHA)))
    np.testing.assert_allclose(f(ALPHA), exact, atol=1e-11)
    assert f.epsilon(0.1).upper == pytest.approx(0.5, abs=1e-9)
    assert f.epsilon(0.09).upper == np.inf


def test_identity_and_leak():
    np.testing.assert_allclose(identity(ALPHA), 1 - ALPHA, atol=1e-15)
    np.testing.assert_allclose(leak(ALPHA), 0.0, atol=1e-15)
    assert gaussian(0.0) == identity
    assert compose((identity, 1000)) == identity
    assert compose((gaussian(1.0), 3), (leak, 1)) == leak
    assert leak.total_variation().upper == 1.0
    assert identity.epsilon(1e-9) == (0.0, 0.0)


def test_points_and_their_double_conjugate():
    f = from_points([0.1, 0.3, 0.35, 0.6], [0.6, 0.3, 0.4, 0.1])  # (0.35, 0.4) lies above the hull
    np.testing.assert_allclose(f(np.array([0.05, 0.1, 0.2, 0.3, 0.8])), [0.8, 0.6, 0.45, 0.3, 0.05], atol=1e-11)
    np.testing.assert_allclose(f.inverse()(np.array([0.6, 0.3, 0.1])), [0.1, 0.3, 0.6], atol=1e-11)


def test_inverse_and_symmetrised_of_an_asymmetric_pair():
    beta = REMOVE(ALPHA[2:6])
    np.testing.assert_allclose(REMOVE.inverse()(beta), ALPHA[2:6], atol=1e-9)
    both = REMOVE.symmetrised()
    grid = np.linspace(0, 1, 101)
    assert np.all(both(grid) <= np.minimum(REMOVE(grid), REMOVE.inverse()(grid)) + 1e-10)
    assert both.delta(0.3).upper == pytest.approx(max(REMOVE.delta(0.3).upper, REMOVE.inverse().delta(0.3).upper), rel=1e-9)


def test_composition_keeps_the_orders_apart():
    run = compose((REMOVE, 20))
    assert not run.symmetric
    grid = np.linspace(0.001, 0.999, 57)
    assert np.all(run.inverse()(run.upper(grid)) <= grid + 1e-4)
    assert np.all(run.symmetrised()(grid) <= np.minimum(run(grid), run.inverse()(grid)) + 1e-4)
    assert np.all(run.symmetrised().upper(grid) >= run.symmetrised()(grid))


def test_minimum_and_maximum():
    f, g = gaussian(0.6), epsilon_delta(0.9, 0.0)
    grid = np.linspace(0.001, 0.999, 201)
    low, high = minimum(f, g), maximum(f, g)
    assert np.all(low(grid) <= np.minimum(f(grid), g(grid)) + 1e-9)
    np.testing.assert_allclose(high(grid), np.maximum(f(grid), g(grid)), atol=1e-4)
    assert np.all(high(grid) <= np.maximum(f(grid), g(grid)) + 1e-9)
    assert np.all(high.upper(grid) >= np.maximum(f(grid), g(grid)) - 1e-9)


def test_maximum_with_a_very_large_loss():
    claimed = maximum(gaussian(40.0), epsilon_delta(0.0, 0.0025)).total_variation()
    assert claimed.lower <= 0.0025 <= claimed.upper
    assert claimed.width < 1e-6


@pytest.mark.parametrize("count", [3534, 200_000])
def test_brackets_of_mu_are_nested_and_the_same_by_both_ways_of_computing(count):
    """μ looks at α up to 1 − 1e−5, where β may be 1e−20: any bias of the law shows there first."""
    step = fixed_size(gaussian(1.0), 16 / 600 if count < 10_000 else 0.002)
    brackets = [compose((step, count), tolerance=tolerance).mu() for tolerance in (1e-3, 1e-4, 2e-5)]
    both_orders = compose((step, count))
    both_orders.certified.symmetric = False  # compute the law under P on its own instead of mirroring
    brackets.append(both_orders.mu())
    for one in brackets:
        for other in brackets:
            assert one.lower <= other.upper
    assert brackets[2].width < 1e-4


def test_comparison_says_yes_no_or_undecided():
    assert gaussian(1.0).at_least(gaussian(1.1)) is Answer.YES
    assert gaussian(1.1).at_least(gaussian(1.0)) is Answer.NO
    assert laplace(1.0).at_least(laplace(1.0)) is Answer.YES
    assert gaussian(1.0).at_least(epsilon_delta(1.0, 0.0)) is Answer.NO
    assert epsilon_delta(1.0, 0.0).at_least(gaussian(1.0)) is Answer.NO
    assert compose((laplace(5.0), 2)).at_least(compose((laplace(5.0), 3))) is Answer.YES
    assert laplace(1.0).at_least(epsilon_delta(1.0, 0.0)) is Answer.UNDECIDED  # they touch


def test_attacks():
    f = gaussian(1.0)
    advantage = 2 * ndtr(0.5) - 1
    assert f.advantage().upper == pytest.approx(advantage, rel=1e-12)
    power = 1 - float(f(0.01))
    assert f.positive_predictive_value(0.5, 0.01).upper == pytest.approx(power / (power + 0.01), rel=1e-9)
    assert f.positive_predictive_value(0.01, 0.01).upper < f.positive_predictive_value(0.5, 0.01).upper


def test_subsampling_a_computed_composition():
    """C_q of a composition that has no closed form, against the same built in closed form."""
    inner = compose((gaussian(0.6), 1), (laplace(1e3), 1))  # Laplace noise this large hardly matters
    numeric, closed = fixed_size(inner, 0.1), fixed_size(gaussian(0.6), 0.1)
    assert numeric.epsilon(1e-5).upper == pytest.approx(closed.epsilon(1e-5).upper, rel=2e-3)
    assert numeric.epsilon(1e-5).upper >= closed.epsilon(1e-5).lower
    assert compose((numeric, 30)).epsilon(1e-5).upper == pytest.approx(compose((closed, 30)).epsilon(1e-5).upper, rel=5e-3)


def test_renyi_divergences():
    assert gaussian(0.7).renyi(6.0) == pytest.approx(6 * 0.49 / 2, rel=1e-6)
    assert gaussian(0.7).renyi(6.0) >= 6 * 0.49 / 2
    e0, order = 0.5, 4.0
    laplace_exact = np.log(
        order / (2 * order - 1) * np.exp((order - 1) * e0) + (order - 1) / (2 * order - 1) * np.exp(-order * e0)
    ) / (order - 1)
    assert laplace(1 / e0).renyi(order) == pytest.approx(laplace_exact, rel=1e-6)
    assert epsilon_delta(0.1, 1e-6).renyi(2.0) == np.inf


@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_a_rate_of_one_is_the_plain_gaussian(neighbours):
    mu = 1.0 if neighbours is Neighbours.REPLACE else 0.5
    assert poisson_gaussian(2.0, 1.0, neighbours) == gaussian(mu)
    assert fixed_size(gaussian(mu), 1.0) == gaussian(mu)


def test_small_delta_is_answered_and_below_the_cut_honestly_unbounded():
    run = compose((fixed_size(gaussian(1.0), 0.1), 50))
    for delta in (1e-9, 1e-20, 1e-40):
        bound = run.epsilon(delta)
        assert bound.width < 1e-3
        assert run.delta(bound.upper).upper == pytest.approx(delta, rel=0.05)
    assert run.epsilon(1e-70).upper == np.inf


def exact_randomised_response(epsilon, count, at):
    """δ(at) of a composition of randomised responses, by the binomial sum in rational arithmetic."""
    growth, threshold = Fraction(float(np.exp(epsilon))), Fraction(float(np.exp(at)))
    total = (1 + growth) ** count
    weights = [(comb(count, k) * growth**k, comb(count, k) * growth ** (count - k)) for k in range(count + 1)]
    return float(sum((max(Fraction(0), q - threshold * p) for q, p in weights), Fraction(0)) / total)


@pytest.mark.parametrize(("epsilon", "count"), [(0.9327886290691912, 4), (2.344751174057965, 11), (0.31, 9)])
@pytest.mark.parametrize("delta", [1e-6, 1.9e-12, 3e-9])
@pytest.mark.parametrize("tolerance", [1e-4, 0.015, 0.07])
def test_epsilon_is_safe_next_to_an_atom(epsilon, count, delta, tolerance):
    """δ falls steeply there: an ε too small by 1e−12 would already promise too much."""
    bound = compose((epsilon_delta(epsilon, 0.0), count), tolerance=tolerance).epsilon(delta)
    assert exact_randomised_response(epsilon, count, bound.upper) <= delta
    assert bound.lower == 0 or exact_randomised_response(epsilon, count, bound.lower) >= delta


def test_one_large_step_among_many_small_ones_keeps_the_bracket_narrow():
    mixed = compose((gaussian(1.0), 1), (poisson_gaussian(2.0, 0.01, Neighbours.REPLACE), 10_000))
    assert mixed.epsilon(1e-5).width < 1e-3
    assert mixed.mu().width < 1e-4


def test_extremes_are_answered_or_bounded():
    far = compose((participating(gaussian(20.0), 0.5), 100))
    assert far.epsilon(1e-5).width < 1.0
    assert far.mu().lower < np.inf
    rare = compose((participating(gaussian(10.0), 1e-9), 100))
    assert 1e-7 / 5e-5 < rare.mu().lower <= rare.mu().upper < 2.3e-3  # 1e−7 of leak at α = 1e−5
    assert rare.epsilon(1e-5).upper == 0.0
    assert compose((epsilon_delta(0.1, 0.5), 2000)).delta(1.0).upper == 1.0


REFUSED = [
    (lambda: poisson_gaussian(1.0, 0.1, "replace"), "neighbours = 'replace' must be one of Neighbours.REPLACE"),
    (lambda: epsilon_delta(30.0, 0.0), "epsilon = 30.0"),
    (lambda: poisson_gaussian(1e300, 0.1, Neighbours.REPLACE), "noise_multiplier = 1e+300"),
    (lambda: gaussian(-1.0), "mu = -1.0"),
    (lambda: gaussian(float("nan")), "mu = nan"),
    (lambda: gaussian(float("inf")), "mu = inf"),
    (lambda: laplace(0.0), "scale = 0.0"),
    (lambda: epsilon_delta(1.0, 1.5), "delta = 1.5"),
    (lambda: fixed_size(gaussian(1.0), 0.0), "rate = 0.0"),
    (lambda: fixed_size(gaussian(1.0), 1.5), "rate = 1.5"),
    (lambda: poisson_gaussian(0.0, 0.1, Neighbours.REPLACE), "noise_multiplier = 0.0"),
    (lambda: participating(gaussian(1.0), 1.2), "share = 1.2"),
    (lambda: compose((gaussian(1.0), -1)), "count = -1"),
    (lambda: compose((gaussian(1.0), 2.5)), "count = 2.5"),
    (lambda: compose((gaussian(1.0), True)), "count = True"),
    (lambda: from_points([0.5], [0.9]), "point = (0.5, 0.9)"),
    (lambda: gaussian(1.0)(1.5), "alpha = 1.5"),
    (lambda: gaussian(1.0).epsilon(0.0), "delta = 0.0"),
    (lambda: compose((laplace(1.0), 3)).mu(0.0), "alpha_min = 0.0"),
]


@pytest.mark.parametrize(("attempt", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_refusals_name_field_and_value(attempt, says):
    with pytest.raises(BadValue) as refusal:
        attempt()
    assert str(refusal.value).startswith(says)
    assert "\n" not in str(refusal.value)
