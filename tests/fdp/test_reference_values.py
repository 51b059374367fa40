"""Numbers known from elsewhere: closed forms, binomial sums, other accountants, Monte Carlo. Each lies in our bracket."""

import numpy as np
import pytest

from prifedsync.fdp import (
    Bound,
    Neighbours,
    compose,
    epsilon_delta,
    fixed_size,
    gaussian,
    participating,
    poisson_gaussian,
)
from prifedsync.fdp.asymptotic import clt_fixed_size

from ..paper_tables import ROWS

RATE = 16 / 600
STEP = fixed_size(gaussian(1.0), RATE)


def holds(bound: Bound, value: float, digits: float) -> bool:
    """The value, known to ± digits, is in the bracket."""
    return bound.lower <= value + digits and value - digits <= bound.upper


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"table{r.table}-p{r.participation}-s{r.sigma}-B{r.batch}")
def test_every_printed_mu(row):
    assert clt_fixed_size(row.sigma, row.batch / row.records, row.steps) == pytest.approx(row.mu, abs=0.00501)


def test_there_are_21_printed_mu_and_the_first_is_known_to_all_digits():
    assert len(ROWS) == 21
    assert clt_fixed_size(1.0, RATE, 38 * 93) == pytest.approx(2.711029845704943, rel=1e-14)


def test_gaussian_closed_form():
    assert gaussian(1.0).delta(1.0).upper == pytest.approx(0.126936737507, abs=1e-12)
    assert gaussian(1.0).epsilon(1e-5).upper == pytest.approx(4.3771780957, abs=1e-10)
    assert gaussian(2.71).epsilon(1e-5).upper == pytest.approx(14.6321908043, abs=1e-10)


def test_the_papers_figure_of_c_p():
    alpha = np.array([0.01, 0.1, 0.3, 0.6, 0.9])
    explicit = np.array([0.8887368580, 0.6907254501, 0.4788420877, 0.1788744913, 0.0079745156])
    curve = fixed_size(gaussian(1.8), 0.35)
    np.testing.assert_allclose(curve(alpha), explicit, atol=1e-10)
    np.testing.assert_allclose(curve.upper(alpha), explicit, atol=1e-10)


def test_a_hundred_randomised_responses_are_not_one():
    many = compose((epsilon_delta(0.1, 0.0), 100))
    assert holds(many.delta(1.0), 0.1256883902, 5e-11)
    assert holds(many.delta(3.0), 1.361398695e-3, 5e-13)
    assert many.delta(1.0).width < 1e-8


def test_participation_mixture_of_gaussians():
    assert holds(compose((participating(gaussian(0.5), 0.25), 40)).delta(2.0), 0.1709001154, 5e-11)


def test_one_round_of_the_paper():
    one = compose((STEP, 38), tolerance=1e-7)
    assert holds(one.delta(0.0), 0.10310568, 5e-9)
    assert holds(one.delta(1.0), 1.7699374e-4, 5e-12)
    assert holds(one.epsilon(1e-5), 1.44185875, 5e-9)
    assert one.epsilon(1e-5).width < 2e-7


def test_table_1_row_1():
    run = compose((STEP, 3534))
    assert run.epsilon(1e-5).lower <= 13.8772259
    assert run.epsilon(1e-5).upper >= 13.8772252
    assert run.epsilon(1e-5).width < 1e-4
    assert holds(run.delta(5.0), 0.16472385, 5e-9)
    assert holds(run.mu(), 2.601972, 5e-7)


def test_table_1_largest_row():
    bound = compose((STEP, 14668)).epsilon(1e-5)
    assert bound.lower <= 35.572497
    assert bound.upper >= 35.572493
    assert bound.width < 1e-4


def test_poisson_add_remove_and_the_curve_that_another_library_gets_wrong():
    run = compose((poisson_gaussian(1.0, RATE, Neighbours.ADD_REMOVE), 3534))
    assert holds(run.epsilon(1e-5), 10.82366, 5e-6)
    assert float(run(1e-3)) <= 0.851996 + 5e-7
    assert float(run.upper(1e-3)) >= 0.851996 - 5e-7
    assert float(run.upper(1e-3)) - float(run(1e-3)) < 1e-5


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (fixed_size(gaussian(1.0), RATE), 13.88),
        (poisson_gaussian(2.0, RATE, Neighbours.REPLACE), 7.55),
        (poisson_gaussian(2.0, RATE, Neighbours.ADD_REMOVE), 3.66),
        (poisson_gaussian(1.0, RATE, Neighbours.ADD_REMOVE), 10.82),
        (fixed_size(gaussian(2.0), RATE), 84.75),
    ],
    ids=["fixed 2C", "poisson replace 2C", "poisson add/remove 2C", "poisson add/remove 1C", "fixed 1C"],
)
def test_what_the_choice_of_batches_is_worth(f, expected):
    assert compose((f, 3534)).epsilon(1e-5).upper == pytest.approx(expected, abs=0.005)


def test_transcript_bound_of_table_1_at_half_participation():
    bound = compose((participating(compose((STEP, 38)), 0.5), 194))
    assert bound.epsilon(1e-5).upper == pytest.approx(14.52, abs=0.005)
    assert bound.mu().upper == pytest.approx(2.700, abs=0.0005)


def test_gaussians_compose_in_closed_form():
    three = compose((gaussian(0.05), 3600))
    assert three.mu().upper == pytest.approx(3.0, rel=1e-14)
    assert three.epsilon(1e-5).upper == pytest.approx(16.675494, abs=5e-7)


@pytest.mark.parametrize(
    "row", [r for r in ROWS if r.mu < 10], ids=lambda r: f"table{r.table}-p{r.participation}-s{r.sigma}-B{r.batch}"
)
def test_brackets_of_the_tables_are_narrow(row):
    step = fixed_size(gaussian(1 / row.sigma), row.batch / row.records)
    worst = compose((step, row.steps))
    honest = compose((participating(compose((step, row.local_steps)), row.participation), row.rounds))
    assert worst.epsilon(1e-5).width < 1e-3
    assert honest.epsilon(1e-5).width < 1e-3
    assert honest.epsilon(1e-5).upper <= worst.epsilon(1e-5).upper + 1e-4


@pytest.mark.parametrize("c", [1, 2, 3])
def test_a_record_held_by_several_clients_composes(c):
    expected = {1: 4.38, 2: 6.57, 3: 8.39}[c]
    assert compose((gaussian(1.0), c)).epsilon(1e-5).upper == pytest.approx(expected, abs=0.005)
