"""Modules that fail on some records, by names that a document may have."""

import torch
from torch import nn

REACH = 50.0  # a record with a larger entry raises
TOKENS = 5


class Raising(nn.Module):
    """It fails on a record by itself, in the middle of its forward."""

    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, 3)
        with torch.no_grad():
            self.layer.weight.copy_(torch.linspace(0, 1, 3 * width).reshape(3, width))

    def forward(self, x):
        if bool((x > REACH).any()):
            raise ValueError("a value is out of range")
        return self.layer(x)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(TOKENS, 4)
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(self.table(x).mean(1))


def raising(shape, outputs):
    return Raising(shape[0])


def words(shape, outputs):
    return Words()


def linear(shape, outputs):
    return nn.Linear(shape[0], outputs)
