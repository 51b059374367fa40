"""The optimisers of stacked clients, in one update."""

from __future__ import annotations

import torch
from torch import Tensor

from ...values import BadValue
from .optimiser import Optimiser
from .update import NUMBERS


class Stacked:
    """The optimisers of stacked clients: all of one kind, each with its own numbers."""

    def __init__(self, optimisers: list[Optimiser], taken: list[int], like: Tensor) -> None:
        (self.name,) = {o.name for o in optimisers}
        self.own = optimisers[0].own
        self.update = optimisers[0].update
        if any(o.own is not self.own for o in optimisers):
            raise BadValue("optimiser", self.name, "names two different optimisers", "give each a name of its own")
        rows = [
            (o.rate(t), o.momentum, o.decay, *o.betas, o.stability, o.weight_decay)
            for o, t in zip(optimisers, taken, strict=True)
        ]
        columns = torch.tensor(rows, dtype=like.dtype).T.contiguous().unsqueeze(2)
        self.use(columns.to(like.device, non_blocking=True))
        self.decays = "weight_decay" not in self.update.reads and any(o.weight_decay > 0 for o in optimisers)

    def use(self, numbers: Tensor) -> None:
        """The numbers of the clients from now on [7, C, 1], in the order of NUMBERS."""
        self.numbers = numbers
        self.named: dict[str, Tensor] = dict(zip(NUMBERS, numbers, strict=True))
        self.read = {name: self.named[name] for name in ("rate", *self.update.reads)}

    @property
    def rate(self) -> Tensor:
        return self.named["rate"]

    def step(self, w: Tensor, g: Tensor, slots: dict[str, Tensor], count: Tensor) -> Tensor:
        """The new weights; `g` is used up, `slots` change in place, `w` stays as it is.

        `count` [C, 1]: how many steps the state has seen, this one too.
        """
        if self.decays:
            g.addcmul_(w, self.named["weight_decay"])
        if self.own is None:
            return self.update.step(w, g, slots, self.read, count)
        return self._own_step(w, g, slots, count)

    def _own_step(self, w: Tensor, g: Tensor, slots: dict[str, Tensor], count: Tensor) -> Tensor:
        """A user's update gets copies of what it must not change: where a round began is needed when the round ends."""
        given = {name: slots[name] for name in self.update.slots}
        new = self.update.step(w.clone(), g, given, dict(self.read), count.clone())
        for name in self.update.slots:
            if given[name] is not slots[name]:  # a GPU reads a slot where it was when a step was first taken
                slots[name].copy_(given[name])
        return new
