"""Output perturbation: how far any records can move the clipped change of a round."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ..accounting import OutputPerturbation
from ..limits import LEAST_NOISE
from ..rules import MeanRegularised
from . import statistics
from .attacks import twisted
from .check import Check
from .sensitivity import ACTIVE, broken_records, broken_weights
from .subject import Silent, Subject, transparent_net, uploads

CLIENTS = 8
WIDTH = 2048
STILL = 1e-30  # a learning rate too small to change any weight


def check_output(subject: Subject) -> tuple[Check, ...]:
    """The largest clipped change, and the largest distance between two changes, in the norm that is accounted."""
    mechanism = subject.output
    order, norm = (1, "L1") if mechanism.noise == "laplace" else (2, "L2")
    changes = _changes(subject, mechanism)
    rounding = _rounding(subject, order)
    largest = float(changes.norm(p=order, dim=1).max()) / mechanism.clip_norm
    apart = max(float((row - changes).norm(p=order, dim=1).max()) for row in changes) / mechanism.clip_norm
    broken = _broken(subject)
    return (
        _bounded("clip of the change", largest, 1, rounding, f"The released change has {norm} norm at most clip_norm."),
        _bounded("records replaced", apart, 2, 2 * rounding, f"Two changes are at most twice clip_norm apart in {norm} "
                 "norm, for any records."),
        Check("broken records", "finite" if broken else "not finite", "finite", broken,
              "Uploads are finite even if records are NaN or infinite."),
    )  # fmt: skip


def check_carried(subject: Subject) -> Check:
    """Whether a second round that starts from a client's own model starts from the model that it sent, noise included.

    Local training changes nothing here. If a client continued from its model without noise, the second upload would not
    contain the noise of the first, and their difference would have the noise of both.
    """
    # of size one: helpers are cut to bounds that larger noise might reach
    mechanism = replace(subject.output, noise_multiplier=1.0, clip_norm=1.0)
    still = replace(subject.optimiser, learning_rate=STILL, weight_decay=0.0)
    net = transparent_net(subject.net, WIDTH)
    own = [subject.job(f"client {i}", mechanism, 1, optimiser=still, rounds=2) for i in range(CLIENTS)]
    start = torch.zeros(WIDTH, dtype=net.dtype)
    rule = MeanRegularised()  # its clients start from their own model; without a strength nothing else pulls them
    cohort = subject.cohort(own, [(torch.eye(1, WIDTH), torch.ones(1))] * CLIENTS, net=net, start=start, rule=rule)
    first, second = (uploads(cohort, round, start).double() for round in range(2))
    noise = (second - first).numpy()
    low, high = statistics.scale_range(noise.size, mechanism.noise)
    found = statistics.scale(noise, mechanism.noise)
    return Check(
        "carried on", f"{found:.4f}", f"{low:.4f} to {high:.4f}", low <= found <= high,
        "A client continues from the model that it sent: the next upload differs from it by the noise of one round.",
    )  # fmt: skip


def _bounded(name: str, worst: float, limit: float, slack: float, explanation: str) -> Check:
    allowed = f"{ACTIVE:g} to {limit:g} + {slack:.2g} for rounding"
    return Check(name, f"{worst:.6g} clip norms", allowed, ACTIVE < worst <= limit + slack, explanation)


def _changes(subject: Subject, mechanism: OutputPerturbation) -> Tensor:
    """Upload minus start, without noise, for data sets of one changed record each and a very large learning rate."""
    x, y = twisted(subject)
    quiet = replace(mechanism, noise_multiplier=LEAST_NOISE)  # decides only what an upload is rounded to
    wild = replace(subject.optimiser, learning_rate=1e4 * max(1.0, mechanism.clip_norm))
    jobs = [subject.job(f"world {i}", quiet, 1, optimiser=wild) for i in range(len(x))]
    cohort = subject.cohort(jobs, list(zip(x.split(1), y.split(1), strict=True)), draws=Silent(subject.draws))
    return uploads(cohort, 0, subject.start).double() - subject.start.double()


def _rounding(subject: Subject, order: int) -> float:
    """How much rounding of every entry, to the grid and to the arithmetic, can add to the norm, in clip norms."""
    start = subject.start.double().abs().max() / subject.mechanism.clip_norm
    each = LEAST_NOISE * subject.grid / 2 + 2 * torch.finfo(subject.net.dtype).eps * (1 + float(start))
    return each * math.pow(subject.net.count, 1 / order)


def _broken(subject: Subject) -> bool:
    records = broken_records(subject)
    jobs = [subject.job(f"broken {i}", subject.mechanism, 1, optimiser=subject.optimiser, rounds=9)
            for i in range(len(records))]  # fmt: skip
    cohort = subject.cohort(jobs, records)
    return all(
        bool(torch.isfinite(uploads(cohort, round, weights)).all())
        for round, weights in enumerate(broken_weights(subject))
    )  # fmt: skip
