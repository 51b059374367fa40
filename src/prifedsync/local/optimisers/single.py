"""The optimiser of one client, one vector at a time: by torch.optim where torch has it, else by its own update on one row.

The reference engine and the audit take steps with it, so that the stacked updates are compared with somebody else's code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from .optimiser import Optimiser
from .stacked import Stacked


def torch_twin(
    optimiser: Optimiser, parameters: Iterable[Tensor], rate: float | None = None
) -> torch.optim.Optimizer | None:
    """The same optimiser as torch has it; None: torch does not have it. Without a rate: that of the first round."""
    return optimiser.update.torch_twin(optimiser, parameters, optimiser.rate(0) if rate is None else rate)


class Single(ABC):
    """One client's weights [P], and how they take steps."""

    @property
    @abstractmethod
    def weights(self) -> Tensor:
        """Where the client is, in a tensor of its own."""

    @property
    @abstractmethod
    def slots(self) -> dict[str, Tensor]:
        """What the optimiser keeps, [P] each; after at least one step."""

    @abstractmethod
    def step(self, gradient: Tensor) -> None:
        """One step."""


def single(optimiser: Optimiser, taken: int, weights: Tensor, slots: Mapping[str, Tensor], seen: int) -> Single:
    """One client's optimiser in its n-th round; `slots` [P] are what it kept after the `seen` steps before."""
    parameter = nn.Parameter(weights.clone())
    twin = torch_twin(optimiser, [parameter], optimiser.rate(taken))
    if twin is None:
        return _ByRow(optimiser, taken, weights, slots, seen)
    return _ByTorch(optimiser, parameter, twin, slots, seen)


class _ByTorch(Single):
    def __init__(
        self, optimiser: Optimiser, parameter: nn.Parameter, twin: torch.optim.Optimizer, slots: Mapping[str, Tensor],
        seen: int,
    ) -> None:  # fmt: skip
        self._parameter = parameter
        self._twin = twin
        self._names = {name: optimiser.update.torch_slots[name] for name in optimiser.slots}
        if seen:
            state = twin.state[parameter]
            state["step"] = torch.tensor(float(seen))
            for name, theirs in self._names.items():
                state[theirs] = slots[name].clone()

    @property
    def weights(self) -> Tensor:
        return self._parameter.detach().clone()

    @property
    def slots(self) -> dict[str, Tensor]:
        state = self._twin.state[self._parameter]
        return {name: state[theirs] for name, theirs in self._names.items()}

    def step(self, gradient: Tensor) -> None:
        self._parameter.grad = gradient
        self._twin.step()


class _ByRow(Single):
    def __init__(self, optimiser: Optimiser, taken: int, weights: Tensor, slots: Mapping[str, Tensor], seen: int) -> None:
        self._stacked = Stacked([optimiser], [taken], weights)
        self._weights = weights[None].clone()
        self._slots = {name: slots[name][None].clone() for name in optimiser.slots}
        self._count = weights.new_full((1, 1), float(seen))

    @property
    def weights(self) -> Tensor:
        return self._weights[0].clone()

    @property
    def slots(self) -> dict[str, Tensor]:
        return {name: rows[0] for name, rows in self._slots.items()}

    def step(self, gradient: Tensor) -> None:
        self._count += 1
        self._weights = self._stacked.step(self._weights, gradient[None].clone(), self._slots, self._count)
