"""Stacked clients with different plans: each must be clipped, noised and sampled by its own plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ..accounting import NoisySteps, Sampling
from ..limits import MOST_NOISE
from . import statistics
from .batches import looked_at, transparent, watched
from .check import CHANCE, Check
from .statistics import Event
from .subject import PLAIN, Subject, far_below, fitted, sums, transparent_net, uploads

CLIPS = (1.0, 3.0, 0.5, 2.0)  # times the plan's
NOISES = (1.0, 1.5, 3.0, 2.0)
RECORDS = (4, 6, 3, 5)
WIDTH = 2048
SAMPLED = 24  # records of each client where batches are drawn
BATCHES = (2, 8, 4, 12)
ROUNDS = 12


def check_stack(subject: Subject) -> Check:
    faults = [*_sums_and_noise(subject), *_rates(subject)]
    return Check(
        "unlike clients", "; ".join(faults) or "each by its own plan", "each by its own plan", not faults,
        "Clients in one stack each use their own clip norm, noise, batch size and learning rate.",
    )  # fmt: skip


def _plans(subject: Subject) -> list[NoisySteps]:
    steps = subject.noisy
    return [
        fitted(
            steps, records, batch="full", local_steps=1, clip_norm=clip * steps.clip_norm,
            noise_multiplier=min(noise * steps.noise_multiplier, MOST_NOISE),
        )
        for clip, noise, records in zip(CLIPS, NOISES, RECORDS, strict=True)
    ]  # fmt: skip


def _sums_and_noise(subject: Subject) -> list[str]:
    """Whether each client's sum is clipped at its own norm, and what leaves has noise of its own scale."""
    net = transparent_net(subject.net, WIDTH)
    jobs = []
    data = []
    for i, steps in enumerate(_plans(subject)):
        # with this learning rate the noise in an upload should have standard deviation 1
        optimiser = replace(PLAIN, learning_rate=steps.records / steps.noise_scale)
        jobs.append(subject.job(f"client {i}", steps, steps.records, optimiser=optimiser))
        data.append((torch.eye(steps.records, WIDTH), far_below(steps.clip_norm, steps.records)))
    start = torch.zeros(WIDTH, dtype=net.dtype)
    cohort = subject.cohort(jobs, data, net=net, start=start)
    clipped = sums(cohort, start)
    left = -uploads(cohort, 0, start).double()
    faults = []
    for i, (job, (x, _)) in enumerate(zip(jobs, data, strict=True)):
        assert job.noisy
        known = x.sum(0).double()
        if not float((clipped[i] / job.noisy.clip_norm - known).abs().max()) <= subject.close:
            faults.append(f"client {i} is clipped at another norm")
        noise = (left[i] - known / job.noisy.noise_multiplier).numpy()
        low, high = statistics.scale_range(noise.size, "gaussian")
        if not low <= statistics.scale(noise, "gaussian") <= high:
            faults.append(f"client {i} has noise of another scale")
    return faults


def _rates(subject: Subject) -> list[str]:
    """Whether each client's records are drawn at its own rate."""
    if subject.noisy.rate >= 1:
        return []
    plans = [fitted(subject.noisy, SAMPLED, batch=batch, local_steps=1) for batch in BATCHES]
    cohort = transparent(subject, watched(subject, plans, ROUNDS), SAMPLED, subject.draws)
    seen = np.round(np.stack([looked_at(cohort, round) for round in range(ROUNDS)]))
    faults = []
    for i, steps in enumerate(plans):
        sizes = seen[:, i].sum(1)
        drawn = Event("a record in a step", int(sizes.sum()), ROUNDS * SAMPLED, steps.rate)
        fixed = steps.sampling is Sampling.FIXED
        right = bool(np.all(sizes == steps.batch)) if fixed else drawn.chance >= CHANCE
        if not right:
            faults.append(f"client {i} draws its records at another rate")
    return faults
