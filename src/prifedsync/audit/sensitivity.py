"""How far one record moves the clipped sum, and what a record that is not finite adds to it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .attacks import Attack, attack, given
from .check import Check
from .rows import worlds
from .subject import Records, Subject, all_kept, fitted, sums, uploads

COMMON = 2  # records that neighbouring data sets share
ACTIVE = 0.5  # clip norms by which an attack must move the sum; otherwise it has tested nothing


def check_sensitivity(subject: Subject) -> tuple[Check, ...]:
    """The largest clipped gradient of one record, and the largest change between neighbouring data sets."""
    attacks = attack(subject)
    clip, margin = subject.noisy.clip_norm, 1 + subject.noisy.clip_margin
    lengths, replaced, removed = measured(subject, attacks) / clip
    tried = f"{len(attacks.x)} records at {len(attacks.weights)} weights tried"
    return (
        _bounded("clip of one record", lengths, 1, margin, "The clipped gradient of one record, over all layers, has "
                 f"norm at most clip_norm ({tried})."),
        _bounded("record replaced", replaced, 2, margin, "Replacing one record by another moves the clipped sum by at most "
                 f"twice clip_norm ({tried}, every pair)."),
        _bounded("record removed", removed, 1, margin, "Removing one record moves the clipped sum by at most clip_norm."),
    )  # fmt: skip


def _bounded(name: str, worst: Tensor, limit: float, margin: float, explanation: str) -> Check:
    passed = bool(worst <= limit * margin) and bool(worst > ACTIVE)  # NaN passes neither
    allowed = f"{ACTIVE:g} to {limit:g}·(1 + {margin - 1:.3g})"
    return Check(name, f"{float(worst):.10g} clip norms", allowed, passed, explanation)


def measured(subject: Subject, attacks: Attack) -> Tensor:
    """The largest clipped gradient, change by replacement and change by removal over all attacks: [3]."""
    candidates = list(zip(attacks.x.split(1), attacks.y.split(1), strict=True))
    alone = worlds(subject, candidates, 1)
    common = subject.records(10, 10 + COMMON)
    together = worlds(subject, [_joined(common, own) for own in candidates] + [common], COMMON + 1)
    worst = torch.zeros(3, dtype=torch.float64)
    for weights in attacks.weights:
        found = sums(together, weights)
        with_one, without = found[:-1], found[-1:]
        length = sums(alone, weights).norm(dim=1)
        here = [length.max(), torch.cdist(with_one, with_one).max(), torch.cdist(with_one, without).max()]
        worst = torch.maximum(worst, torch.stack(here))  # NaN stays
    return worst


def _joined(one: Records, other: Records) -> Records:
    return torch.cat([one[0], other[0]]), torch.cat([one[1], other[1]])


# ------------------------------------------------------------------ broken records


def check_broken(subject: Subject) -> Check:
    """A record whose gradient is not finite adds exactly zero, and uploads are finite."""
    broken, common = broken_records(subject), subject.records(10, 10 + COMMON)
    alone = worlds(subject, broken, 1)
    together = worlds(subject, [_joined(common, own) for own in broken] + [common], COMMON + 1)
    steps = fitted(subject.noisy, COMMON + 1, batch="full", local_steps=2)
    optimiser = replace(subject.optimiser, learning_rate=1e-3)
    jobs = [subject.job(f"broken {i}", steps, COMMON + 1, optimiser=optimiser, rounds=9) for i in range(len(broken))]
    leaving = subject.cohort(jobs, [_joined(common, own) for own in broken])
    faults, tried = [], 0
    for round, weights in enumerate(broken_weights(subject)):
        single, several = sums(alone, weights), sums(together, weights)
        lost = torch.tensor([_not_finite(subject, weights, record) for record in broken])
        tried += int(lost.sum())
        moved = (several[:-1] - several[-1:])[lost].norm(dim=1)
        if bool((single[lost] != 0).any()):
            faults.append("a broken record adds something")
        if not bool((moved <= subject.close * subject.noisy.clip_norm).all()):
            faults.append("a broken record changes what others add")
        if not bool(torch.isfinite(uploads(leaving, round, weights)).all()):
            faults.append("an upload is not finite")
    measured = "; ".join(dict.fromkeys(faults)) or f"exactly zero, {tried} times"
    return Check(
        "broken records", measured, "exactly zero, at least once", not faults and tried > 0,
        "A NaN or infinite record adds exactly zero to the sum, and uploads are always finite.",
    )  # fmt: skip


def broken_records(subject: Subject) -> list[Records]:
    x, y = subject.records(0, 1)
    found = [(x, y)]
    if x.is_floating_point():
        spoilt = x.clone().flatten()
        spoilt[0] = torch.nan
        values = [spoilt.reshape(x.shape), x + torch.nan, x + torch.inf, x - torch.inf]
        found += [(value, y) for value in values]
    if y.is_floating_point():
        found.append((x, y + torch.nan))
    return found


def broken_weights(subject: Subject) -> list[Tensor]:
    """Good weights, NaN and infinite weights, and weights that overflow: records of tokens break in no other way."""
    start = subject.start
    return [start, start + torch.nan, start + torch.inf, start.sign() * torch.finfo(start.dtype).max]


def _not_finite(subject: Subject, weights: Tensor, record: Records) -> bool:
    net = subject.net
    gradient = net.one_record(given(net, weights), given(net, record[0]), given(net, record[1]), all_kept(net))
    return not bool(torch.isfinite(gradient).all())
