"""Laws that hold for every trade-off function, on coarse lattices so that they stay fast."""

import os
from math import comb

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from prifedsync.fdp import (
    Neighbours,
    TradeOff,
    compose,
    epsilon_delta,
    fixed_size,
    gaussian,
    identity,
    laplace,
    participating,
    poisson_gaussian,
)
from prifedsync.fdp.certify import OneSide
from prifedsync.fdp.lattice import Side

COARSE = 0.02
GRID = np.concatenate(([1e-6, 1e-4, 1e-3], np.linspace(0.01, 0.99, 33), [0.999, 1 - 1e-6]))
EPSILONS = (0.0, 0.1, 0.5, 1.0, 2.5)
rates = st.floats(0.005, 0.5)
elementary = st.one_of(
    st.floats(0.05, 2.0).map(gaussian),
    st.floats(0.7, 20.0).map(laplace),
    st.tuples(st.floats(0.05, 1.0), st.floats(0.0, 1e-3)).map(lambda pair: epsilon_delta(*pair)),
    st.tuples(st.floats(0.2, 2.0), rates).map(lambda pair: fixed_size(gaussian(pair[0]), pair[1])),
    st.tuples(st.floats(0.6, 4.0), rates, st.sampled_from(Neighbours)).map(lambda args: poisson_gaussian(*args)),
)
EXAMPLES = int(os.environ.get("PRIFEDSYNC_EXAMPLES", "0"))  # `make test-slow` looks at many fresh ones
quick = settings(max_examples=EXAMPLES or 25, deadline=None, derandomize=not EXAMPLES)


def overlap(f: TradeOff, g: TradeOff) -> bool:
    """The brackets of two equal functions must meet, at every ε."""
    pairs = [(f.delta(eps), g.delta(eps)) for eps in EPSILONS]
    return all(a.lower <= b.upper and b.lower <= a.upper for a, b in pairs)


@quick
@given(elementary, st.integers(1, 40))
def test_curves_are_convex_falling_and_below_blind_guessing(f, count):
    run = compose((f, count), tolerance=COARSE)
    beta = run(GRID)
    slopes = np.diff(beta) / np.diff(GRID)
    assert np.all(beta <= 1 - GRID + 1e-12)
    assert np.all(beta >= 0)
    assert np.all(slopes <= 1e-9)
    assert np.all(np.diff(slopes) >= -1e-6 * (1 + np.abs(slopes[:-1])))
    assert np.all(run.upper(GRID) >= beta - 1e-15)


@quick
@given(elementary, elementary, st.integers(1, 12), st.integers(1, 12))
def test_composition_commutes(f, g, m, n):
    assert overlap(compose((f, m), (g, n), tolerance=COARSE), compose((g, n), (f, m), tolerance=COARSE))


@quick
@given(elementary, st.integers(2, 9))
def test_a_count_of_n_is_n_times(f, n):
    once = compose(*[(f, 1)] * n, tolerance=COARSE)
    nested = compose((compose((f, n - 1), tolerance=COARSE), 1), (f, 1), tolerance=COARSE)
    assert overlap(compose((f, n), tolerance=COARSE), once)
    assert overlap(nested, once)
    more = compose((f, n + 1), tolerance=COARSE)
    assert all(more.delta(eps).upper >= once.delta(eps).lower for eps in EPSILONS)
    two_more = compose((f, n + 2), tolerance=COARSE)  # randomised response gains nothing from an even count
    assert two_more.total_variation().lower > once.total_variation().lower


@quick
@given(elementary, st.floats(0.05, 1.0))
def test_mixing_is_at_least_the_maximum_of_what_it_may_be(f, share):
    mixed = participating(f, share)
    assert np.all(mixed.upper(GRID) >= np.maximum(f(GRID), 1 - GRID - share) - 1e-9)
    assert all(mixed.delta(eps).lower <= share * f.delta(eps).upper + 1e-12 for eps in EPSILONS)
    assert all(mixed.delta(eps).upper >= share * f.delta(eps).lower - 1e-12 for eps in EPSILONS)


@quick
@given(elementary, st.floats(0.1, 0.9), st.integers(1, 6))
def test_the_binomial_identity(f, share, rounds):
    """δ of mix_p(f)^⊗R is Σ_k Bin(R, p)(k)·δ of f^⊗k, order by order."""
    if not f.symmetric:
        return
    mixed = compose((participating(f, share), rounds), tolerance=COARSE)
    counts = [compose((f, k), tolerance=COARSE) for k in range(rounds + 1)]
    weights = [comb(rounds, k) * share**k * (1 - share) ** (rounds - k) for k in range(rounds + 1)]
    for eps in EPSILONS:
        low = sum(w * g.delta(eps).lower for w, g in zip(weights, counts, strict=True))
        high = sum(w * g.delta(eps).upper for w, g in zip(weights, counts, strict=True))
        bound = mixed.delta(eps)
        assert bound.lower <= high + 1e-9
        assert low <= bound.upper + 1e-9


@quick
@given(st.floats(0.1, 3.0))
def test_a_rate_or_share_of_one_changes_nothing(mu):
    f = gaussian(mu)
    assert fixed_size(f, 1.0) == f
    assert participating(f, 1.0) == f
    assert participating(f, 0.0) == identity
    assert compose((f, 1)) == f
    assert compose((f, 0)) == identity


@quick
@given(elementary, st.integers(4, 60), st.floats(0.2, 1.0))
def test_refining_the_lattice_never_leaves_the_old_bracket(f, count, share):
    """Each a composition: the optimistic law of a single step touches δ at points that a finer lattice misses."""
    run = compose((participating(f, share), count))
    _, variance = run.factor(0.01, Side.PESSIMISTIC).moments(0.0)
    coarse_step = max(0.002, float(np.sqrt(variance)) / 15)

    def bracket(step, eps, backward):
        ends = {side: OneSide(run.factor(step, side), run.symmetric).delta(eps, backward) for side in Side}
        (low, low_error), (high, high_error) = ends[Side.OPTIMISTIC], ends[Side.PESSIMISTIC]
        return low - low_error, high + high_error

    for eps in EPSILONS:
        for backward in (False, True):
            old, new = bracket(coarse_step, eps, backward), bracket(coarse_step / 4, eps, backward)
            assert old[0] <= new[0] + 1e-9
            assert new[0] <= new[1]
            assert new[1] <= old[1] + 1e-9


@quick
@given(elementary, st.integers(1, 60))
def test_brackets_of_any_tolerance_meet(f, count):
    coarse, fine = compose((f, count), tolerance=0.05), compose((f, count), tolerance=0.002)
    assert overlap(coarse, fine)
    assert coarse.mu().lower <= fine.mu().upper
    assert fine.mu().lower <= coarse.mu().upper


@quick
@given(elementary, st.integers(1, 30), st.sampled_from([1e-3, 1e-5, 1e-8]))
def test_epsilon_and_delta_undo_each_other(f, count, delta):
    run = compose((f, count), tolerance=COARSE)
    bound = run.epsilon(delta)
    assert bound.lower <= bound.upper
    if np.isfinite(bound.upper):
        assert run.delta(bound.upper).upper <= delta * (1 + 1e-3) + 1e-11
    if bound.lower > 0 and np.isfinite(bound.lower):
        assert run.delta(bound.lower).lower >= delta * (1 - 1e-3) - 1e-11
