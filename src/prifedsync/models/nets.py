"""Nets by name: linear models, an MLP, and the paper's two CNNs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import nn

from .. import named
from ..values import BadValue, whole

if TYPE_CHECKING:
    from ..config import ModelConfig

GIVEN_MODEL = "python:model"  # the config's model where it was given from Python
NAMES = ("softmax", "linear", "mlp", "mnist-cnn", "cifar-cnn")


def build(config: ModelConfig, shape: Sequence[int], outputs: int, seed: int) -> nn.Module:
    """The net for records of this shape. The seed decides its initial weights; torch's own random state is not changed."""
    outputs = whole("outputs", outputs, 1)
    seed = whole("seed", seed, 0, 2**63 - 1)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed other devices
        return _net(config, tuple(shape), outputs)


def _net(config: ModelConfig, shape: tuple[int, ...], outputs: int) -> nn.Module:
    if config.name in ("softmax", "linear"):
        return linear(config, shape, outputs)
    if config.name == "mlp":
        return mlp(config, shape, outputs)
    if config.name == "mnist-cnn":
        _takes(config.name, (1, 28, 28), shape)
        return mnist_cnn(outputs, config.dropout)
    if config.name == "cifar-cnn":
        _takes(config.name, (3, 32, 32), shape)
        return cifar_cnn(outputs)
    if config.name == GIVEN_MODEL:
        raise BadValue("model.name", config.name, "was given from Python when this run began", "give it again: model=…")
    if ":" in config.name:
        return _from_function(config.name, shape, outputs)
    near = get_close_matches(config.name, NAMES, 1)
    other = 'choose one of these, or name your own function as "module:function"'
    remedy = f"did you mean {near[0]}?" if near else other
    raise BadValue("model.name", repr(config.name), f"must be one of {', '.join(NAMES)}", remedy)


def _takes(name: str, wanted: tuple[int, ...], shape: tuple[int, ...]) -> None:
    if shape != wanted:
        rule = f"needs records of shape {wanted}, not {shape}"
        remedy = "reshape the records, leave model.features out, or use softmax or mlp"
        raise BadValue("model.name", name, rule, remedy)


def linear(config: ModelConfig, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """One linear layer on the flattened record: softmax, logistic or linear regression, depending on the loss."""
    # Fixed features have unit norm and a constant part, which replaces a bias. A bias would double the squared norm of
    # every per-sample gradient; clipping that costs 3.6 points of accuracy on digits at μ = 1 (20 seeds).
    layer = nn.Linear(math.prod(shape), outputs, bias=config.features == "none")
    if config.zero_init:
        for weights in layer.parameters():
            nn.init.zeros_(weights)
    return nn.Sequential(nn.Flatten(), layer)


def mlp(config: ModelConfig, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Linear layers with tanh between them. Bounded outputs keep gradient norms similar, so that clipping removes less."""
    widths = [math.prod(shape), *(whole("model.hidden", width, 1) for width in config.hidden)]

    def layers() -> Iterator[nn.Module]:
        yield nn.Flatten()
        for before, after in pairwise(widths):
            yield from (nn.Linear(before, after), nn.Tanh())
        yield nn.Linear(widths[-1], outputs)

    return nn.Sequential(*layers())


def mnist_cnn(outputs: int, dropout: bool) -> nn.Module:
    """The paper's net for MNIST, with 1,199,882 parameters for ten outputs. The authors train it with dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        *([nn.Dropout2d(0.25)] if dropout else []),
        nn.Flatten(),
        nn.Linear(9216, 128),
        nn.ReLU(),
        *([nn.Dropout(0.5)] if dropout else []),
        nn.Linear(128, outputs),
    )


def cifar_cnn(outputs: int) -> nn.Module:
    """The paper's net for CIFAR-10. As in the authors' code, there is no activation after the third convolution."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3),
        nn.Flatten(),
        nn.Linear(1024, 64),
        nn.ReLU(),
        nn.Linear(64, outputs),
    )


def _from_function(name: str, shape: tuple[int, ...], outputs: int) -> nn.Module:
    net = named.call("model.name", name, shape, outputs)
    if not isinstance(net, nn.Module):
        rule = f"must return a torch.nn.Module, but returned a {type(net).__name__}"
        raise BadValue("model.name", repr(name), rule, "return the net itself")
    return net
