"""Batches: sizes, how often each record is in one, and that steps, rounds and clients do not share them."""

import numpy as np
import pytest
import torch

from prifedsync.accounting import NoisySteps, Sampling
from prifedsync.local import RecordedDraws, SeededDraws, UnnoisedSteps
from prifedsync.local.batches import choose, expected_size
from prifedsync.values import BadValue

from .laws import SIGMAS, uncorrelated

RECORDS, BATCH, STEPS = 30, 9, 3000
DRAWS = SeededDraws(21)


def plan(sampling=Sampling.POISSON, records=RECORDS, batch=BATCH, kind=NoisySteps):
    noise = {"noise_multiplier": 1.0} if kind is NoisySteps else {}
    return kind(records=records, batch=batch, local_steps=1, sampling=sampling, **noise)


def membership(steps, client="a", round=0, present=RECORDS):
    """[STEPS, records]: who was in."""
    rows = torch.zeros(STEPS, present)
    for step in range(STEPS):
        rows[step, choose(steps, present, client, round, step, DRAWS)] = 1
    return rows.numpy()


def looks_poisson(rows, rate):
    """Mean and variance of the sizes are binomial, and every record is in as often as any other."""
    steps, records = rows.shape
    sizes, variance = rows.sum(1), records * rate * (1 - rate)
    mean_fits = abs(sizes.mean() - records * rate) < SIGMAS * np.sqrt(variance / steps)
    spread_fits = abs(np.mean((sizes - records * rate) ** 2) / variance - 1) < SIGMAS * np.sqrt(2 / steps)
    return mean_fits and spread_fits and evenly(rows, rate)


def evenly(rows, rate):
    return bool(np.all(np.abs(rows.mean(0) - rate) < SIGMAS * np.sqrt(rate * (1 - rate) / len(rows))))


def test_poisson_batches_have_binomial_sizes():
    rows = membership(plan())
    assert looks_poisson(rows, BATCH / RECORDS)
    assert not looks_poisson(rows, 8 / RECORDS)
    assert not looks_poisson(rows, 10 / RECORDS)
    assert not looks_poisson(membership(plan(Sampling.FIXED)), BATCH / RECORDS)


def test_fixed_batches_have_their_size_and_take_every_record_as_often():
    rows = membership(plan(Sampling.FIXED))
    assert set(rows.sum(1)) == {BATCH}
    assert evenly(rows, BATCH / RECORDS)


@pytest.mark.parametrize("sampling", Sampling)
def test_records_steps_rounds_and_clients_are_independent(sampling):
    rows = membership(plan(sampling))
    others = membership(plan(sampling), round=1), membership(plan(sampling), client="b")
    kinds = np.stack([rows.ravel(), np.roll(rows, 1, axis=0).ravel(), *[o.ravel() for o in others]])
    assert uncorrelated(kinds)
    if sampling is Sampling.POISSON:  # of a fixed size, one record's place is another's loss
        assert uncorrelated(rows.T)


@pytest.mark.parametrize("kind", [NoisySteps, UnnoisedSteps])
def test_a_batch_is_in_order_and_without_repeats(kind):
    for sampling in Sampling:
        for step in range(20):
            picked = choose(plan(sampling, kind=kind), RECORDS, "a", 0, step, DRAWS).tolist()
            assert picked == sorted(set(picked))
            assert all(0 <= record < RECORDS for record in picked)


@pytest.mark.parametrize("batch", ["full", RECORDS])
def test_everybody_without_a_draw(batch):
    tape = RecordedDraws(DRAWS)
    assert choose(plan(batch=batch), RECORDS, "a", 0, 0, tape).tolist() == list(range(RECORDS))
    assert tape.asked == []
    assert expected_size(plan(batch=batch)) == RECORDS


def test_the_rate_and_the_divisor_come_from_the_nominal_number():
    """Half as many records as the plan says: the same coin, batches half as large, and the same divisor."""
    present = RECORDS // 2
    assert looks_poisson(membership(plan(), present=present), BATCH / RECORDS)
    assert expected_size(plan()) == BATCH
    assert choose(plan(batch="full"), 0, "a", 0, 0, DRAWS).tolist() == []


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"records": 0}, "records = 0 must be a whole number of at least 1"),
        ({"batch": 31}, 'batch = 31 is larger than records = 30; take fewer, or batch = "full"'),
        ({"batch": 0}, "batch = 0 must be a whole number"),
        ({"sampling": "poisson"}, "sampling = 'poisson' must be one of"),
    ],
)
def test_open_steps_are_checked_as_plans_are(changed, says):
    with pytest.raises(BadValue) as refusal:
        plan(kind=UnnoisedSteps, **changed)
    assert str(refusal.value).startswith(says)
    assert plan(kind=UnnoisedSteps).rate == plan().rate
    assert plan(kind=UnnoisedSteps, batch="full").rate == 1
