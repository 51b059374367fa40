"""Clipped sums against an oracle that takes one record at a time: every model and method, padding, what is not finite."""

import pytest
import torch
from torch import nn

from prifedsync.local import Net, losses
from prifedsync.local.net.layers import RULES
from prifedsync.local.net.per_sample import norm

from .zoo import CASES, clipped_sum, gradient_of, with_weights

SIZES = (6, 3)  # records of two stacked clients: the second is padded
METHODS = ("bookkeeping", "vmap", "loop")
RELATIVE = {torch.float32: 1e-5, torch.float64: 1e-12}


def net_of(case, dtype=torch.float64, grad_method=None):
    return Net(case.module(), losses.BY_TASK[case.task], *case.records(5, seed=99), dtype, grad_method=grad_method)


def to(dtype, *tensors):
    """Floating-point numbers in this precision; labels and tokens as they are."""
    return [t.to(dtype) if t.is_floating_point() else t for t in tensors]


def stack(case, net, dtype):
    """Two clients with weights of their own: [C, P], [C, B, …], [C, B], which are real, and dropout masks."""
    dice = torch.Generator().manual_seed(3)
    weights = torch.stack([net.initial() + 0.3 * torch.randn(net.count, generator=dice).to(dtype) for _ in SIZES])
    x, y = to(dtype, *case.records(len(SIZES) * max(SIZES), seed=1))
    valid = torch.arange(max(SIZES)) < torch.tensor(SIZES).unsqueeze(1)
    masks = {
        name: (torch.rand(*valid.shape, *shape, generator=dice) >= rate).to(dtype) / (1 - rate)
        for name, (rate, shape) in net.dropouts.items()
    }
    return weights, x.unflatten(0, valid.shape), y.unflatten(0, valid.shape), valid, masks


def by_hand(case, weights, x, y, valid, clip, masks):
    """The same sums, one record after another, in double precision."""
    rows = []
    for c, size in enumerate(valid.sum(1).tolist()):
        module = with_weights(case.module(), weights[c].double())
        own = [[mask[c, i].double() for mask in masks.values()] for i in range(size)] if masks else None
        records = to(torch.float64, x[c, :size], y[c, :size])
        rows.append(clipped_sum(module, case.task, *records, float(clip[c]), own))
    return torch.stack(rows)


def some_are_clipped(case, weights, x, y):
    """A clip norm for each client: for the first about half of the records are clipped, for the second all."""
    module = with_weights(case.module(), weights[0].double())
    records = zip(*to(torch.float64, x[0], y[0]), strict=True)
    norms = torch.stack([gradient_of(module, case.task, *record).norm() for record in records])
    return torch.stack([norms.median() * 1.0001, norms.min() / 10])


def asked(dtype):
    """Every case by its own method, and by each slower one."""
    for name, case in CASES.items():
        for method in METHODS[METHODS.index(case.grad_method) :]:
            yield pytest.param(case, method, dtype, id=f"{name}-{method}-{str(dtype)[6:]}")


@pytest.mark.parametrize(("case", "method", "dtype"), [*asked(torch.float32), *asked(torch.float64)])
def test_clipped_sums_agree_with_one_record_at_a_time(case, method, dtype):
    net = net_of(case, dtype, method)
    weights, x, y, valid, masks = stack(case, net, dtype)
    clip = some_are_clipped(case, weights, x, y)
    found = net.clipped_sums(weights, x, y, valid, clip, masks)
    truth = by_hand(case, weights, x, y, valid, clip, masks)
    assert found.dtype == torch.float64
    assert torch.all((found - truth).norm(dim=1) <= RELATIVE[dtype] * truth.norm(dim=1))


@pytest.mark.parametrize("name", CASES)
def test_plain_sums_are_plain(name):
    case = CASES[name]
    net = net_of(case)
    weights, x, y, valid, masks = stack(case, net, torch.float64)
    unclipped = by_hand(case, weights, x, y, valid, torch.full((2,), 1e30), masks)
    torch.testing.assert_close(net.plain_sums(weights, x, y, valid, masks), unclipped, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", CASES)
def test_one_client_alone_is_as_it_is_among_others(name):
    """Alone it is computed without the mapping over clients."""
    net = net_of(CASES[name])
    weights, x, y, valid, masks = stack(CASES[name], net, torch.float64)
    clip = some_are_clipped(CASES[name], weights, x, y)
    together = net.clipped_sums(weights, x, y, valid, clip, masks), net.plain_sums(weights, x, y, valid, masks)
    for c in range(len(SIZES)):
        one = slice(c, c + 1)
        own = {name: mask[one] for name, mask in masks.items()}
        given = weights[one], x[one], y[one], valid[one]
        alone = net.clipped_sums(*given, clip[one], own), net.plain_sums(*given, own)
        for found, expected in zip(alone, together, strict=True):
            torch.testing.assert_close(found, expected[one], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", CASES)
def test_the_method_is_the_first_that_is_right(name):
    net = net_of(CASES[name])
    assert net.grad_method == CASES[name].grad_method
    assert bool(net.why) == (net.grad_method != "bookkeeping")


def test_why_a_method_was_not_taken_is_said():
    assert net_of(CASES["tied"]).why == "table.weight is used 2 times"
    assert net_of(CASES["hidden use"]).why == "inner.weight is used 2 times"
    assert net_of(CASES["bare parameter"]).why == "no layer rule for scale"
    assert "vmap" in net_of(CASES["branching"]).why


def test_a_use_that_no_probe_shows_is_clipped_all_the_same():
    """Records of ordinary size cannot tell that the inner weight is used twice; a huge one can, and must be clipped too."""
    case = CASES["hidden use"]
    net = net_of(case)
    weights = net.initial()
    x, y = torch.full((1, 1, 1, 4, 4), 1e5, dtype=torch.float64), torch.tensor([[0]])
    x *= with_weights(case.module(), weights).inner.weight[1].detach().sign().view(4, 4)
    assert gradient_of(case.module(), "classes", x[0, 0], y[0, 0]).norm() > 1e4
    found = net.clipped_sums(weights[None], x, y, torch.tensor([[True]]), torch.tensor([1.0]), {})
    torch.testing.assert_close(found[0], clipped_sum(case.module().double(), "classes", x[0], y[0], 1.0))


# ------------------------------------------------------------------ padding and what is not finite

PADDED = ("mlp", "group norm", "sequence", "layer norm")
BY_METHOD = [(name, method) for name in PADDED for method in METHODS] + [("recurrent", "loop")]


@pytest.mark.parametrize(("name", "method"), BY_METHOD)
@pytest.mark.parametrize("rubbish", [float("nan"), float("inf"), 1e300, 0.0])
def test_padding_adds_exactly_zero_whatever_it_holds(name, method, rubbish):
    case = CASES[name]
    net = net_of(case, grad_method=method)
    weights, x, y, valid, masks = stack(case, net, torch.float64)
    clip = torch.tensor([1.0, 0.5])
    clean = net.clipped_sums(weights, x, y, valid, clip, masks)
    if x.is_floating_point():
        x[~valid] = rubbish
    else:
        x[~valid] = 0
        y[~valid] = (y[~valid] + 1) % 5
    assert torch.equal(net.clipped_sums(weights, x, y, valid, clip, masks), clean)
    nobody = net.clipped_sums(weights, x, y, torch.zeros_like(valid), clip, masks)
    assert torch.equal(nobody, torch.zeros_like(nobody))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["mlp", "conv2d", "group norm", "layer norm"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_record_that_is_not_finite_adds_exactly_zero(name, method, value):
    case = CASES[name]
    net = net_of(case, grad_method=method)
    weights, x, y, valid, masks = stack(case, net, torch.float64)
    x[0, 2].flatten()[3] = value
    clip = torch.tensor([1.0, 0.5])
    without = valid.clone()
    without[0, 2] = False
    assert torch.equal(
        net.clipped_sums(weights, x, y, valid, clip, masks), net.clipped_sums(weights, x, y, without, clip, masks)
    )


@pytest.mark.parametrize("method", METHODS)
def test_weights_that_are_not_finite_leave_nothing(method):
    case = CASES["mlp"]
    net = net_of(case, grad_method=method)
    weights, x, y, valid, masks = stack(case, net, torch.float64)
    weights[0, 5] = float("nan")
    sums = net.clipped_sums(weights, x, y, valid, torch.tensor([1.0, 1.0]), masks)
    assert torch.equal(sums[0], torch.zeros_like(sums[0]))
    assert sums[1].norm() > 0


def test_padding_of_plain_sums_may_be_rubbish_where_nothing_is_real():
    """A client whose batch is empty: zero times NaN is NaN, and must not become its step."""
    case = CASES["mlp"]
    net = net_of(case)
    weights, x, y, valid, masks = stack(case, net, torch.float64)
    valid[1], x[1] = False, float("nan")
    sums = net.plain_sums(weights, x, y, valid, masks)
    assert torch.equal(sums[1], torch.zeros_like(sums[1]))
    assert torch.isfinite(sums[0]).all()
    assert sums[0].norm() > 0


# ------------------------------------------------------------------ norms that neither over- nor underflow


@pytest.mark.parametrize("size", [1e-320, 1e-200, 1e-30, 1.0, 1e30, 1e200, 1e307])
def test_a_norm_is_scaled_before_it_is_squared(size):
    values = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64) * size
    assert norm(values)[0] == pytest.approx(5 * size, rel=1e-14 if size > 1e-300 else 0.01)
    assert norm(values)[1] == 0


def test_a_norm_of_what_is_not_finite_is_not_finite():
    rows = torch.tensor([[1.0, float("nan")], [float("inf"), 1.0], [float("inf"), float("nan")], [1.0, 2.0]])
    assert torch.isfinite(norm(rows)).tolist() == [False, False, False, True]


@pytest.mark.parametrize(("name", "rule"), [(kind.__name__, kind) for kind in RULES], ids=lambda v: str(v)[:12])
def test_every_layer_rule_is_in_the_zoo(name, rule):
    """A new rule needs a case: otherwise nothing above would have seen it."""
    assert any(isinstance(layer, rule) for case in CASES.values() for layer in case.module().modules()), name


# ------------------------------------------------------------------ what goes in and comes out


@pytest.mark.parametrize("name", CASES)
def test_a_plain_state_dict_comes_out(name):
    case = CASES[name]
    net, module = net_of(case), case.module().double()
    weights = net.initial() + 1
    module.load_state_dict(net.state_dict(weights))  # strict: every name, no other
    trained = [p.detach().flatten() for p in module.parameters() if p.requires_grad]
    assert torch.equal(torch.cat(trained), weights)
    for (name, now), before in zip(module.named_parameters(), case.module().double().parameters(), strict=True):
        assert now.requires_grad or torch.equal(now, before), name
    x, _ = case.records(5, seed=2)
    torch.testing.assert_close(net.outputs(weights, x), module.eval()(x))


def test_the_users_module_is_not_touched():
    case = CASES["dropout"]
    module = case.module()
    module.eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    Net(module, losses.classes, *case.records(5), torch.float32)
    assert not module.training
    assert any(isinstance(layer, torch.nn.Dropout) for layer in module.modules())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_one_row_of_outputs_a_record():
    for outputs, task in ((2, "regression"), (2, "binary")):
        module, (x, y) = torch.nn.Linear(3, outputs), (torch.randn(5, 3), torch.zeros(5))
        with pytest.raises(ValueError, match=r"model output = \(4, 2\) does not fit the targets; one row"):
            Net(module, losses.BY_TASK[task], x, y, torch.float32)


def test_a_large_net_without_rules_goes_record_by_record_on_a_cpu():
    """There it is faster than mapping, and gives the same."""

    class Gain(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.gain = nn.Parameter(torch.randn(2, 2**16)), nn.Parameter(torch.ones(2))

        def forward(self, x):
            return x @ (self.weight * self.gain.unsqueeze(1)).T

    module, x, y = Gain(), torch.randn(3, 2**16, dtype=torch.float64), torch.tensor([0, 1, 1])
    chosen, mapped = (Net(module, losses.classes, x, y, torch.float64, grad_method=method) for method in (None, "vmap"))
    assert chosen.grad_method == "loop"
    valid, clip = torch.tensor([[True, False, True]]), torch.tensor([0.1]).double()
    sums = [net.clipped_sums(net.initial()[None], x[None], y[None], valid, clip, {}) for net in (chosen, mapped)]
    torch.testing.assert_close(*sums, rtol=1e-10, atol=1e-12)
