"""The distribution of the noise in uploads, and its independence.

The noise is the upload minus the clipped sum, divided by the planned scale: each entry should be standard normal (or
standard Laplace). It is measured in single steps of the audited net; in single steps of a wide transparent net, because
it takes many values to estimate a scale or a tail; and in rounds of several steps of that net, where two steps with the
same noise show as a sum that is too large.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from ..accounting.mechanisms import NoiseLaw
from ..local import Schedule
from ..local.batches import expected_size
from . import statistics
from .check import CHANCE, Check
from .subject import PLAIN, Subject, far_below, fitted, sums, transparent_net, uploads

CLIENTS, CHUNK = 8, 4  # in two stacks: noise that belongs to a place in a stack would appear twice
RECORDS = 4
FEWEST, MOST = 2, 20  # rounds
WIDTH = 4096  # of the transparent net
STEPS = 3  # its steps in a round
PAIRED = 64  # rows compared with each other
SHORTEST = 4  # entries in a row that can be compared
MOST_ENTRIES = 2**22  # that are tested for repetitions within a row
FALLING = Schedule(kind="step", every=1, factor=0.5)  # a falling learning rate must not change the noise of a sum


@dataclass(frozen=True)
class Residue:
    """Noise divided by its planned scale, [rounds, clients, P], and which parameters P consists of."""

    values: np.ndarray
    names: tuple[str, ...]
    sizes: tuple[int, ...]


def check_noise(subject: Subject, samples: int) -> tuple[Check, ...]:
    """Scale, shape, tails, independence of two vectors, and independence within one vector."""
    law = subject.mechanism.noise
    if subject.mechanism.output:
        wide = replace(subject, net=transparent_net(subject.net, WIDTH), x=torch.eye(RECORDS, WIDTH), y=torch.ones(RECORDS))
        residues = [of_outputs(subject, samples), of_outputs(wide, samples)]
    else:
        residues = [of_steps(subject, samples), of_rounds(subject, 1), of_rounds(subject, STEPS)]
    return (
        _scale(residues, law),
        _shape(residues, law),
        _tails(residues, law),
        _independence(residues, law),
        _within(residues),
    )


# ------------------------------------------------------------------ what is measured


def rounds_for(samples: int, parameters: int) -> int:
    return min(MOST, max(FEWEST, math.ceil(samples / (CLIENTS * parameters))))


def of_steps(subject: Subject, samples: int) -> Residue:
    """Rounds of one plain step of the audited net."""
    steps = fitted(subject.noisy, RECORDS, local_steps=1)
    rounds = rounds_for(samples, subject.net.count)
    # with this learning rate the noise in an upload should have standard deviation 1
    unit = steps.noise_scale
    plain = replace(PLAIN, learning_rate=expected_size(steps) / unit)
    data = [subject.records(RECORDS * i, RECORDS * (i + 1)) for i in range(CLIENTS)]
    jobs = [subject.job(f"client {i}", steps, RECORDS, optimiser=plain, rounds=rounds) for i in range(CLIENTS)]
    cohort, shadow = (subject.cohort(jobs, data, chunk=CHUNK) for _ in range(2))
    start = subject.start
    left = [start.double() - uploads(cohort, r, start).double() - sums(shadow, start, r) / unit for r in range(rounds)]
    return Residue(torch.stack(left).numpy(), subject.net.names, subject.net.sizes)


def of_rounds(subject: Subject, count: int) -> Residue:
    """Rounds of this many plain steps, where the clipped sum of each step is known for any weights."""
    steps = fitted(subject.noisy, RECORDS, local_steps=count, batch="full")
    net = transparent_net(subject.net, WIDTH)
    plain = replace(PLAIN, learning_rate=RECORDS / steps.noise_scale, schedule=FALLING)
    x, y = torch.eye(RECORDS, WIDTH), far_below(steps.clip_norm, RECORDS)
    jobs = [subject.job(f"client {i}", steps, RECORDS, optimiser=plain, rounds=FEWEST) for i in range(CLIENTS)]
    start = torch.zeros(WIDTH, dtype=net.dtype)
    cohort = subject.cohort(jobs, [(x, y)] * CLIENTS, net=net, start=start, chunk=CHUNK)
    known = count / steps.noise_multiplier * x.sum(0).double()
    left = [-uploads(cohort, r, start).double() / FALLING.at(r) - known for r in range(FEWEST)]
    return Residue((torch.stack(left) / math.sqrt(count)).numpy(), (f"{count} wide",), (WIDTH,))


def of_outputs(subject: Subject, samples: int) -> Residue:
    """Rounds whose change is clipped and noised once. The same job without a plan gives the change without noise."""
    mechanism = subject.output
    rounds = rounds_for(samples, subject.net.count)
    optimiser = replace(subject.optimiser, schedule=FALLING)
    data = [subject.records(RECORDS * i, RECORDS * (i + 1)) for i in range(CLIENTS)]
    jobs = [subject.job(f"client {i}", mechanism, RECORDS, optimiser=optimiser, rounds=rounds) for i in range(CLIENTS)]
    cohort = subject.cohort(jobs, data, chunk=CHUNK)
    shadow = subject.cohort([replace(job, plan=None) for job in jobs], data, chunk=CHUNK)
    start, order = subject.start, 1 if mechanism.noise == "laplace" else 2
    left = []
    for r in range(rounds):
        change = uploads(shadow, r, start).double() - start.double()
        size = change.norm(p=order, dim=1, keepdim=True)
        change = change * torch.clamp(mechanism.clip_norm / size, max=1.0)
        left.append(uploads(cohort, r, start).double() - start.double() - change)
    return Residue((torch.stack(left) / mechanism.noise_scale).numpy(), subject.net.names, subject.net.sizes)


# ------------------------------------------------------------------ what is said about it


def _scale(residues: list[Residue], law: NoiseLaw) -> Check:
    measured, allowed, passed = [], [], True
    for residue in residues:
        found, (low, high) = statistics.scale(residue.values, law), statistics.scale_range(residue.values.size, law)
        worst, chance = _worst_part(residue, law)
        measured.append(f"{found:.4f}" + (f" ({worst})" if chance < CHANCE else ""))
        allowed.append(f"{low:.4f} to {high:.4f}")
        passed = passed and low <= found <= high and chance >= CHANCE
    return Check(
        "noise scale", ", ".join(measured), ", ".join(allowed), passed,
        "The noise in uploads has the scale that is accounted: overall, in every parameter and in every entry.",
    )  # fmt: skip


def _worst_part(residue: Residue, law: NoiseLaw) -> tuple[str, float]:
    """The parameter whose noise fits its scale worst, as a whole or in one entry, and the p-value."""
    flat = residue.values.reshape(-1, residue.values.shape[-1])
    entries = statistics.scale_chances(flat, law) * flat.shape[1]
    worst, chance = "", 1.0
    ends = np.cumsum(residue.sizes)
    for name, low, high in zip(residue.names, [0, *ends], ends, strict=False):
        whole = float(statistics.scale_chances(flat[:, low:high].reshape(-1, 1), law)[0]) * len(ends)
        here = 2 * min(whole, float(np.min(entries[low:high])))  # two tests in one
        if not here >= chance:  # NaN is the worst of all
            worst, chance = name, here
    return worst, chance


def _shape(residues: list[Residue], law: NoiseLaw) -> Check:
    chances = [statistics.shape_chance(residue.values.ravel(), law) for residue in residues]
    return Check(
        "noise shape", _chances(chances), f"p at least {CHANCE:g}", min(chances) >= CHANCE,
        f"The noise has the {_called(law)} distribution (Kolmogorov–Smirnov test).",
    )  # fmt: skip


def _tails(residues: list[Residue], law: NoiseLaw) -> Check:
    chances = [statistics.tail_chance(residue.values.ravel(), law) for residue in residues]
    return Check(
        "noise tails", _chances(chances), f"p at least {CHANCE:g}", min(chances) >= CHANCE,
        "Large values of noise are as frequent as they should be: a missing tail can reveal a record.",
    )  # fmt: skip


def _independence(residues: list[Residue], law: NoiseLaw) -> Check:
    measured, least = [], 1.0
    for residue in residues:
        rows = residue.values.reshape(-1, residue.values.shape[-1])[:PAIRED]
        if rows.shape[1] < SHORTEST:
            continue
        largest, chance = statistics.correlation(statistics.normal_scores(rows, law))
        measured.append(f"{largest:.3f}")
        least = min(least, chance) if chance == chance else chance
    return Check(
        "independence", f"largest correlation {', '.join(measured)}", f"p at least {CHANCE:g}", least >= CHANCE,
        "The noise of two clients or two rounds is independent: otherwise, whoever knows one could subtract the other.",
    )  # fmt: skip


def _within(residues: list[Residue]) -> Check:
    measured = []
    least = 1.0
    for residue in residues:
        rows = residue.values.reshape(-1, residue.values.shape[-1])
        if rows.shape[1] < SHORTEST:
            continue
        distance, chance = statistics.repetition(rows[: max(FEWEST, MOST_ENTRIES // rows.shape[1])])
        measured.append(f"{distance} (p = {chance:.2g})")
        least = min(least, chance)
    return Check(
        "noise within a vector", f"least likely distance {', '.join(measured)}", f"p at least {CHANCE:g}", least >= CHANCE,
        "No two entries of a vector share their noise: it would reveal the difference of their sums.",
    )  # fmt: skip


def _chances(chances: list[float]) -> str:
    return "p = " + ", ".join(f"{chance:.2g}" for chance in chances)


def _called(law: NoiseLaw) -> str:
    return "normal" if law == "gaussian" else "Laplace"
