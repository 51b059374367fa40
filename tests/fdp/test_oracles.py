"""Our brackets against what others compute and against the mechanisms themselves, simulated and integrated.

None of the settings is one of the paper's. Simulations are seeded, hence deterministic: they fail never or always. With
fresh seeds, 4.5 standard errors and 100 comparisons would make one run in 1500 fail.
"""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.optimize import brentq
from scipy.special import ndtr

from prifedsync.fdp import (
    Neighbours,
    TradeOff,
    compose,
    fixed_size,
    gaussian,
    laplace,
    participating,
    poisson_gaussian,
)

ADD_REMOVE, REPLACE = Neighbours.ADD_REMOVE, Neighbours.REPLACE
THEIRS = {ADD_REMOVE: NeighboringRelation.ADD_OR_REMOVE_ONE, REPLACE: NeighboringRelation.REPLACE_ONE}

# --- dp-accounting, live -----------------------------------------------------------------------------------------------
# Its ε comes from a pessimistic discrete pair (connect the dots), so it lies above the truth, by a few times n·h² for n
# steps on its grid of interval h: each setting has the h that makes this less than DISCRETISATION.
DISCRETISATION = 3e-4


def check_against_dp_accounting(f: TradeOff, theirs: pld.PrivacyLossDistribution, delta: float) -> None:
    ours, upper_estimate = f.epsilon(delta), theirs.get_epsilon_for_delta(delta)
    assert ours.width < 1.1e-4
    assert ours.lower <= upper_estimate <= ours.upper + DISCRETISATION


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta", "neighbours", "interval"),
    [
        (0.6, 0.002, 300, 1e-5, ADD_REMOVE, 5e-4),
        (0.8, 0.01, 1000, 1e-6, ADD_REMOVE, 5e-4),
        (1.1, 0.004, 5000, 1e-5, ADD_REMOVE, 2e-4),
        (1.5, 0.05, 200, 1e-8, ADD_REMOVE, 5e-4),
        (3.0, 0.3, 50, 1e-4, ADD_REMOVE, 5e-4),
        (8.0, 0.1, 2000, 1e-7, ADD_REMOVE, 2e-4),
        (2.0, 0.0005, 20_000, 1e-5, ADD_REMOVE, 3e-5),
        (0.7, 0.0005, 2000, 1e-6, REPLACE, 3e-4),
        (1.3, 0.02, 500, 1e-5, REPLACE, 5e-4),
        (2.5, 0.1, 300, 1e-7, REPLACE, 5e-4),
        (4.0, 0.3, 40, 1e-4, REPLACE, 5e-4),
        (8.0, 0.01, 20_000, 1e-5, REPLACE, 1e-4),
        (1.0, 0.1, 5, 1e-8, REPLACE, 5e-4),
    ],
)
def test_poisson_batches_agree_with_dp_accounting(noise, rate, steps, delta, neighbours, interval):
    one_step = pld.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=interval, neighboring_relation=THEIRS[neighbours]
    )
    ours = compose((poisson_gaussian(noise, rate, neighbours), steps))
    check_against_dp_accounting(ours, one_step.self_compose(steps), delta)


@pytest.mark.parametrize(
    ("noise", "steps", "delta", "neighbours"),
    [(1.2, 1, 1e-6, ADD_REMOVE), (6.5, 40, 1e-8, ADD_REMOVE), (9.0, 25, 1e-5, REPLACE)],
)
def test_full_batches_agree_with_dp_accounting(noise, steps, delta, neighbours):
    one_step = pld.from_gaussian_mechanism(noise, neighboring_relation=THEIRS[neighbours])
    ours = compose((poisson_gaussian(noise, 1.0, neighbours), steps))
    check_against_dp_accounting(ours, one_step.self_compose(steps), delta)


@pytest.mark.parametrize(("scale", "steps", "delta"), [(1.5, 12, 1e-4), (6.0, 80, 1e-6), (20.0, 900, 1e-5)])
def test_laplace_noise_agrees_with_dp_accounting(scale, steps, delta):
    one_step = pld.from_laplace_mechanism(scale, value_discretization_interval=1 / scale / 1000)
    check_against_dp_accounting(compose((laplace(scale), steps)), one_step.self_compose(steps), delta)


@pytest.mark.parametrize(
    ("noise", "rate", "local_steps", "share", "rounds", "delta", "neighbours"),
    [
        (1.4, 0.05, 10, 0.3, 40, 1e-5, REPLACE),
        (0.9, 0.02, 5, 0.1, 150, 1e-6, ADD_REMOVE),
        (5.0, 1.0, 3, 0.5, 30, 1e-4, REPLACE),
    ],
)
def test_random_participation_agrees_with_dp_accounting(noise, rate, local_steps, share, rounds, delta, neighbours):
    one_step = pld.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=2e-4, neighboring_relation=THEIRS[neighbours]
    )
    one_round = one_step.self_compose(local_steps).compute_mixture(pld.identity(2e-4), share)
    ours = participating(compose((poisson_gaussian(noise, rate, neighbours), local_steps)), share)
    check_against_dp_accounting(compose((ours, rounds)), one_round.self_compose(rounds), delta)


def test_different_mechanisms_together_agree_with_dp_accounting():
    sampled = pld.from_gaussian_mechanism(1.2, sampling_prob=0.03).self_compose(150)
    theirs = sampled.compose(pld.from_laplace_mechanism(8.0).self_compose(10)).compose(pld.from_gaussian_mechanism(3.0))
    ours = compose((poisson_gaussian(1.2, 0.03, ADD_REMOVE), 150), (laplace(8.0), 10), (gaussian(1 / 3), 1))
    check_against_dp_accounting(ours, theirs, 1e-5)


# --- prv-accountant, stored by make_prv_fixtures.py --------------------------------------------------------------------
PRV_CASES = json.loads(Path(__file__).with_name("prv_fixtures.json").read_text())["cases"]
OURS = {
    "poisson": lambda noise, rate: poisson_gaussian(noise, rate, ADD_REMOVE),
    "gaussian": lambda noise: gaussian(1 / noise),
    "laplace": laplace,
    "fixed_size": lambda mu, rate: fixed_size(gaussian(mu), rate),
}


@pytest.mark.parametrize("case", PRV_CASES, ids=lambda case: f"{case['mechanism']}-{case['steps']}")
def test_bracket_meets_prv_accountants_and_is_narrower(case):
    ours = compose((OURS[case["mechanism"]](**case["parameters"]), case["steps"])).epsilon(case["delta"])
    assert case["lower"] <= ours.upper
    assert ours.lower <= case["upper"]
    assert ours.width < (case["upper"] - case["lower"]) / 50
    assert ours.lower - 2e-3 <= case["estimate"] <= ours.upper + 2e-3


# --- the mechanism itself, simulated -----------------------------------------------------------------------------------
STANDARD_ERRORS = 4.5
EPSILONS = (-0.5, 0.0, 0.7, 1.5)
THRESHOLDS = (-1.5, -0.5, 0.0, 0.5, 1.5)


def noisy_sum(rng, trials: int, noise: float, rate: float, gradient: float) -> np.ndarray:
    """One step's noisy sum over a Poisson batch, less the other records': the record joins by its own coin."""
    return gradient * (rng.random(trials) < rate) + noise * rng.standard_normal(trials)


def log_density(seen: np.ndarray, noise: float, rate: float, gradient: float) -> np.ndarray:
    """Of the noisy sum, up to a constant."""
    without, within = -((seen / noise) ** 2) / 2, -(((seen - gradient) / noise) ** 2) / 2
    return np.logaddexp(np.log1p(-rate) + without, np.log(rate) + within)


def simulated_losses(neighbours, noise, rate, steps, trials, share=1.0, rounds=1):
    """Total log-likelihood ratios, simulated under P (data without the record, or with one) and under Q (with the other).

    The worst records have gradients of norm 1: the added one 1, replaced ones −1 and 1.
    """
    gradients = {ADD_REMOVE: (0.0, 1.0), REPLACE: (-1.0, 1.0)}[neighbours]
    rng = np.random.default_rng(8)
    for gradient in gradients:
        losses = np.zeros(trials)
        for _ in range(rounds):
            takes_part = rng.random(trials) < share
            for _ in range(steps):
                seen = noisy_sum(rng, trials, noise, rate, gradient)
                null, alternative = (log_density(seen, noise, rate, g) for g in gradients)
                losses += takes_part * (alternative - null)
        yield losses


def simulated_deltas(under_p: np.ndarray, under_q: np.ndarray, eps: float) -> list[tuple[float, float]]:
    """(δ(ε), its standard error) of Q against P and of P against Q."""
    excess = [np.maximum(-np.expm1(eps - losses), 0.0) for losses in (under_q, -under_p)]
    return [(float(x.mean()), float(x.std() / np.sqrt(x.size))) for x in excess]


def check_simulated_deltas(f: TradeOff, under_p: np.ndarray, under_q: np.ndarray) -> None:
    """The worse order within the bracket, hence the other below its upper end."""
    for eps in EPSILONS:
        value, error = max(simulated_deltas(under_p, under_q, eps))
        bound = f.delta(eps)
        assert bound.lower - STANDARD_ERRORS * error <= value <= bound.upper + STANDARD_ERRORS * error
        assert error < value / 20


def check_simulated_curve(f: TradeOff, under_p: np.ndarray, under_q: np.ndarray) -> None:
    """The test that rejects above a threshold t is optimal, and −e^t is the slope of f at its errors."""
    for t in THRESHOLDS:
        alpha, beta = (under_p > t).mean(), (under_q <= t).mean()
        variance = beta * (1 - beta) / under_q.size + np.exp(2 * t) * alpha * (1 - alpha) / under_p.size
        room = STANDARD_ERRORS * np.sqrt(variance)
        assert f(alpha) - room <= beta <= f.upper(alpha) + room
        assert room < 0.03


@pytest.mark.parametrize(
    ("neighbours", "noise", "rate", "steps", "share", "rounds"),
    [
        (ADD_REMOVE, 1.0, 0.1, 30, 1.0, 1),
        (ADD_REMOVE, 0.7, 0.3, 4, 1.0, 1),
        (REPLACE, 1.5, 0.15, 25, 1.0, 1),
        (REPLACE, 0.8, 0.4, 2, 1.0, 1),
        (ADD_REMOVE, 0.9, 0.2, 4, 0.4, 10),
        (REPLACE, 2.0, 0.25, 5, 0.3, 8),
    ],
)
def test_simulated_poisson_batches_lie_in_the_bracket_in_both_orders(neighbours, noise, rate, steps, share, rounds):
    one_round = compose((poisson_gaussian(noise, rate, neighbours), steps))
    f = compose((participating(one_round, share), rounds))
    under_p, under_q = simulated_losses(neighbours, noise, rate, steps, 200_000, share, rounds)
    check_simulated_deltas(f, under_p, under_q)
    check_simulated_curve(f, under_p, under_q)
    check_simulated_curve(f.inverse(), -under_q, -under_p)


RECORDS, BATCH = 8, 2


def fixed_size_losses(noise: float, steps: int, trials: int):
    """Batches of BATCH out of RECORDS; all gradients are 1 and the first record's is 1 (P) or −1 (Q)."""
    rng = np.random.default_rng(11)
    for first in (1.0, -1.0):
        gradients, losses = np.array([first] + [1.0] * (RECORDS - 1)), np.zeros(trials)
        for _ in range(steps):
            batch = rng.random((trials, RECORDS)).argpartition(BATCH, axis=1)[:, :BATCH]
            moved = gradients[batch].sum(axis=1) - BATCH + noise * rng.standard_normal(trials)
            losses += log_density(moved, noise, BATCH / RECORDS, -2.0) + (moved / noise) ** 2 / 2
        yield losses


def test_simulated_fixed_size_step_attains_the_bound():
    under_p, under_q = fixed_size_losses(noise=2.0, steps=1, trials=400_000)
    f = fixed_size(gaussian(2 / 2.0), BATCH / RECORDS)
    for eps in (0.0, 0.1, 0.3, 0.6):
        value, error = max(simulated_deltas(under_p, under_q, eps))
        bound = f.delta(eps)
        assert bound.lower - STANDARD_ERRORS * error <= value <= bound.upper + STANDARD_ERRORS * error


def test_simulated_fixed_size_steps_leak_no_more_than_the_bound():
    """C_q is an upper bound only: this pair is in truth that of Poisson batches with half the noise, one record added."""
    under_p, under_q = fixed_size_losses(noise=2.0, steps=20, trials=60_000)
    bound = compose((fixed_size(gaussian(2 / 2.0), BATCH / RECORDS), 20))
    for eps in (0.0, 0.7, 1.5, 3.0):
        for value, error in simulated_deltas(under_p, under_q, eps):
            assert value <= bound.delta(eps).upper + STANDARD_ERRORS * error
    truth = compose((poisson_gaussian(2.0 / 2, BATCH / RECORDS, ADD_REMOVE), 20))
    check_simulated_deltas(truth, under_p, under_q)


# --- the pair of Poisson batches with one record replaced, integrated --------------------------------------------------
# P = (1−q)N(0, s²) + qN(v, s²) against Q = (1−q)N(0, s²) + qN(u, s²), |u|, |v| ≤ 1, which span a plane at most.
LENGTHS = (0.0, 0.3, 0.7, 1.0)
ANGLES = np.pi * np.array([0.1, 0.3, 0.5, 0.7, 0.85, 0.92, 0.96])
PAIRS = list(product((0.3, 0.7, 1.0), (0.3, 0.7, 1.0), ANGLES))
ON_A_LINE = [(u, v) for u in LENGTHS for v in (*LENGTHS, -0.3, -0.7, -1.0) if u != v]
NOISES, RATES, GAMMAS = (0.6, 1.0, 2.5), (0.02, 0.3, 0.9), (0.05, 0.4, 0.9, 1.0, 1.1, 2.0, 10.0)


def density(x: np.ndarray) -> np.ndarray:
    return np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def hockey_stick_in_the_plane(s: float, q: float, gamma: float, spacing: float = 0.0125) -> np.ndarray:
    """H_γ(P‖Q) = ∫ (p − γq)₊ for all PAIRS: u along the first axis, v on the upper side of it.

    At each x the integrand is positive for y above one threshold, so the integral over y is a normal cdf. For γ < 1 it is
    positive for every y below some x₀; beyond x₀ take x = x₀ + log(1 + e^w) and the trapezoid rule in w: the integrand
    is smooth there and vanishes fast at both ends, so the rule is accurate to about 1e−12.
    """
    length_u, length_v, angle = np.array(PAIRS).T[:, :, None] / np.array([s, s, 1.0])[:, None, None]
    v_x, v_y = length_v * np.cos(angle), length_v * np.sin(angle)
    start = np.full_like(length_u, -14.0)
    if gamma < 1:
        start = np.maximum(start, (np.log((1 / gamma - 1) * (1 - q) / q) + length_u**2 / 2) / length_u)
    everything = (
        np.array([q, -gamma * q, (1 - q) * (1 - gamma)]) @ ndtr(np.stack([start - v_x, start - length_u, start]))[..., 0]
    )
    w = np.arange(-37, 30, spacing)
    x = start + np.logaddexp(0.0, w)
    tilt_u, tilt_0 = gamma * q * np.exp(length_u * x - length_u**2 / 2), (1 - q) * (1 - gamma)
    needed = tilt_u - tilt_0  # what q·dN(v)/dN(0) has to exceed
    with np.errstate(divide="ignore"):
        threshold = (np.log(np.maximum(needed, 0.0) / q) + length_v**2 / 2 - v_x * x) / v_y
    inner = q * density(x - v_x) * ndtr(v_y - threshold) - needed * density(x) * ndtr(-threshold)
    return everything + (inner / (1 + np.exp(-w))).sum(axis=1) * spacing


def hockey_stick_on_a_line(s: float, q: float, gamma: float, u: float, v: float) -> float:
    """The same for collinear u and v: find where p − γq changes sign, then add up its integrals where it is positive."""
    u, v = u / s, v / s

    def excess(x):
        return (1 - q) * (1 - gamma) + q * np.exp(v * x - v * v / 2) - gamma * q * np.exp(u * x - u * u / 2)

    def mass_below(x):
        return (1 - q) * (1 - gamma) * ndtr(x) + q * ndtr(x - v) - gamma * q * ndtr(x - u)

    grid = np.linspace(-40, 40, 4001)
    change = np.flatnonzero(np.diff(np.sign(excess(grid))))
    ends = np.array([-40.0, *(brentq(excess, grid[k], grid[k + 1], xtol=1e-14) for k in change), 40.0])
    return float(np.maximum(np.diff(mass_below(ends)), 0.0).sum())


@pytest.mark.parametrize("noise", NOISES)
def test_no_replaced_record_leaks_more_than_the_antipodal_one(noise):
    for rate, gamma in product(RATES, GAMMAS):
        antipodal = poisson_gaussian(noise, rate, REPLACE).delta(np.log(gamma)).upper
        in_the_plane = hockey_stick_in_the_plane(noise, rate, gamma)
        on_a_line = [hockey_stick_on_a_line(noise, rate, gamma, u, v) for u, v in ON_A_LINE]
        assert max(in_the_plane.max(), *on_a_line) <= antipodal + 1e-9
        trivial = max(0.0, 1 - gamma)  # the bound is nearly attained: the longest pair, 7 degrees from antipodal
        assert in_the_plane.max() - trivial >= 0.95 * (antipodal - trivial) - 1e-11


@pytest.mark.parametrize(("noise", "rate"), list(product(NOISES, RATES)))
def test_antipodal_pair_integrates_to_its_closed_form(noise, rate):
    integrated = {gamma: hockey_stick_on_a_line(noise, rate, gamma, 1.0, -1.0) for gamma in GAMMAS}
    told = [gamma for gamma, value in integrated.items() if value - max(0.0, 1 - gamma) > 1e-8]
    assert len(told) >= 3  # elsewhere δ is what it would be for any pair
    for gamma in GAMMAS:
        bound = poisson_gaussian(noise, rate, REPLACE).delta(np.log(gamma))
        assert bound.lower - 1e-13 <= integrated[gamma] <= bound.upper + 1e-13


@pytest.mark.parametrize(("noise", "rate", "gamma"), [(0.6, 0.9, 2.0), (1.0, 0.3, 0.4), (2.5, 0.9, 1.0)])
def test_integration_in_the_plane_is_accurate(noise, rate, gamma):
    """It does not change with its spacing, and a plain sum over a grid of the plane gives the same."""
    values = hockey_stick_in_the_plane(noise, rate, gamma)
    assert values == pytest.approx(hockey_stick_in_the_plane(noise, rate, gamma, spacing=0.00625), abs=1e-11)
    grid = np.linspace(-9, 9, 901)
    for value, (length_u, length_v, angle) in list(zip(values, PAIRS, strict=True))[::8]:
        shift_u, shift_v = length_u / noise, length_v / noise * np.exp(1j * angle)
        centre = np.outer(density(grid), density(grid))
        at_u = np.outer(density(grid - shift_u), density(grid))
        at_v = np.outer(density(grid - shift_v.real), density(grid - shift_v.imag))
        excess = (1 - rate) * (1 - gamma) * centre + rate * at_v - gamma * rate * at_u
        assert np.maximum(excess, 0.0).sum() * (grid[1] - grid[0]) ** 2 == pytest.approx(value, abs=1e-5)
