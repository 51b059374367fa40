"""Nets: shapes, sizes, first weights, and refusals."""

import pytest
import torch
from torch import nn

from prifedsync.config import ModelConfig
from prifedsync.models import build, features
from prifedsync.values import BadValue

SHAPES = {
    "softmax": (1, 8, 8),
    "linear": (30,),
    "mlp": (4, 5),
    "mnist-cnn": (1, 28, 28),
    "cifar-cnn": (3, 32, 32),
}


def size(net):
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(("name", "shape"), SHAPES.items())
@pytest.mark.parametrize("outputs", [1, 10])
def test_a_record_in_and_its_outputs_out(name, shape, outputs):
    net = build(ModelConfig(name=name), shape, outputs, 0).eval()
    x = torch.rand(3, *shape)
    with torch.no_grad():
        assert net(x).shape == (3, outputs)
        assert net(x[:0]).shape == (0, outputs)
        assert torch.allclose(net(x)[1], net(x[1:2])[0], atol=1e-6)  # records do not meet


@pytest.mark.parametrize(
    ("name", "parameters"), [("softmax", 650), ("linear", 310), ("mnist-cnn", 1_199_882), ("cifar-cnn", 122_570)]
)
def test_sizes(name, parameters):
    assert size(build(ModelConfig(name=name), SHAPES[name], 10, 0)) == parameters


def test_the_widths_of_an_mlp():
    net = build(ModelConfig(name="mlp", hidden=(7, 5)), (2, 3), 4, 0)
    assert [tuple(layer.weight.shape) for layer in net if isinstance(layer, nn.Linear)] == [(7, 6), (5, 7), (4, 5)]
    assert sum(isinstance(layer, nn.Tanh) for layer in net) == 2
    assert size(build(ModelConfig(name="mlp", hidden=()), (2, 3), 4, 0)) == 28


def test_dropout_can_be_left_out():
    for dropout in (True, False):
        net = build(ModelConfig(name="mnist-cnn", dropout=dropout), (1, 28, 28), 10, 0)
        assert any(isinstance(layer, (nn.Dropout, nn.Dropout2d)) for layer in net) == dropout
        assert size(net) == 1_199_882


@pytest.mark.parametrize("name", SHAPES)
def test_the_seed_decides_the_first_weights_and_nothing_else(name):
    config = ModelConfig(name=name, zero_init=False)
    before = torch.get_rng_state()
    first, again, other = (build(config, SHAPES[name], 3, seed).state_dict() for seed in (4, 4, 5))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not any(torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", ["softmax", "linear"])
def test_linear_models_start_at_zero(name):
    assert not any(p.any() for p in build(ModelConfig(name=name), (5,), 3, 0).parameters())


def test_unit_norm_features_need_no_bias():
    plain, hog = (build(ModelConfig(features=f), (128,), 10, 0) for f in ("none", "hog"))
    assert (size(plain), size(hog)) == (1290, 1280)


def test_a_net_of_your_own(tmp_path):
    (tmp_path / "nets.py").write_text(
        "import math\nfrom torch import nn\n"
        "def net(shape, outputs): return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs))\n"
        "def fixed(): return nn.Linear(4, 2)\n"
    )
    first, again = (build(ModelConfig(name=f"{tmp_path}/nets.py:net"), (2, 3), 4, 1) for _ in range(2))
    assert first(torch.ones(1, 2, 3)).shape == (1, 4)
    assert torch.equal(first[1].weight, again[1].weight)
    assert build(ModelConfig(name=f"{tmp_path}/nets.py:fixed"), (4,), 2, 1)(torch.ones(3, 4)).shape == (3, 2)


@pytest.mark.parametrize(
    ("config", "shape", "says"),
    [
        (ModelConfig(name="mnist-cnn"), (1, 8, 8), ("mnist-cnn", "(1, 28, 28)", "(1, 8, 8)")),
        (ModelConfig(name="mnist-cnn"), (784,), ("(1, 28, 28)", "(784,)")),
        (ModelConfig(name="cifar-cnn"), (1, 28, 28), ("cifar-cnn", "(3, 32, 32)", "(1, 28, 28)")),
        (ModelConfig(name="sofmax"), (3,), ("model.name", "did you mean softmax?")),
        (ModelConfig(name="transformer"), (3,), ("model.name", "module:function")),
        (ModelConfig(name="mlp", hidden=(0,)), (3,), ("model.hidden = 0",)),
        (ModelConfig(name="builtins:dict"), (3,), ("model.name = 'builtins:dict'",)),
        (ModelConfig(name="json:dumps"), (3,), ("model.name = 'json:dumps'",)),
        (ModelConfig(name="no_such_module:net"), (3,), ("model.name", "no module")),
    ],
)
def test_refusals(config, shape, says):
    with pytest.raises(BadValue) as refused:
        build(config, shape, 10, 0)
    assert "\n" not in str(refused.value)
    for part in says:
        assert part in str(refused.value)


@pytest.mark.parametrize(("outputs", "seed"), [(0, 0), (10, -1), (10, 2**63)])
def test_numbers_out_of_range(outputs, seed):
    with pytest.raises(BadValue):
        build(ModelConfig(), (3,), outputs, seed)


def test_features_by_name():
    assert features("none", (3,)) is None
    with pytest.raises(BadValue, match=r"model\.features = 'scattering' must be none or hog"):
        features("scattering", (1, 8, 8))
