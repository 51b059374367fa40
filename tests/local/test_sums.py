"""The public numbers of a sum, worked by hand."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prifedsync.accounting import NoisySteps, OutputPerturbation, PrivacyPlan
from prifedsync.local import Job, Optimiser, Schedule, UnnoisedSteps
from prifedsync.local.sums import LEAST_STEPS, sums_of, why_not
from prifedsync.rules import FedAvg
from prifedsync.values import BadValue

HALVED = Schedule(kind="step", every=1, factor=0.5)


def noisy(client, records=8, *, weight=1.0, rate=0.5, noise=2.0, clip=3.0, batch="full"):
    steps = NoisySteps(noise_multiplier=noise, records=records, batch=batch, local_steps=1, clip_norm=clip)
    optimiser = Optimiser(learning_rate=rate, schedule=HALVED)
    return Job(client=client, plan=PrivacyPlan(mechanism=steps, rounds=3), optimiser=optimiser, weight=weight)


def output(client, weight):
    plan = PrivacyPlan(mechanism=OutputPerturbation(noise_multiplier=2.0, clip_norm=3.0), rounds=3)
    steps = UnnoisedSteps(records=8, batch="full", local_steps=2)
    optimiser = Optimiser(learning_rate=0.5, schedule=HALVED)
    return Job(client=client, plan=plan, optimiser=optimiser, unnoised_steps=steps, weight=weight)


def test_factors_and_the_step_by_hand():
    """φ = weight·rate/batch: a 2·0.5/8 = 1/8, b 1·0.5/4 = 1/8, c 3·0.25/2 = 3/8 (of 16 records). F = 3/8."""
    jobs = [noisy("a", 8, weight=2.0), noisy("b", 4), noisy("c", 16, batch=2, weight=3.0, rate=0.25)]
    sums = sums_of(jobs)
    assert sums.factors == pytest.approx({"a": 1 / 3, "b": 1 / 3, "c": 1.0}, rel=1e-15)
    assert sums.step == -0.375
    assert sums.grid == 2.0 ** (1 - 8)  # the least noise in the sum is 6/3 = 2
    total = torch.tensor([128, -256])  # 1 and −2 in units of the sum
    assert sums.change(total, ("a", "b"), 0).tolist() == pytest.approx([-0.375 / 3, 0.75 / 3], rel=1e-15)
    assert sums.change(total, ("a", "b", "c"), 2).tolist() == pytest.approx([-0.375 / 24, 0.75 / 24], rel=1e-15)


def test_outputs_are_added_as_they_are_whatever_the_learning_rate():
    sums = sums_of([output("a", 1.0), output("b", 4.0)])
    assert sums.factors == {"a": 0.25, "b": 1.0}
    assert sums.step == 4.0
    assert sums.grid == 2.0**-8  # of 6/4
    assert sums.change(torch.tensor([256]), ("a", "b"), 2).tolist() == [4.0 / 5]


def test_clients_weighed_by_their_records_all_have_factor_one():
    jobs = [noisy(str(n), n, weight=float(n), rate=0.3) for n in (3, 20, 70, 1000)]
    assert set(sums_of(jobs).factors.values()) == {1.0}


@given(st.lists(st.tuples(st.floats(0.05, 1e3), st.floats(1e-3, 1e3), st.integers(1, 10**4)), min_size=1, max_size=6))
def test_the_least_noise_is_between_256_and_512_cells_unless_the_largest_would_be_beyond_2_20(clients):
    jobs = [noisy(str(i), n, noise=noise, weight=weight) for i, (noise, weight, n) in enumerate(clients)]
    if why_not(FedAvg(), jobs):
        with pytest.raises(BadValue, match="differ less"):
            sums_of(jobs)
        return
    sums = sums_of(jobs)
    noises = [Fraction(sums.factors[job.client]) * Fraction(job.noisy.noise_scale) / Fraction(sums.grid) for job in jobs]
    slack = Fraction(1 + 1e-12)
    assert max(noises) <= 2**20 * slack
    assert min(noises) * slack >= 8
    assert min(noises) < 512 * slack
    assert min(noises) * slack >= 256 or max(noises) * slack >= 2**19  # no coarser than it must be


def test_a_masked_sum_fits_32_bits_on_a_coarser_grid():
    """1000 clients of 100,000 records: the largest sum is 10⁸·3 + noise, which 6/2⁸ would not bring below 2³¹."""
    jobs = [noisy(str(i), 100_000, weight=1.0) for i in range(1000)]
    plain, masked = sums_of(jobs), sums_of(jobs, masked=True)
    largest = 1000 * (100_000 * 3.0 + 64 * 6.0)
    assert largest / plain.grid > 2**31 > largest / masked.grid
    assert largest / (masked.grid / 2) > 2**31  # and no coarser than it must be
    assert 6.0 / masked.grid >= LEAST_STEPS
    assert sums_of(jobs[:3], masked=True).grid == sums_of(jobs[:3]).grid


def test_a_grid_with_less_than_eight_cells_of_noise_is_refused():
    jobs = [noisy(str(i), 10**7) for i in range(40)]
    with pytest.raises(BadValue, match=r"too coarse.*add noise, or train without masks"):
        sums_of(jobs, masked=True)
    assert sums_of(jobs[:20], masked=True).grid * 8 <= 6.0
    assert sums_of(jobs).grid == 6.0 / 1.5 / 256


@pytest.mark.parametrize(("ratio", "cell"), [(2**11, 8), (2**12, 7), (2**16, 3), (2**17, None)])
def test_the_grid_is_coarser_for_the_loudest_client_and_never_too_coarse_for_the_quietest(ratio, cell):
    """Noise 3 and 3·ratio: on a grid of 2·2^−8 the quietest has 384 steps, and the loudest may have 2^20."""
    jobs = [noisy("quiet", clip=1.5), noisy("loud", clip=1.5 * ratio), noisy("between", clip=4.5)]
    if cell:
        sums = sums_of(jobs)
        assert sums.grid == 2.0 ** (1 - cell)
        assert 3.0 * ratio / sums.grid <= 2**20
        assert (why_not(FedAvg(), jobs), sums_of(jobs, masked=True).grid) == ("", sums.grid)
        return
    assert "the noise of client quiet would be 6 steps, and must be 8" in why_not(FedAvg(), jobs)
    assert "client loud has 1.3e+05 times that noise" in why_not(FedAvg(), jobs)
    with pytest.raises(BadValue, match=r"client quiet .* client loud .*train without masks"):
        sums_of(jobs, masked=True)
    with pytest.raises(BadValue, match="differ less"):
        sums_of(jobs)


def test_clients_whose_steps_differ_are_not_added_up():
    constant = replace(noisy("b"), optimiser=Optimiser(learning_rate=0.5))
    assert why_not(FedAvg(), [noisy("a"), noisy("b")]) == ""
    for other in (constant, output("b", 1.0)):
        assert "mechanisms or schedules differ" in why_not(FedAvg(), [noisy("a"), other])
