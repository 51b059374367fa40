"""Attacks on the engine that draws on its device: noise, batches, clips, states, programs. On the CPU."""

import gc
import importlib.util
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from prifedsync.accounting import Neighbours, Sampling
from prifedsync.engines import Performance, Reference, Vectorised, vectorised
from prifedsync.local import Net, Optimiser, SeededDraws, losses, noise
from prifedsync.local.client import Client
from prifedsync.local.device import batches, compiled, streams
from prifedsync.local.device import stack as device
from prifedsync.local.net.precision import CLIP_MARGIN, ONE_PIECE, OWN_SHARE, sums_in
from prifedsync.local.net.programs import Program
from prifedsync.rules import APFL, Alone, Attentive, FedAvg, PFedMe, Server
from prifedsync.run.checkpoint import Checkpoint
from prifedsync.store import Resident
from prifedsync.values import BadValue

from ..local import expanded
from ..local.expanded import Expanded
from ..local.zoo import CASES
from .settings import (
    MLP,
    Proximal,
    answer,
    ask,
    assert_same,
    gradients,
    jobs_of,
    jobs_under,
    net_of,
    noisy_queries,
    perturbing,
    private,
    records_of,
    run,
    served,
    sums,
    unnoised,
    with_server,
)
from .test_device import CELL, OnDevice, twins

NET = net_of(MLP)
DROPOUT = net_of(CASES["dropout"])
ALL = [0, 1, 2, 3]
pytestmark = pytest.mark.usefixtures("nothing_compiled")


def engine_of(kind=OnDevice, net=NET, jobs=None, records=None, seed=5, **options):
    return kind(net, jobs or jobs_of(), records or records_of(MLP), FedAvg(), SeededDraws(seed), **options)


# ---------------------------------------------------------------------- what the comparison of the twins notices


def _noise(change):
    """Whatever is noised, noised otherwise."""

    def mutate(patch):
        add = noise.add_normals
        patch.setattr(noise, "add_normals", lambda parts, planned, out: add(parts, change(planned), out))

    return mutate


def _nonces(change):
    def mutate(patch):
        normals = streams.normals
        patch.setattr(streams, "normals", lambda keys, nonces, count: normals(keys, change(nonces), count))

    return mutate


def _keys(change):
    def mutate(patch):
        keys = streams.keys

        def changed(draws, clients, round, purposes, device):
            return keys(draws, *change(clients, round, purposes), device)

        patch.setattr(streams, "keys", changed)

    return mutate


def _batches(change):
    def mutate(patch):
        choose = device.choose
        patch.setattr(device, "choose", lambda *given: change(choose(*given)))

    return mutate


def _uniforms(change):
    def mutate(patch):
        uniforms = streams.uniforms
        patch.setattr(streams, "uniforms", lambda *given: change(uniforms(*given)))

    return mutate


def _masks(change):
    def mutate(patch):
        drawn = device.Stack._randomness
        patch.setattr(device.Stack, "_randomness", lambda stack, picked: drawn(stack, change(picked)))

    return mutate


def _count(patch):
    take_steps = Vectorised.take_steps

    def fewer(engine, round, clients, *given):
        trained = take_steps(engine, round, clients, *given)
        clients[0].queries -= 1
        return trained

    patch.setattr(Vectorised, "take_steps", fewer)


def _stuck(patch):
    """The step is not counted: every step has the batch and the noise of the first."""
    step = device.Stack._one_step

    def again(stack):
        step(stack)
        stack.step.zero_()

    patch.setattr(device.Stack, "_one_step", again)


MUTATIONS = {
    "nothing": lambda patch: None,
    "two thirds of the noise": _noise(lambda n: n._replace(scale=n.scale * 2 / 3)),
    "half as much noise again": _noise(lambda n: n._replace(scale=n.scale * 1.5)),
    "no noise for the last": _noise(lambda n: n._replace(scale=n.scale * torch.tensor([1.0, 1, 1, 0]))),
    "noise of the first step in every step": _noise(lambda n: n._replace(step=torch.zeros_like(n.step))),
    "one key for all": _noise(lambda n: n._replace(keys=n.keys[:1].expand_as(n.keys))),
    "keys of the neighbours": _noise(lambda n: n._replace(keys=n.keys.roll(1, 0))),
    "scales of the neighbours": _noise(lambda n: n._replace(scale=n.scale.roll(1, 0))),
    "a coarse grid": _noise(lambda n: n._replace(grid=n.grid * 2**8)),
    "another divisor": _noise(lambda n: n._replace(divisor=n.divisor + 1)),
    "all parameters alike": _nonces(lambda nonces: nonces * torch.tensor([1, 0], dtype=torch.int32)),
    "every round the first": _keys(lambda clients, round, purposes: (clients, 0, purposes)),
    "one purpose": _keys(lambda clients, round, purposes: (clients, round, ["noise"] * len(purposes))),
    "clients in another order": _keys(lambda clients, round, purposes: (clients[::-1], round, purposes)),
    "a larger rate": _uniforms(lambda drawn: drawn * 0.8),
    "padding counted": _batches(lambda b: b._replace(valid=torch.ones_like(b.valid))),
    "a record lost": _batches(lambda b: b._replace(valid=b.valid & (torch.arange(b.valid.shape[2]) > 0))),
    "a record taken twice": _batches(lambda b: b._replace(places=torch.where(b.valid, b.places[..., :1], b.places))),
    "records of the neighbour": _batches(lambda b: b._replace(places=b.places.roll(1, 1))),
    "batches of the next step": _batches(lambda b: device.Batches(*(each.roll(1, 0) for each in b[:3]))),
    "masks by place, not by record": _masks(lambda picked: torch.arange(picked.shape[1]).expand_as(picked)),
    "masks of the neighbour": _masks(lambda picked: picked.roll(1, 0)),
    "a query too few": _count,
    "the first step again and again": _stuck,
}


@pytest.fixture(scope="module")
def slow():
    return run(Reference, DROPOUT, _differing(), records_of(CASES["dropout"]), Expanded(DROPOUT, SeededDraws(5)), rounds=2)


def _differing(**changed):
    """One kind, all of whose numbers differ."""
    return [
        private("client 0", 5, batch=2, noise_multiplier=0.7, clip_norm=0.1, rounds=2, **changed),
        private("client 1", 9, batch=4, noise_multiplier=0.3, clip_norm=1.0, rounds=2, **changed),
        private("client 2", 1, batch=1, noise_multiplier=2.0, clip_norm=0.2, rounds=2, **changed),
        private("client 3", 7, batch=3, noise_multiplier=0.4, clip_norm=2.0, rounds=2, **changed),
    ]


@pytest.mark.parametrize("name", MUTATIONS)
def test_whatever_is_wrong_with_a_draw_is_noticed(name, slow, monkeypatch):
    MUTATIONS[name](monkeypatch)
    fast = run(OnDevice, DROPOUT, _differing(), records_of(CASES["dropout"]), SeededDraws(5), rounds=2)
    if name == "nothing":
        assert_same(fast, slow, tolerance=CELL)
    else:
        with pytest.raises(AssertionError):
            assert_same(fast, slow, tolerance=CELL)


@pytest.mark.parametrize(
    "performance", [Performance(chunk=1), Performance(chunk=3, records_at_once=1), Performance(share=0.3)]
)
def test_nothing_of_the_client_before_stays_in_a_seat(performance, slow):
    """Chunks of clients whose scales, clips, grids, divisors and batches differ sit in the same rows one after another."""
    records = records_of(CASES["dropout"])
    assert_same(
        run(OnDevice, DROPOUT, _differing(), records, SeededDraws(5), rounds=2, performance=performance), slow, CELL
    )


# ---------------------------------------------------------------------- noise


def test_no_two_noises_are_alike():
    """Every client, round and step has its own: 137 normals each, of which |correlation| > 0.6 has a chance of 1e-14."""
    engine = engine_of(jobs=jobs_of(noise_multiplier=3.0))
    weights = engine.start.expand(4, -1)
    seen = []
    for round in range(3):
        for step in range(2):
            clipped = sums(engine, round, step, ALL, weights)
            divisors = torch.tensor([[3.0], [3.0], [1.0], [3.0]])
            seen += list(gradients(engine, round, step, ALL, weights) * divisors - clipped)
    likeness = torch.corrcoef(torch.stack(seen)).fill_diagonal_(0.0)
    assert likeness.abs().max() < 0.6
    assert noisy_queries(engine) == [6] * 4


def test_seats_that_nobody_has_keep_their_noise_to_themselves():
    """A small group after a large one: the same as if the large one had never been there."""
    engine, fresh = engine_of(jobs=_differing()), engine_of(jobs=_differing())
    gradients(engine, 0, 0, ALL, engine.start.expand(4, -1))
    for group in ([3], [1, 2]):
        weights = engine.start.expand(len(group), -1)
        assert (gradients(engine, 0, 1, group, weights) == gradients(fresh, 0, 1, group, weights)).all()


def test_a_resumed_run_draws_what_it_would_have_drawn(tmp_path):
    whole = run(OnDevice, NET, jobs_of(), records_of(MLP), SeededDraws(2))
    begun = run(OnDevice, NET, jobs_of(), records_of(MLP), SeededDraws(2), rounds=1, folder=tmp_path)
    Checkpoint(tmp_path).save(begun.servers[-1], begun.engine, begun.aggregator, {})
    resume = begun.servers[-1], begun.engine.save(), begun.aggregator.save()
    again = run(OnDevice, NET, jobs_of(), records_of(MLP), SeededDraws(2), folder=tmp_path, resume=resume)
    torch.testing.assert_close(again.weights, whole.weights, rtol=1e-12, atol=1e-12)
    assert again.engine.counters() == whole.engine.counters()


def test_a_run_is_not_resumed_where_its_draws_would_be_others(tmp_path):
    """The same round from other draws, or the same noise on other batches: the difference of the two is not protected."""
    begun = engine_of(folder=tmp_path)
    Checkpoint(tmp_path).save(Server(begun.start), begun, served(begun), {})
    Checkpoint(tmp_path).load(*with_server(engine_of(folder=tmp_path)))
    with pytest.raises(BadValue, match="resume"):
        Checkpoint(tmp_path).load(*with_server(engine_of(Vectorised, folder=tmp_path)))


def test_a_run_is_not_resumed_in_another_arithmetic():
    jobs = jobs_of(unnoised, plan=perturbing())
    records = MLP.records(5, seed=99)
    prints = set()
    for arithmetic in ("float32", "tf32", "bf16"):
        net = Net(MLP.module(), losses.BY_TASK[MLP.task], *records, torch.float32, arithmetic=arithmetic)
        prints.add(engine_of(net=net, jobs=jobs).binding.identity)
    assert len(prints) == 3


# ---------------------------------------------------------------------- batches


SIZED = {"poisson": (3, Sampling.POISSON), "fixed": (3, Sampling.FIXED), "full": ("full", Sampling.POISSON)}


@pytest.mark.parametrize("at_once", [8, 2**24])
@pytest.mark.parametrize("how", SIZED)
def test_batches_are_those_of_the_plan(how, at_once, monkeypatch):
    """Each client's own records, each at most once, those that its uniforms say; nobody's where there are none."""
    monkeypatch.setattr(batches, "AT_ONCE", at_once)
    batch, sampling = SIZED[how]
    sizes, offsets = (5, 0, 1, 40), (0, 5, 5, 6)
    neighbours = Neighbours.ADD_REMOVE if how == "poisson" else Neighbours.REPLACE
    nominal = [max(size, 1) for size in sizes]
    jobs = [private(f"c{i}", n, batch=batch, sampling=sampling, neighbours=neighbours) for i, n in enumerate(nominal)]
    draws = SeededDraws(4)
    members = [Client(job, draws, size, offset=offset) for job, size, offset in zip(jobs, sizes, offsets, strict=True)]
    (keys,) = streams.keys([draws] * len(jobs), [job.client for job in jobs], 2, ["batch"], torch.device("cpu"))
    spec = device.BatchSpec.of(jobs, sizes, replace(jobs[0].upload, steps=6))
    terms = device.BatchTensors(
        *torch.tensor(device._wholes(members, False)[:3]), torch.tensor([device._numbers(job)[-1] for job in jobs])
    )
    found = device.choose(spec, terms, keys)
    for c, (job, size, offset) in enumerate(zip(jobs, sizes, offsets, strict=True)):
        for step in range(6):
            drawn = expanded.uniforms(draws.stream(job.client, 2, "batch"), step, size) if size else np.zeros(0)
            expected = np.arange(size)
            if how == "poisson":
                expected = np.flatnonzero(drawn < job.steps.rate)
            elif how == "fixed":
                expected = np.sort(np.argsort(drawn)[: job.steps.batch])
            valid = found.valid[step, c]
            assert found.picked[step, c][valid].tolist() == expected.tolist()
            assert found.places[step, c][valid].tolist() == (expected + offset).tolist()
            assert found.places[step, c].min() >= 0
            assert found.places[step, c].max() < sum(sizes)


def test_a_batch_that_outgrows_its_room(monkeypatch):
    """Rooms of one record that grow round by round, each client in a chunk of its own."""
    monkeypatch.setattr(vectorised, "width_of", lambda jobs, at_once: 1)
    options = {"performance": Performance(chunk=2), "rounds": 3}
    assert_same(*twins(NET, jobs_of(rounds=3, local_steps=2), records_of(MLP), **options), tolerance=CELL)


def test_clients_without_any_record():
    jobs = jobs_of(sizes=(5, 5), neighbours=Neighbours.ADD_REMOVE)
    x, y = MLP.records(5)
    for present in (0, 5):
        records = [(x[:present], y[:present]), (x[:0], y[:0])]
        assert_same(*twins(NET, jobs, records, rounds=1), tolerance=CELL)


def test_full_batches_of_more_records_than_planned():
    jobs = jobs_of(sizes=(5, 5), batch="full", neighbours=Neighbours.ADD_REMOVE)
    x, y = MLP.records(12)
    assert_same(*twins(NET, jobs, [(x[:9], y[:9]), (x[9:], y[9:])], rounds=2), tolerance=CELL)


@pytest.mark.parametrize("make", ["private", "open", "perturbed"])
def test_a_record_that_is_no_number_harms_nobody_else(make):
    """Neither as padding of another client, nor in a seat that nobody has, nor in the chunk after."""
    jobs = {
        "private": lambda: jobs_of(rounds=1),
        "open": lambda: jobs_of(unnoised),
        "perturbed": lambda: jobs_of(unnoised, plan=perturbing()),
    }[make]()
    records, clean = records_of(MLP), records_of(MLP)
    records[0][0][:] = torch.nan
    for performance in (Performance(), Performance(chunk=2, records_at_once=2)):
        rows = [
            run(OnDevice, NET, jobs, given, SeededDraws(5), rounds=1, performance=performance).uploads[0].rows.value
            for given in (records, clean)
        ]
        assert torch.isfinite(rows[0][1:]).all()
        torch.testing.assert_close(rows[0][1:], rows[1][1:], rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------------- clipping where sums are singles, as on a GPU


def _moved(net, weights, x, y, clip):
    """By how much the last record moves the sum, in clip norms."""
    last = torch.arange(len(x)) < len(x) - 1
    sums = [
        net.clipped_sums(weights[None], x[None], y[None], valid[None], torch.tensor([clip], dtype=torch.float64), {})
        for valid in (last, torch.ones_like(last))
    ]
    return float((sums[1].double() - sums[0].double()).norm()) / clip


SINGLES = OWN_SHARE["float32"] + ONE_PIECE["float32"]


def test_a_scale_too_small_for_a_single_clips_nothing_away():
    """A gradient of 1e38 to 1e45 has a scale that single precision rounds to a few bits, up to twice of what it is."""
    x, y = torch.ones(4, 4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    net = Net(nn.Linear(4, 1, bias=False), losses.BY_TASK["regression"], x, y, torch.float32)
    net.sum_dtype = torch.float32
    for exponent in np.arange(16, 22, 0.02):
        given = torch.full((1, 4), 10.0**exponent)
        assert _moved(net, torch.full((4,), 1e4), given, y[:1].float(), 1.0) <= 1 + SINGLES


class Summed(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(3, 1), nn.Linear(1, 1).requires_grad_(False)

    def forward(self, x):
        return self.head(self.table(x).mean(1))


def test_a_record_of_many_equal_tokens_moves_a_table_no_further():
    """Its gradient is added token by token: hundreds of additions a record, each rounded as the sum is large."""
    x, y = torch.zeros(64, 512, dtype=torch.long), torch.full((64,), 1e3)
    net = Net(Summed(), losses.BY_TASK["regression"], x, y.double(), torch.float32)
    net.sum_dtype = torch.float32
    assert net.grad_method == "bookkeeping"
    for clip in (0.63, 0.66, 0.73, 1.0):
        assert _moved(net, net.initial(), x, y, clip) <= 1 + SINGLES


def in_pieces(net, y, sums):
    """The clipped sum of records with these targets, in pieces of 64 rows as on a GPU."""
    total = torch.zeros(1, 2, dtype=torch.float64)
    for piece in y.split(64):
        rows = torch.zeros(1, 64).double()
        rows[0, : len(piece)] = piece
        valid = torch.arange(64)[None] < len(piece)
        given = torch.zeros(1, 2), torch.zeros(1, 64, 1), rows.float(), valid, torch.ones(1, dtype=torch.float64), {}
        total += net.clipped_sums(*given, Program("bookkeeping", 64, sums)).double()
    return total


@pytest.mark.parametrize(
    ("records", "neighbours", "sums"),
    [(125, Neighbours.REPLACE, torch.float32), (255, Neighbours.REPLACE, torch.float32),
     (16_385, Neighbours.REPLACE, torch.float64), (125, Neighbours.ADD_REMOVE, torch.float64)],
)  # fmt: skip
def test_a_record_that_shifts_all_others_moves_a_sum_of_many_pieces_no_further(records, neighbours, sums):
    """Without the first record every piece begins one record later, and rounds otherwise; here all in one direction."""
    pattern = 0.9 + 0.1 * torch.rand(64, generator=torch.Generator().manual_seed(0))
    net = Net(nn.Linear(1, 1), losses.BY_TASK["regression"], torch.zeros(64, 1).double(), pattern.double(), torch.float32)
    net.sum_dtype = torch.float32
    y = pattern.repeat(1 + records // 64)[:records].double()
    steps = private("a", records, batch=records - 1, neighbours=neighbours).noisy  # nearly all of them
    assert sums_in(steps, neighbours, torch.float32) is sums
    moved = (in_pieces(net, y, sums) - in_pieces(net, y[1:], sums)).norm()
    excess = abs(float(moved) - float(pattern[0]))
    assert excess <= net.margin_for(steps, neighbours)
    assert (excess > CLIP_MARGIN) == (sums is torch.float32)  # singles do round: the margin is needed


# ---------------------------------------------------------------------- optimisers and states


def test_numbers_of_an_optimiser_are_each_clients_own():
    first, second = Optimiser(learning_rate=0.5), Optimiser(learning_rate=0.2, weight_decay=0.5)
    jobs = [private("a", 5, optimiser=first), private("b", 9, optimiser=second)]
    assert_same(*twins(NET, jobs, records_of(MLP, (5, 9)), rounds=2), tolerance=CELL)


class Held(OnDevice):
    """With all states in one tensor, as on a GPU."""

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        for name, slots in (("store", self.slots), ("kept", self.kept_slots)):
            if getattr(self, name):
                shape = len(self.jobs), len(slots), self.net.count
                setattr(self, name, Resident(*shape, self.net.dtype, self.net.device))


@pytest.mark.parametrize(
    ("rule", "delivery", "chunk", "carried"),
    [
        (Alone(publish=True), "pull", 3, True),
        (Proximal(), "push", 0, False),
        (APFL(), "push", 3, True),
        (PFedMe(inner_steps=2), "pull", 0, True),
        (Attentive(), "pull", 3, True),
    ],
)
def test_states_in_one_tensor_are_the_same_states(rule, delivery, chunk, carried):
    jobs = jobs_under(rule, optimiser=Optimiser(name="adam", learning_rate=0.05, carried=carried), participation=0.6)
    options = {
        "rule": rule,
        "delivery": delivery,
        "participation": 0.6,
        "performance": Performance(chunk=chunk),
        "rounds": 2,
    }
    runs = [run(kind, NET, jobs, records_of(MLP), SeededDraws(3), **options) for kind in (Held, OnDevice)]
    assert_same(*runs)


def test_what_was_sent_does_not_change_afterwards():
    engine = engine_of(Held, performance=Performance(chunk=2))
    sent = [ask(engine, round, [1, 2], engine.start) for round in range(2)]
    before = [uploads.rows.value.clone() for uploads in sent]
    ask(engine, 2, ALL, engine.start + 1)
    for uploads, was in zip(sent, before, strict=True):
        assert (uploads.rows.value == was).all()
        assert all((answer(uploads, i).row == row).all() for i, row in enumerate(was))


# ---------------------------------------------------------------------- compiled programs


@pytest.fixture
def traced(monkeypatch):
    """Compiled down to the trace, without a code generator."""
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda graph, **how: compile(graph, backend="eager", **how))


def test_compiled_steps_are_those_of_the_reference(traced):
    how = Optimiser(name="momentum", learning_rate=0.05, weight_decay=0.1)
    jobs = jobs_of(optimiser=how, averaging=0.5, local_steps=3)
    options = {"performance": Performance(compile="on"), "rounds": 1}
    assert_same(*twins(NET, jobs, records_of(MLP), **options), tolerance=CELL)
    assert compiled._ready
    assert not compiled._said


def test_a_program_is_only_given_what_it_was_compiled_for(monkeypatch):
    """Another layout would be compiled again in the middle of a step, and a compiler may refuse then."""

    def layout(given):
        leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(given) if isinstance(leaf, torch.Tensor)]
        return [(leaf.shape, leaf.stride(), leaf.dtype) for leaf in leaves]

    def strict(function, *example):
        expected = layout(example)

        def called(*given):
            assert layout(given) == expected
            return function(*given)

        return called

    monkeypatch.setattr(device, "compiled", strict)
    for make, changed in ((private, {}), (private, {"averaging": 0.5}), (unnoised, {})):
        performance = Performance(compile="on", records_at_once=2)
        run(OnDevice, NET, jobs_of(make, **changed), records_of(MLP), SeededDraws(5), rounds=1, performance=performance)


def test_what_goes_record_by_record_is_not_compiled():
    """Its trace would have as many records as the first batch had, which is none."""
    case = CASES["branching"]
    net = net_of(case)
    assert net.grad_method == "loop"
    options = {"performance": Performance(compile="on"), "rounds": 1}
    fast, slow = twins(net, jobs_of(rounds=1), records_of(case), **options)
    assert not fast.engine.compiles
    assert_same(fast, slow, tolerance=CELL)


def test_programs_that_differ_inside_a_branch_are_two(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda graph, **how: graph)

    def of(factor):
        return lambda x: torch.cond(x.sum() > 0, lambda x: x * factor, lambda x: x - factor, (x,))

    one, other = (compiled.compiled(of(factor), torch.ones(3)) for factor in (2.0, 5.0))
    assert (one(torch.ones(3))[0], other(torch.ones(3))[0]) == (2, 5)


def test_programs_with_other_constants_are_others_even_after_these_are_gone(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda graph, **how: graph)
    for value in range(5):
        constant = torch.full((3,), float(value))
        assert (compiled.compiled(lambda x, c=constant: x * c, torch.ones(3))(torch.ones(3)) == value).all()
        del constant


def test_what_cannot_be_traced_runs_as_it_is(monkeypatch, capsys):
    found = compiled.compiled(lambda x: x * float(x.sum()), torch.ones(3))
    assert found(torch.ones(3)).tolist() == [3, 3, 3]
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_compiler_that_fails_changes_nothing(monkeypatch, capsys):
    def broken(*given):
        raise RuntimeError("no compiler here\nand a long story about it")

    monkeypatch.setattr(torch, "compile", lambda graph, **how: broken)
    options = {"performance": Performance(compile="on"), "rounds": 1}
    assert_same(*twins(NET, jobs_of(), records_of(MLP), **options), tolerance=CELL)
    assert capsys.readouterr().err == "prifedsync: not compiled, so slower: no compiler here\n"
    assert not compiled._ready


@pytest.mark.parametrize("collecting", [True, False])
def test_collecting_garbage_is_as_it_was(collecting):
    try:
        if not collecting:
            gc.disable()
        with device._nothing_collected():
            assert not gc.isenabled()
        assert gc.isenabled() == collecting
    finally:
        gc.enable()


def test_flags_of_products_are_as_they_were():
    """Also where they were set the newer way."""
    flags = torch.backends.cuda.matmul
    before = flags.fp32_precision
    try:
        for precision in ("tf32", "ieee"):
            flags.fp32_precision = precision
            with NET.exact():
                assert flags.fp32_precision == "ieee"
            assert flags.fp32_precision == precision
    finally:
        flags.fp32_precision = before


# ---------------------------------------------------------------------- the GPU's kernels, their arithmetic done by numpy


class Array(np.ndarray):
    def to(self, dtype, bitcast=False):
        plain = np.asarray(self)
        return (plain.view(dtype) if bitcast else plain.astype(dtype)).view(Array)


def array(values, dtype):
    return np.atleast_1d(np.array(values, dtype=dtype)).view(Array)


@pytest.fixture(scope="module")
def kernels():
    """kernels.py with as much of Triton as its arithmetic needs; each operation rounds as the GPU's does."""
    triton, language = types.ModuleType("triton"), types.ModuleType("triton.language")
    triton.jit = lambda function=None, **options: function or (lambda decorated: decorated)
    triton.language = language
    language.constexpr = lambda value: value
    language.float32, language.uint32, language.int32, language.int64 = np.float32, np.uint32, np.int32, np.int64
    language.sqrt, language.floor, language.abs, language.float64 = np.sqrt, np.floor, np.abs, np.float64
    language.where = lambda which, one, other: np.where(which, one, other).astype(np.result_type(one, other)).view(Array)
    language.fma = lambda a, b, c: (a.astype(float) * b.astype(float) + c.astype(float)).astype(np.float32).view(Array)
    path = Path(streams.__file__).with_name("kernels.py")
    spec = importlib.util.spec_from_file_location("prifedsync.local.device.kernels_by_numpy", path)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "triton", triton)
        patch.setitem(sys.modules, "triton.language", language)
        spec.loader.exec_module(module)
    return module


def test_the_kernels_cipher(kernels):
    key = SeededDraws(3).stream("a", 1, "noise")
    words = [array(word, np.uint32) for word in np.frombuffer(key, dtype="<u4")]
    block = kernels._chacha20(*words, array(range(5), np.uint32), array(7, np.uint32), array(70000, np.uint32))
    assert (np.stack(block, 1).ravel() == expanded.words(key, 7, 70000, 80)).all()


def test_the_kernels_pairs(kernels):
    """Also at the ends, at a half, and where a radius is of the first word's last bits alone."""
    dice = np.random.default_rng(0)
    first, second, more = dice.integers(0, 2**32, (3, 100_000), dtype=np.uint32)
    more &= 511
    first[:6] = 0, 2**32 - 1, 2**31 - 1, 2**31, 1, 2**32 - 2
    first[6:500] = dice.integers(0, 2**12, 494)
    first[500:1000] = 2**32 - 1 - dice.integers(0, 2**12, 500)
    second[:2], more[:2] = (0, 2**32 - 1), (0, 511)
    radius, cosine, sine = (
        np.asarray(v, dtype=float) for v in kernels._pair(*(array(v, np.uint32) for v in (first, second, more)))
    )
    whole = (first.astype(np.int64) << 17) + (more.astype(np.int64) << 8) + second % 256
    u, rest = (whole + 0.5) / 2**49, (2**49 - 1 - whole + 0.5) / 2**49
    expected = np.sqrt(-2 * np.where(u < 0.5, np.log(u), np.log1p(-rest)))
    angle = ((second >> 8) % 2**22 + 0.5) / 2**22 * np.pi / 2
    assert abs(radius / expected - 1).max() < 3e-7
    assert abs(cosine - np.cos(angle) * np.where(second >> 30 & 1, -1, 1)).max() < 3e-7
    assert abs(sine - np.sin(angle) * np.where(second >> 31, -1, 1)).max() < 3e-7


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("scale", "records"), [(1.0, 3), (1.3, 64), (0.05, 60), (1.0, 5000), (0.3, 10**6)])
def test_the_kernels_rounding(kernels, scale, records, dtype):
    """On the grid, and nowhere but in the nearest cell; singles are sums of at most 64 records."""
    dice = np.random.default_rng(1)
    grid = noise.grid(scale, records)
    most = records if dtype is np.float64 else min(records, 64)
    total = dice.uniform(-most, most, 50_000).astype(dtype)
    total[:100] = -most
    normal = dice.standard_normal(50_000)
    high = normal.astype(np.float32)
    low = (normal - high).astype(np.float32)
    cells = array(scale / grid * 1.00000012, np.float32)
    assert scale / grid <= cells[0] <= scale / grid * (1 + 3e-7)
    into = types.SimpleNamespace(dtype=types.SimpleNamespace(element_ty=np.float32))
    given = high.view(Array), low.view(Array), array(total, dtype), cells, array(grid, float), array(1 / grid, float)
    found = np.asarray(kernels._noised(*given, np.float32(1), into), dtype=float) / grid
    assert (found == np.round(found)).all()
    assert abs(found - (total.astype(float) / grid + cells[0].astype(float) * normal)).max() < 0.502
