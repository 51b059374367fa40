"""Output perturbation: train as you like, then release one clipped and noised change."""

from __future__ import annotations

import torch
from torch import Tensor

from ..accounting import OutputPerturbation
from . import noise
from .draws import Draws, Key

ROUNDING = 1e-12  # taken off the clip, so that what rounding adds stays under it


def clipped(change: Tensor, mechanism: OutputPerturbation) -> Tensor:
    """The change with norm (L2; L1 for Laplace noise) at most clip_norm, double; nothing if it is not finite."""
    change = change.double()
    if not bool(torch.isfinite(change).all()):
        return torch.zeros_like(change)
    largest = change.abs().max()
    if largest == 0:
        return change
    order = 1 if mechanism.noise == "laplace" else 2
    size = largest * torch.linalg.vector_norm(change / largest, ord=order)
    return change * torch.clamp(mechanism.clip_norm * (1 - ROUNDING) / size, max=1.0)


def released(start: Tensor, trained: Tensor, mechanism: OutputPerturbation, draws: Draws, key: Key) -> noise.NoisySum:
    """start + clipped(trained − start) + noise, with one draw for the whole round."""
    change = clipped(trained.double() - start.double(), mechanism)
    add = noise.laplace if mechanism.noise == "laplace" else noise.gaussian
    noised, queries = add(change, mechanism.noise_scale, mechanism.clip_norm, draws, key)
    return noise.NoisySum((start.double() + noised).to(trained.dtype), queries)
