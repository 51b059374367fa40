"""Whether a record's gradient depends on the labels of other records, as it does if losses are weighted by class counts."""

from __future__ import annotations

from dataclasses import replace

import torch

from .attacks import classes, given
from .check import Check
from .rows import worlds
from .subject import Records, Subject, all_kept, sums

COMMON = 3  # records that stay
UNCLIPPED = 100.0  # clip norm over the largest gradient norm: clipping could hide a weight


def check_labels(subject: Subject) -> Check:
    common = subject.records(10, 10 + COMMON)
    candidates = _candidates(subject)
    longest = max(_length(subject, record) for record in [*candidates, *_single(common)])
    unclipped = replace(subject, mechanism=replace(subject.noisy, clip_norm=UNCLIPPED * longest))
    together = worlds(unclipped, [_joined(common, own) for own in candidates], COMMON + 1)
    alone = worlds(unclipped, candidates, 1)
    others = sums(together, subject.start) - sums(alone, subject.start)
    moved = float((others - others[:1]).norm(dim=1).max()) / longest
    allowed = (COMMON + 1) * subject.close
    return Check(
        "others' labels", f"{moved:.2g} gradients", f"at most {allowed:.2g}", moved <= allowed,
        "Before clipping, a record contributes the gradient of its own loss, for any labels of the other records.",
    )  # fmt: skip


def _candidates(subject: Subject) -> list[Records]:
    """One record with several targets."""
    x, y = subject.records(0, 1)
    if y.is_floating_point():
        return [(x, y), (x, 1 - y), (x, y + 2)]
    count = min(classes(subject), 4)
    return [(x, (y + i) % classes(subject)) for i in range(count)]


def _single(records: Records) -> list[Records]:
    return list(zip(records[0].split(1), records[1].split(1), strict=True))


def _joined(one: Records, other: Records) -> Records:
    return torch.cat([one[0], other[0]]), torch.cat([one[1], other[1]])


def _length(subject: Subject, record: Records) -> float:
    net = subject.net
    gradient = net.one_record(given(net, subject.start), given(net, record[0]), given(net, record[1]), all_kept(net))
    return float(gradient.double().norm())
