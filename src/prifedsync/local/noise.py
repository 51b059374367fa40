"""The one place where noise is added.

The sum and the noise are doubles; their sum is rounded to a grid that depends on public numbers alone. Plain floating-point
noise has gaps by which an attacker can tell what it was added to (Mironov 2012); a cell of the grid holds so many doubles
that what is left of them after rounding is far below anything accounted. Rounding noised values costs no privacy.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .draws import Draws, Key

GRID_BITS = 12  # grid steps in one standard deviation, as a power of two
EXACT_BITS = 23  # multiples of the grid up to this many bits are exact in single precision


def gaussian(total: Tensor, scale: float, bound: float, draws: Draws, key: Key) -> Tensor:
    """The vector plus N(0, scale²) in each entry; no entry of the vector is beyond `bound`."""
    noised = draws.normal(key, total.numel()).mul_(scale).add_(total.cpu())
    return _to_grid(noised, scale, bound).to(total.device)


def laplace(total: Tensor, scale: float, bound: float, draws: Draws, key: Key) -> Tensor:
    """The vector plus Laplace noise of this scale in each entry."""
    centred = (draws.uniform(key, total.numel()) - 0.5).clamp_(2.0**-54 - 0.5, 0.5 - 2.0**-54)
    noise = -scale * centred.sign() * torch.log1p(-2 * centred.abs())
    return _to_grid(total.double().cpu() + noise, scale, bound).to(total.device)


def _to_grid(noised: Tensor, scale: float, bound: float) -> Tensor:
    step = grid(scale, bound)
    return noised.mul_(1 / step).round_().mul_(step)  # by powers of two, so nothing but the rounding rounds


def grid(scale: float, bound: float) -> float:
    """What noised values are rounded to: a power of two, from public numbers."""
    fine = math.floor(math.log2(scale)) - GRID_BITS
    exact = math.ceil(math.log2(bound + 64 * scale)) - EXACT_BITS
    return 2.0 ** max(fine, exact)
