"""The per-sample gradients of a batch for one parameter, and their clipped sum.

A gradient is either formed (a tensor for each record) or kept as factors, from which its norm and the sum over records
follow. Norms are computed in double precision, so that they neither overflow nor underflow, whatever weights a hostile
server sends. Sums have the precision of the scales they are taken with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .persons import Groups

SMALLEST_FACTOR = 2.0**-100  # of a product in single precision; subnormal numbers begin at 2⁻¹²⁶
SMALLEST_SCALE = torch.finfo(torch.float64).tiny


class PerRecord(Protocol):
    """The gradients of all records of a batch for one parameter."""

    def parts(self) -> tuple[Tensor, ...]: ...  # [B, …]: all that a record's gradient is a function of
    def norms(self) -> Tensor: ...  # [B], double
    def squares(self, share: Tensor, groups: Groups) -> Tensor: ...  # [B] by group, double: ‖Σ share·gradient‖²
    @property
    def terms(self) -> int: ...  # how many products one of these numbers sums up
    def total(self, scale: Tensor) -> Tensor: ...  # Σ scale_b · gradient_b; a record with scale 0 adds exactly 0


def norm(values: Tensor) -> Tensor:
    """‖·‖₂ over all axes but the first, in double precision; doubles are scaled before they are squared."""
    flat = values.flatten(1)
    if values.dtype != torch.float64:  # the square of a single-precision number neither over- nor underflows as a double
        doubles: Tensor = torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64)
        return doubles
    largest = flat.abs().amax(1).clamp_min(torch.finfo(torch.float64).tiny)
    sizes: Tensor = torch.linalg.vector_norm(flat / largest.unsqueeze(1), dim=1)
    return largest * sizes


def scaled(values: Tensor, scale: Tensor) -> Tensor:
    """Each record times its scale; with scale 0 it is exactly zero, even where the record is not finite."""
    by_record = scale.reshape(-1, *[1] * (values.dim() - 1))
    return torch.where(by_record > 0, values, 0.0).to(scale.dtype).mul_(by_record)


def clip_scale(norms: Sequence[Tensor], valid: Tensor, clip: Tensor, smallest: float = SMALLEST_SCALE) -> Tensor:
    """min(1, clip/‖v‖) for each record, from the norms [B] of its parameters' gradients.

    It is zero for padding and for a gradient that is not finite.
    """
    whole = norm(torch.stack(list(norms), 1))
    scale = torch.clamp(clip.double() / whole, max=1.0)
    usable = torch.isfinite(whole) & (scale >= smallest)  # a subnormal scale has lost precision
    return torch.where(valid & usable, scale, 0.0)


def clipped(
    gradients: Sequence[PerRecord], valid: Tensor, clip: Tensor, sums: torch.dtype = torch.float64,
    groups: Groups | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The clipped sum over records, or over persons where `groups` says whose they are: one vector a parameter.

    It is accumulated in `sums`; where there are persons, in double precision.
    """
    smallest = torch.finfo(sums).tiny  # a smaller scale would be rounded when it is converted, perhaps up
    norms = [each.norms() for each in gradients]
    if groups is None:
        scale = clip_scale(norms, valid, clip, smallest).to(sums)
    else:  # rows may be longer than the clip norm, and cancel: no sum in single precision could hold that
        scale = _person_scale(gradients, norms, valid, clip, groups)
    return tuple(each.total(scale).flatten() for each in gradients)


def _person_scale(
    gradients: Sequence[PerRecord], norms: Sequence[Tensor], valid: Tensor, clip: Tensor, groups: Groups
) -> Tensor:
    """What each row is multiplied with: its person's min(1, clip/‖mean‖), divided by the number of the person's rows."""
    own = torch.where(valid, norm(torch.stack(list(norms), 1)), 0.0)
    share = torch.where(valid, groups.shares(own), 0.0)
    rows = groups.rows(valid)
    squares = [each.squares(share, groups) for each in gradients]
    lengths = groups.lengths(own, squares, rows, max(each.terms for each in gradients))
    return clip_scale([lengths], valid, clip) / rows


@dataclass(frozen=True)
class Formed:
    """Gradients that are held in memory: [B, *shape of the parameter]."""

    gradients: Tensor

    def parts(self) -> tuple[Tensor, ...]:
        return (self.gradients,)

    def norms(self) -> Tensor:
        return norm(self.gradients)

    def squares(self, share: Tensor, groups: Groups) -> Tensor:
        return groups.summed(scaled(self.gradients, share)).flatten(1).square().sum(1)

    @property
    def terms(self) -> int:
        return 0

    def total(self, scale: Tensor) -> Tensor:
        return scaled(self.gradients, scale).sum(0)


@dataclass(frozen=True)
class Outer:
    """Gradients d·aᵀ of a linear layer's weight, never formed: the norm is ‖d‖·‖a‖."""

    d: Tensor
    a: Tensor

    def parts(self) -> tuple[Tensor, ...]:
        return self.d, self.a

    def norms(self) -> Tensor:
        return norm(self.d) * norm(self.a)

    def squares(self, share: Tensor, groups: Groups) -> Tensor:
        length = torch.where(share > 0, self.norms() * share, 0.0)
        d = _directions(self.d, share > 0)
        a = _directions(self.a, share > 0)
        if self.d.shape[1] * self.a.shape[1] <= groups.near:  # a small matrix is formed for less than its pairs cost
            return Formed(d.unsqueeze(2) * a.unsqueeze(1)).squares(length, groups)
        return groups.paired(groups.products(d * length.unsqueeze(1)) * groups.products(a))

    @property
    def terms(self) -> int:
        return self.d.shape[1] + self.a.shape[1]

    def total(self, scale: Tensor) -> Tensor:
        finite_a = torch.where(scale.unsqueeze(1) > 0, self.a, 0.0).to(scale.dtype)
        scaled_d = scaled(self.d, scale)
        if scale.dtype != torch.float64:
            finite_a = _normal(finite_a)
            scaled_d = _normal(scaled_d)
        return scaled_d.T @ finite_a


def _directions(values: Tensor, counted: Tensor) -> Tensor:
    """Rows of length one, double; zero for rows that are zero or do not count."""
    rows = torch.where(counted.unsqueeze(1), values, 0.0).double()
    largest = rows.abs().amax(1, keepdim=True)
    rows = torch.where(largest > 0, rows / largest, 0.0)
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / lengths.clamp_min(1.0)  # a length is at least 1, or 0


def _normal(values: Tensor) -> Tensor:
    """A record becomes zero if all its numbers are near the subnormal range, where single precision loses digits."""
    largest = values.abs().amax(1, keepdim=True)
    return torch.where(largest >= SMALLEST_FACTOR, values, 0.0)


@dataclass(frozen=True)
class Rows:
    """Gradients of an embedding table: a few rows for each record. Equal tokens of one record are added up."""

    tokens: Tensor  # [B, T]
    d: Tensor  # [B, T, D]
    table: int  # rows of the table

    def parts(self) -> tuple[Tensor, ...]:
        return self.tokens, self._shares()

    def _shares(self) -> Tensor:
        """[B, T, D]: the whole gradient of a token's row, divided by how often the token occurs in the record."""
        same = (self.tokens.unsqueeze(2) == self.tokens.unsqueeze(1)).double()
        return torch.bmm(same, self.d.double()) / same.sum(2, keepdim=True)

    def norms(self) -> Tensor:
        same = (self.tokens.unsqueeze(2) == self.tokens.unsqueeze(1)).double()
        return norm(self._shares() * same.sum(2, keepdim=True).sqrt())

    def squares(self, share: Tensor, groups: Groups) -> Tensor:
        """Rows of the table that a person's records share are added up: entries are sorted by person and token."""
        whose = groups.of.unsqueeze(1).expand_as(self.tokens)
        place = (whose * self.table + self.tokens).flatten()
        order = torch.argsort(place, stable=True)
        ordered = place[order]
        begins = torch.cat([torch.zeros_like(ordered[:1]), (ordered[1:] != ordered[:-1]).long()])
        entry_of = begins.cumsum(0)
        entries = scaled(self._shares(), share).flatten(0, 1)[order]
        squares = torch.zeros_like(entries).index_add(0, entry_of, entries).square().sum(1)[entry_of]
        once = torch.cat([torch.ones_like(begins[:1]), begins[1:]])  # a entry_of counts where it begins
        by_group = torch.zeros(len(groups.of), dtype=squares.dtype, device=squares.device)
        return by_group.index_add(0, whose.flatten()[order], torch.where(once > 0, squares, 0.0))

    @property
    def terms(self) -> int:
        return self.tokens.shape[0] * self.tokens.shape[1]

    def total(self, scale: Tensor) -> Tensor:
        # a record may hold many tokens, more than the margin of a single-precision sum covers: so in double precision
        rows = scaled(self._shares(), scale.double()).flatten(0, 1)
        total = rows.new_zeros(self.table, rows.shape[1]).index_add(0, self.tokens.flatten(), rows)
        return total.to(scale.dtype)
