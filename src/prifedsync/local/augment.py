"""Data augmentation: random crops and horizontal flips of a batch's records, drawn anew in every step.

A record is augmented before its gradient is computed, once in a step, so it still has one clipped gradient. The augmented
record is a function of the record and of a random draw alone, so the guarantee does not change.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..values import BadValue

PADDING = 4  # an image moves by at most this many pixels in each direction
CHOICES = (2 * PADDING + 1, 2 * PADDING + 1, 2)  # number of values of the move down, the move right and the flip


def moves_from_uniforms(uniforms: Tensor) -> Tensor:
    """Uniform draws in (0, 1) [..., 3] as moves, int64 [..., 3]."""
    return (uniforms * uniforms.new_tensor(CHOICES)).long()


def moves_from_words(words: Tensor) -> Tensor:
    """Random words of 32 bits, int32 [..., 3], as moves, int64 [..., 3]."""
    return (words.long() & 0xFFFFFFFF) * torch.tensor(CHOICES, device=words.device) >> 32


def crop_flip(x: Tensor, moves: Tensor) -> Tensor:
    """Images [..., channels, height, width], each moved and perhaps flipped. Pixels from outside the image are zero."""
    images = x.flatten(0, -4)
    moves = moves.reshape(-1, 3)
    height, width = x.shape[-2:]
    down, right, mirrored = (move.unsqueeze(1) for move in moves.unbind(1))
    across = torch.arange(width, device=x.device)
    rows = torch.arange(height, device=x.device) + down - PADDING  # [N, height]
    columns = torch.where(mirrored > 0, width - 1 - across, across) + right - PADDING  # [N, width]
    inside = _within(rows, height)[:, None, :, None] & _within(columns, width)[:, None, None, :]
    picked = images.gather(2, rows.clamp(0, height - 1)[:, None, :, None].expand_as(images))
    picked = picked.gather(3, columns.clamp(0, width - 1)[:, None, None, :].expand_as(images))
    return torch.where(inside, picked, 0.0).reshape(x.shape)


def _within(places: Tensor, size: int) -> Tensor:
    return (places >= 0) & (places < size)


def check(augment: str, shape: Sequence[int], tokens: bool) -> None:
    """Refuse records that are not images."""
    if augment != "none" and (len(shape) != 3 or tokens):
        rule = f"needs images (channels, height, width), but the records have shape {tuple(shape)}"
        remedy = 'set it to "none"; for images, leave model.features out'
        raise BadValue("local.augment", augment, rule, remedy)
