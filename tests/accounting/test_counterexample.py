"""`thm:alg_1` is false for two rounds or more: Algorithm 1 itself, simulated with a client that leaks everything.

Client j's local training protects nothing (f_j ≡ 0) and helpers are the global model itself. A model is *tainted* once
client j's data went into it, and whoever sees a tainted model has learnt everything, so the probability of seeing one
is the total variation between the views of two neighbouring data sets. What is simulated is which models are tainted, by
arrays of bits and in many runs at once; `experiments.leak` measures the same with Algorithm 1 as it runs.
Simulations are seeded, hence deterministic; with a fresh seed each comparison would fail about once in 150 000 runs.
"""

import math

import numpy as np
import pytest
from scipy.stats import norm

from prifedsync.accounting import OutputPerturbation, PrivacyPlan
from prifedsync.accounting.paper import theorem_1
from prifedsync.experiments.leak import LEAKING, WATCHING, exact, promised, transcript
from prifedsync.fdp import compose, epsilon_delta, leak, maximum, participating

CLIENTS, SHARE, ROUNDS = 100, 0.05, 40
RUNS = 20_000
STANDARD_ERRORS = 4.5


def tainted_helpers(runs: int, clients: int, share: float, rounds: int, keeps: bool) -> np.ndarray:
    """Runs × clients: who was pushed a tainted helper in any round. `keeps` is η < 1: w_glob keeps part of what it was."""
    rng = np.random.default_rng(20240611)
    helper = np.zeros((runs, clients), bool)
    received, w_glob = helper.copy(), np.zeros(runs, bool)
    for _ in range(rounds):
        sampled = rng.random((runs, clients)) < share
        trained = sampled & helper  # local training starts from the helper ...
        trained[:, LEAKING] |= sampled[:, LEAKING]  # ... and client j's reads its data
        average = trained.any(axis=1)
        w_glob = np.where(sampled.any(axis=1), average | (w_glob & keeps), w_glob)  # nobody sampled: the round passes
        helper = np.where(sampled, w_glob[:, None], helper)
        received |= sampled & helper
    return received


def same_or_later(watchers: int, share: float, rounds: int) -> float:
    """P(client j is sampled at some round and one of the watchers at that or a later one)."""
    return sum(share * (1 - share) ** first * (1 - (1 - share) ** (watchers * (rounds - first))) for first in range(rounds))


def standard_error(probability: float) -> float:
    return math.sqrt(probability * (1 - probability) / RUNS)


def claimed(share: float, rounds: int) -> float:
    return compose((maximum(leak, epsilon_delta(0.0, share**2)), rounds)).total_variation().upper


@pytest.fixture(scope="module")
def as_printed() -> float:
    """The simulated leak to one client, η = 1."""
    return float(tainted_helpers(RUNS, CLIENTS, SHARE, ROUNDS, keeps=False)[:, WATCHING].mean())


def test_simulated_algorithm_matches_the_exact_chain(as_printed):
    truth = exact(CLIENTS, SHARE, ROUNDS)[-1]
    assert truth == pytest.approx(0.4937716991, abs=1e-9)
    assert abs(as_printed - truth) < STANDARD_ERRORS * standard_error(truth)


def test_global_model_with_memory_leaks_more():
    truth = same_or_later(1, SHARE, ROUNDS)
    assert truth == pytest.approx(0.6144635303, abs=1e-9)
    simulated = tainted_helpers(RUNS, CLIENTS, SHARE, ROUNDS, keeps=True)[:, WATCHING].mean()
    assert abs(simulated - truth) < STANDARD_ERRORS * standard_error(truth)


def test_theorem_1_is_violated(as_printed):
    claim = claimed(SHARE, ROUNDS)
    assert claim == pytest.approx(promised(SHARE, ROUNDS)[-1], abs=1e-9)
    assert claim == pytest.approx(0.0952758684, abs=1e-9)
    assert as_printed - STANDARD_ERRORS * standard_error(as_printed) > 4 * claim


def test_theorem_1_of_a_plan_claims_as_much_and_says_it_is_unsound(as_printed):
    """With little noise instead of none, a tainted model tells two data sets apart with advantage 2Φ(μ/2) − 1 at least."""
    plan = PrivacyPlan(mechanism=OutputPerturbation(noise_multiplier=0.4), rounds=ROUNDS, participation=SHARE)
    told = compose(*plan.one_round()).total_variation().lower
    assert told == pytest.approx(2 * norm.cdf(2 / 0.4 / 2) - 1, abs=1e-9)
    printed = theorem_1(plan)
    assert not printed.sound
    assert printed.curve.total_variation().upper == pytest.approx(0.0952758684, abs=1e-6)
    assert printed.curve.total_variation().upper < told * as_printed < plan.guarantee().total_variation().lower


def test_transcript_bound_is_not_violated(as_printed):
    bound = compose((participating(leak, SHARE), ROUNDS)).total_variation()
    assert bound.upper == pytest.approx(transcript(SHARE, ROUNDS)[-1], abs=1e-9)
    assert bound.lower == pytest.approx(0.8714878434, abs=1e-9)
    assert as_printed < same_or_later(1, SHARE, ROUNDS) < bound.lower


def test_one_round_is_lemma_5_and_every_further_round_breaks_it():
    truth = exact(CLIENTS, SHARE, ROUNDS)
    assert truth[0] == pytest.approx(SHARE**2, rel=1e-12)
    assert claimed(SHARE, 1) == pytest.approx(SHARE**2, rel=1e-9)
    for rounds in (2, 3, 5, 10, 20, 40):
        assert truth[rounds - 1] > 1.001 * claimed(SHARE, rounds)


def test_two_clients_leave_nobody_to_carry_the_record():
    assert exact(2, SHARE, ROUNDS)[-1] == pytest.approx(claimed(SHARE, ROUNDS), abs=1e-9)


def test_strong_claim_is_violated_by_ten_clients():
    claim = claimed(SHARE, 9 * ROUNDS)
    assert claim == pytest.approx(0.5938882368, abs=1e-9)
    truth = same_or_later(9, SHARE, ROUNDS)
    assert truth == pytest.approx(0.8588225494, abs=1e-9)
    simulated = tainted_helpers(RUNS, 10, SHARE, ROUNDS, keeps=True)[:, 1:].any(axis=1).mean()
    assert abs(simulated - truth) < STANDARD_ERRORS * standard_error(truth)
    assert claim < simulated < compose((participating(leak, SHARE), ROUNDS)).total_variation().lower
