"""Clipping by person: the mean of the gradients of a person's rows is one vector, and that is clipped.

Rows of a batch say whose they are by a number, their group, from 0 to B − 1. Padding has groups of its own. The sum of a
person's gradients is not formed where factors are known: the squared norm of Σ d_l·a_lᵀ is Σ (d_l·d_k)(a_l·a_k) over pairs
of the person's rows.

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
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

FLOOR = 2.0**-6
UNIT_ROUNDOFF = 2.0**-53
NEGLIGIBLE = 2.0**-500  # gradients as short as this are not scaled before they are squared: no clip norm is near


@dataclass(frozen=True)
class Groups:
    """Whose the rows of a batch are. Rows of a person stand side by side, and there are at most `most` of them."""

    of: Tensor  # int64 [B]
    most: int

    def summed(self, values: Tensor) -> Tensor:
        """Σ over the rows of each group: [B, …] → [B, …]; groups without rows have zeros."""
        if values.is_cuda:  # `index_add` adds in any order there, and a product has the same bits every time
            return self.multiplied(values)
        return torch.zeros_like(values).index_add(0, self.of, values)

    def multiplied(self, values: Tensor) -> Tensor:
        """The same sums as a product. Zero times what is not finite is NaN, so that is left out and put in afterwards:
        a person whose gradient is not finite may change nobody else's sum."""
        mine = (self.of.unsqueeze(0) == torch.arange(len(self.of), device=self.of.device).unsqueeze(1)).to(values.dtype)
        flat = values.flatten(1) if values.dim() > 1 else values.unsqueeze(1)
        finite = torch.isfinite(flat)
        total = mine @ torch.where(finite, flat, 0.0)
        broken = mine @ (~finite).to(values.dtype) > 0
        return torch.where(broken, torch.nan, total).reshape(values.shape)

    def rows(self, valid: Tensor) -> Tensor:
        """How many valid rows the person of each row has, double [B]; 1 for padding."""
        return self.summed(valid.double())[self.of].clamp_min(1.0)

    def shares(self, norms: Tensor) -> Tensor:
        """1/S for each row, double [B]; zero where nothing is to be scaled, or where a gradient is not finite."""
        total = self.summed(norms)[self.of]
        return torch.where(torch.isfinite(total) & (total > NEGLIGIBLE), 1 / total, 0.0)

    def lengths(self, norms: Tensor, squares: Sequence[Tensor], rows: Tensor, terms: int) -> Tensor:
        """For each row, what counts as the norm of its person's mean gradient, double [B].

        norms    of the rows' own gradients, zero for padding
        squares  of each parameter by group: ‖Σ gradient/S‖² over the rows of the group
        terms    how many products one entry of `squares` sums up at most
        """
        total = self.summed(norms)[self.of]  # S
        exact = torch.stack(list(squares)).sum(0)[self.of].clamp_min(0.0)
        relative = (exact + error(terms, len(self.of))).sqrt()
        counted = torch.where(total > NEGLIGIBLE, total * relative.clamp_min(FLOOR), total)
        return counted / rows

    # ------------------------------------------------------------------ pairs of rows

    @property
    def near(self) -> int:
        """With how many rows each row is paired: all, or those of its block of rows and of the next."""
        return min(len(self.of), 2 * self._block)

    @property
    def _block(self) -> int:
        """Rows of a block; a person's rows are in one block, or in two that follow each other."""
        return self.most if self.most > 1 and 2 * self.most < len(self.of) else len(self.of)

    def products(self, values: Tensor) -> Tensor:
        """v_l·v_k of rows [B, n]: of each row of a block with all of its block, and with all of the next [2, blocks, …]."""
        blocks = self._blocks(values)
        return torch.stack([blocks @ other.transpose(1, 2) for other in (blocks, blocks.roll(-1, 0))])

    def paired(self, products: Tensor) -> Tensor:
        """Σ over pairs of rows of each person, by group [B]; a pair in two blocks counts for its mirror image too."""
        blocks = self._blocks(self.of.unsqueeze(1), -1).squeeze(2)
        following = torch.cat([blocks[1:], torch.full_like(blocks[:1], -2)])
        mine = torch.stack([blocks.unsqueeze(2) == other.unsqueeze(1) for other in (blocks, following)])
        within, across = torch.where(mine, products, 0.0).sum(3).flatten(1)[:, : len(self.of)]
        return self.summed(within + 2 * across)

    def _blocks(self, values: Tensor, filler: float = 0.0) -> Tensor:
        """Rows [B, n] as blocks [blocks, rows, n]."""
        missing = -len(values) % self._block
        whole = pad(values, (0, 0, 0, missing), value=filler) if missing else values
        blocks: Tensor = whole.unflatten(0, (-1, self._block))
        return blocks


def error(terms: int, width: int) -> float:
    """How far ‖Σ gradient/S‖² may be off that sums up so many products, and pairs among so many rows."""
    return 4 * (terms + width + 16) * UNIT_ROUNDOFF
