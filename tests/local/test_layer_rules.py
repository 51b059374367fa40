"""Layer rules from outside the package: used where they are right, and harmless where they are wrong."""

import decimal

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import prifedsync
from prifedsync import models
from prifedsync.engines import Vectorised
from prifedsync.local import Net, Outer, Program, SystemDraws, losses
from prifedsync.local.net import methods
from prifedsync.rules import FedAvg
from prifedsync.values import BadValue

from ..engines.settings import jobs_of

INPUTS, HIDDEN, CLASSES = 6, 4, 3
EPS = {torch.float32: 1e-5, torch.float64: 1e-12}


class Gained(nn.Module):
    """A linear layer with a learned gain for each output: no rule of the package knows it."""

    def __init__(self, inputs=INPUTS, outputs=HIDDEN):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(0)))
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, outputs))

    def forward(self, x):
        return F.linear(x, self.weight * self.gain.unsqueeze(1))


def right(layer, a, d):
    return {"weight": Outer(d * layer.gain, a), "gain": d * (layer.weight @ a)}


def formed(layer, a, d):
    return {"weight": torch.outer(d * layer.gain, a), "gain": d * (layer.weight @ a)}


def small(*between):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(INPUTS, INPUTS), nn.Tanh(), Gained(), nn.Tanh(), *between, nn.Linear(HIDDEN, CLASSES))


def records(count=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, INPUTS, generator=generator), torch.arange(count) % CLASSES


def net_of(rules=None, dtype=torch.float64, module=None, grad_method=None):
    return Net(module or small(), losses.classes, *records(), dtype, grad_method=grad_method, layer_rules=rules)


def stacked(net, clients=2, count=8):
    """Clients with weights and records of their own."""
    generator = torch.Generator().manual_seed(2)
    weights = net.initial() + 0.3 * torch.randn(clients, net.count, generator=generator).to(net.dtype)
    x, y = records(clients * count, seed=3)
    return weights, x.to(net.dtype).unflatten(0, (clients, count)), y.unflatten(0, (clients, count))


def sums_of(net, clip, masks=None):
    weights, x, y = stacked(net)
    valid = torch.ones(x.shape[:2]).bool()
    valid[1, 5:] = False
    return net.clipped_sums(weights, x, y, valid, torch.full((2,), clip), masks or {})


# ------------------------------------------------------------------ a right rule


@pytest.mark.parametrize("rule", [right, formed])
@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("clip", [0.3, 1e3])
def test_a_rule_from_outside_is_used_and_agrees_with_vmap(rule, dtype, clip):
    net = net_of({Gained: rule}, dtype)
    assert (net.grad_method, net.gradients, net.why) == ("bookkeeping", "bookkeeping", "")
    by_vmap = sums_of(net_of(dtype=dtype, grad_method="vmap"), clip)
    assert (sums_of(net, clip) - by_vmap).norm() <= EPS[dtype] * by_vmap.norm()


def test_without_the_rule_it_is_not_bookkeeping():
    net = net_of()
    assert (net.grad_method, net.why) == ("vmap", "no layer rule for 2.gain")


def test_an_outer_product_is_never_formed():
    net = net_of({Gained: right})
    weights, x, y = stacked(net)
    gradients = methods.gradients(net, Program("bookkeeping", 8, torch.float64), weights[0], x[0], y[0], {})
    of_weight = dict(zip(net.names, gradients, strict=True))["2.weight"]
    assert isinstance(of_weight, Outer)
    assert of_weight.d.shape == (8, HIDDEN)


def test_the_module_itself_may_have_a_rule():
    net = net_of({Gained: right}, module=Gained(INPUTS, CLASSES))
    assert net.grad_method == "bookkeeping"
    by_vmap = sums_of(net_of(module=Gained(INPUTS, CLASSES), grad_method="vmap"), 0.3)
    torch.testing.assert_close(sums_of(net, 0.3), by_vmap, rtol=1e-12, atol=1e-14)


def test_frozen_parameters_need_no_gradient():
    module = small()
    module[2].gain.requires_grad_(False)
    assert net_of({Gained: lambda layer, a, d: {"weight": Outer(d * layer.gain, a)}}, module=module).why == ""


class Dropped(nn.Module):
    """A layer whose gradient depends on a dropout inside it."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.weight = nn.Parameter(torch.randn(HIDDEN, INPUTS, generator=torch.Generator().manual_seed(0)))

    def forward(self, x):
        return F.linear(self.drop(x), self.weight)


def test_a_rule_sees_the_dropout_masks_of_its_record():
    def rule(layer, a, d):
        return {"weight": Outer(d, layer.drop(a))}

    def module():
        torch.manual_seed(1)
        return nn.Sequential(Dropped(), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))

    net, by_vmap = net_of({Dropped: rule}, module=module()), net_of(module=module(), grad_method="vmap")
    assert net.grad_method == "bookkeeping"
    masks = {"0.drop.mask": 2.0 * (torch.rand(2, 8, INPUTS, generator=torch.Generator().manual_seed(4)) > 0.5).double()}
    torch.testing.assert_close(sums_of(net, 0.3, masks), sums_of(by_vmap, 0.3, masks), rtol=1e-12, atol=1e-14)
    assert not torch.allclose(sums_of(net, 0.3, masks), sums_of(net, 0.3))


class Normed(nn.Module):
    """A linear layer whose rows have norm one: the weight is used twice, inside the layer."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CLASSES, INPUTS, generator=torch.Generator().manual_seed(0)))

    def forward(self, x):
        return F.linear(x, self.weight / self.weight.norm(dim=1, keepdim=True))


def of_normed(layer, a, d):
    length = layer.weight.norm(dim=1, keepdim=True)
    unit = layer.weight / length
    along = unit @ a
    return {"weight": d.unsqueeze(1) * (a - along.unsqueeze(1) * unit) / length}


def test_a_layer_may_use_its_own_parameters_as_often_as_it_likes():
    assert net_of({Normed: of_normed}, module=Normed()).grad_method == "bookkeeping"


# ------------------------------------------------------------------ uses that a rule does not know of


def test_a_use_outside_the_layer_rules_bookkeeping_out():
    class Outside(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Normed()

        def forward(self, x):
            return self.layer(x) + torch.relu(self.layer.weight.sum() - 1e6)  # zero for all records of ordinary size

    net = net_of({Normed: of_normed}, module=Outside())
    assert (net.grad_method, net.why) == ("vmap", "layer.weight is used 2 times")


def test_a_use_in_a_hook_is_outside_the_layer():
    module = Normed()
    module.register_forward_hook(lambda layer, args, output: output + torch.relu(layer.weight.sum() - 1e6))
    assert net_of({Normed: of_normed}, module=module).why == "weight is used 2 times"


def test_a_layer_that_is_called_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Gained(INPUTS, INPUTS)

        def forward(self, x):
            return self.layer(torch.tanh(self.layer(x)))

    net = net_of({Gained: right}, module=Twice())
    assert (net.grad_method, net.why) == ("vmap", "layer is called 2 times")


def test_a_layer_that_takes_two_tensors():
    class Two(Gained):
        def forward(self, x, y):
            return super().forward(x) + y

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Two(INPUTS, INPUTS)

        def forward(self, x):
            return self.layer(x, x)

    net = net_of({Two: right}, module=Model())
    assert net.why == "bookkeeping: layer is called with 2 positional arguments instead of one tensor"


# ------------------------------------------------------------------ wrong rules


def without_gain(layer, a, d):
    return {"weight": Outer(d * layer.gain, a), "gain": torch.zeros_like(d)}


FIRST = Gained().double()


def stale(layer, a, d):
    """Reads the weights that the module had at first."""
    return {"weight": Outer(d * FIRST.gain.detach(), a), "gain": d * (layer.weight @ a)}


def failing(layer, a, d):
    raise AssertionError("not written yet")


def doubled(layer, a, d):
    return {"weight": Outer(2 * d * layer.gain, a), "gain": d * (layer.weight @ a)}


DIFFERS = "the layer rule of Gained differs from plain autograd in the gradient of "
WRONG = {
    "no gain": (without_gain, DIFFERS + "gain"),
    "twice": (doubled, DIFFERS + "weight"),
    "stale": (stale, DIFFERS + "weight"),
    "nothing": (lambda layer, a, d: None, "the layer rule of Gained returns no gradient of weight"),
    "one alone": (lambda layer, a, d: {"weight": Outer(d, a)}, "the layer rule of Gained returns no gradient of gain"),
    "no tensor": (lambda layer, a, d: {"weight": 1.0, "gain": d}, "returns no tensor and no Outer for weight"),
    "transposed": (lambda layer, a, d: {"weight": Outer(a, d), "gain": d}, "of weight of shape (6, 4) instead of (4, 6)"),
    "failing": (failing, "the layer rule of Gained fails: AssertionError: not written yet"),
    "random": (lambda layer, a, d: {"weight": Outer(d, a), "gain": torch.randn_like(d)}, "the layer rule of Gained fails"),
    "branching": (lambda layer, a, d: right(layer, a, d) if a.sum() > 0 else {}, "the layer rule of Gained fails"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_not_used_and_the_reason_is_said(name):
    rule, reason = WRONG[name]
    net = net_of({Gained: rule})
    assert net.grad_method == "vmap"
    assert net.why.startswith("bookkeeping: ")
    assert reason in net.why
    assert net.gradients == f"vmap (layer rules not used: {net.why})"
    by_vmap = net_of(grad_method="vmap")
    assert torch.equal(sums_of(net, 0.3), sums_of(by_vmap, 0.3))
    with pytest.raises(BadValue, match="has no method for per-sample gradients: bookkeeping: "):
        net_of({Gained: rule}, grad_method="bookkeeping")


# ------------------------------------------------------------------ one record at a time


def test_a_rule_is_given_one_record():
    seen = set()

    def noting(layer, a, d):
        seen.add((tuple(a.shape), tuple(d.shape)))
        return right(layer, a, d)

    sums_of(net_of({Gained: noting}), 0.3)
    assert seen == {((INPUTS,), (HIDDEN,))}


def test_no_rule_reaches_another_record():
    """Whatever a rule sums over, a record's gradient has the same bits when all other records change."""

    def summing(layer, a, d):
        return {"weight": torch.outer(d * layer.gain, a) + 0 * a.sum() * d.mean(), "gain": d * (layer.weight @ a)}

    net = net_of({Gained: summing})
    assert net.grad_method == "bookkeeping"
    weights, x, y = stacked(net)
    program = Program("bookkeeping", x.shape[1], torch.float64)
    before = net.per_record(weights, x, y, {}, program)
    others = x.clone()
    others[:, 1:] *= -3
    after = net.per_record(weights, others, y, {}, program)
    assert all(torch.equal(one[:, 0], other[:, 0]) for one, other in zip(before, after, strict=True))
    assert not all(torch.equal(one[:, 1], other[:, 1]) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("blown", [1e6, 1e300, float("inf"), float("nan")])
def test_a_rule_that_is_wrong_for_rare_records_alone_is_clipped_all_the_same(blown):
    """No test on a few records finds it, and so the clip must not depend on it."""

    def rarely(layer, a, d):
        factor = torch.where(a.abs().max() > 0.999, torch.full_like(d[0], blown), torch.ones_like(d[0]))
        return {"weight": torch.outer(d * layer.gain, a) * factor, "gain": d * (layer.weight @ a)}

    net = net_of({Gained: rarely})
    assert net.grad_method == "bookkeeping"
    weights, x, y = stacked(net, count=1)
    x = 1e3 * x  # the layer's input is a tanh, now near one
    alone = net.clipped_sums(weights, x, y, torch.ones(2, 1).bool(), torch.full((2,), 0.1).double(), {})
    assert torch.all(alone.norm(dim=1) <= torch.full((2,), 0.1).double() * (1 + 1e-12))


# ------------------------------------------------------------------ what secret draws are bound to


def scaled_by(factor):
    def rule(layer, a, d):
        return {"weight": Outer(d * layer.gain, a), "gain": factor * d * (layer.weight @ a)}

    return rule


def test_a_changed_rule_is_another_net():
    one, two = {Gained: scaled_by(1.0)}, {Gained: scaled_by(2.0)}
    codes = [net_of(rules).code for rules in (None, one, two, {Gained: right}, {Gained: formed})]
    assert len(set(codes)) == len(codes)
    assert net_of({Gained: scaled_by(1.0)}).code == codes[1]
    assert net_of({Gained: scaled_by(1.0), Normed: of_normed}).code == codes[1]  # no such layer: nothing depends on it


def again(layer, a, d):
    """The same numbers as `right`, by other code."""
    return {"weight": Outer(layer.gain * d, a), "gain": d * (layer.weight @ a)}


def test_a_changed_rule_changes_what_secret_draws_are_bound_to():
    def binding(rule):
        net = net_of({Gained: rule})
        assert net.grad_method == "bookkeeping"
        return Vectorised(net, jobs_of(sizes=(5,)), [records(5)], FedAvg(), SystemDraws(bytes(32))).binding

    one, same, other = binding(right), binding(right), binding(again)
    assert one.identity == same.identity != other.identity
    assert [name for name in one.parts if one.parts[name] != other.parts[name]] == ["model code"]


def test_a_rule_s_numbers_are_bound_where_its_code_hides_them():
    """A decimal number holds its value where no Python code can look; it changes the last bits of a gradient."""

    def context(hidden):
        number = decimal.Decimal(hidden)

        def rule(layer, a, d):
            return {"weight": Outer(d * layer.gain, a), "gain": float(number) * d * (layer.weight @ a)}

        cohort = Vectorised(net_of({Gained: rule}), jobs_of(sizes=(5,)), [records(5)], FedAvg(), SystemDraws(bytes(32)))
        return cohort.net.code, cohort.context

    one, same, other = context("1"), context("1"), context("1.000000000001")
    assert one == same
    assert one[0] == other[0]
    assert one[1] != other[1]


class Killed(BaseException):
    """The process ends here."""


def test_a_run_does_not_go_on_with_another_rule(tmp_path):
    def killed(event):
        if getattr(event, "round", 0) == 2:
            raise Killed

    given = {"clients": {"a": records(20), "b": records(20, seed=1)}, "model": small()}
    config = {
        "rounds": 3,
        "data": {"classes": CLASSES, "test_fraction": 0},
        "privacy": {"noise_multiplier": 5.0},
        "performance": {"checkpoint_seconds": 0},
    }
    with pytest.raises(Killed):
        prifedsync.train(config, **given, layer_rules={Gained: right}, out=tmp_path / "run", watch=killed)
    for rules in ({Gained: again}, None):
        with pytest.raises(BadValue, match=r"differs from the run that was begun: .*model code"):
            prifedsync.resume(tmp_path / "run", **given, layer_rules=rules)
    assert prifedsync.resume(tmp_path / "run", **given, layer_rules={Gained: right}).server.round == 3


# ------------------------------------------------------------------ what is refused, and rules by name

REFUSED = {
    "layer_rules = Linear already has a rule of the package; give rules for": {nn.Linear: right},
    "layer_rules = Gained is not a module class; use the class of the layer as the key": {"Gained": right},
    "layer_rules of Gained = 3 is not a function; give a function of layer, input and output gradient": {Gained: 3},
    "layer_rules = list is not a mapping": [Gained],
}


@pytest.mark.parametrize("says", REFUSED)
def test_what_is_no_rule_is_refused(says):
    with pytest.raises(BadValue) as refusal:
        net_of(REFUSED[says])
    assert str(refusal.value).startswith(says)


FILE = """
import torch
from torch import nn

class Scaled(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(inputs))

    def forward(self, x):
        return x * self.scale

def of_scaled(layer, a, d):
    return {"scale": FACTOR * a * d}

def model(shape, outputs):
    return nn.Sequential(Scaled(shape[0]), nn.Linear(shape[0], outputs))

def rules():
    return {Scaled: of_scaled}

def no_rules():
    return [Scaled]

FACTOR = 1
"""
CONFIG = {
    "rounds": 1,
    "compare": [],
    "privacy": {"noise_multiplier": 5.0},
    "data": {"source": "breast-cancer", "task": "binary", "clients": 2, "partition": "iid"},
    "model": {"name": "own.py:model", "layer_rules": ["own.py:rules"]},
}


def test_rules_named_in_a_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(FILE)
    assert prifedsync.train(CONFIG).record.gradients.startswith("bookkeeping")
    (tmp_path / "own.py").write_text(FILE.replace("FACTOR = 1", "FACTOR = 2"))
    said = prifedsync.train(CONFIG).record.gradients
    reason = "the layer rule of Scaled differs from plain autograd in the gradient of scale"
    assert said.endswith(f" (layer rules not used: bookkeeping: {reason})")


def test_rules_given_from_python():
    clients = {"a": records(20), "b": records(20, seed=1)}
    config = {"rounds": 1, "data": {"classes": CLASSES, "test_fraction": 0}, "privacy": {"noise_multiplier": 5.0}}
    done = prifedsync.train(config, clients=clients, model=small(), layer_rules={Gained: right})
    assert done.net.grad_method == "bookkeeping"
    assert any(warning.startswith("clients, model, layer rules came from Python") for warning in done.record.warnings)


def test_functions_that_return_no_rules(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(FILE)
    with pytest.raises(BadValue, match=r"model.layer_rules = 'own.py:no_rules' must return a mapping of module"):
        models.layer_rules(["own.py:no_rules"])
    with pytest.raises(BadValue, match=r"model.layer_rules = 'own.py:rules' returns a second rule for Scaled"):
        models.layer_rules(["own.py:rules", "own.py:rules"])
    with pytest.raises(BadValue, match=r"layer_rules = list must be a mapping of module class → rule"):
        models.layer_rules([], [Gained])
