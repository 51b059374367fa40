"""Which units stacked clients look at, chosen on the device from their own streams, and where their rows are.

Axis letters: C clients, K local steps, W rows of a batch, padding included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ...accounting import Sampling
from ..batches import expected_size, packed
from ..host import Persons
from ..job import Job, Phase
from . import streams

AT_ONCE = 2**24  # uniforms that are drawn together when batches are chosen


class Batches(NamedTuple):
    """Which rows each step of a round looks at."""

    picked: Tensor  # int64 [K, C, W]: a client's own numbering; padding repeats a record of the batch
    places: Tensor  # int64 [K, C, W]: among all records
    valid: Tensor  # bool [K, C, W]
    groups: Tensor | None = None  # int64 [K, C, W]: rows of a piece with the same group are one person's


@dataclass(frozen=True)
class BatchSpec:
    """How all clients of one kind draw their batches, and the largest numbers among them."""

    kind: Literal["full", "poisson", "fixed"]
    steps: range  # their numbers in the round
    records: int
    batch: int

    @staticmethod
    def of(jobs: Sequence[Job], sizes: Sequence[int], phase: Phase) -> BatchSpec:
        steps, numbers = jobs[0].steps, range(phase.first, phase.first + phase.steps)
        records, batch = max(1, *sizes), max(expected_size(job.steps) for job in jobs)
        if steps.batch == "full":
            return BatchSpec("full", numbers, records, records)
        kind: Literal["poisson", "fixed"] = "poisson" if steps.sampling is Sampling.POISSON else "fixed"
        return BatchSpec(kind, numbers, records, min(batch, records))


class BatchTensors(NamedTuple):
    """What the batches of stacked clients are drawn by. Whoever has no records in it draws none."""

    sizes: Tensor  # int64 [C]: units there are
    offsets: Tensor  # int64 [C]: where they begin among all units
    wanted: Tensor  # int64 [C]: units of a batch of fixed size
    rates: Tensor  # double [C]


def with_rows(units: Batches, persons: Persons, width: int, offsets: Tensor) -> Batches:
    """The rows of batches of persons, in pieces of `width` rows; `offsets` [C] are where a client's rows begin.

    It waits for the device: how many pieces there are shows when batches are drawn.
    """
    counts = torch.where(units.valid, persons.rows[units.places], 0)
    unit, row, valid, groups = packed(counts, width, persons.most)
    first = persons.starts[units.places]  # of each person of the batch; padding points at one of the client's own
    rows = first.gather(2, unit.flatten(2)).reshape(row.shape) + row
    places, valid, groups = (each.flatten(2) for each in (rows, valid, groups))
    return Batches(places - offsets.unsqueeze(1), places, valid, groups)


def choose(spec: BatchSpec, terms: BatchTensors, keys: Tensor) -> Batches:
    """The batches of all these steps, each client's under its key [C, 8]."""
    steps, device = spec.steps, keys.device
    at_once = max(1, AT_ONCE // (len(keys) * spec.records))
    pieces = [steps[low : low + at_once] for low in range(0, len(steps), at_once)]
    chosen = [_choose(spec, piece, terms, keys) for piece in pieces]
    counts = torch.cat([counts for counts, _ in chosen])  # [K, C]
    width = max(1, *(order.shape[2] for _, order in chosen))
    order = torch.cat([torch.nn.functional.pad(order, (0, width - order.shape[2])) for _, order in chosen])
    valid = torch.arange(width, device=device) < counts.unsqueeze(2)
    picked = torch.where(valid, order, order[:, :, :1])
    # whoever has no record in a batch, or none at all, points at the first record of all
    some = counts.unsqueeze(2) > 0
    return Batches(torch.where(some, picked, 0), torch.where(some, picked + terms.offsets.unsqueeze(1), 0), valid)


def _choose(spec: BatchSpec, steps: range, terms: BatchTensors, keys: Tensor) -> tuple[Tensor, Tensor]:
    """How many records each client looks at in each step [K, C], and which, in ascending order [K, C, W]."""
    device = keys.device
    number = torch.arange(spec.records, device=device)
    if spec.kind == "full":
        counts = terms.sizes.expand(len(steps), -1)
        return counts, number.expand(*counts.shape, -1)
    step = torch.arange(steps.start, steps.stop, dtype=torch.int32, device=device)
    nonces = torch.stack([step, torch.zeros_like(step)], 1).expand(len(keys), -1, -1)
    uniforms = streams.uniforms(keys, nonces, spec.records).transpose(0, 1)  # [K, C, n]
    uniforms = torch.where(number < terms.sizes.unsqueeze(1), uniforms, 2.0)  # what is not there is never drawn
    if spec.kind == "poisson":
        taken = uniforms < terms.rates.unsqueeze(1)
        counts = taken.sum(2)
        width = int(counts.max())  # waits for the device, once a round
    else:
        width = spec.batch
        counts = terms.wanted.expand(len(steps), -1)
        smallest = uniforms.topk(width, 2, largest=False).values  # in ascending order
        last = smallest.gather(2, (counts - 1).clamp(min=0).unsqueeze(2))
        taken = (uniforms <= last) & (counts > 0).unsqueeze(2)  # two equal uniforms of 52 bits: never in this world
    places = torch.where(taken, taken.cumsum(2) - 1, width)  # what is not taken goes where nobody looks
    order = torch.zeros(*counts.shape, width + 1, dtype=torch.long, device=device)
    return counts, order.scatter_(2, places, number.expand_as(places))[..., :width]
