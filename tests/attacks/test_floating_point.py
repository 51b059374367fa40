"""Attacks by rounding: a record's gradient must not depend on who else is in the batch, on the row, or on other clients.

Hostile rows have gradients that are nothing but rounding. Clipping carries them to full length, either way round, so a row
that is rounded otherwise moves the sum by up to twice the clip norm, and there may be as many such rows as records.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn

from prifedsync.accounting import Neighbours, NoisySteps, OutputPerturbation, PrivacyPlan, Sampling
from prifedsync.engines import Vectorised
from prifedsync.local import Job, Net, Optimiser, UnnoisedSteps, losses
from prifedsync.local.net import methods
from prifedsync.local.net.invariance import Probe, invariant, same_in_all_rows, treats_rows_alike
from prifedsync.local.net.precision import OWN_SHARE
from prifedsync.rules import FedAvg

from ..engines.test_device import OnDevice
from ..local.zoo import CASES

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
ENGINES = pytest.mark.parametrize("engine", [Vectorised, OnDevice], ids=["host", "device path"])
ENTRIES, HIDDEN = 30, 8
SMALL = {torch.float32: 1e-7, torch.float64: 1e-12}  # clip norms that rounding reaches
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


def net_of(dtype):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(ENTRIES, HIDDEN), nn.Linear(HIDDEN, 1))
    return Net(module, losses.regression, torch.randn(4, ENTRIES, dtype=dtype), torch.zeros(4, dtype=dtype), dtype)


def answers(net, x, weights=None):
    """What the model answers in double precision, added up from the end: what is left of a residual is rounding."""
    given = net.named((net.initial() if weights is None else weights).double())
    hidden = x.double().flip(1) @ given["0.weight"].flip(1).T + given["0.bias"]
    return (hidden.flip(1) @ given["1.weight"].flip(1).T + given["1.bias"]).flatten().to(net.dtype)


def hostile_rows(net, count, size, seed=0, weights=None):
    """Rows of entries of this size, whose targets are the model's own answers."""
    dice = torch.Generator().manual_seed(seed)
    x = (size * torch.randn(count, ENTRIES, generator=dice, dtype=torch.float64)).to(net.dtype)
    return x, answers(net, x, weights)


def job(client, records, clip, neighbours, batch="full"):
    steps = NoisySteps(
        noise_multiplier=1.0, records=records, batch=batch, local_steps=1, sampling=Sampling.POISSON, clip_norm=clip,
        clip_margin=1e-4,
    )  # fmt: skip
    return Job(client=client, plan=PrivacyPlan(mechanism=steps, rounds=1, neighbours=neighbours), optimiser=Optimiser())


def sums_of(engine, net, jobs, data, draws=None, weights=None):
    cohort = engine(net, jobs, data, FedAvg(), draws or Chosen())
    start = net.initial() if weights is None else weights
    return cohort.batch_sums(0, 0, cohort.clients, start.expand(len(jobs), -1).clone())


def with_zero_record(x, y, at):
    zero = torch.zeros(1, ENTRIES, dtype=x.dtype)
    return torch.cat([x[:at], zero, x[at:]]), torch.cat([y[:at], torch.zeros(1, dtype=y.dtype), y[at:]])


@ENGINES
@DTYPES
@pytest.mark.parametrize("at", [0, 7, 15])
def test_a_record_of_zeros_among_hostile_rows_moves_the_sum_by_its_own_gradient(engine, dtype, at):
    """Add one all-zero record to rows of entries about 3·10⁴: 49 of them moved the sum by up to 98 clip norms."""
    net = net_of(dtype)
    clip = SMALL[dtype]
    jobs = [job("a", 16, clip, Neighbours.ADD_REMOVE)]
    largest = 0.0
    for seed in range(8):
        x, y = hostile_rows(net, 15, 3e4, seed)
        fewer = sums_of(engine, net, jobs, [(x, y)])
        more = sums_of(engine, net, jobs, [with_zero_record(x, y, at)])
        largest = max(largest, float(fewer.norm()))
        assert (more - fewer).norm() <= clip * ROUNDING
    assert largest > clip  # the rows do have gradients


@DTYPES
def test_another_client_s_number_of_records_leaves_no_trace(dtype):
    """Client A's crafted rows told whether client B has 49 or 50 records, in 40 of 40."""
    net = net_of(dtype)
    jobs = [job(name, 49, SMALL[dtype], Neighbours.ADD_REMOVE) for name in ("a", "b")]
    x, y = hostile_rows(net, 51, 1.0, seed=1)
    for seed in range(6):
        crafted = hostile_rows(net, 49, 3e4, seed)
        seen = [sums_of(Vectorised, net, jobs, [crafted, (x[:count], y[:count])])[0] for count in (49, 50, 51)]
        assert torch.equal(seen[0], seen[1])
        assert torch.equal(seen[0], seen[2])


@ENGINES
@pytest.mark.parametrize("present", [3, 4, 16, 17, 50])
def test_copies_of_one_row_in_a_poisson_batch_do_not_feel_another_record(engine, present):
    """499 copies of one row, with a target between its two roundings: printed ε 1.79 for one step, true ε at least 7.25."""
    net = net_of(torch.float32)
    clip = SMALL[torch.float32]
    for seed in range(6):
        row, answer = hostile_rows(net, 1, 3e4, seed)
        x = torch.cat([torch.zeros(1, ENTRIES), row.expand(present, -1)])
        y = torch.cat([torch.zeros(1), answer.expand(present)])
        jobs = [job("a", present + 1, clip, Neighbours.REPLACE, batch=max(1, present // 2))]
        if engine is OnDevice:  # there the batch is drawn from a stream: the record is taken away instead
            jobs = [job("a", present + 1, clip, Neighbours.ADD_REMOVE)]
            joined, left_out = (sums_of(engine, net, jobs, [(x[n:], y[n:])]) for n in (0, 1))
        else:
            joined, left_out = (sums_of(engine, net, jobs, [(x, y)], draws) for draws in (Chosen(), Chosen(0)))
        assert (joined - left_out).norm() <= clip * ROUNDING


def test_tame_records_and_the_first_weights():
    """Entries within ±1 and default weights: 1.05·10⁻⁴ clip norms at C = 0.1, over the margin, and 98 at C = 10⁻⁷."""
    net = net_of(torch.float32)
    for clip in (0.1, 1e-7):
        x = hostile_rows(net, 49, 0.3)[0].clamp(-1, 1)
        y = answers(net, x)
        jobs = [job("a", 50, clip, Neighbours.ADD_REMOVE)]
        fewer, more = (sums_of(Vectorised, net, jobs, [data]) for data in ((x, y), with_zero_record(x, y, 0)))
        assert (more - fewer).norm() <= clip * ROUNDING


@pytest.mark.parametrize("clients", [1, 3])
def test_weights_that_a_server_may_send(clients):
    """Weights within the accepted ±10⁴: 99 clip norms in a stack, 7 for one client alone."""
    net = net_of(torch.float32)
    clip = SMALL[torch.float32]
    jobs = [job(f"client {i}", 50, clip, Neighbours.ADD_REMOVE) for i in range(clients)]
    others = [hostile_rows(net, 40 + i, 1.0, seed=i) for i in range(clients - 1)]
    for seed in range(6):
        dice = torch.Generator().manual_seed(seed)
        weights = 1e4 * (2 * torch.rand(net.count, generator=dice) - 1)
        x, y = hostile_rows(net, 49, 1.0, seed, weights)
        fewer = sums_of(Vectorised, net, jobs, [(x, y), *others], weights=weights)[0]
        more = sums_of(Vectorised, net, jobs, [with_zero_record(x, y, 7), *others], weights=weights)[0]
        assert (more - fewer).norm() <= clip * ROUNDING


def test_the_probe_finds_a_program_that_treats_rows_differently(monkeypatch):
    """A kernel that rounds its last row otherwise, in the first layer alone, and by one unit in the last place."""
    net = net_of(torch.float32)
    program = net.program(2, 17)
    right = methods.by_bookkeeping

    def last_row_otherwise(net, flat, x, y, masks):
        gradients = right(net, flat, x, y, masks)
        factor = torch.ones(len(x), 1)
        factor[-1] += torch.finfo(torch.float32).eps
        return [replace(gradients[0], a=gradients[0].a * factor), *gradients[1:]]

    assert treats_rows_alike(net, program, 2)
    monkeypatch.setattr(methods, "by_bookkeeping", last_row_otherwise)
    assert not treats_rows_alike(net, program, 2)
    assert invariant(net, 2, 17, torch.float64).grad_method == "loop"


@pytest.mark.parametrize("name", CASES)
@DTYPES
def test_no_row_of_any_model_s_program_is_special(name, dtype):
    """Take every record of a batch through every row, with other numbers than the probe at start has."""
    case = CASES[name]
    net = Net(case.module(), losses.BY_TASK[case.task], *case.records(5, seed=99), dtype)
    x, y = case.records(5, seed=11)
    numbers = [each.to(dtype) if each.is_floating_point() else each for each in (x, y)]
    probe = Probe(3 * net.initial().expand(2, -1), *numbers)
    for width in (5, 16, 30):
        program = net.program(2, width)
        assert program.grad_method == "loop" or same_in_all_rows(net, program, probe)


def test_a_margin_is_one_of_nominal_numbers():
    """Under add-remove the margin, and so the noise in record.json, told how many records there really are."""
    net = net_of(torch.float32)
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


# ------------------------------------------------------------------ attacks on the probe itself


class Logarithm(nn.Module):
    """Has no answer to records below −1: a probe that treats NaN as equal to NaN would see nothing."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(ENTRIES, HIDDEN)
        self.head = nn.Linear(HIDDEN, 1)

    def forward(self, x):
        return self.head(self.hidden(torch.log1p(x)))


def made(module, dtype=torch.float32, x=None, y=None, task="regression"):
    x = torch.rand(4, ENTRIES, dtype=dtype) if x is None else x
    y = torch.zeros(4, dtype=dtype) if y is None else y
    return Net(module, losses.BY_TASK[task], x, y, dtype)


def test_a_module_that_has_no_answer_to_most_made_up_records():
    """log1p of made-up records was NaN everywhere, and unsafe programs passed: one record moved a sum by 15.4 C."""
    torch.manual_seed(0)
    net = made(Logarithm())
    dice = torch.Generator().manual_seed(5)
    x = torch.rand(7, ENTRIES, generator=dice)
    probe = Probe(net.initial().expand(2, -1), x, torch.rand(7, generator=dice))
    for width in (7, 15, 17, 33, 57):
        program = net.program(2, width)
        assert program.grad_method == "loop" or same_in_all_rows(net, program, probe)


def test_a_module_that_tells_nothing_is_taken_one_record_at_a_time():
    """All made-up gradients are zero or NaN: nothing could have shown a difference."""

    class Silent(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(ENTRIES, 1)

        def forward(self, x):
            return self.inner(torch.where(x.abs() < 1e9, torch.nan, x))

    net = made(Silent(), x=torch.full((4, ENTRIES), 1e10))
    assert net.program(2, 16).grad_method == "loop"


class Averaged(nn.Module):
    """Tokens, the mean of their rows, one linear layer."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 13)
        self.head = nn.Linear(13, 3)

    def forward(self, x):
        return self.head(self.table(x).mean(1))


def test_the_program_is_a_function_of_public_numbers():
    """Replacing one of the first records changed the program, and with it a line of record.json, in 87 of 96 shapes."""

    def programs(x, y):
        torch.manual_seed(0)
        net = Net(Averaged(), losses.classes, x, y, torch.float32)
        return [net.program(clients, width) for clients in (1, 2) for width in (5, 9, 17, 50)]

    y = torch.tensor([0, 1, 2, 0])
    one = programs(torch.zeros(4, 7, dtype=torch.long), y)
    other = programs(torch.full((4, 7), 31), y.flip(0))
    assert one == other


@pytest.mark.parametrize("name", ["one number a record", "a category among numbers", "comparisons alone"])
def test_modules_that_made_up_records_do_not_suit(name):
    """They ended in a traceback at the first step."""

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(3, 4)
            self.inner = nn.Linear(ENTRIES, 1)

        def forward(self, x):
            if name == "one number a record":
                return self.inner(x).squeeze(-1)
            if name == "comparisons alone":
                return self.inner((x > 0.5).to(x.dtype))
            return self.inner(x) + self.table(x[:, 0].long()).sum(1, keepdim=True)

    x = torch.rand(4, ENTRIES)
    net = made(Odd(), x=x)
    jobs = [job("a", 4, 1.0, Neighbours.REPLACE)]
    assert torch.isfinite(sums_of(Vectorised, net, jobs, [(x, torch.zeros(4))])).all()


@DTYPES
def test_another_client_s_number_of_records_under_output_perturbation(dtype):
    """There steps are open, and a stack was as wide as the client with most records: A's update told B's number."""
    net = net_of(dtype)
    x, y = hostile_rows(net, 50, 1.0, seed=1)
    plan = PrivacyPlan(mechanism=OutputPerturbation(noise_multiplier=1.0), rounds=1, neighbours=Neighbours.ADD_REMOVE)
    for seed in range(4):
        crafted = hostile_rows(net, 2, 3e4, seed)
        seen = []
        for count in (49, 50):
            sizes = {"a": 2, "b": count}
            jobs = [
                Job(client=name, plan=plan, optimiser=Optimiser(),
                    unnoised_steps=UnnoisedSteps(records=size, batch="full", local_steps=1))
                for name, size in sizes.items()
            ]  # fmt: skip
            cohort = Vectorised(net, jobs, [crafted, (x[:count], y[:count])], FedAvg(), Chosen())
            groups = cohort.groups(cohort.clients)
            assert cohort.clients[:1] in groups
            seen.append(cohort.batch_sums(0, 0, cohort.clients[:1], net.initial()[None]))
        assert torch.equal(seen[0], seen[1])


@pytest.mark.parametrize("clip", [1e-2, 1e-5, 1e-12])
def test_factors_near_the_smallest_number_of_single_precision(clip):
    """A record of entries about 3·10³⁸: its scaled gradient was subnormal, and up to 1.81 clip norms long at C = 10⁻⁵."""
    module = nn.Linear(784, 10)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    with torch.no_grad():
        module.bias[0] = 12.0  # the answer is right, and what comes back is small
    net = Net(module, losses.classes, torch.rand(4, 784), torch.arange(4), torch.float32)
    program = net.program(1, 1)._replace(sums=torch.float32)  # as on a GPU
    for size in (3e38, 1e36, 1e30, 1e-30, 1e-38):
        x = torch.zeros(1, 1, 784)
        x[..., :3] = size
        given = (x, torch.zeros(1, 1, dtype=torch.long), torch.ones(1, 1, dtype=torch.bool))
        total = net.clipped_sums(net.initial()[None], *given, torch.tensor([clip], dtype=torch.float64), {}, program)
        assert total.double().norm() <= clip * (1 + OWN_SHARE["float32"])
