"""The rivals: plain PyTorch and Opacus, which train clients one after another.

Every client has its own model and optimiser. Its records are on the device, and batches of a fixed size are drawn there, so
that only necessary work is timed.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..local import Net, Optimiser
from ..local.optimisers import torch_twin
from ..run import Prepared
from ..values import BadValue

OpacusWay = Literal["hooks", "ghost"]
Wrap = Callable[[nn.Module, torch.optim.Optimizer], tuple[Any, Any, Any]]  # → model, optimiser, loss


@dataclass(frozen=True)
class One:
    """One client of a loop."""

    model: Any
    optimiser: Any
    loss: Any
    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Loop:
    """One round of clients that are trained one after another."""

    clients: Sequence[One]
    steps: int
    batch: int
    net: Net  # ours: the rivals compute in the same precision

    def __call__(self) -> None:
        with warnings.catch_warnings(), self.net.exact():
            warnings.simplefilter("ignore")  # torch warns about the hooks of Opacus, and the user cannot change that
            for one in self.clients:
                for _ in range(self.steps):
                    picked = torch.randperm(len(one.x), device=one.x.device)[: self.batch]
                    one.optimiser.zero_grad()
                    one.loss(one.model(one.x[picked]), one.y[picked]).backward()
                    one.optimiser.step()


def plain(prepared: Prepared, clients: int) -> Loop:
    """A loop in PyTorch without privacy."""
    return _loop(prepared, clients, lambda model, optimiser: (model, optimiser, nn.CrossEntropyLoss()))


def opacus(prepared: Prepared, clients: int, way: OpacusWay, noise_multiplier: float | None = None) -> Loop | None:
    """A loop in Opacus with the clip norm and noise of the job; None if Opacus is not installed.

    hooks: per-sample gradients of every layer, the default of Opacus. ghost: only their norms, then a second backward pass.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from opacus.grad_sample import (  # type: ignore[import-untyped]
                GradSampleModule,
                GradSampleModuleFastGradientClipping,
            )
            from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping  # type: ignore[import-untyped]
            from opacus.utils.fast_gradient_clipping_utils import (  # type: ignore[import-untyped]
                DPLossFastGradientClipping,
            )
    except ImportError:
        return None
    noisy = prepared.jobs[0].noisy
    assert noisy is not None  # `Workload.config` refuses other jobs
    numbers = {
        "noise_multiplier": noisy.noise_multiplier if noise_multiplier is None else noise_multiplier,
        "max_grad_norm": noisy.clip_norm,
        "expected_batch_size": batch_of(prepared),
    }

    def wrap(model: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[Any, Any, Any]:
        if way == "hooks":
            return GradSampleModule(model), DPOptimizer(optimiser, **numbers), nn.CrossEntropyLoss()
        ghost = GradSampleModuleFastGradientClipping(model, max_grad_norm=noisy.clip_norm, use_ghost_clipping=True)
        private = DPOptimizerFastGradientClipping(optimiser, **numbers)
        return ghost, private, DPLossFastGradientClipping(ghost, private, nn.CrossEntropyLoss())

    return _loop(prepared, clients, wrap)


def batch_of(prepared: Prepared) -> int:
    """The number of records in a batch."""
    batch = prepared.config.local.batch
    return len(prepared.held.clients[0].train) if batch == "full" else batch


def _loop(prepared: Prepared, clients: int, wrap: Wrap) -> Loop:
    net = prepared.net
    dtype = torch.float64 if net.dtype is torch.float64 else torch.float32
    ones = []
    for client, job in zip(prepared.held.clients[:clients], prepared.jobs, strict=False):
        model = copy.deepcopy(prepared.module).to(net.device, dtype).train()
        wrapped = wrap(model, optimiser_of(job.optimiser, model))
        ones.append(One(*wrapped, client.train.x.to(net.device, dtype), client.train.y.to(net.device)))
    return Loop(ones, prepared.config.local.local_steps, batch_of(prepared), net)


def optimiser_of(optimiser: Optimiser, model: nn.Module) -> torch.optim.Optimizer:
    """The torch optimiser. Schedules are left out, since they take no time."""
    twin = torch_twin(optimiser, model.parameters(), optimiser.learning_rate)
    if twin is None:
        rule = "does not exist in torch, which the benchmark compares with"
        remedy = "choose a built-in optimiser, or give yours a torch_twin"
        raise BadValue("local.optimiser", optimiser.name, rule, remedy)
    return twin
