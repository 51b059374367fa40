"""How strongly a model's outputs depend on its weights, measured on made-up records. It is a public number."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

MADE_UP = 8  # records


def output_gradient(model: nn.Module, shape: Sequence[int], norm: float, tokens: bool = False) -> float:
    """The norm of one output's gradient in all weights, for records of this shape and norm that belong to nobody."""
    draw = torch.Generator().manual_seed(0)
    x = torch.rand((MADE_UP, *shape), generator=draw) * 2 - 1
    sizes = x.flatten(1).norm(dim=1).view(-1, *[1] * len(shape))
    records = torch.zeros(x.shape, dtype=torch.int64) if tokens else x * (norm / sizes)
    tried = copy.deepcopy(model).cpu().float().eval()
    weights = [each for each in tried.parameters() if each.requires_grad]
    squares = [_squared(tried, weights, record, place) for place, record in enumerate(records)]
    return max(math.sqrt(sum(squares) / len(squares)), 1e-6)  # a net may start where no output depends on its weights


def _squared(model: nn.Module, weights: list[nn.Parameter], record: Tensor, place: int) -> float:
    """Of the output that has this place, counted round and round."""
    outputs = model(record[None]).flatten()
    gradients = torch.autograd.grad(outputs[place % len(outputs)], weights, allow_unused=True)
    return sum(float(each.double().square().sum()) for each in gradients if each is not None)
