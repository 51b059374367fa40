"""Attacks by rounding: a record's gradient must not depend on who else is in the batch, on the row, or on other clients.

Hostile rows have gradients that are nothing but rounding. Clipping carries them to full length, either way round, so a row
that is rounded otherwise moves the sum by up to twice the clip norm, and there may be as many such rows as records.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn

from prifedsync.accounting import Neighbours, NoisySteps, PrivacyPlan, Sampling
from prifedsync.engines import Vectorised
from prifedsync.local import Job, Net, Optimiser, losses
from prifedsync.rules import FedAvg

from ..engines.test_device import OnDevice

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
ENGINES = pytest.mark.parametrize("engine", [Vectorised, OnDevice], ids=["host", "device path"])
ENTRIES = 30
ROUNDING = 1 + 1e-6


class Chosen:
    """Draws under which a record is in the batch if it is on the list; no noise is ever asked for."""

    def __init__(self, *absent):
        self.absent = absent

    def bound(self, context):
        return self

    def uniform(self, key, count):
        lots = torch.zeros(count, dtype=torch.float64) + 1e-9
        if key.purpose == "batch":
            lots[list(self.absent)] = 1 - 1e-9
        return lots

    def normal(self, key, count):
        raise AssertionError("a clipped sum has no noise")

    def stream(self, client, round, purpose):
        return bytes(32)


def linear(dtype, outputs=1):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Linear(ENTRIES, outputs)
    x = torch.randn(4, ENTRIES, dtype=dtype)
    task = "regression" if outputs == 1 else "classes"
    targets = torch.zeros(4, dtype=dtype) if outputs == 1 else torch.arange(4) % outputs
    return Net(module, losses.BY_TASK[task], x, targets, dtype)


def hostile_rows(net, count, size, seed=0, weights=None):
    """Rows of large entries whose targets are the model's answers, computed twice as exactly and rounded."""
    dice = torch.Generator().manual_seed(seed)
    x = (size * torch.randn(count, ENTRIES, generator=dice, dtype=torch.float64)).to(net.dtype)
    flat = (net.initial() if weights is None else weights).double()
    answers = x.double() @ flat[:ENTRIES] + flat[ENTRIES]
    return x, answers.to(net.dtype)


def job(client, records, clip, neighbours, batch="full"):
    steps = NoisySteps(
        noise_multiplier=1.0, records=records, batch=batch, local_steps=1, sampling=Sampling.POISSON, clip_norm=clip,
        clip_margin=1e-4,
    )  # fmt: skip
    return Job(client=client, plan=PrivacyPlan(mechanism=steps, rounds=1, neighbours=neighbours), optimiser=Optimiser())


def sums_of(engine, net, jobs, data, draws=None, weights=None):
    cohort = engine(net, jobs, data, FedAvg(), draws or Chosen())
    start = net.initial() if weights is None else weights
    return cohort.batch_sums(0, 0, list(range(len(jobs))), start.expand(len(jobs), -1).clone())


def with_zero_record(x, y, at):
    zero = torch.zeros(1, ENTRIES, dtype=x.dtype)
    return torch.cat([x[:at], zero, x[at:]]), torch.cat([y[:at], torch.zeros(1, dtype=y.dtype), y[at:]])


@ENGINES
@DTYPES
@pytest.mark.parametrize("at", [0, 20, 49])
def test_a_record_of_zeros_among_hostile_rows_moves_the_sum_by_its_own_gradient(engine, dtype, at):
    """Add one all-zero record to 49 rows of entries about 3·10⁴: the sum moved by up to 98 clip norms."""
    net = linear(dtype)
    x, y = hostile_rows(net, 49, 3e4)
    jobs = [job("a", 50, 1.0, Neighbours.ADD_REMOVE)]
    fewer = sums_of(engine, net, jobs, [(x, y)])
    more = sums_of(engine, net, jobs, [with_zero_record(x, y, at)])
    assert fewer.norm() > 1  # the rows do have gradients
    assert (more - fewer).norm() <= ROUNDING


@DTYPES
def test_another_client_s_number_of_records_leaves_no_trace(dtype):
    """Client A's crafted rows told whether client B has 49 or 50 records, in 40 of 40."""
    net = linear(dtype)
    crafted = hostile_rows(net, 49, 3e4)
    x, y = hostile_rows(net, 51, 1.0, seed=1)
    jobs = [job("a", 49, 1.0, Neighbours.ADD_REMOVE), job("b", 49, 1.0, Neighbours.ADD_REMOVE)]
    seen = [sums_of(Vectorised, net, jobs, [crafted, (x[:count], y[:count])])[0] for count in (49, 50, 51)]
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])


@ENGINES
@pytest.mark.parametrize("present", [3, 4, 16, 17, 50])
def test_copies_of_one_row_in_a_poisson_batch_do_not_feel_another_record(engine, present):
    """499 copies of one row, with a target between its two roundings: printed ε 1.79 for one step, true ε at least 7.25."""
    net = linear(torch.float32)
    (row,), (answer,) = hostile_rows(net, 1, 3e4)
    for last_bit in (-1, 0, 1):
        x = torch.cat([torch.zeros(1, ENTRIES), row.expand(present, -1)])
        y = torch.cat([torch.zeros(1), (answer * (1 + last_bit * 2.0**-24)).expand(present)])
        jobs = [job("a", present + 1, 1.0, Neighbours.REPLACE, batch=max(1, present // 2))]
        joined = sums_of(Vectorised, net, jobs, [(x, y)])
        left_out = sums_of(Vectorised, net, jobs, [(x, y)], Chosen(0))
        assert (joined - left_out).norm() <= ROUNDING


@pytest.mark.parametrize("clip", [0.1, 1e-7])
def test_tame_records_and_the_first_weights(clip):
    """Entries within ±1 and default weights: 1.05·10⁻⁴ clip norms at C = 0.1, over the margin, and 98 at C = 10⁻⁷."""
    net = linear(torch.float32)
    x, y = hostile_rows(net, 49, 0.3)
    x = x.clamp(-1, 1)
    y = (x.double() @ net.initial()[:ENTRIES].double() + net.initial()[ENTRIES]).float()
    jobs = [job("a", 50, clip, Neighbours.ADD_REMOVE)]
    fewer, more = (sums_of(Vectorised, net, jobs, [data]) for data in ((x, y), with_zero_record(x, y, 0)))
    assert (more - fewer).norm() <= clip * ROUNDING


@pytest.mark.parametrize("clients", [1, 3])
def test_weights_that_a_server_may_send(clients):
    """Weights within the accepted ±10⁴ whose products cancel: 99 clip norms in a stack, 7 for one client alone."""
    net = linear(torch.float32)
    dice = torch.Generator().manual_seed(3)
    weights = 1e4 * (2 * torch.rand(ENTRIES + 1, generator=dice) - 1)
    x, y = hostile_rows(net, 49, 1.0, weights=weights)
    jobs = [job(f"client {i}", 50, 1.0, Neighbours.ADD_REMOVE) for i in range(clients)]
    others = [hostile_rows(net, 40 + i, 1.0, seed=i) for i in range(clients - 1)]
    fewer, more = (
        sums_of(Vectorised, net, jobs, [data, *others], weights=weights)[0] for data in ((x, y), with_zero_record(x, y, 7))
    )
    assert (more - fewer).norm() <= ROUNDING


def test_a_margin_is_one_of_nominal_numbers():
    """Under add-remove the margin, and so the noise in record.json, told how many records there really are."""
    net = linear(torch.float32)
    net.sum_dtype = torch.float32  # as on a GPU, where the margin grows with the number of records
    margins = set()
    for present in (40, 70, 400):
        x, y = hostile_rows(net, present, 1.0)
        nominal = job("a", 50, 1.0, Neighbours.ADD_REMOVE)
        margins.add(net.margin_for(nominal.noisy, Neighbours.ADD_REMOVE))
        needed = replace(nominal.noisy, clip_margin=max(margins))
        plan = PrivacyPlan(mechanism=needed, rounds=1, neighbours=Neighbours.ADD_REMOVE)
        Vectorised(net, [replace(nominal, plan=plan)], [(x, y)], FedAvg(), Chosen())  # is not refused
    assert len(margins) == 1
