"""Whether a record's clipped gradient depends on other records: hostile rows, one record more or less, other clients.

Adding or removing a record moves the others to other rows, and a kernel may round another row differently. A record with
large entries whose target is the model's own prediction has a gradient that consists of rounding only. Clipping can scale
it to full length in either direction. So here most records are of this kind, and neighbouring data sets differ in one
record at any place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..accounting import NoisySteps
from ..engines import Cohort
from ..fdp import Neighbours
from ..local.job import LARGEST_HELPER
from .attacks import classes, given
from .check import Check
from .subject import AllKept, Records, Subject, fitted, sums

TRIALS = 24  # pairs of neighbouring data sets in one audit
SIZES = (2, 60)  # records of a data set
SPREAD = (1.0, 1e-3, 3e4, 1e6)  # entries of its records
STRENGTH = (1.0, 30.0, 1e3)  # weights, in times the first ones
RECORDS = 50  # of the client whose neighbour has crafted rows


@dataclass(frozen=True)
class Pairs:
    """Neighbouring data sets, each pair at weights of its own."""

    whole: list[Records]
    without: list[Records]
    weights: Tensor  # [pairs, P]


def check_rows(subject: Subject) -> tuple[Check, ...]:
    """How far one record moves a sum of hostile rows, and whether one client's record count changes another's sum."""
    dice = torch.Generator().manual_seed(0)
    worst = float(moved(subject, hostile_pairs(subject, TRIALS, dice)).max())
    margin = everything(subject, SIZES[1]).clip_margin
    return (
        Check(
            "record removed from hostile rows", f"{worst:.10g} clip norms", f"at most 1·(1 + {margin:.3g})",
            worst <= 1 + margin, "Removing one record moves the clipped sum by at most clip_norm, even if the gradients of "
            f"the other records consist of rounding only ({TRIALS} pairs of data sets tried).",
        ),
        _check_other_clients(subject, dice),
    )  # fmt: skip


def hostile_pairs(subject: Subject, count: int, dice: torch.Generator) -> Pairs:
    """This many data sets, each with and without one record."""
    weights = torch.stack([_weights(subject, dice) for _ in range(count)])
    whole = [_rows(subject, own, _between(*SIZES, dice), dice) for own in weights]
    removed = [_between(0, len(x) - 1, dice) for x, _ in whole]
    return Pairs(whole, [_without(records, at) for records, at in zip(whole, removed, strict=True)], weights)


def moved(subject: Subject, pairs: Pairs) -> Tensor:
    """How far the missing record moves each clipped sum, in clip norms [pairs]."""
    data = [*pairs.whole, *pairs.without]
    found = sums(worlds(subject, data, SIZES[1]), torch.cat([pairs.weights, pairs.weights]))
    with_it, without_it = found.split(len(pairs.whole))
    distances: Tensor = (with_it - without_it).norm(dim=1)
    return distances / subject.noisy.clip_norm


def worlds(subject: Subject, data: list[Records], nominal: int) -> Cohort:
    """Clients that use all their records in every step; `nominal` is the public number of records."""
    steps = everything(subject, nominal)
    jobs = [subject.job(f"world {i}", steps, nominal, neighbours=Neighbours.ADD_REMOVE) for i in range(len(data))]
    return subject.cohort(jobs, data, draws=AllKept())


def everything(subject: Subject, nominal: int) -> NoisySteps:
    """One step over all records, with the margin that this number of records needs."""
    steps = fitted(subject.noisy, nominal, batch="full", local_steps=1)
    margin = subject.net.margin_for(steps, Neighbours.ADD_REMOVE)
    return replace(steps, clip_margin=max(steps.clip_margin, margin))


def _check_other_clients(subject: Subject, dice: torch.Generator) -> Check:
    """Client A has crafted rows; client B has 49 records, then 50."""
    weights = _weights(subject, dice)
    crafted = _rows(subject, weights, RECORDS - 1, dice)
    other = subject.records(0, RECORDS)
    fewer = _without(other, RECORDS - 1)
    first, second = (sums(worlds(subject, [crafted, each], RECORDS), weights)[0] for each in (fewer, other))
    changed = int((first != second).sum())
    return Check(
        "another client's records", f"{changed} entries changed", "none", changed == 0,
        "A client's clipped sum has the same bits whether another client has one record more or less.",
    )  # fmt: skip


def _rows(subject: Subject, weights: Tensor, count: int, dice: torch.Generator) -> Records:
    """Records whose gradients are mostly rounding: large rows, some equal, with the model's own predictions as targets."""
    x, y = subject.records(0, count)
    if x.is_floating_point():
        x = torch.randn(x.shape, generator=dice, dtype=torch.float64)
        if _between(0, 1, dice):  # copies of one row
            x = x[:1].expand_as(x)
        x = (SPREAD[_between(0, len(SPREAD) - 1, dice)] * x).to(subject.net.dtype)
    answers = subject.net.outputs(given(subject.net, weights), given(subject.net, x)).detach().cpu()
    if not y.is_floating_point():
        labels = answers.flatten(1).argmax(1) if answers.dim() > 1 else y
        other = (labels + _between(0, 1, dice)) % classes(subject)
        return x, other.reshape(y.shape).to(y.dtype)
    if answers.numel() == y.numel():
        last_bits = torch.randint(-1, 2, y.shape, generator=dice) * torch.finfo(answers.dtype).eps
        y = torch.nan_to_num(answers.reshape(y.shape) * (1 + last_bits)).to(y.dtype)
    return x, y


def _weights(subject: Subject, dice: torch.Generator) -> Tensor:
    """Weights at several scales, within the range that a client accepts."""
    start = subject.start
    off_zero = start + 0.1 * torch.randn(start.shape, generator=dice).to(start)
    strength = STRENGTH[_between(0, len(STRENGTH) - 1, dice)]
    return (strength * off_zero).clamp(-LARGEST_HELPER, LARGEST_HELPER)


def _without(records: Records, at: int) -> Records:
    keep = torch.arange(len(records[0])) != at
    return records[0][keep], records[1][keep]


def _between(low: int, high: int, dice: torch.Generator) -> int:
    return int(torch.randint(low, high + 1, (), generator=dice))
