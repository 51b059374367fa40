"""Nets that only the benchmark needs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import ModelConfig
from ..models import build


def pfl_cnn(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The net of pfl-research's CIFAR-10 benchmark, with 1,626,442 parameters for ten outputs."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * ((shape[1] - 4) // 2) * ((shape[2] - 4) // 2), 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, outputs),
    )


class LinearWithGain(nn.Module):
    """A linear layer with a learned gain per output. There is no layer rule for it."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight = layer.weight
        self.bias = layer.bias
        self.gain = nn.Parameter(torch.ones(len(layer.weight)))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.gain.unsqueeze(1), self.bias)


class ConvWithGain(nn.Module):
    """A convolution with a learned gain per output channel."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.weight = layer.weight
        self.bias = layer.bias
        self.gain = nn.Parameter(torch.ones(len(layer.weight)))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight * self.gain.view(-1, 1, 1, 1), self.bias)


def mnist_with_gains(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The paper's MNIST net with gains in every linear layer and convolution."""

    def changed(layer: nn.Module) -> nn.Module:
        if isinstance(layer, nn.Linear):
            return LinearWithGain(layer)
        return ConvWithGain(layer) if isinstance(layer, nn.Conv2d) else layer

    plain = build(ModelConfig(name="mnist-cnn"), shape, outputs, seed=0)
    return nn.Sequential(*(changed(layer) for layer in plain.children()))
