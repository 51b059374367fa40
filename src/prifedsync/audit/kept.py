"""Personal models that may be published: their steps are noisy too, with their own noise and batches."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..engines import Cohort
from ..local import Job
from ..rules import Ditto, Noised
from . import statistics
from .batches import counts_in, looked_at, transparent, watched
from .check import CHANCE, Check
from .fresh import clients_that_tell
from .subject import PLAIN, Subject, far_below, fitted, transparent_net, uploads

RULE = Ditto(publish=True)  # an upload and a personal model, here with equally many noisy steps
CLIENTS = 8
RECORDS = 4
STEPS = 2  # for the upload, and as many for the kept model
WIDTH = 2048
MOST_RECORDS = 24


def check_kept(subject: Subject) -> Check:
    faults = [*_noise(subject), *_batches(subject)]
    return Check(
        "published kept models", "; ".join(faults) or "noise and batches of their own", "noise and batches of their own",
        not faults,
        "A personal model that a client publishes is trained with counted noisy steps of its own, apart from the upload's.",
    )  # fmt: skip


def _counted(job: Job, kept_steps: int) -> Job:
    return replace(job, kept_steps=kept_steps, kept_counted=True)


def _noise(subject: Subject) -> list[str]:
    steps = fitted(subject.noisy, RECORDS, batch="full", local_steps=2 * STEPS)
    # with this learning rate the noise of one step should have standard deviation 1
    plain = replace(PLAIN, learning_rate=RECORDS / steps.noise_scale)
    jobs = [_counted(subject.job(f"client {i}", steps, RECORDS, optimiser=plain), STEPS) for i in range(CLIENTS)]
    net = transparent_net(subject.net, WIDTH)
    x = torch.eye(RECORDS, WIDTH)
    y = far_below(steps.clip_norm, RECORDS)
    start = torch.zeros(WIDTH, dtype=net.dtype)
    cohort = subject.cohort(jobs, [(x, y)] * CLIENTS, net=net, start=start, rule=RULE)
    known = STEPS / steps.noise_multiplier * x.sum(0).double()
    sent = _over_scale(uploads(cohort, 0, start), known)
    kept = _over_scale(_kept(cohort), known)
    faults = []
    low, high = statistics.scale_range(kept.size, "gaussian")
    if not low <= statistics.scale(kept, "gaussian") <= high:
        faults.append(f"noise of scale {statistics.scale(kept, 'gaussian'):.4f}")
    if not statistics.correlation(np.concatenate([sent, kept]))[1] >= CHANCE:
        faults.append("the upload's noise")
    if {account.queries for account in cohort.accounts().values()} != {2 * STEPS}:
        faults.append("steps that are not counted")
    if not all(isinstance(model, Noised) for model in cohort.models().values()):
        faults.append("not marked as noised")
    return faults


def _over_scale(models: Tensor, known: Tensor) -> np.ndarray:
    return ((-models.double() - known) / math.sqrt(STEPS)).numpy()


def _kept(cohort: Cohort) -> Tensor:
    return torch.stack([model.value for model in cohort.models().values()]).detach().cpu()


def _batches(subject: Subject) -> list[str]:
    """Whether the steps of the personal model use the batches of the upload."""
    steps = fitted(subject.noisy, min(subject.noisy.records, MOST_RECORDS), local_steps=2)
    if steps.rate >= 1:
        return []
    jobs = [_counted(job, 1) for job in watched(subject, [steps] * clients_that_tell(steps, pairs=1), 1)]
    cohort = transparent(subject, jobs, steps.records, subject.draws, rule=RULE)
    sent = np.round(looked_at(cohort, 0))
    kept = np.round(counts_in(cohort, 0, _kept(cohort), jobs[0].kept))
    return ["the upload's batches"] if np.array_equal(sent, kept) else []
