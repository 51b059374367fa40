"""The arithmetic of the training: how exact products are, and how far rounding carries a clipped sum.

The margin is what rounding adds to the distance by which one record may move a clipped sum, as a share of the clip norm.
A record's gradient has the same bits whoever else is in the batch (`invariance.py`). So two roundings are left:
    the record's own share   its norm, its scale, and the product of the two
    the final sum            of b clipped gradients: one record more or less shifts the others by a place
A sum of b vectors of norm at most C, accumulated in any order with unit roundoff u, is off by at most b²·u·C. On a GPU
sums of 64 records are taken in single precision, and those are added up in double precision: 64²·u·C for each 64. Two sums
are compared. Statements and proofs: docs/maths.md, section 18.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

from ...accounting import Neighbours, NoisySteps, Sampling
from ..batches import expected_size
from .persons import FLOOR, UNIT_ROUNDOFF, error

# tf32 and bf16 are the precision of products only: weights are in single precision then.
Arithmetic = Literal["float64", "float32", "tf32", "bf16"]
CLIP_MARGIN = 1e-6  # for norms and sums in double precision; covers 10⁹ parameters and sums of 60,000 records
PIECE = 64  # at most so many clipped gradients are summed in single precision
MOST_PIECES = 4  # single-precision sums in one step; a larger sum is in double precision
DOUBLES_AT_ONCE = 1024  # records whose clipped gradients are summed together in double precision
OWN_SHARE = {"float32": 1e-6, "tf32": 1e-3, "bf16": 1e-3}  # tf32 and bf16: two factors of 11 bits, (1 + 2⁻¹¹)² − 1
# Two sums of 64 vectors in single precision, 2·64²·u. Tensor cores truncate instead of rounding: their u is 2⁻²³.
ONE_PIECE = {"float32": 5e-4, "tf32": 1e-3, "bf16": 1e-3}
TAIL = 100 * math.log(2)  # a Poisson batch exceeds its bound with probability 2⁻¹⁰⁰ in a step


@contextmanager
def exact(arithmetic: Arithmetic) -> Iterator[None]:
    """While it is open, matrix products are as exact as the arithmetic says; torch's settings are restored afterwards."""
    before = [(flag, _allows_tf32(flag), [(each, each.fp32_precision) for each in kinds]) for flag, kinds in _flags()]
    try:
        for flag, _, _ in before:
            flag.allow_tf32 = arithmetic in ("tf32", "bf16")
        yield
    finally:
        for flag, allowed, precisions in before:
            if allowed is not None:
                flag.allow_tf32 = allowed
            for each, precision in precisions:
                if each.fp32_precision != precision:
                    each.fp32_precision = precision


def _flags() -> list[tuple[Any, list[Any]]]:
    """torch's two older flags for tf32, each with the newer settings that it stands for."""
    cudnn: Any = torch.backends.cudnn
    return [(torch.backends.cuda.matmul, [torch.backends.cuda.matmul]), (cudnn, [cudnn.conv, cudnn.rnn])]


def _allows_tf32(flag: Any) -> bool | None:
    """The older flag; None if the newer settings were used, since torch refuses to answer then."""
    try:
        allowed: bool = flag.allow_tf32
    except RuntimeError:
        return None
    return allowed


def fastest_sums(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """What clipped gradients are accumulated in where speed decides.

    A GPU multiplies doubles slowly; what single precision rounds away there is in the clip margin.
    """
    return torch.float32 if device.type == "cuda" and dtype != torch.float64 else torch.float64


def most_summed(steps: NoisySteps, neighbours: Neighbours) -> int:
    """A public bound on the records that one step sums up, from nominal numbers; under add-remove, for twice as many."""
    present = steps.records
    if neighbours is Neighbours.ADD_REMOVE:  # there may be more records than the nominal number
        present *= 2
    if steps.rate >= 1:
        return present
    if steps.sampling is Sampling.FIXED:
        return expected_size(steps)
    mean = steps.rate * present
    beyond = TAIL / 3 + math.sqrt(TAIL**2 / 9 + 2 * TAIL * mean)  # Bernstein's inequality
    return min(present, math.ceil(mean + beyond))


def pieces(steps: NoisySteps, neighbours: Neighbours) -> int:
    """In how many single-precision sums one record can change the rounding."""
    if steps.rate >= 1 and neighbours is Neighbours.REPLACE:
        return 1  # no other record changes its place, so only the sum that holds the record changes
    return math.ceil(most_summed(steps, neighbours) / PIECE)


def sums_in(steps: NoisySteps, neighbours: Neighbours, fastest: torch.dtype) -> torch.dtype:
    """What the clipped gradients of a step are accumulated in; `fastest` is what the device prefers."""
    if neighbours is Neighbours.ADD_REMOVE:  # the number of records is not public
        return torch.float64
    if steps.rows_per_unit > 1:  # a person's rows may be longer than the clip norm, and cancel
        return torch.float64
    few = pieces(steps, neighbours) <= MOST_PIECES
    return fastest if few else torch.float64


def clip_margin(
    steps: NoisySteps, neighbours: Neighbours, arithmetic: Arithmetic, parameters: int, fastest: torch.dtype, terms: int = 0
) -> float:
    """The margin that a plan of these steps needs; `terms` is what one number of a person's norm sums up."""
    if sums_in(steps, neighbours, fastest) == torch.float64:
        own = (parameters + 16) * 2.0**-52
        both_sums = 2 * most_summed(steps, neighbours) ** 2 * 2.0**-53
        return max(CLIP_MARGIN, own + both_sums + _of_persons(steps, neighbours, terms))
    return OWN_SHARE[arithmetic] + pieces(steps, neighbours) * ONE_PIECE[arithmetic]


def most_rows_at_once(rows_per_unit: int) -> int:
    """A bound on the rows of a piece where units have several."""
    return max(DOUBLES_AT_ONCE, 2 * rows_per_unit)


def _of_persons(steps: NoisySteps, neighbours: Neighbours, terms: int) -> float:
    """What comes on top where a unit is a person with several rows.

    the sum     has as many terms as rows, and a person's are together up to 1/FLOOR clip norms long
    the others  their norms may be rounded differently where they come to stand in other rows
    """
    if steps.rows_per_unit == 1:
        return 0.0
    persons = most_summed(steps, neighbours)
    both_sums = 2 * persons**2 * steps.rows_per_unit * UNIT_ROUNDOFF / FLOOR
    others = persons * error(terms, most_rows_at_once(steps.rows_per_unit)) / FLOOR**2
    return both_sums + others
