"""The built-in optimisers, with the formulas of torch.optim.

A step is all reading and writing memory, so each pass over the parameters does as much as it can, and hardly any memory is
asked for: new weights take the place of the gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .update import Update

if TYPE_CHECKING:
    from .optimiser import Optimiser


class Sgd(Update):
    name = "sgd"
    proportional = True
    kernel = "sgd"

    def step(self, w: Tensor, g: Tensor, slots: dict[str, Tensor], numbers: Mapping[str, Tensor], count: Tensor) -> Tensor:
        return torch.addcmul(w, g, -numbers["rate"], out=g)

    def torch_twin(self, optimiser: Optimiser, parameters: Iterable[Tensor], rate: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=rate, weight_decay=optimiser.weight_decay)


class Momentum(Update):
    name = "momentum"
    slots = ("velocity",)
    reads = ("momentum",)
    proportional = True
    kernel = "momentum"
    torch_slots = MappingProxyType({"velocity": "momentum_buffer"})

    def step(self, w: Tensor, g: Tensor, slots: dict[str, Tensor], numbers: Mapping[str, Tensor], count: Tensor) -> Tensor:
        slots["velocity"].mul_(numbers["momentum"]).add_(g)
        return torch.addcmul(w, slots["velocity"], -numbers["rate"], out=g)

    def torch_twin(self, optimiser: Optimiser, parameters: Iterable[Tensor], rate: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=rate, momentum=optimiser.momentum, weight_decay=optimiser.weight_decay)

    def momentum_of(self, optimiser: Optimiser) -> float:
        return optimiser.momentum


class Adam(Update):
    name = "adam"
    slots = ("mean", "square")
    reads = ("beta1", "beta2", "stability")
    kernel = "adam"
    torch_slots = MappingProxyType({"mean": "exp_avg", "square": "exp_avg_sq"})

    def step(self, w: Tensor, g: Tensor, slots: dict[str, Tensor], numbers: Mapping[str, Tensor], count: Tensor) -> Tensor:
        beta1 = numbers["beta1"]
        beta2 = numbers["beta2"]
        slots["mean"].lerp_(g, 1 - beta1)
        slots["square"].mul_(beta2).addcmul_(g.mul_(g), 1 - beta2)
        spread = torch.sqrt(slots["square"], out=g).mul_((1 - beta2**count).rsqrt()).add_(numbers["stability"])
        change = torch.div(slots["mean"], spread, out=g)
        return torch.addcmul(w, change, -numbers["rate"] / (1 - beta1**count), out=g)

    def torch_twin(self, optimiser: Optimiser, parameters: Iterable[Tensor], rate: float) -> torch.optim.Optimizer:
        o = optimiser
        return torch.optim.Adam(parameters, lr=rate, betas=o.betas, eps=o.stability, weight_decay=o.weight_decay)


class Adagrad(Update):
    name = "adagrad"
    slots = ("square",)
    reads = ("stability",)
    kernel = "adagrad"
    torch_slots = MappingProxyType({"square": "sum"})

    def step(self, w: Tensor, g: Tensor, slots: dict[str, Tensor], numbers: Mapping[str, Tensor], count: Tensor) -> Tensor:
        spread = g * g
        slots["square"].add_(spread)
        torch.sqrt(slots["square"], out=spread).add_(numbers["stability"])
        return torch.addcmul(w, g.div_(spread), -numbers["rate"], out=g)

    def torch_twin(self, optimiser: Optimiser, parameters: Iterable[Tensor], rate: float) -> torch.optim.Optimizer:
        o = optimiser
        return torch.optim.Adagrad(parameters, lr=rate, eps=o.stability, weight_decay=o.weight_decay)


class RmsProp(Update):
    name = "rmsprop"
    slots = ("square",)
    reads = ("decay", "stability")
    kernel = "rmsprop"
    torch_slots = MappingProxyType({"square": "square_avg"})

    def step(self, w: Tensor, g: Tensor, slots: dict[str, Tensor], numbers: Mapping[str, Tensor], count: Tensor) -> Tensor:
        spread = g * g
        slots["square"].mul_(numbers["decay"]).addcmul_(spread, 1 - numbers["decay"])
        torch.sqrt(slots["square"], out=spread).add_(numbers["stability"])
        return torch.addcmul(w, g.div_(spread), -numbers["rate"], out=g)

    def torch_twin(self, optimiser: Optimiser, parameters: Iterable[Tensor], rate: float) -> torch.optim.Optimizer:
        o = optimiser
        return torch.optim.RMSprop(parameters, lr=rate, alpha=o.decay, eps=o.stability, weight_decay=o.weight_decay)


OPTIMISERS: Mapping[str, Update] = MappingProxyType(
    {update.name: update for update in (Sgd(), Momentum(), Adam(), Adagrad(), RmsProp())}
)
