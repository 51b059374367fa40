"""How far rounding can carry a clipped sum beyond what one record may move it, as a share of the clip norm.

A record's gradient has the same bits whoever else is in the batch (`invariance.py`). So two things are left that round:
    the record's own share   its norm, its scale, and the product of the two
    the final sum            of b clipped vectors, which one record more or less may shift by a place
A sum of b vectors of length C at most, added up in any order with unit roundoff u, is off by at most b²·u·C. On a GPU sums
are singles in pieces of 64 records, whose sums are added up in double precision: 64²·u·C a piece. Two sums are compared.
Statements and proofs: docs/maths.md, section 18.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

from ..accounting import Neighbours, NoisySteps, Sampling
from .batches import expected_size

Arithmetic = Literal["float64", "float32", "tf32", "bf16"]  # the last two are of products only; weights are singles then
CLIP_MARGIN = 1e-6  # where norms and sums are doubles; covers nets of 10⁹ parameters and sums of 60,000 records
PIECE = 64  # records whose clipped gradients are summed in single precision at most
MOST_PIECES = 4  # of single precision in one step; larger sums are doubles
OWN_SHARE = {"float32": 1e-6, "tf32": 1e-3, "bf16": 1e-3}  # tf32 and bf16: two factors of 11 bits, (1 + 2⁻¹¹)² − 1
# Two sums of 64 vectors in single precision, 2·64²·u. Tensor cores cut off instead of rounding: their u is 2⁻²³.
ONE_PIECE = {"float32": 5e-4, "tf32": 1e-3, "bf16": 1e-3}
TAIL = 100 * math.log(2)  # a Poisson batch exceeds its bound with probability 2⁻¹⁰⁰ in a step


def most_summed(steps: NoisySteps, neighbours: Neighbours) -> int:
    """A public bound on how many records one step sums up; nominal numbers only, and room for twice as many."""
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
    """In how many pieces of single precision one record can change the rounding."""
    if steps.rate >= 1 and neighbours is Neighbours.REPLACE:
        return 1  # nobody moves, and only the piece that holds the record changes
    return math.ceil(most_summed(steps, neighbours) / PIECE)


def sums_in(steps: NoisySteps, neighbours: Neighbours, fastest: torch.dtype) -> torch.dtype:
    """What the clipped vectors of a step are added up in; `fastest` is what the device prefers."""
    if neighbours is Neighbours.ADD_REMOVE:  # how many there really are is not known
        return torch.float64
    few = pieces(steps, neighbours) <= MOST_PIECES
    return fastest if few else torch.float64


def clip_margin(
    steps: NoisySteps, neighbours: Neighbours, arithmetic: Arithmetic, parameters: int, fastest: torch.dtype
) -> float:
    """The margin that a plan of these steps needs."""
    if sums_in(steps, neighbours, fastest) == torch.float64:
        own = (parameters + 16) * 2.0**-52
        both_sums = 2 * most_summed(steps, neighbours) ** 2 * 2.0**-53
        return max(CLIP_MARGIN, own + both_sums)
    return OWN_SHARE[arithmetic] + pieces(steps, neighbours) * ONE_PIECE[arithmetic]
