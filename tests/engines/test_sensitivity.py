"""Neighbouring data sets: however one record is replaced or removed, the clipped sum moves no further than accounted."""

from functools import cache

import pytest
import torch
from torch import nn

from prifedsync.accounting import Neighbours
from prifedsync.engines import ENGINES
from prifedsync.local import Net, SeededDraws, losses
from prifedsync.local.job import LARGEST_HELPER
from prifedsync.rules import FedAvg

from ..local.zoo import CASES, CLASSES, TOKENS, Case
from .settings import MLP, ask, jobs_of, net_of, perturbing, private, records_of, sums, unnoised

CLIP = 0.3
ROUNDING = 1 + 1e-9  # the margin that plans must have
RECORDS, REPLACED = 5, 2
ENGINE = pytest.mark.parametrize("kind", ENGINES.values(), ids=ENGINES)
BY_RULE = {  # a layer rule, or a method → a case that needs it
    "Linear": ("mlp", "bookkeeping"),
    "Linear over time": ("linear over time", "bookkeeping"),
    "Conv1d": ("conv1d", "bookkeeping"),
    "Conv2d": ("conv2d stride padding groups", "bookkeeping"),
    "Embedding": ("embedding with padding", "bookkeeping"),
    "LayerNorm": ("layer norm", "bookkeeping"),
    "GroupNorm": ("group norm", "bookkeeping"),
    "all of them": ("sequence", "bookkeeping"),
    "vmap": ("called twice", "vmap"),
    "vmap, tokens": ("tied", "vmap"),
    "vmap, layers": ("group norm", "vmap"),
    "loop": ("branching", "loop"),
    "loop, tokens": ("recurrent", "loop"),
    "loop, layers": ("group norm", "loop"),
}

NUMBERS = {
    "huge": lambda x: 1e30 * x,
    "huger": lambda x: 1e300 * x,
    "tiny": lambda x: 1e-30 * x,
    "zero": lambda x: 0 * x,
    "flipped": lambda x: -x,
    "one huge pixel": lambda x: x.where(x != x.max(), 1e15),
    "nan": lambda x: x * float("nan"),
    "inf": lambda x: x / 0,
}
INTEGERS = {
    "one token": lambda x: x * 0 + TOKENS - 1,
    "padding": lambda x: x * 0,
    "reversed": lambda x: x.flip(0),
    "others": lambda x: (x + 1) % TOKENS,
}


@cache
def net_by(name, method, dtype):
    return net_of(CASES[name], dtype, method)


def engine_of(kind, net, x, y, **changed):
    job = private("a", len(x), batch="full", clip_norm=CLIP, **changed)
    return kind(net, [job], [(x, y)], FedAvg(), SeededDraws(1))


def neighbours_of(case):
    """(name, records, targets): the record replaced by every adversarial one."""
    x, y = case.records(RECORDS, seed=4)
    yield "as it is", x, y
    for name, change in (NUMBERS if x.is_floating_point() else INTEGERS).items():
        other = x.clone()
        other[REPLACED] = change(x[REPLACED])
        yield name, other, y
    label = y.clone()
    label[REPLACED] = (y[REPLACED] + 1) % CLASSES
    yield "another label", x, label


@ENGINE
@pytest.mark.parametrize("rule", BY_RULE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
def test_one_record_moves_the_sum_by_no_more_than_accounted(kind, rule, dtype):
    name, method = BY_RULE[rule]
    net = net_by(name, method, dtype)
    assert net.grad_method == method
    for strength in (1.0, 30.0, 1e6):  # what a server sends may make gradients as large as it likes
        weights = strength * net.initial().expand(1, -1)
        found, contributions = {}, {}
        for adversary, x, y in neighbours_of(CASES[name]):
            found[adversary] = sums(engine_of(kind, net, x, y), 0, 0, [0], weights)
            alone = slice(REPLACED, REPLACED + 1)
            contributions[adversary] = sums(engine_of(kind, net, x[alone], y[alone]), 0, 0, [0], weights)
        others = torch.arange(RECORDS) != REPLACED
        without = sums(engine_of(kind, net, x[others], y[others]), 0, 0, [0], weights)
        for adversary, total in found.items():
            assert torch.isfinite(total).all(), adversary
            assert contributions[adversary].norm() <= CLIP * ROUNDING, adversary
            assert all((total - other).norm() <= 2 * CLIP * ROUNDING for other in found.values()), adversary  # replaced
            # Removed: in single precision the others are rounded differently in a batch of another width, which is why
            # plans about add/remove neighbours are refused there.
            assert dtype is torch.float32 or (total - without).norm() <= CLIP * ROUNDING, adversary
        for broken in found.keys() & {"nan", "inf"}:
            assert torch.equal(contributions[broken], torch.zeros_like(without))
            torch.testing.assert_close(found[broken], without, rtol=1e-5, atol=1e-7)


@ENGINE
@pytest.mark.parametrize("rule", BY_RULE)
def test_the_bound_is_reached(kind, rule):
    """A clip of half the size, or records thrown away, would pass the test above."""
    name, method = BY_RULE[rule]
    net = net_by(name, method, torch.float64)
    weights = 30 * net.initial()
    x, _ = CASES[name].records(1, seed=4)
    unlikely = net.outputs(weights, x).argmin(1)
    far = sums(engine_of(kind, net, x, unlikely), 0, 0, [0], weights.expand(1, -1))
    assert far.norm() == pytest.approx(CLIP, rel=1e-9)


# ------------------------------------------------------------------ a hostile helper

INNER = Case(lambda: nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)), (1,), task="regression")
HOSTILE = [  # a, what the second layer sees, and d, the gradient at its output: ‖a‖²‖d‖² over- or underflows
    (5e17, 1e-19), (5e17, 1e-22), (1e30, 1e-28), (1e30, 1e-25), (1e37, 1e-38), (1e-20, 1e20), (1e-30, 1e30), (2e19, 1.0),
]  # fmt: skip


@ENGINE
@pytest.mark.parametrize("method", ["bookkeeping", "vmap", "loop"])
@pytest.mark.parametrize(("a", "d"), HOSTILE)
def test_a_norm_that_would_underflow_is_clipped(kind, method, a, d):
    """The second layer's gradient is a·d, whatever its factors; the answer is 0 and the target −d."""
    net = Net(INNER.module(), losses.regression, torch.ones(3, 1), torch.zeros(3), torch.float32, grad_method=method)
    x, y = torch.tensor([[1.0]]), torch.tensor([-d])
    engine = kind(net, [private("a", 1, batch="full", clip_norm=1e-3)], [(x, y)], FedAvg(), SeededDraws(1))
    found = sums(engine, 0, 0, [0], torch.tensor([[a, 0.0]]))[0]
    assert found.norm() <= 1e-3 * ROUNDING
    assert found[1].item() == pytest.approx(min(1e-3, a * d), rel=1e-5)


@ENGINE
def test_weights_that_cancel_do_not_make_the_others_move(kind):
    """Large weights whose products cancel: the answers of the other records are rounding, which the batch's width decides.

    In double precision that is nothing. In single precision up to 0.08 clip norms were seen among sixty records.
    """
    case = Case(lambda: nn.Linear(33, CLASSES), (33,))
    net, dice = net_of(case), torch.Generator().manual_seed(0)
    weights, row = (torch.randn(*shape, generator=dice, dtype=torch.float64) for shape in ((CLASSES, 33), (33,)))
    weights = 1e6 * (weights - (weights @ row)[:, None] * row / (row @ row))
    flat = torch.cat([weights.flatten(), torch.zeros(CLASSES)])[None]
    for count in (2, 7, 20):
        x, y = row.repeat(count, 1), torch.zeros(count, dtype=torch.long)
        whole, without = (sums(engine_of(kind, net, x[n:], y[n:]), 0, 0, [0], flat) for n in (0, 1))
        assert (whole - without).norm() <= CLIP * ROUNDING


@ENGINE
@pytest.mark.parametrize("value", [1e30, -1e300, float("inf"), -float("inf"), float("nan")])
def test_what_a_server_sends_is_cut_by_a_public_rule(kind, value):
    """Entries beyond 10⁶ are cut there, and what is no number becomes zero; training starts and ends finite."""
    net, sizes = net_by("mlp", "bookkeeping", torch.float64), (4, 6)
    engine = kind(net, jobs_of(sizes=sizes), records_of(MLP, sizes), FedAvg(), SeededDraws(1))
    sent = engine.start.clone()
    sent[3] = value
    start = sent.clone()
    start[3] = 0.0 if value != value else max(min(value, LARGEST_HELPER), -LARGEST_HELPER)
    rows = ask(engine, 0, [0, 1], sent).rows.value
    assert torch.isfinite(rows).all()
    assert float((rows - start).abs().max()) < 10
    right = kind(net, jobs_of(sizes=sizes), records_of(MLP, sizes), FedAvg(), SeededDraws(1))
    assert torch.equal(ask(engine, 1, [0, 1], sent).rows.value, ask(right, 1, [0, 1], start).rows.value)


# ------------------------------------------------------------------ clients do not see each other's records


@ENGINE
@pytest.mark.parametrize("make", [private, lambda *a: unnoised(*a, plan=perturbing())], ids=["noisy steps", "output"])
@pytest.mark.parametrize("value", [1e30, float("nan"), float("inf")])
def test_a_neighbour_in_the_stack_changes_nothing(kind, make, value):
    """Padding, a shared tensor of all records, one batched program: and yet another client's records cannot be felt."""
    sizes = (4, 9, 2)
    net = net_by("mlp", "bookkeeping", torch.float64)
    clean, dirty = records_of(MLP, sizes), records_of(MLP, sizes)
    dirty[0] = (dirty[0][0] * value, dirty[0][1])
    jobs = [make(f"client {i}", size) for i, size in enumerate(sizes)]
    engines = [kind(net, jobs, records, FedAvg(), SeededDraws(1)) for records in (clean, dirty)]
    uploads = [ask(engine, 0, [0, 1, 2], net.initial()).rows.value for engine in engines]
    assert torch.equal(uploads[0][1:], uploads[1][1:])
    assert not torch.equal(uploads[0][0], uploads[1][0])
    assert torch.isfinite(uploads[1]).all()


@ENGINE
def test_a_record_that_is_nan_leaves_no_trace(kind):
    """Not in what is sent, not in how often, not in what is counted: as if it had not been in any batch."""
    net, (x, y) = net_by("mlp", "bookkeeping", torch.float64), MLP.records(6, seed=10)
    x[5] = float("nan")
    job = private("a", 6, batch=3, neighbours=Neighbours.ADD_REMOVE)
    broken = kind(net, [job], [(x, y)], FedAvg(), SeededDraws(3))
    removed = kind(net, [job], [(x[:5], y[:5])], FedAvg(), SeededDraws(3))
    rows = [ask(engine, 0, [0], engine.start).rows.value for engine in (broken, removed)]
    torch.testing.assert_close(*rows, rtol=1e-12, atol=1e-12)
    assert broken.counters() == removed.counters()
