"""Budgets over runs: what a plan costs, and that no sequence of accepted plans exceeds what the budget states."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import dp_event, privacy_accountant, rdp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate
from scipy.stats import norm

from prifedsync.accounting import Budget, Cost, Neighbours, NoisySteps, OutputPerturbation, PrivacyPlan, Sampling
from prifedsync.fdp import compose, gaussian
from prifedsync.record import plan_as_json, plan_from_json
from prifedsync.values import BadValue

REPLACE, ADD_REMOVE = Neighbours.REPLACE, Neighbours.ADD_REMOVE
DELTA = 1e-5


def plan_of(noise=4.0, batch=10, rounds=20, steps=2, **own):
    mechanism = {key: own.pop(key) for key in ("sampling", "clip_margin") if key in own}
    local = NoisySteps(noise_multiplier=noise, records=100, batch=batch, local_steps=steps, **mechanism)
    return PrivacyPlan(mechanism=local, rounds=rounds, **own)


def output_plan(noise=10.0, law="gaussian", rounds=3):
    return PrivacyPlan(mechanism=OutputPerturbation(noise_multiplier=noise, noise=law), rounds=rounds)


def step_of(plan):
    ((f, _),) = plan.one_round()
    return f


def whole(budget, plan):
    return budget.cost(plan).of(plan.rounds, plan.attempts)


# ---------------------------------------------------------------------- Rényi divergences against oracles


def by_quadrature(p, q, order, spread):
    """(log E_P (dQ/dP)^a)/(a − 1) of two mixtures of normals, each a list of (weight, mean)."""

    def density(parts, x):
        return sum(weight * norm.pdf(x, mean, spread) for weight, mean in parts)

    def integrand(x):
        below = density(p, x)
        return below * (density(q, x) / below) ** order if below > 0 else 0.0

    peak = order  # the tilted mass lies around a times the shift, which is 1
    ends = -(peak + 14 * spread), peak + 14 * spread
    value, _ = integrate.quad(integrand, *ends, points=list(np.linspace(*ends, 60)), limit=2000, epsabs=0, epsrel=1e-11)
    return math.log(value) / (order - 1)


@pytest.mark.parametrize("order", [1.5, 4.0, 17.7, 60.0])
@pytest.mark.parametrize("mu", [0.02, 0.3, 0.45])
def test_a_gaussian_costs_the_closed_form(order, mu):
    exact = order * mu**2 / 2
    assert exact <= gaussian(mu).renyi(order) <= exact * (1 + 1e-4)


@pytest.mark.parametrize("order", [1.5, 4.0, 17.7, 60.0])
def test_laplace_costs_the_closed_form(order):
    plan = output_plan(10.0, "laplace")
    e = 2 / 10.0
    log_mean = np.logaddexp(
        math.log(order / (2 * order - 1)) + (order - 1) * e, math.log((order - 1) / (2 * order - 1)) - order * e
    )
    exact = log_mean / (order - 1)
    assert exact <= step_of(plan).renyi(order) * (1 + 1e-12) <= exact * (1 + 1e-3)


@pytest.mark.parametrize("order", [1.7, 4.0, 16.0])
@pytest.mark.parametrize(("noise", "batch"), [(1.5, 5), (4.0, 50)])
def test_poisson_replace_costs_the_divergence_of_its_pair(order, noise, batch):
    q = batch / 100
    plan = plan_of(noise, batch)
    exact = by_quadrature([(1 - q, 0), (q, -1)], [(1 - q, 0), (q, 1)], order, noise)
    assert exact * (1 - 1e-9) <= step_of(plan).renyi(order) <= exact * (1 + 1e-3) + 1e-9


@pytest.mark.parametrize("order", [1.7, 4.0, 16.0])
@pytest.mark.parametrize(("noise", "batch"), [(1.0, 5), (3.0, 50)])
def test_poisson_add_remove_costs_no_less_than_the_worse_order_of_its_pair(order, noise, batch):
    """The bound takes the worse order on both sides of ε = 0. At low orders that is up to a half more than either."""
    q = batch / 100
    mixed, plain = [(1 - q, 0), (q, 1)], [(1, 0)]
    exact = max(by_quadrature(plain, mixed, order, noise), by_quadrature(mixed, plain, order, noise))
    found = step_of(plan_of(noise, batch, neighbours=ADD_REMOVE)).renyi(order)
    assert exact * (1 - 1e-9) <= found <= exact * (1.6 if order < 10 else 1 + 1e-3)


@pytest.mark.parametrize(("noise", "batch", "order"), [(1.0, 5, 16), (2.0, 20, 16), (3.0, 50, 32)])
def test_poisson_add_remove_agrees_with_another_library(noise, batch, order):
    accountant = rdp.RdpAccountant([order], privacy_accountant.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp_event.PoissonSampledDpEvent(batch / 100, dp_event.GaussianDpEvent(noise)))
    other = accountant._rdp[0]
    found = step_of(plan_of(noise, batch, neighbours=ADD_REMOVE)).renyi(float(order))
    assert found == pytest.approx(other, rel=1e-2)
    assert found >= other * (1 - 1e-9)


@pytest.mark.parametrize("order", [2.0, 8.0])
def test_fixed_size_costs_at_least_any_pair_that_attains_it(order):
    """The bound covers the pair of a batch that has the record, or not, with everything else at zero."""
    q = 0.1
    plan = plan_of(3.0, 10, sampling=Sampling.FIXED)
    attained = by_quadrature([(1 - q, 0), (q, -1)], [(1 - q, 0), (q, 1)], order, 3.0)
    assert step_of(plan).renyi(order) >= attained
    assert step_of(plan).renyi(order) <= gaussian(2 / 3).renyi(order)


# ---------------------------------------------------------------------- costs


@pytest.mark.parametrize("budget", [Budget(mu=1.0), Budget(epsilon=3.0)], ids=["mu", "epsilon"])
@pytest.mark.parametrize(
    "plan",
    [
        plan_of(),
        plan_of(neighbours=ADD_REMOVE),
        plan_of(sampling=Sampling.FIXED),
        plan_of(batch="full"),
        output_plan(),
        output_plan(law="laplace"),
    ],
    ids=["poisson", "add-remove", "fixed", "full", "output", "laplace"],
)
def test_noise_counts_copies_and_margins_are_all_in_the_cost(budget, plan):
    amount = whole(budget, plan)
    noise = plan.mechanism.noise_multiplier
    assert 0 < amount < math.inf
    assert whole(budget, plan.changed(noise_multiplier=noise * 2 / 3)) > 1.5 * amount
    assert whole(budget, plan.changed(noise_multiplier=noise * 1.5)) < amount / 1.5
    assert whole(budget, plan.changed(rounds=plan.rounds + 1)) == pytest.approx(amount * (1 + 1 / plan.rounds), rel=1e-9)
    assert whole(budget, plan.changed(attempts=1)) == pytest.approx(amount * (1 + 1 / plan.rounds), rel=1e-9)
    assert whole(budget, plan.changed(copies=3)) == pytest.approx(3 * amount, rel=1e-9)
    if plan.mechanism.steps:
        assert whole(budget, plan.changed(local_steps=3)) == pytest.approx(1.5 * amount, rel=1e-9)
        assert whole(budget, plan.changed(clip_margin=0.1)) > 1.15 * amount


def test_a_full_gaussian_run_costs_its_squared_mu():
    plan = plan_of(noise=5.0, batch="full", rounds=7, steps=3)
    exact = 21 * (2 / 5.0) ** 2
    assert exact <= whole(Budget(mu=9.0), plan) <= exact * (1 + 1e-13)


def test_a_batch_does_not_make_the_global_mu_smaller():
    assert Budget(mu=1.0).cost(plan_of(batch=1)) == Budget(mu=1.0).cost(plan_of(batch="full"))
    assert Budget(mu=1.0).cost(plan_of(participation=0.01)) == Budget(mu=1.0).cost(plan_of())


def test_laplace_has_a_global_mu():
    """G_μ with the μ that is charged lies below the curve of Laplace noise, at every α and in both tails."""
    plan = output_plan(1.5, "laplace")
    mu = math.sqrt(Budget(mu=1.0).cost(plan).round)
    alphas = np.concatenate([np.geomspace(1e-12, 0.5, 400), 1 - np.geomspace(1e-12, 0.5, 400)])
    assert np.all(norm.cdf(norm.isf(alphas) - mu) <= step_of(plan).upper(alphas) + 1e-15)
    assert mu < 1.5 * 2 / 1.5  # of the size of ε


@pytest.mark.parametrize("p", [1e-3, 0.2, 0.999])
@pytest.mark.parametrize(("noise", "large"), [(10.0, True), (40.0, False)])
def test_a_coin_is_charged_as_its_mixture(p, noise, large):
    """log(1 − p + p·e^x) by plain arithmetic, for large and small x, and never for a spare attempt."""
    budget = Budget(epsilon=2.0)
    x = (budget.order - 1) * budget.cost(plan_of(noise, "full")).spare
    assert (1 < x < 5) if large else x < 1
    cost = budget.cost(plan_of(noise, "full", participation=p))
    exact = math.log(1 - p + p * math.exp(x)) / (budget.order - 1)
    assert cost.round == pytest.approx(exact, rel=1e-6)
    assert cost.spare == budget.cost(plan_of(noise, "full")).spare
    assert cost.round < cost.spare


def test_nothing_costs_nothing_and_no_bound_is_no_bound():
    assert Cost(math.inf, math.inf).of(0, 0) == 0
    assert Cost(1.0, math.inf).of(3, 0) == 3
    assert Cost(1.0, math.inf).of(3, 1) == math.inf


def test_an_order_too_high_for_double_precision_is_never_accepted():
    budget = Budget(epsilon=0.1)
    loud = plan_of(noise=0.3, batch="full", rounds=1, steps=1)
    with pytest.raises(BadValue, match="too high"):
        step_of(loud).renyi(budget.order)
    assert budget.cost(loud) == Cost(math.inf, math.inf)
    assert not budget.covers(whole(budget, loud))
    assert not budget.fits_alone(loud)


# ---------------------------------------------------------------------- the filter


def test_four_halves_are_one_and_nothing_more():
    budget = Budget(mu=1.0)
    half = whole(budget, plan_of(noise=40.0, batch="full", rounds=50, steps=2))  # μ² = 100·(2/40)² = 1/4
    assert budget.covers(math.fsum([half] * 4))
    assert budget.spent_as(math.fsum([half] * 4)) == 1.0
    little = whole(budget, plan_of(noise=200.0, batch="full", rounds=1, steps=1))  # μ = 0.01
    assert not budget.covers(math.fsum([half] * 4 + [little]))
    assert budget.spent_as(math.fsum([half] * 4 + [little])) > 1.00004
    assert budget.spent_as(half) == pytest.approx(0.5, rel=1e-9)
    assert budget.spent_as(half) >= 0.5


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-5), (1.0, 1e-5), (3.0, 1e-6), (20.0, 1e-9)])
def test_the_conversion_is_not_below_the_exact_gaussian(epsilon, delta):
    budget = Budget(epsilon=epsilon, delta=delta)
    for share in (0.01, 0.3, 1.0):
        amount = share * budget.limit
        mu = math.sqrt(2 * amount / budget.order)
        exact = gaussian(mu).epsilon(delta).lower
        assert exact <= budget.spent_as(amount)
        assert budget.spent_as(amount) <= epsilon
    assert budget.spent_as(budget.limit) == pytest.approx(epsilon, rel=1e-9)
    exact = gaussian(math.sqrt(2 * budget.limit / budget.order)).epsilon(delta).upper
    assert exact > epsilon / 2  # the order is one that wastes less than half of it


def test_the_order_allows_the_most_gaussian_releases():
    budget = Budget(epsilon=2.0, delta=1e-6)
    for order in (budget.order * 0.9, budget.order * 1.1):
        assert Budget(epsilon=2.0, delta=1e-6, order=order).limit / order < budget.limit / budget.order
    assert budget.at(5.0).order == 5.0
    assert Budget(epsilon=0.01, delta=1e-9).limit < 1e-300  # no order up to 128 is high enough, so only a run alone may fit


PLANS = st.builds(
    plan_of,
    noise=st.floats(0.8, 8.0),
    batch=st.sampled_from([1, 10, 60, "full"]),
    rounds=st.integers(1, 30),
    steps=st.integers(1, 3),
    participation=st.sampled_from([0.1, 0.7, 1.0]),
    attempts=st.integers(0, 3),
    neighbours=st.sampled_from([REPLACE, ADD_REMOVE]),
)


@settings(max_examples=15, deadline=None)
@given(plans=st.lists(PLANS, min_size=1, max_size=3), epsilon=st.floats(0.3, 12.0))
def test_what_the_filter_states_is_never_below_exact_composition(plans, epsilon):
    budget = Budget(epsilon=epsilon, delta=DELTA)
    amount = math.fsum(whole(budget, plan) for plan in plans)
    exact = compose(*((plan.guarantee(), 1) for plan in plans), tolerance=1e-3)
    assert budget.spent_as(amount) >= exact.epsilon(DELTA).lower
    if budget.covers(amount):
        assert exact.epsilon(DELTA).lower <= epsilon


@settings(max_examples=10, deadline=None)
@given(plans=st.lists(PLANS, min_size=1, max_size=3))
def test_the_stated_mu_is_never_below_exact_composition(plans):
    amount = math.fsum(whole(Budget(mu=1.0), plan) for plan in plans)
    exact = compose(*((plan.guarantee(), 1) for plan in plans), tolerance=1e-3)
    assert Budget(mu=1.0).spent_as(amount) >= exact.mu().lower


def test_alone_is_by_the_exact_guarantee_and_its_upper_end():
    plan = plan_of(noise=2.0, batch=10, rounds=200)
    exact = plan.guarantee().epsilon(DELTA).upper
    assert Budget(epsilon=exact * (1 + 1e-9), delta=DELTA).fits_alone(plan)
    assert not Budget(epsilon=exact * (1 - 1e-9), delta=DELTA).fits_alone(plan)
    assert not Budget(epsilon=exact * (1 + 1e-9), delta=DELTA / 2).fits_alone(plan)
    filtered = Budget(epsilon=exact * (1 + 1e-9), delta=DELTA)
    assert not filtered.covers(whole(filtered, plan))  # that is why there is such a rule
    mu = plan.guarantee().mu().upper
    assert Budget(mu=mu).fits_alone(plan)
    assert not Budget(mu=1e3).fits_alone(replace(plan, copies=2)), "others release about the same units"
    assert not Budget(mu=mu * (1 - 1e-9)).fits_alone(plan)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"mu": 1.0, "epsilon": 1.0},
        {"mu": 0.0},
        {"mu": math.nan},
        {"epsilon": -1.0},
        {"epsilon": 1.0, "delta": 0.0},
        {"epsilon": 1.0, "delta": 1.0},
        {"epsilon": 1.0, "order": 1.0},
        {"mu": 1.0, "order": 2.0},
    ],
)
def test_a_bad_budget_is_refused(wrong):
    with pytest.raises(BadValue, match="budget"):
        Budget(**wrong)


@pytest.mark.parametrize("plan", [plan_of(), output_plan(law="laplace"), plan_of(sampling=Sampling.FIXED, attempts=2)])
def test_a_plan_in_a_ledger_reads_back(plan):
    assert plan_from_json(json.loads(json.dumps(plan_as_json(plan)))) == plan
