"""Which units a step looks at: each by its own coin, a subset of fixed size, or all.

A unit is a record, or a person with several. Where it is a person, its rows are packed into pieces of a public width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..accounting import NoisySteps, Sampling
from ..values import BadValue, choice, whole
from .draws import Draws, Key


@dataclass(frozen=True, kw_only=True)
class UnnoisedSteps:
    """Steps without clipping or noise: what is trained so has no guarantee of its own."""

    records: int
    batch: int | Literal["full"]
    local_steps: int
    sampling: Sampling = Sampling.POISSON

    def __post_init__(self) -> None:
        whole("records", self.records, 1)
        whole("local_steps", self.local_steps, 1)
        choice("sampling", self.sampling, Sampling)
        if self.batch != "full" and whole("batch", self.batch, 1) > self.records:
            raise BadValue("batch", self.batch, f"is larger than records = {self.records}", 'take fewer, or batch = "full"')

    @property
    def rate(self) -> float:
        return 1.0 if self.batch == "full" else self.batch / self.records


def expected_size(steps: NoisySteps | UnnoisedSteps) -> int:
    """What a sum over a batch is divided by: a public number, whatever the batch turned out to be."""
    return steps.records if steps.batch == "full" else steps.batch


def choose(steps: NoisySteps | UnnoisedSteps, present: int, client: str, round: int, step: int, draws: Draws) -> Tensor:
    """The units of one step, in ascending order; every step of every round draws its own.

    `present` is how many units there really are; the rate comes from the nominal number.
    """
    if steps.rate >= 1:
        return torch.arange(present)
    uniforms = draws.uniform(Key(client, round, step, "batch"), present)
    if steps.sampling is Sampling.POISSON:
        return torch.nonzero(uniforms < steps.rate).flatten()
    return torch.sort(torch.argsort(uniforms)[: steps.batch]).values


class Packed(NamedTuple):
    """The rows of a batch of persons, in pieces of W rows [..., pieces, W]. All rows of a person are in one piece."""

    unit: Tensor  # int64: which of the batch's persons the row belongs to
    row: Tensor  # int64: its number among that person's rows
    valid: Tensor  # bool: padding is not
    groups: Tensor  # int64: the place in the piece where the person's rows begin; padding has its own place


def packed(rows: Tensor, width: int, most: int) -> Packed:
    """Persons with so many rows each [..., U] one after another; a person with none is not there.

    A person whose rows begin at s, counted from the first row of all, is in piece s // (width − most + 1). So no piece
    has more than `width` rows, as long as nobody has more than `most`.
    """
    begins = width - most + 1
    ends = rows.cumsum(-1)
    starts = ends - rows
    last = torch.where(rows > 0, starts, -1).amax(-1) if rows.shape[-1] else ends.new_full(rows.shape[:-1], -1)
    pieces = int(last.max()) // begins + 1 if last.numel() else 0
    piece = torch.arange(pieces, device=rows.device).unsqueeze(1)
    place = torch.arange(width, device=rows.device)
    at = (piece * begins + place).flatten().expand(*rows.shape[:-1], -1).contiguous()  # in the sequence of all rows
    unit = torch.searchsorted(ends, at, right=True)  # the first person whose rows end after it
    there = unit < rows.shape[-1]
    unit = torch.where(there, unit, 0)
    start = starts.gather(-1, unit)
    shape = (*rows.shape[:-1], pieces, width)
    unit, start, there, at = (each.reshape(shape) for each in (unit, start, there, at))
    valid = there & (start // begins == piece)  # else the person belongs to the piece before
    return Packed(
        unit=torch.where(valid, unit, 0),
        row=torch.where(valid, at - start, 0),
        valid=valid,
        groups=torch.where(valid, start - piece * begins, place),
    )
