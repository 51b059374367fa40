"""Budgets spent over time: what is refused, that a refusal changes nothing, and that the bound holds."""

import math

import pytest

from prifedsync.accounting import (
    BudgetSpent,
    FixedMechanism,
    GaussianFilter,
    NoisySteps,
    PrivacyPlan,
    RenyiFilter,
)
from prifedsync.fdp import Neighbours, compose, fixed_size, gaussian, laplace, poisson_gaussian
from prifedsync.values import BadValue

PLAN = PrivacyPlan(mechanism=NoisySteps(noise_multiplier=2.0, records=100, batch=10, local_steps=2), rounds=3)


def test_a_fixed_mechanism_stops_at_its_cap():
    budget = FixedMechanism(PLAN)
    for _ in range(3):
        budget = budget.spend(PLAN)
    with pytest.raises(BudgetSpent, match="all 3 rounds"):
        budget.spend(PLAN)
    assert budget.taken == 3
    assert budget.guarantee().epsilon(1e-5) == pytest.approx(PLAN.guarantee().epsilon(1e-5), rel=1e-9)


def test_spare_attempts_are_part_of_the_budget():
    spare = PLAN.changed(attempts=2)
    budget = FixedMechanism(spare)
    for _ in range(5):
        budget = budget.spend(spare)
    with pytest.raises(BudgetSpent, match="all 3 rounds and 2 spare attempts of the plan are taken"):
        budget.spend(spare)
    assert budget.guarantee().epsilon(1e-5) == pytest.approx(spare.guarantee().epsilon(1e-5), rel=1e-9)


def test_a_changed_mechanism_is_refused():
    budget = FixedMechanism(PLAN).spend(PLAN)
    with pytest.raises(BadValue, match="differs from the plan"):
        budget.spend(PLAN.changed(noise_multiplier=4.0))
    assert budget.taken == 1


def test_gaussian_filter_adds_squares_and_a_refusal_changes_nothing():
    budget = GaussianFilter(1.0).spend(gaussian(0.6)).spend(gaussian(0.8))
    before = budget
    with pytest.raises(BudgetSpent):
        budget.spend(gaussian(0.01))
    assert budget == before
    assert budget.spent == pytest.approx(1.0)
    assert GaussianFilter(1.0).spend(gaussian(0.1), 100).spent == pytest.approx(1.0)
    with pytest.raises(BudgetSpent):
        GaussianFilter(1.0).spend(gaussian(0.1), 101)


def test_gaussian_filter_takes_gaussians_only():
    with pytest.raises(BadValue, match="not a Gaussian trade-off"):
        GaussianFilter(1.0).spend(laplace(5.0))
    with pytest.raises(BadValue, match="not a Gaussian trade-off"):
        GaussianFilter(1.0).spend(fixed_size(gaussian(0.1), 0.5))


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda: GaussianFilter(1.0, float("nan")),
        lambda: GaussianFilter(1.0, -1e9),
        lambda: GaussianFilter(1.0, 2.0),
        lambda: RenyiFilter(8.0, 1.0, float("nan")),
        lambda: RenyiFilter(8.0, 1.0, 1.5),
        lambda: RenyiFilter.for_target(1.0, 1e-5, order=1.0),
        lambda: FixedMechanism(PLAN, -5),
        lambda: FixedMechanism(PLAN, 4),
    ],
)
def test_a_corrupt_state_is_refused(corrupt):
    with pytest.raises(BadValue):
        corrupt()


def test_what_the_filter_reports_covers_what_it_allowed():
    budget = GaussianFilter(1.0).spend(gaussian(0.1), 100)
    assert budget.guarantee().mu().upper ** 2 >= budget.spent


def test_renyi_filter_bounds_what_was_spent():
    step = poisson_gaussian(2.0, 0.05, Neighbours.REPLACE)
    budget, taken = RenyiFilter.for_target(3.0, 1e-5, order=10.0), 0
    while True:
        try:
            budget = budget.spend(step)
        except BudgetSpent:
            break
        taken += 1
    assert taken > 20
    assert budget.spent <= budget.rho
    assert budget.epsilon(1e-5) == pytest.approx(3.0)
    assert compose((step, taken)).epsilon(1e-5).upper < 3.0  # the exact composition of what was really spent is inside


def test_renyi_of_gaussians_is_the_closed_form():
    budget = RenyiFilter(8.0, 10.0).spend(gaussian(0.5), 4)
    assert budget.spent == pytest.approx(4 * 8.0 * 0.25 / 2, rel=1e-6)
    assert budget.epsilon(1e-6) == pytest.approx(10.0 + math.log(1e6) / 7)


def test_renyi_filter_refuses_what_it_cannot_bound():
    with pytest.raises(BadValue, match="elementary steps"):
        RenyiFilter(8.0, 1.0).spend(compose((laplace(5.0), 3)))
    with pytest.raises(BadValue, match="leaves no budget"):
        RenyiFilter.for_target(0.1, 1e-5, order=2.0)
