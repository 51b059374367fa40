"""FFT composition against exact answers: the stated slack must cover the real error, also when it is made larger."""

from math import comb

import numpy as np
import pytest
from scipy.special import ndtr

from prifedsync.fdp.lattice import Masses, Side, discretise
from prifedsync.fdp.law import Leaf, Mixture, Product, compose
from prifedsync.fdp.profile import EpsilonDeltaHalf, GaussianHalf, both_ways


def gaussian_leaf(mu, step, side=Side.PESSIMISTIC):
    return Leaf(discretise(both_ways(GaussianHalf(mu)), step, side), step)


def test_binomial_law_is_exact_up_to_the_slack():
    epsilon, count = 0.1, 60
    leaf = Leaf(discretise(both_ways(EpsilonDeltaHalf(epsilon, 0.0)), epsilon, Side.PESSIMISTIC), epsilon)
    law = compose(Product(((leaf, count),)), 0.0)
    share = np.exp(epsilon) / (1 + np.exp(epsilon))
    exact = {2 * k - count: comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(count + 1)}
    computed = {law.first + i: w * np.exp(law.log_scale) for i, w in enumerate(law.weights)}
    error = sum(abs(computed.get(node, 0.0) - exact.get(node, 0.0)) for node in set(exact) | set(computed))
    assert error <= law.slack
    assert law.slack < 1e-10


@pytest.mark.parametrize("count", [10, 3000, 1_000_000])
def test_gaussian_composition_brackets_the_closed_form(count):
    mu = 2.0 / np.sqrt(count)
    step = min(0.01, 0.01 / np.sqrt(count) * 30)
    for eps in (0.0, 1.0, 5.0, 12.0):
        exact = ndtr(-eps / 2 + 1) - np.exp(eps) * ndtr(-eps / 2 - 1)
        above = compose(Product(((gaussian_leaf(mu, step), count),)), 0.0)
        below = compose(Product(((gaussian_leaf(mu, step, Side.OPTIMISTIC), count),)), 0.0)
        value, error = above.delta(eps)
        assert value + error >= exact
        value, error = below.delta(eps)
        assert value - error <= exact


def test_rounding_error_is_within_the_slack_and_the_slack_is_not_idle():
    """The same law with twice the resolution in time: differences of the two are rounding alone."""
    leaf = gaussian_leaf(0.02, 0.001)
    one = compose(Product(((leaf, 20_000),)), 0.0)
    two = compose(Product(((leaf, 10_000), (leaf, 10_000))), 0.0)
    assert one.first == two.first
    assert np.abs(one.weights - two.weights).sum() <= one.slack + two.slack
    exact_mean = 20_000 * float(leaf.masses.q @ leaf.masses.losses(0.001))
    mean = float(one.weights @ ((one.first + np.arange(one.weights.size)) * 0.001))
    assert abs(mean - exact_mean) < 1e-9


@pytest.mark.parametrize("delta", [1e-12, 1e-20, 1e-40])
def test_tilting_reaches_small_delta(delta):
    """G_0.1^⊗100 = G_1; the untilted law knows nothing below its slack."""
    from prifedsync.fdp import gaussian

    truth = gaussian(1.0).epsilon(delta).upper
    tilt = truth  # the saddle point of a Gaussian law N(1/2, 1) at loss ε is θ = ε − 1/2
    law = compose(Product(((gaussian_leaf(0.1, 0.0005), 100),)), tilt)
    value, error = law.delta(truth)
    assert error < 1e-3 * delta
    assert value == pytest.approx(delta, rel=1e-3)


def test_mixture_is_the_binomial_mixture():
    """Identity: the law of mix_p(f)^⊗R is Σ_k Bin(R, p)(k) times that of f^⊗k."""
    leaf, share, rounds = gaussian_leaf(0.5, 0.005), 0.3, 12
    mixed = compose(Product(((Mixture(leaf, share), rounds),)), 0.0)
    for eps in (0.0, 0.7, 2.0):
        direct = sum(
            comb(rounds, k) * share**k * (1 - share) ** (rounds - k) * compose(Product(((leaf, k),)), 0.0).delta(eps)[0]
            for k in range(1, rounds + 1)
        )
        assert mixed.delta(eps)[0] == pytest.approx(direct, abs=1e-12)


def test_mass_that_is_missing_counts_in_full():
    """Masses that do not sum to one, by a rounding or by a mistake, must not go unnoticed after many compositions."""
    masses = gaussian_leaf(0.02, 0.001).masses
    short = Masses(masses.first, masses.q * (1 - 1e-12), masses.p * (1 - 1e-12), masses.q_infinite, masses.p_infinite)
    whole = compose(Product(((Leaf(masses, 0.001), 20_000),)), 0.0)
    lossy = compose(Product(((Leaf(short, 0.001), 20_000),)), 0.0)
    assert whole.slack < 1e-10
    assert lossy.slack >= 20_000 * 1e-12


def test_infinite_losses_add_up():
    leak = Masses(0, np.array([0.99]), np.array([0.995]), 0.01, 0.005)
    product = Product(((Leaf(leak, 0.1), 20),))
    assert product.infinite == pytest.approx((1 - 0.99**20, 1 - 0.995**20), rel=1e-12)
    assert Mixture(Leaf(leak, 0.1), 0.5).infinite == pytest.approx((0.005, 0.0025))


def test_windows_far_from_zero_do_not_underflow():
    law = compose(Product(((gaussian_leaf(40.0, 0.05), 1),)), 0.0)
    eps = 40**2 / 2 - 10.0
    value, _ = law.delta(eps)
    assert value == pytest.approx(
        float(ndtr(-eps / 40 + 20) - np.exp(-0.5 * (-eps / 40 + 20) ** 2) / np.sqrt(2 * np.pi) / 40), rel=0.05
    )
