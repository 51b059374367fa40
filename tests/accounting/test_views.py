"""Views: whose noise hides a client from whom, and where nothing is claimed."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prifedsync.accounting import Crowd, NoClaim, NoisySteps, OutputPerturbation, PrivacyPlan, Sampling, View
from prifedsync.accounting.statement import Numbers
from prifedsync.accounting.sums import factors, least_clients
from prifedsync.accounting.view_numbers import views_of
from prifedsync.fdp import Neighbours
from prifedsync.values import BadValue

ROUNDS = 30
ONE_MU = 2 * sqrt(ROUNDS)  # the noise multiplier with which full batches have μ = 1


def plan(noise=ONE_MU, *, records=100, batch="full", local_steps=1, sampling=Sampling.POISSON, **own):
    mechanism = NoisySteps(noise_multiplier=noise, records=records, batch=batch, local_steps=local_steps, sampling=sampling)
    return PrivacyPlan(mechanism=mechanism, **{"rounds": ROUNDS, **own})


def mu(plan, view, **how):
    return plan.guarantee(against=view, **how).mu().upper


# The number of honest clients, and the root


@pytest.mark.parametrize(("colluders", "honest"), [(0, 10), (1, 9), (5, 5), (8, 2), (9, 1)])
def test_the_gain_is_the_root_of_the_number_of_honest_clients(colluders, honest):
    """One honest client more or less, or no root, is far outside 1e-9."""
    crowd = Crowd.alike(10, masks=True)
    for view in (crowd.server(colluders), crowd.clients(colluders)):
        assert mu(plan(), view) == pytest.approx(1 / sqrt(honest), rel=1e-9)
        assert mu(plan(), view) >= 1 / sqrt(honest)


def test_readers_of_the_digits_default():
    readers = Crowd.alike(10).readers()
    f = plan(ONE_MU * 1.0001).guarantee(against=readers)
    assert f.mu().upper <= 0.3162
    assert f.epsilon(1e-5).upper <= 1.2
    everybody = plan().guarantee(against=Crowd.alike(10).everybody())
    assert everybody.epsilon(1e-5).upper == pytest.approx(4.38, abs=0.01)
    assert everybody == plan().guarantee()


def test_a_short_list_counts_and_not_the_number_of_clients():
    crowd = Crowd.alike(10, least=6, masks=True)
    assert mu(plan(), crowd.server(2)) == pytest.approx(1 / 2, rel=1e-9)
    assert mu(plan(), crowd.readers()) == pytest.approx(1 / sqrt(6), rel=1e-9)


def test_a_coalition_that_may_fill_a_sum_meets_the_number_against_everybody():
    crowd = Crowd.alike(10, least=4, masks=True)
    assert mu(plan(), crowd.server(3)) == plan().guarantee().mu().upper
    for colluders in (4, 9):
        answer = plan().guarantee(against=crowd.server(colluders))
        assert isinstance(answer, NoClaim)
        assert "against everybody holds" in answer.why


@pytest.mark.parametrize("colluders", [-1, 10, 1.5])
def test_impossible_coalitions_are_refused(colluders):
    for made in (Crowd.alike(10, masks=True).server, Crowd.alike(10).clients, Crowd.alike(10).asked):
        with pytest.raises(BadValue, match="colluders"):
            made(colluders)


# Unequal noise


def worst_variance(spreads, place, least, colluders):
    """By trying all: the least variance of honest noise in a list of `least` clients with `colluders` of the others."""
    others = [k for k in range(len(spreads)) if k != place]
    found = []
    for listed in combinations(others, least - 1):
        for bad in combinations(listed, min(colluders, least - 1)):
            found.append(sum(spreads[k] ** 2 for k in {place, *listed} - set(bad)))
    return min(found)


@given(
    st.lists(st.integers(1, 50), min_size=2, max_size=6),
    st.data(),
)
def test_the_gain_is_that_of_the_worst_list_and_coalition(whole_spreads, data):
    """The worst coalition takes the noisiest partners out. Exact arithmetic: the gain is never above, and not far below."""
    spreads = [Fraction(each) for each in whole_spreads]
    least = data.draw(st.integers(1, len(spreads)))
    colluders = data.draw(st.integers(0, least - 1))
    place = data.draw(st.integers(0, len(spreads) - 1))
    crowd = Crowd(spreads=tuple(map(float, spreads)), least=least, masks=True)
    exact = worst_variance(spreads, place, least, colluders) / spreads[place] ** 2
    gain = Fraction(crowd.server(colluders, place).gain)
    assert 1 <= gain**2 <= max(exact, 1)
    assert gain**2 >= exact * (1 - Fraction(1, 10**11))


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30), st.data())
def test_gains_are_rounded_down(spreads, data):
    honest = data.draw(st.integers(1, len(spreads)))
    place = data.draw(st.integers(0, len(spreads) - 1))
    gain = Fraction(Crowd(spreads=tuple(spreads), least=len(spreads)).gain(place, honest))
    own = Fraction(spreads[place]) ** 2
    others = sorted(Fraction(each) ** 2 for k, each in enumerate(spreads) if k != place)
    exact = 1 + sum(others[: honest - 1]) / own
    assert gain >= 1
    assert gain**2 <= exact


def test_equal_weights_with_unequal_sizes_cost_nearly_all_of_the_gain():
    """Ten clients of 20 … 1,000 records: the smallest one's noise drowns the others', so they hardly hide it."""
    sizes = np.round(np.geomspace(20, 1000, 10)).tolist()
    equal = factors([1.0] * 10, [0.1] * 10, sizes)
    gains = [Crowd(spreads=equal, least=10).gain(place, 10) for place in range(10)]
    assert min(gains) == gains[0] == pytest.approx(1.31, abs=0.005)
    by_records = factors(sizes, [0.1] * 10, sizes)
    assert by_records == (1.0,) * 10
    assert Crowd(spreads=by_records, least=10).gain(0, 10) == pytest.approx(sqrt(10), rel=1e-9)


# What the accountant does with more noise


@pytest.mark.parametrize("neighbours", list(Neighbours))
@pytest.mark.parametrize("batch", ["full", 10])
def test_the_guarantee_is_that_of_more_noise(neighbours, batch):
    one = plan(4.0, batch=batch, neighbours=neighbours, rounds=5)
    found = one.guarantee(against=Crowd.alike(16, masks=True).server(0)).epsilon(1e-5)
    more = plan(16.0, batch=batch, neighbours=neighbours, rounds=5).guarantee().epsilon(1e-5)
    assert found.lower <= more.upper * (1 + 1e-9)
    assert found.upper >= more.lower  # on the safe side
    for wrong in (16.0 * sqrt(15 / 16), 16.0 * sqrt(17 / 16)):  # one client less, one more
        other = plan(wrong, batch=batch, neighbours=neighbours, rounds=5).guarantee().epsilon(1e-5)
        assert other.lower > found.upper or other.upper < found.lower


def test_attempts_and_coins_are_charged_in_every_view():
    crowd = Crowd.alike(4, masks=True)
    spare = replace(plan(), attempts=3)
    assert mu(spare, crowd.server(0)) == pytest.approx(sqrt(1.1) / 2, rel=1e-9)
    some = plan(participation=0.5)
    honest = some.guarantee(against=crowd.readers()).epsilon(1e-5).upper
    chosen = some.guarantee("adversarial", against=crowd.readers()).epsilon(1e-5).upper
    assert honest < chosen == pytest.approx(plan().guarantee(against=crowd.readers()).epsilon(1e-5).upper)
    assert mu(plan(), crowd.readers(), taken=15) == pytest.approx(sqrt(0.5) / 2, rel=1e-9)


def test_output_perturbation_is_summed_too():
    once = PrivacyPlan(mechanism=OutputPerturbation(noise_multiplier=ONE_MU), rounds=ROUNDS)
    assert mu(once, Crowd.alike(9, masks=True).server(0)) == pytest.approx(1 / 3, rel=1e-9)


def test_more_noise_than_the_accounting_covers_is_not_claimed():
    loud = plan(5e5)
    assert mu(loud, Crowd.alike(10_000).readers()) == mu(plan(1e6), None)


# No claim, and why

CROWD = Crowd.alike(10, masks=True)
SUMMED = [CROWD.readers(), CROWD.clients(3), CROWD.server(3)]
NONE = [
    (plan(local_steps=2), CROWD, "several noisy steps"),
    (
        PrivacyPlan(mechanism=OutputPerturbation(noise_multiplier=9.0, noise="laplace"), rounds=2),
        CROWD,
        "Laplace",
    ),
    (plan(), replace(CROWD, not_summed="rule attentive needs single uploads"), "rule attentive needs single uploads"),
    (plan(batch=10, copies=2), CROWD, "a batch is drawn at random"),
    (plan(participation=0.5, copies=2), CROWD, "tosses its own coin"),
    (plan(copies=2), replace(CROWD, spreads=(1.0,) * 9 + (1.5,)), "do not count alike"),
    (plan(copies=2), replace(CROWD, units=(1.0,) * 9 + (1.5,)), "they do not count alike"),
    (plan(copies=2), replace(CROWD, units=()), "and they do not count alike"),
]


@pytest.mark.parametrize(("one", "crowd", "why"), NONE, ids=[why for _, _, why in NONE])
def test_what_is_not_summed_has_no_claim(one, crowd, why):
    for view in (crowd.readers(), crowd.clients(3), crowd.server(3)):
        answer = one.guarantee(against=view)
        assert isinstance(answer, NoClaim), view
        assert why in answer.why
    assert one.guarantee(against=crowd.everybody()) == one.guarantee()


def test_the_reason_of_the_run_comes_first():
    crowd = replace(CROWD, not_summed="the rule attends")
    assert plan(local_steps=2).guarantee(against=crowd.readers()) == NoClaim("the rule attends")


def test_without_masks_there_is_no_claim_about_the_server_alone():
    crowd = Crowd.alike(10)
    answer = plan().guarantee(against=crowd.server(0))
    assert isinstance(answer, NoClaim)
    assert "masks are off" in answer.why
    assert mu(plan(), crowd.clients(1)) == pytest.approx(1 / 3, rel=1e-9)


# Copies


@pytest.mark.parametrize("copies", [2, 3])
def test_copies_move_the_sum_by_so_many_sensitivities(copies):
    """c·μ, and not √c·μ; composed over the rounds once."""
    view = Crowd.alike(100, masks=True).server(0)
    found = mu(plan(copies=copies), view)
    assert found == pytest.approx(copies / 10, rel=1e-9)
    assert mu(replace(plan(copies=copies), attempts=3), view) == pytest.approx(copies / 10 * sqrt(1.1), rel=1e-9)


def test_copies_are_never_worse_than_against_everybody():
    """With few honest clients, composing the copies is the smaller number, and it holds for everybody."""
    assert mu(plan(copies=4), Crowd.alike(3, masks=True).server(0)) == pytest.approx(2.0, rel=1e-9)


def test_rounds_taken_by_one_holder_say_nothing_about_the_sums_of_all():
    with pytest.raises(BadValue, match="taken = 3 cannot be combined"):
        plan(copies=2).guarantee(taken=3, against=Crowd.alike(100, masks=True).server(0))


# The lines of a table


def test_the_views_of_a_table():
    assert Crowd.alike(100).asked() == (
        ("readers", 0), ("clients", 10), ("clients", 50),
        ("server", 0), ("server", 10), ("server", 50), ("server", 98), ("everybody", 99),
    )  # fmt: skip
    assert Crowd.alike(10).asked(7) == (
        ("readers", 0), ("clients", 7),
        ("server", 0), ("server", 1), ("server", 5), ("server", 7), ("server", 8), ("everybody", 9),
    )  # fmt: skip


@pytest.mark.parametrize("clients", range(1, 25))
def test_no_view_stands_twice(clients):
    views = Crowd.alike(clients).asked()
    assert len(set(views)) == len(views)
    assert all(0 <= colluders < clients for _, colluders in views)
    assert views[0] == ("readers", 0)
    assert views[-1] == ("everybody", clients - 1)


def test_every_view_says_what_it_assumes():
    crowd = Crowd.alike(10, least=7, masks=True)
    for who, colluders in crowd.asked():
        view = crowd.against(who, colluders)
        assert isinstance(view, View)
        assert (view.who, view.colluders) == (who, colluders)
        assert view.assumes
    assert "7 or more clients" in crowd.readers().assumes
    assert "masks" in crowd.server(2).assumes
    assert "server does not collude" in crowd.clients(2).assumes


# The public numbers of a sum


def test_factors_are_weight_times_rate_over_batch():
    assert factors([1.0, 2.0], [0.1, 0.2], [10, 5]) == pytest.approx((0.125, 1.0))
    assert factors([1.0, 4.0]) == (0.25, 1.0)
    assert factors([7.0, 13.0], [0.1, 0.1], [7, 13]) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("how", "least"),
    [
        ({}, 10),
        ({"participation": 0.5}, 1),
        ({"lost": 0.1}, 1),
        ({"masks": True}, 10),
        ({"masks": True, "attempts": 3}, 7),
        ({"masks": True, "attempts": 30}, 1),
        ({"masks": True, "participation": 0.5, "asked": 4}, 4),
        ({"participation": 0.5, "asked": 4}, 4),
    ],
)
def test_the_least_number_of_clients_in_a_sum(how, least):
    assert least_clients(10, **how) == least


def test_masks_with_absent_clients_need_a_least_number():
    with pytest.raises(BadValue, match="least_clients"):
        least_clients(10, masks=True, participation=0.9)
    with pytest.raises(BadValue, match="least_clients = 11"):
        least_clients(10, 11)


@pytest.mark.parametrize("sizes", [(1000, 20), (20, 1000)])
def test_the_numbers_of_a_view_are_the_worst_over_clients(sizes):
    """The smaller client's sampling rate is larger, wherever it stands."""
    crowd = Crowd.alike(2, masks=True)
    plans = [plan(4.0, records=size, batch=10) for size in sizes]
    (readers, *_) = views_of(crowd, plans, lambda each, participation: Numbers.of(each.guarantee(participation), 1e-5))
    own = [each.guarantee(against=crowd.readers()).epsilon(1e-5).upper for each in plans]
    assert readers.honest.epsilon.upper == max(own) > min(own)
