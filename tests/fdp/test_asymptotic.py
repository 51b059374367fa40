"""Asymptotic values: right in the limit, labelled so, and shown not to be bounds."""

import numpy as np
import pytest

from prifedsync.fdp import Neighbours, compose, fixed_size, gaussian, poisson_gaussian
from prifedsync.fdp.asymptotic import clt_fixed_size, clt_poisson, edgeworth


@pytest.mark.parametrize(
    ("step", "clt"),
    [
        (lambda q: fixed_size(gaussian(1.0), q), lambda q, n: clt_fixed_size(1.0, q, n)),
        (
            lambda q: poisson_gaussian(1.5, q, Neighbours.ADD_REMOVE),
            lambda q, n: clt_poisson(1.5, q, n, Neighbours.ADD_REMOVE),
        ),
        (lambda q: poisson_gaussian(1.5, q, Neighbours.REPLACE), lambda q, n: clt_poisson(1.5, q, n, Neighbours.REPLACE)),
    ],
    ids=["fixed", "add-remove", "replace"],
)
def test_certified_mu_tends_to_the_clt_value(step, clt):
    errors = [
        abs(compose((step(1 / np.sqrt(n)), n), tolerance=1e-3).mu(0.01).upper / clt(1 / np.sqrt(n), n) - 1)
        for n in (400, 40_000)
    ]
    assert errors[1] < 0.02
    assert errors[1] < errors[0] / 3


def test_the_clt_value_is_not_a_bound():
    """Little noise: at small α the truth leaks more than G_μ of the CLT says."""
    n, rate, sigma = 25, 0.02, 0.5
    run = compose((fixed_size(gaussian(1 / sigma), rate), n))
    clt = gaussian(clt_fixed_size(sigma, rate, n))
    assert float(run.upper(1e-7)) < float(clt(1e-7))
    assert run.epsilon(1e-8).lower > clt.epsilon(1e-8).upper


@pytest.mark.parametrize("count", [200, 3534])
def test_edgeworth_is_closer_than_the_clt(count):
    rate = 16 / 600
    step = fixed_size(gaussian(1.0), rate)
    truth = compose((step, count))
    refined, plain = edgeworth((step, count)), gaussian(clt_fixed_size(1.0, rate, count))
    for eps in (0.2, 1.0):
        exact = truth.delta(eps).upper
        assert abs(refined.delta(eps) - exact) < 0.5 * abs(plain.delta(eps).upper - exact)
    assert refined.epsilon(1e-3) == pytest.approx(truth.epsilon(1e-3).upper, rel=0.03)


def test_edgeworth_of_gaussians_is_exact():
    refined = edgeworth((gaussian(0.1), 100))
    assert refined.delta(1.0) == pytest.approx(gaussian(1.0).delta(1.0).upper, abs=1e-6)
