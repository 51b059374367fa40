"""Clipping by person: the mean of the gradients of a person's rows is one vector, and that is clipped.

Rows of a batch say whose they are by a number (a slot) from 0 to B − 1, one row of each slot or more; padding has slots of
its own. The sum of a person's gradients is not formed where factors are known: the squared norm of Σ d_l·a_lᵀ is
Σ (d_l·d_k)(a_l·a_k) over pairs of the person's rows.

Two things could go wrong, because the gradients of a person's rows may cancel, and a hostile person or server can make
them. Let S be the sum of the norms of the person's gradients.
    the norm   A squared norm that is computed from pairs is off by a small multiple of S², however small it is. That
               multiple is added, so that the computed norm is never below the true one.
    the sum    A row that is far longer than the clip norm would swallow the others when rows are added up. So a norm
               counts as at least FLOOR times the mean norm of the rows. Then the rows of a person, as they are summed,
               are together at most 1/FLOOR clip norms long.
docs/maths.md, section 18, has the proof; `precision.clip_margin` has what is left.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FLOOR = 2.0**-6
UNIT_ROUNDOFF = 2.0**-53
NEGLIGIBLE = 2.0**-500  # gradients as short as this are not scaled before they are squared: no clip norm is near


def summed(values: Tensor, slots: Tensor) -> Tensor:
    """Σ over the rows of each slot: [B, …], [B] → [B, …]; slots without rows have zeros."""
    if values.is_cuda:  # there `index_add` adds in any order; a product with zeros and ones has the same bits every time
        mine = slots.unsqueeze(0) == torch.arange(len(slots), device=slots.device).unsqueeze(1)
        flat = values.flatten(1) if values.dim() > 1 else values.unsqueeze(1)
        return (mine.to(values.dtype) @ flat).reshape(values.shape)
    return torch.zeros_like(values).index_add(0, slots, values)


def rows_of(slots: Tensor, valid: Tensor) -> Tensor:
    """How many valid rows the person of each row has, double [B]; 1 for padding."""
    return summed(valid.double(), slots)[slots].clamp_min(1.0)


def lengths(norms: Tensor, squares: Sequence[Tensor], slots: Tensor, rows: Tensor, terms: int) -> Tensor:
    """For each row, what counts as the norm of its person's mean gradient, double [B].

    norms    of the rows' own gradients, zero for padding
    squares  of each parameter by slot: ‖Σ gradient/S‖² over the rows of the slot
    terms    how many products one entry of `squares` sums up at most
    """
    total = summed(norms, slots)[slots]  # S
    relative = (torch.stack(list(squares)).sum(0)[slots].clamp_min(0.0) + error(terms, rows.shape[0])).sqrt()
    counted = torch.where(total > NEGLIGIBLE, total * relative.clamp_min(FLOOR), total)
    return counted / rows


def error(terms: int, width: int) -> float:
    """How far ‖Σ gradient/S‖² may be off that sums up so many products, and pairs among so many rows."""
    return 4 * (terms + width + 16) * UNIT_ROUNDOFF


def shares(norms: Tensor, slots: Tensor) -> Tensor:
    """1/S for each row, double [B]; zero where nothing is to be scaled, or where a gradient is not finite."""
    total = summed(norms, slots)[slots]
    return torch.where(torch.isfinite(total) & (total > NEGLIGIBLE), 1 / total, 0.0)
