"""Histograms of oriented gradients for small images of one channel: the strength of edges by place and direction.

As in Dalal and Triggs (2005), a pixel's gradient is split between the two nearest of eight directions and between the
nearest cells, by linear interpolation. Directions cover the full circle, since an edge from dark to light differs from one
from light to dark. Blocks are not normalised. Instead each record is scaled to unit norm, a constant is subtracted, and it
is scaled to unit norm again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..values import BadValue

DIRECTIONS = 8
SMALLEST = 8  # minimum side of an image, in pixels
LARGER = 16  # images with sides of at least this many pixels have larger cells
AT_ONCE = 4096  # records per batch, so that memory does not grow with the data
# Roughly the mean of a feature over images of strokes, chosen for 128 features. A part that all records share does not help
# to tell classes apart, but it takes up norm that clipping bounds. This is a public constant, not a mean of any records.
CONSTANT = 0.07 * math.sqrt(128)  # the norm of the vector that is subtracted


@dataclass(frozen=True)
class Hog:
    """The features of images of height × width pixels, in square cells of side `cell`: eight values a cell, unit norm."""

    height: int
    width: int
    cell: int

    @staticmethod
    def of(shape: tuple[int, ...]) -> Hog:
        """The features for records of shape (h, w) or (1, h, w). Cells have side 2, or 4 if both h and w are 16 or more."""
        sides = shape[1:] if len(shape) == 3 and shape[0] == 1 else shape
        cell = 2 if len(sides) != 2 or min(sides) < LARGER else 4
        if len(sides) != 2 or min(sides) < SMALLEST or any(side % cell for side in sides):
            rule = f"cannot be computed for records of shape {tuple(shape)}: it needs images of one channel"
            rule += f", (1, h, w) or (h, w), with sides of at least {SMALLEST} pixels that are multiples of {cell}"
            raise BadValue("model.features", "hog", rule, 'set model.features = "none"')
        return Hog(sides[0], sides[1], cell)

    @property
    def size(self) -> int:
        """The number of features."""
        return DIRECTIONS * (self.height // self.cell) * (self.width // self.cell)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """The features [n, size] of images [n, h, w] or [n, 1, h, w]. Each record is treated on its own."""
        images = x.reshape(-1, self.height, self.width)
        images = images if images.is_floating_point() else images.to(torch.get_default_dtype())
        starts = range(0, max(len(images), 1), AT_ONCE)
        return torch.cat([self._features(images[start : start + AT_ONCE]) for start in starts])

    def _features(self, images: Tensor) -> Tensor:
        framed = torch.nn.functional.pad(images.unsqueeze(1), (1, 1, 1, 1), mode="replicate").squeeze(1)
        across = framed[:, 1:-1, 2:] - framed[:, 1:-1, :-2]
        down = framed[:, 2:, 1:-1] - framed[:, :-2, 1:-1]
        turn = torch.atan2(down, across) * (DIRECTIONS / (2 * math.pi))  # in units of the angle between two directions
        step = torch.arange(DIRECTIONS, dtype=images.dtype, device=images.device).view(-1, 1, 1)
        away = torch.remainder(turn.unsqueeze(1) - step + DIRECTIONS / 2, DIRECTIONS) - DIRECTIONS / 2
        edges = torch.hypot(across, down).unsqueeze(1) * (1 - away.abs()).clamp(min=0)
        rows = self._cell_weights(self.height, images)
        columns = self._cell_weights(self.width, images)
        histogram = (rows @ edges @ columns.T).flatten(1)
        return unit(unit(histogram) - CONSTANT / math.sqrt(self.size))

    def _cell_weights(self, side: int, like: Tensor) -> Tensor:
        """The weight of each pixel along a side in each cell: 1 at the middle of the cell, falling to 0 one cell away."""
        pixels = torch.arange(side, dtype=like.dtype, device=like.device) + 0.5
        middles = (torch.arange(side // self.cell, dtype=like.dtype, device=like.device) + 0.5) * self.cell
        return (1 - (pixels - middles.unsqueeze(1)).abs() / self.cell).clamp(min=0)


def unit(rows: Tensor) -> Tensor:
    """Each row divided by its norm. A row of zeros stays as it is."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / norms.clamp(min=1e-12)
