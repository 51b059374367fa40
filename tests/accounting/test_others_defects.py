"""Defects seen in other libraries, each reproduced as a wrong number, and shown not to happen here."""

import pytest

from prifedsync.accounting import (
    BudgetSpent,
    GaussianFilter,
    Neighbours,
    Sampling,
    Target,
    calibrated,
)
from prifedsync.fdp import compose, gaussian, participating, poisson_gaussian
from prifedsync.values import BadValue

from .plans import plan_of


def plan(**changed):
    return plan_of({"noise_multiplier": 2.0, "records": 600, "batch": 16, "local_steps": 38, "rounds": 50}, changed)


def test_calibrated_for_rounds_run_for_rounds_times_steps():
    """Noise found for R steps, then R·100 of them taken: ε = 1 becomes several. Our plan counts local steps itself."""
    target = Target("epsilon", 1.0)
    defect = calibrated(plan(local_steps=1), target)
    assert target.spent(defect.changed(local_steps=100).guarantee()) > 1.5
    right = calibrated(plan(local_steps=100), target)
    assert 0.999 <= target.spent(right.guarantee()) <= 1.0


def test_a_new_accountant_every_round():
    """ε of one round printed for ever. Ours composes over rounds, as planned and as taken."""
    one = plan()
    one_round = one.guarantee(taken=1).epsilon(1e-5).upper
    assert one.guarantee(taken=50).epsilon(1e-5).lower > 3 * one_round
    spent = [one.guarantee(taken=k).epsilon(1e-5).upper for k in (1, 2, 10, 50)]
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx(one.guarantee().epsilon(1e-5).upper, rel=1e-3)


def test_participation_multiplied_into_the_batch_rate():
    """p·q as one rate a step understates: the coin is tossed once a round."""
    one = plan(participation=0.1)
    defect = compose((poisson_gaussian(2.0, 0.1 * 16 / 600, Neighbours.REPLACE), 38 * 50)).epsilon(1e-5).upper
    right = compose((participating(compose((poisson_gaussian(2.0, 16 / 600, Neighbours.REPLACE), 38)), 0.1), 50))
    honest = one.guarantee().epsilon(1e-5)
    assert defect < 0.5 * honest.lower
    assert honest == pytest.approx(right.epsilon(1e-5), rel=1e-3)
    assert one.guarantee("adversarial").epsilon(1e-5).lower > honest.upper


def test_fixed_batches_accounted_as_poisson():
    """The two samplings are different mechanisms with different numbers; add/remove with fixed size is refused."""
    fixed, poisson = plan(sampling=Sampling.FIXED), plan(sampling=Sampling.POISSON)
    assert fixed.guarantee().epsilon(1e-5).lower > 1.5 * poisson.guarantee().epsilon(1e-5).upper
    with pytest.raises(BadValue, match="fixed"):
        plan(sampling=Sampling.FIXED, neighbours=Neighbours.ADD_REMOVE)


def test_a_refused_step_does_not_reset_the_budget():
    """An accountant that pops its history before validating forgets everything. Ours are values."""
    budget = GaussianFilter(2.0).spend(gaussian(1.9))
    for bad in (gaussian(1.0), poisson_gaussian(1.0, 0.1, Neighbours.REPLACE)):
        with pytest.raises((BudgetSpent, BadValue)):
            budget.spend(bad)
    with pytest.raises(BadValue):
        budget.spend(gaussian(0.1), -5)
    assert budget.spent == pytest.approx(1.9**2)


def test_sigma_of_the_paper_passed_as_noise_multiplier_shows():
    """Half the noise: ε = 84.75 instead of 13.88. The word noise_multiplier means std over clip norm, nothing else."""
    right = plan(rounds=93, sampling=Sampling.FIXED).guarantee().epsilon(1e-5).upper
    halved = plan(rounds=93, sampling=Sampling.FIXED, noise_multiplier=1.0).guarantee().epsilon(1e-5).upper
    assert (right, halved) == (pytest.approx(13.88, abs=0.005), pytest.approx(84.75, abs=0.005))
