"""Histograms of oriented gradients for small images of one channel: how strong edges are, by place and direction.

As in Dalal and Triggs (2005): a pixel's gradient is shared between the two nearest of eight directions and the nearest
cells, in proportion to how near they are. Directions go all the way round, since dark to light is not light to dark.
Instead of normalising blocks, the record as a whole gets unit norm, loses a constant, and gets unit norm again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..values import BadValue

DIRECTIONS = 8
SMALLEST, LARGER = 8, 16  # shortest side of an image; from this on, cells are larger
AT_ONCE = 4096  # records, so that memory does not grow with the data
# Roughly a feature's mean over images of strokes, chosen for 128 features; what is the same for all records tells classes
# apart nowhere, and uses up norm that clipping leaves to the rest. A public constant, not a mean of anybody's records.
CONSTANT = 0.07 * math.sqrt(128)  # the norm of what is taken off


@dataclass(frozen=True)
class Hog:
    """The features of images of height × width pixels in square cells of `cell` pixels: unit norm, eight values a cell."""

    height: int
    width: int
    cell: int

    @staticmethod
    def of(shape: tuple[int, ...]) -> Hog:
        """The features for records of this shape: (h, w) or (1, h, w); cells of 2 pixels, of 4 if no side is under 16."""
        sides = shape[1:] if len(shape) == 3 and shape[0] == 1 else shape
        cell = 2 if len(sides) != 2 or min(sides) < LARGER else 4
        if len(sides) != 2 or min(sides) < SMALLEST or any(side % cell for side in sides):
            rule = f"cannot take records of shape {tuple(shape)}: it takes images of one channel, (1, h, w) or (h, w)"
            rule += f", of at least {SMALLEST} pixels a side and a multiple of {cell}"
            raise BadValue("model.features", "hog", rule, 'use model.features = "none"')
        return Hog(sides[0], sides[1], cell)

    @property
    def size(self) -> int:
        """How many features there are."""
        return DIRECTIONS * (self.height // self.cell) * (self.width // self.cell)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """The features [n, size] of images [n, h, w] or [n, 1, h, w]; each record's depend on that record alone."""
        images = x.reshape(-1, self.height, self.width)
        images = images if images.is_floating_point() else images.to(torch.get_default_dtype())
        starts = range(0, max(len(images), 1), AT_ONCE)
        return torch.cat([self._features(images[start : start + AT_ONCE]) for start in starts])

    def _features(self, images: Tensor) -> Tensor:
        framed = torch.nn.functional.pad(images.unsqueeze(1), (1, 1, 1, 1), mode="replicate").squeeze(1)
        across = framed[:, 1:-1, 2:] - framed[:, 1:-1, :-2]
        down = framed[:, 2:, 1:-1] - framed[:, :-2, 1:-1]
        turn = torch.atan2(down, across) * (DIRECTIONS / (2 * math.pi))  # in steps from one direction to the next
        step = torch.arange(DIRECTIONS, dtype=images.dtype, device=images.device).view(-1, 1, 1)
        away = torch.remainder(turn.unsqueeze(1) - step + DIRECTIONS / 2, DIRECTIONS) - DIRECTIONS / 2
        edges = torch.hypot(across, down).unsqueeze(1) * (1 - away.abs()).clamp(min=0)
        rows, columns = self._shares(self.height, images), self._shares(self.width, images)
        histogram = (rows @ edges @ columns.T).flatten(1)
        return unit(unit(histogram) - CONSTANT / math.sqrt(self.size))

    def _shares(self, side: int, like: Tensor) -> Tensor:
        """What share of each pixel along a side goes to each cell: all at its middle, falling to none a cell away."""
        pixels = torch.arange(side, dtype=like.dtype, device=like.device) + 0.5
        middles = (torch.arange(side // self.cell, dtype=like.dtype, device=like.device) + 0.5) * self.cell
        return (1 - (pixels - middles.unsqueeze(1)).abs() / self.cell).clamp(min=0)


def unit(rows: Tensor) -> Tensor:
    """Each row divided by its norm; a row of zeros stays."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / norms.clamp(min=1e-12)
