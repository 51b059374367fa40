"""Which records a step uses, measured from its uploads.

Each client holds one-hot records, trains a transparent net, and has no noise: an upload then shows how often each record
was used in the round. A round has two steps, so that a step that repeats the batch of the step before shows too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..accounting import NoisySteps, Sampling
from ..engines import Cohort
from ..fdp import Neighbours
from ..local import Draws, Job, Net, Phase
from ..local.batches import expected_size
from ..rules import Rule
from .check import CHANCE, Check
from .statistics import Binomial, Event
from .subject import Silent, Subject, device_noises, far_below, fitted, transparent_net, uploads

MOST_RECORDS = 48
CLIENTS, ROUNDS, STEPS = 16, 14, 2  # even numbers, because they are compared in pairs
BLUR = 0.1  # how far a measured count may be from a whole number


def check_batches(subject: Subject) -> tuple[Check, ...]:
    steps = fitted(subject.noisy, min(subject.noisy.records, MOST_RECORDS), local_steps=STEPS)
    counts = observed(subject, steps)
    return _sizes(counts, steps), _inclusion(counts, steps), _crowded(subject)


def observed(subject: Subject, steps: NoisySteps) -> np.ndarray:
    """How often each record was used, [rounds, clients, records]; whole numbers if the engine is right."""
    rounds = ROUNDS if steps.rate < 1 else 2  # a full batch is not drawn, so two rounds are enough
    jobs = watched(subject, [steps] * CLIENTS, rounds)
    cohort = transparent(subject, jobs, steps.records, subject.draws)
    return np.stack([looked_at(cohort, round) for round in range(rounds)])


def watched(subject: Subject, steps: list[NoisySteps], rounds: int, neighbours: Neighbours | None = None) -> list[Job]:
    """One client for each of these mechanisms."""
    quiet = [replace(each, noise_multiplier=1.0) for each in steps]  # decides only what an upload is rounded to
    return [
        subject.job(f"client {i}", each, each.records, rounds=rounds, neighbours=neighbours) for i, each in enumerate(quiet)
    ]


def transparent(
    subject: Subject, jobs: list[Job], records: int, draws: Draws, *, net: Net | None = None, rule: Rule | None = None
) -> Cohort:
    """Clients with this many one-hot records each, without noise."""
    net = net or transparent_net(subject.net, records)
    largest = max(job.noisy.clip_norm for job in jobs if job.noisy)
    data = [(torch.eye(records), far_below(largest, records))] * len(jobs)
    start = torch.zeros(records, dtype=net.dtype)
    return subject.cohort(jobs, data, net=net, draws=Silent(draws), start=start, rule=rule)


def looked_at(cohort: Cohort, round: int) -> np.ndarray:
    """How often each client used each of its records for its upload of this round, [clients, records]."""
    sent = uploads(cohort, round, cohort.start.cpu())
    return counts_in(cohort, round, sent, cohort.jobs[0].upload)


def counts_in(cohort: Cohort, round: int, models: Tensor, phase: Phase) -> np.ndarray:
    """How often each record was used for these models, which were trained from zero in this phase of the round."""
    units = [job.noisy.clip_norm / expected_size(job.noisy) for job in cohort.jobs if job.noisy]
    seen = -models.double() / torch.tensor(units, dtype=torch.float64).unsqueeze(1)
    if cohort.streams:  # noise that is made on a device cannot be switched off, but it is known
        steps = range(phase.first, phase.first + phase.steps)
        seen -= device_noises(cohort, [job.client for job in cohort.jobs], round, steps).sum(1)
    return seen.numpy()


def _sizes(counts: np.ndarray, steps: NoisySteps) -> Check:
    """How many records the steps of a round used."""
    sizes = np.round(counts).sum(-1).ravel()
    whole = bool(np.all(np.abs(counts - np.round(counts)) < BLUR))
    constant = steps.sampling is Sampling.FIXED or steps.rate >= 1
    planned = STEPS * steps.rate * steps.records
    if not whole:
        measured, allowed, passed = "sums that are not made of whole records", "whole records", False
    elif constant:
        measured, allowed = f"{sizes.min():g} to {sizes.max():g} in {STEPS} steps", f"{planned:g}"
        passed = bool(np.all(sizes == round(planned)))
    else:
        law = Binomial(STEPS * steps.records, steps.rate)
        events = _size_events(sizes, law)
        measured, passed = f"mean {sizes.mean():.4g}, variance {sizes.var():.4g}", _likely(events) and len(set(sizes)) > 1
        allowed = f"mean {planned:.4g}, variance {law.variance:.4g}; p at least {CHANCE:g}"
    return Check(
        "batch sizes", measured, allowed, passed,
        "Batch sizes are binomial under Poisson sampling and constant under sampling of a fixed size. The accounting of "
        "amplification assumes the one that the plan names.",
    )  # fmt: skip


def _size_events(sizes: np.ndarray, law: Binomial) -> list[Event]:
    """A size equal to the most likely one, and a size more than one standard deviation away from it."""
    likeliest = int(np.argmax(law.masses))
    low, high = likeliest - law.variance**0.5, likeliest + law.variance**0.5
    possible = np.arange(law.trials + 1)
    far = float(law.masses[(possible < low) | (possible > high)].sum())
    return [
        Event("likeliest size", int(np.sum(sizes == likeliest)), sizes.size, float(law.masses[likeliest])),
        Event("far from it", int(np.sum((sizes < low) | (sizes > high))), sizes.size, far),
    ]


def _inclusion(counts: np.ndarray, steps: NoisySteps) -> Check:
    """Whether a record is in the batch of a step, and in the batches of two steps, two rounds or two clients."""
    seen, q = np.round(counts), steps.rate
    if q >= 1:
        always = bool(np.all(seen == STEPS))
        return Check("batch choice", "all records" if always else "not all records", "all records", always, _CHOICE)
    events = _choice_events(seen, q)
    worst = min(events, key=lambda event: event.chance)
    return Check("batch choice", f"{worst} (p = {worst.chance:.2g})", f"p at least {CHANCE:g}", _likely(events), _CHOICE)


_CHOICE = "Every record is sampled at the planned rate, and each step, round and client draws its own independent batch."


def _choice_events(seen: np.ndarray, q: float) -> list[Event]:
    """Trials are independent under Poisson sampling; with fixed size, counts vary less and false alarms are rarer."""
    once = 1 - (1 - q) ** STEPS
    present = seen > 0
    rounds = present[0::2] & present[1::2]
    clients = present[:, 0::2] & present[:, 1::2]
    return [
        Event("a record in a step", int(seen.sum()), STEPS * seen.size, q),
        Event("in just one of two steps", int(np.sum(seen == 1)), seen.size, 2 * q * (1 - q)),
        Event("in two rounds", int(np.sum(rounds)), rounds.size, once**2),
        Event("at two clients", int(np.sum(clients)), clients.size, once**2),
    ]


# ------------------------------------------------------------------ more records than the plan says

NOMINAL, NOMINAL_BATCH = 8, 2
PRESENT = 48  # a usual batch is six times as large as planned
CROWDED_ROUNDS = 4


def _crowded(subject: Subject) -> Check:
    """Poisson batches of clients with six times the records of their plan, which add/remove adjacency allows."""
    if subject.noisy.rate >= 1 or subject.noisy.sampling is Sampling.FIXED:
        return Check("large batches", "none are drawn", "none are drawn", True, _CROWDED)
    # the margin is about clipping, and these records are clipped exactly
    steps = fitted(subject.noisy, NOMINAL, batch=NOMINAL_BATCH, local_steps=1, clip_margin=1.0)
    jobs = watched(subject, [steps] * CLIENTS, CROWDED_ROUNDS, Neighbours.ADD_REMOVE)
    cohort = transparent(subject, jobs, PRESENT, subject.draws)
    seen = np.round(np.stack([looked_at(cohort, round) for round in range(CROWDED_ROUNDS)]))
    found = Event("a record in a step", int(seen.sum()), seen.size, steps.rate)
    return Check("large batches", f"{found} (p = {found.chance:.2g})", f"p at least {CHANCE:g}", _likely([found]), _CROWDED)


_CROWDED = (
    "The sampling rate is the planned one for any number of records, and a batch far larger than expected is used whole."
)


def _likely(events: list[Event]) -> bool:
    return all(event.chance >= CHANCE for event in events)
