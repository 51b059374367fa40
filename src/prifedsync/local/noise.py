"""The one home of noise, on the host and on a device. Whoever adds it says how many noisy queries that made, and the
counts of a run are sums of these answers. On a GPU one kernel (`device/kernels.py`) adds the same noise, counts it in the
same place and takes the optimiser's step in one pass.

The sum and the noise are doubles; their sum is rounded to a grid that depends on public numbers alone. Plain floating-point
noise has gaps by which an attacker can tell what it was added to (Mironov 2012); a cell of the grid holds so many doubles
that what is left of them after rounding is far below anything accounted. Rounding noised values costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .device import streams
from .draws import Draws, Key

GRID_BITS = 12  # grid steps in one standard deviation, as a power of two
EXACT_BITS = 23  # multiples of the grid up to this many bits are exact in single precision


# ---------------------------------------------------------------------- on the host


class NoisySum(NamedTuple):
    """A vector with noise in it, and the number of noisy queries it took."""

    value: Tensor
    queries: int


def gaussian(total: Tensor, scale: float, bound: float, draws: Draws, key: Key) -> NoisySum:
    """The vector plus N(0, scale²) in each entry; no entry of the vector is beyond `bound`."""
    noised = draws.normal(key, total.numel()).mul_(scale).add_(total.cpu())
    return NoisySum(_to_grid(noised, scale, bound).to(total.device), 1)


def integers(total: Tensor, scale: float, factor: float, grid: float, draws: Draws, key: Key) -> NoisySum:
    """factor·(the vector plus N(0, scale²)) in cells of a grid, a power of two: integers, int64, that can be added up."""
    noised = draws.normal(key, total.numel()).mul_(scale).add_(total.cpu())
    return NoisySum(noised.mul_(factor / grid).round_().long().to(total.device), 1)


def laplace(total: Tensor, scale: float, bound: float, draws: Draws, key: Key) -> NoisySum:
    """The vector plus Laplace noise of this scale in each entry."""
    centred = (draws.uniform(key, total.numel()) - 0.5).clamp_(2.0**-54 - 0.5, 0.5 - 2.0**-54)
    noise = -scale * centred.sign() * torch.log1p(-2 * centred.abs())
    return NoisySum(_to_grid(total.double().cpu() + noise, scale, bound).to(total.device), 1)


def _to_grid(noised: Tensor, scale: float, bound: float) -> Tensor:
    step = grid(scale, bound)
    return noised.mul_(1 / step).round_().mul_(step)  # by powers of two, so nothing but the rounding rounds


def grid(scale: float, bound: float) -> float:
    """What noised values are rounded to: a power of two, from public numbers."""
    fine = math.floor(math.log2(scale)) - GRID_BITS
    exact = math.ceil(math.log2(bound + 64 * scale)) - EXACT_BITS
    return 2.0 ** max(fine, exact)


# ---------------------------------------------------------------------- on a device


class DeviceNoise(NamedTuple):
    """What is added to the sums of stacked clients on a device, and the count of it, which the device keeps."""

    keys: Tensor  # int32 [C, 8]
    step: Tensor  # int32 [1]
    scale: Tensor  # double [C]
    grid: Tensor  # double [C]
    divisor: Tensor  # double [C]
    made: Tensor  # int32 [C, parts]: how often noise was added to each part

    def queries(self, clients: int) -> list[int]:
        """How many noisy queries were made for each of the first clients. It waits for the device."""
        counts = self.made[:clients].tolist()
        for count in counts:
            if len(set(count)) > 1:
                raise RuntimeError(f"noise was added to the parameters {count} times, and must be added to all alike")
        return [count[0] for count in counts]


def add_normals(parts: Sequence[Tensor], noise: DeviceNoise, out: Tensor) -> Tensor:
    """Each part [C, size] plus normals times the scale, rounded to the grid, over the divisor, side by side in `out`.

    A part has a nonce of its own, its place in the list; coordinate j·Q + q of it is the j-th normal of block q.
    """
    if out.is_cuda and streams.kernels_there():
        from .device import kernels

        return kernels.add_normals(parts, noise, out)
    scale = noise.scale.unsqueeze(1)
    grid = noise.grid.unsqueeze(1)
    divisor = noise.divisor.unsqueeze(1)
    at = 0
    for place, part in enumerate(parts):
        nonce = torch.stack([noise.step, torch.full_like(noise.step, place)], 1).expand(len(out), 1, 2)
        noised = part.double() + streams.normals(noise.keys, nonce, part.shape[1]).squeeze(1) * scale
        # the grid is a power of two: only the rounding rounds
        out[:, at : at + part.shape[1]] = (noised / grid).round() * grid / divisor
        noise.made[:, place] += 1
        at += part.shape[1]
    return out


def add_normals_in_cells(parts: Sequence[Tensor], noise: DeviceNoise, cells: Tensor) -> Tensor:
    """The same in cells of this size [C], which need not be powers of two: integers, int64 [C, P].

    In double precision, since every integer must be exact: with single sums the largest would be rounded to even ones.
    """
    doubles = [part.double() for part in parts]
    out = torch.empty(len(cells), sum(part.shape[1] for part in parts), dtype=torch.float64, device=cells.device)
    return add_normals(doubles, noise._replace(grid=cells, divisor=cells), out).round_().long()
