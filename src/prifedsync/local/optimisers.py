"""What is done with a noisy gradient: post-processing, so it costs no privacy and may carry any state over rounds.

Clients are stacked: weights and state are [C, P], hyperparameters [C, 1]. The formulas are those of torch.optim, with which
the reference engine computes them; weight decay is added to the gradient after the noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..values import BadValue, number, whole

Name = Literal["sgd", "momentum", "adam", "adagrad", "rmsprop"]
SLOTS: dict[Name, tuple[str, ...]] = {  # the vectors each keeps for a client
    "sgd": (),
    "momentum": ("velocity",),
    "adam": ("mean", "square"),
    "adagrad": ("square",),
    "rmsprop": ("square",),
}


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The learning rate's factor in a client's n-th round of its own."""

    kind: Literal["constant", "step", "cosine", "inverse-sqrt"] = "constant"
    every: int = 10
    factor: float = 0.99
    rounds: int = 1  # planned, for cosine

    def __post_init__(self) -> None:
        if self.kind not in ("constant", "step", "cosine", "inverse-sqrt"):
            raise BadValue("schedule", self.kind, "must be constant, step, cosine or inverse-sqrt")
        whole("schedule_every", self.every, 1)
        number("schedule_factor", self.factor, 0, 1, ends="(]")

    def at(self, taken: int) -> float:
        if self.kind == "step":
            return self.factor ** (taken // self.every)
        if self.kind == "cosine":
            return 0.5 * (1 + math.cos(math.pi * min(taken / self.rounds, 1)))
        return 1 / math.sqrt(1 + taken) if self.kind == "inverse-sqrt" else 1.0


@dataclass(frozen=True, kw_only=True)
class Optimiser:
    """One client's optimiser. `stability` is the ε of Adam and its kin, which means something else here."""

    name: Name = "sgd"
    learning_rate: float = 1.0
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    decay: float = 0.99
    stability: float = 1e-8
    weight_decay: float = 0.0
    schedule: Schedule = Schedule()
    carried: bool = True

    def __post_init__(self) -> None:
        if self.name not in SLOTS:
            raise BadValue("optimiser", self.name, f"must be one of {', '.join(SLOTS)}")
        number("learning_rate", self.learning_rate, 0, ends="(]")
        number("momentum", self.momentum, 0, 1, ends="[)")
        for beta in self.betas:
            number("betas", beta, 0, 1, ends="[)")
        number("decay", self.decay, 0, 1, ends="[)")
        number("stability", self.stability, 0, ends="(]")
        number("weight_decay", self.weight_decay, 0)

    @property
    def slots(self) -> tuple[str, ...]:
        return SLOTS[self.name]

    def pace(self, taken: int) -> float:
        """How far a lasting gradient of length one leads in a step of the client's n-th round, for sgd and momentum."""
        slowed = 1 - self.momentum if self.name == "momentum" else 1.0
        return self.learning_rate * self.schedule.at(taken) / slowed


class Stacked:
    """The optimisers of stacked clients: all of one kind, each with its own numbers."""

    def __init__(self, optimisers: list[Optimiser], taken: list[int], like: Tensor) -> None:
        (self.name,) = {o.name for o in optimisers}
        rows = [
            (o.learning_rate * o.schedule.at(t), o.momentum, o.decay, *o.betas, o.stability, o.weight_decay)
            for o, t in zip(optimisers, taken, strict=True)
        ]
        columns = torch.tensor(rows, dtype=like.dtype).T.contiguous().unsqueeze(2)
        self.use(columns.to(like.device, non_blocking=True))
        self.decays = any(o.weight_decay > 0 for o in optimisers)

    def use(self, numbers: Tensor) -> None:
        """The numbers of the clients from now on [7, C, 1]."""
        self.numbers = numbers
        self.rate, self.momentum, self.decay, self.beta1, self.beta2, self.stability, self.weight_decay = numbers

    def step(self, w: Tensor, g: Tensor, slots: dict[str, Tensor], count: Tensor) -> Tensor:
        """The new weights, in the place of `g`, which is used up; `slots` change too, `w` does not.

        `count` [C, 1]: how many steps the state has seen, this one too. A step is all reading and writing memory, so each
        pass over the parameters does as much as it can, and hardly any memory is asked for.
        """
        if self.decays:
            g.addcmul_(w, self.weight_decay)
        if self.name == "sgd":
            return torch.addcmul(w, g, -self.rate, out=g)
        if self.name == "momentum":
            slots["velocity"].mul_(self.momentum).add_(g)
            return torch.addcmul(w, slots["velocity"], -self.rate, out=g)
        if self.name == "adam":
            slots["mean"].lerp_(g, 1 - self.beta1)
            slots["square"].mul_(self.beta2).addcmul_(g.mul_(g), 1 - self.beta2)
            spread = torch.sqrt(slots["square"], out=g).mul_((1 - self.beta2**count).rsqrt()).add_(self.stability)
            return torch.addcmul(w, torch.div(slots["mean"], spread, out=g), -self.rate / (1 - self.beta1**count), out=g)
        spread = g * g
        if self.name == "adagrad":
            slots["square"].add_(spread)
        else:
            slots["square"].mul_(self.decay).addcmul_(spread, 1 - self.decay)
        torch.sqrt(slots["square"], out=spread).add_(self.stability)
        return torch.addcmul(w, g.div_(spread), -self.rate, out=g)
