"""Whether uploads are computed from counted, noised sums only: optimiser, count of queries, stacking."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..accounting import Mechanism, NoisySteps, OutputPerturbation
from ..engines import Cohort
from ..fdp import Neighbours
from ..local import Job, Optimiser
from ..local.batches import expected_size
from ..local.optimisers import single
from ..sync import Account, Refused, Sent
from .check import Check
from .subject import (
    OPEN_STEPS,
    PLAIN,
    Records,
    Subject,
    Tape,
    answers,
    device_noise,
    far_below,
    fitted,
    sums,
    transparent_net,
    uploads,
)

RECORDS = 8
STEPS, ROUNDS = 3, 2
AGREEMENT = 0.02  # allowed difference from rounding to the grid, relative to how far weights move
SHARE = 0.99  # of the entries
CLEAR = 0.02  # noise scales; for gradients nearer to 0, Adam turns rounding into a step of any length
# how far a step should move a weight: measurable, but without effect on the next step
MOVE = {torch.float32: 2e-4, torch.float64: 1e-6}
MOST_STEPS = 64
SIZES = (1, 3, 7, 4)


# ------------------------------------------------------------------ the optimiser


def check_optimiser(subject: Subject) -> Check:
    """Compare uploads of several steps and rounds with torch.optim on gradients that are rebuilt from recorded draws."""
    # under add/remove the plan's number of records is not the real one, and only the plan's may be used
    nominal = RECORDS + 2 if subject.neighbours is Neighbours.ADD_REMOVE else RECORDS
    steps, data = fitted(subject.noisy, nominal, local_steps=STEPS), [subject.records(0, RECORDS)]
    optimiser = replace(subject.optimiser, learning_rate=learning_rate(subject, steps))
    tape, job = Tape(subject.draws), subject.job("client", steps, nominal, optimiser=optimiser, rounds=ROUNDS)
    cohort, shadow = subject.cohort([job], data, draws=tape), subject.cohort([job], data)
    twin, worst = Twin(optimiser, subject.start), 0.0
    for round in range(ROUNDS):
        (left,) = uploads(cohort, round, subject.start)
        noise = device_noise(cohort, "client", round, STEPS) if cohort.streams else tape.normals("client", round)
        if [len(drawn) for drawn in noise] != [subject.net.count] * STEPS:
            worst = float("nan")
            break
        expected, clear = twin.round(round, shadow, steps, noise)
        moved = (expected - subject.start).double().square().mean().sqrt()
        apart = (left - expected).double().abs()[clear]
        worst = max(worst, float(apart.quantile(SHARE) / moved)) if len(apart) else worst
    return Check(
        "optimiser", f"{worst:.2g} of a step", f"at most {AGREEMENT:g}", worst <= AGREEMENT,
        f"An upload is computed by {optimiser.name} from the noised sums over the planned batch size, and nothing else.",
    )  # fmt: skip


def learning_rate(subject: Subject, steps: NoisySteps) -> float:
    """A learning rate so small that rounding in one step does not show in the next."""
    move = MOVE[subject.net.dtype]
    if subject.optimiser.update.proportional:
        return move * expected_size(steps) / steps.noise_scale
    return move  # the others normalise


class Twin:
    """The same training with torch.optim, or one client at a time where torch does not have the optimiser."""

    def __init__(self, optimiser: Optimiser, start: Tensor) -> None:
        self.optimiser = optimiser
        self.start = start
        self.slots = {name: torch.zeros_like(start) for name in optimiser.slots}
        self.seen = 0

    def round(self, round: int, shadow: Cohort, steps: NoisySteps, noise: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The weights after the round, and which entries had no gradient near zero."""
        scale = steps.noise_scale
        smallest = torch.full(self.start.shape, torch.inf)
        one = single(self.optimiser, round, self.start, self.slots, self.seen)
        for step, drawn in enumerate(noise):
            before = one.weights
            (total,) = sums(shadow, before, round, step)
            gradient = (total + scale * drawn) / expected_size(steps)
            felt = (gradient + self.optimiser.weight_decay * before).abs() * expected_size(steps) / scale
            smallest = torch.minimum(smallest, felt)
            one.step(gradient.to(before.dtype))
        if self.optimiser.carried:
            self.slots = one.slots
            self.seen += len(noise)
        return one.weights, smallest > CLEAR


# ------------------------------------------------------------------ counting


def check_count(subject: Subject) -> Check:
    """Compare noise drawn, counted and planned over two rounds; a third round is beyond the plan."""
    planned = min(subject.mechanism.queries_per_round, MOST_STEPS)
    tape, (jobs, data) = Tape(subject.draws), unequal(subject, planned, ROUNDS)
    cohort = subject.cohort(jobs, data, draws=tape)
    on_device = cohort.streams is not None and subject.mechanism.steps is not None
    drawn, counted = set(), set()
    for round in range(ROUNDS):
        sent = answers(cohort, round, subject.start).answers
        if on_device:
            drawn.add(planned if _explained(subject, planned, round) else 0)
        else:
            drawn |= {len(noise_keys(subject.mechanism, tape, job.client, round)) for job in jobs}
        counted |= {upload.queries for upload in sent.values() if isinstance(upload, Sent)}
    totals = set(cohort.accounts().values()) == {Account(ROUNDS, ROUNDS * planned)}
    afresh = len({(kind, key) for kind, key, _ in tape.notes}) == len(tape.notes)
    afresh &= _streams_differ(tape, jobs) if on_device else _batches_drawn(tape, jobs, planned)
    last = answers(cohort, ROUNDS, subject.start).answers
    refused = all(isinstance(upload, Refused) for upload in last.values())
    words = [f"{_set(drawn)} drawn, {_set(counted)} counted"]
    words += [*([] if totals else ["totals differ"]), *([] if afresh else ["draws used twice or left out"])]
    words += [] if refused else ["a round beyond the plan"]
    return Check(
        "count", "; ".join(words), f"{planned} drawn, {planned} counted",
        drawn == counted == {planned} and totals and afresh and refused,
        "Every round draws and counts as much new noise as is accounted, and rounds beyond the plan are refused.",
    )  # fmt: skip


def _explained(subject: Subject, steps: int, round: int) -> bool:
    """Whether an upload of a transparent net is its known sums plus the noise of this many steps, and nothing else."""
    width = 64
    mechanism = replace(subject.noisy, records=4, batch="full", local_steps=steps)
    net, plain = transparent_net(subject.net, width), replace(PLAIN, learning_rate=4.0)
    job = subject.job("client", mechanism, 4, optimiser=plain, rounds=round + 1)
    x, start = torch.eye(4, width), torch.zeros(width, dtype=net.dtype)
    cohort = subject.cohort([job], [(x, far_below(mechanism.clip_norm, 4))], net=net, start=start)
    scale = mechanism.noise_scale
    known = steps * mechanism.clip_norm * x.sum(0).double() + scale * sum(device_noise(cohort, "client", round, steps))
    left = -uploads(cohort, round, start)[0].double() - known
    rounding = 4 * subject.grid * scale + subject.close * mechanism.clip_norm
    return float(left.abs().max()) <= steps * rounding + 1e-5 * float(known.abs().max())


def _streams_differ(draws: Tape, jobs: list[Job]) -> bool:
    """Every client, round and purpose has a stream of its own."""
    kinds = [(job.client, round, purpose) for job in jobs for round in range(ROUNDS) for purpose in ("noise", "batch")]
    return len({draws.stream(*kind) for kind in kinds}) == len(kinds)


def noise_keys(mechanism: Mechanism, tape: Tape, client: str, round: int) -> list[object]:
    if mechanism.noise == "laplace":  # Laplace noise is made of uniform numbers
        return list(tape.purpose("output", client, round))
    return list(tape.normals(client, round))


def _batches_drawn(tape: Tape, jobs: list[Job], planned: int) -> bool:
    """Whether there are as many batches as steps, for jobs that draw batches."""
    return all(
        len(tape.purpose("batch", job.client, round)) == planned
        for job in jobs if job.noisy and job.noisy.rate < 1
        for round in range(ROUNDS)
    )  # fmt: skip


def _set(values: set[int]) -> str:
    return " or ".join(str(value) for value in sorted(values))


# ------------------------------------------------------------------ stacking


def check_padding(subject: Subject) -> Check:
    """Compare clients of unequal size, stacked and padded, with each client alone and with batches split into pieces."""
    mechanism, clip, allowed = subject.mechanism, subject.mechanism.clip_norm, subject.close
    if mechanism.steps:
        full = replace(subject, mechanism=replace(mechanism.steps, batch="full"))
        worst = max(_apart(full, 0), *(_apart(subject, round) for round in range(1, 4)))
    else:
        worst = _outputs_apart(subject)
        # outputs are rounded to the arithmetic and to a grid: two almost equal outputs may be one cell apart
        rounding = 8 * torch.finfo(subject.net.dtype).eps * (1 + float(subject.start.abs().max())) / clip
        allowed += rounding + 2 * subject.grid * mechanism.noise_multiplier
    return Check(
        "padding", f"{worst / clip:.2g} clip norms", f"at most {allowed:.2g}", worst <= allowed * clip,
        "Clients of unequal size have equal results stacked and alone: padding adds nothing, and clients share no records.",
    )  # fmt: skip


def _apart(subject: Subject, round: int) -> float:
    """The largest distance between a client's sums stacked, in pieces and alone."""
    jobs, data = unequal(subject, OPEN_STEPS, 1)
    alone = [sums(subject.cohort([job], [own]), subject.start, round) for job, own in zip(jobs, data, strict=True)]
    # a client beside them that does not clip single records
    other = subject.job("other", OutputPerturbation(noise_multiplier=1.0), 5, optimiser=subject.optimiser)
    jobs, data = [other, *jobs], [subject.records(50, 55), *data]
    stacked = sums(subject.cohort(jobs, data), subject.start, round)[1:]
    pieces = sums(subject.cohort(jobs, data, records_at_once=2), subject.start, round)[1:]
    return float((torch.stack([stacked, pieces]) - torch.cat(alone)).norm(dim=2).max())


def _outputs_apart(subject: Subject) -> float:
    # plain steps of about the clip norm: other optimisers amplify rounding if a gradient is nearly zero
    plain = replace(PLAIN, learning_rate=subject.mechanism.clip_norm)
    jobs, data = unequal(replace(subject, optimiser=plain), 1, 1)
    stacked = uploads(subject.cohort(jobs, data), 0, subject.start)
    alone = [uploads(subject.cohort([job], [own]), 0, subject.start) for job, own in zip(jobs, data, strict=True)]
    return float((stacked - torch.cat(alone)).abs().max())


def unequal(subject: Subject, local_steps: int, rounds: int) -> tuple[list[Job], list[Records]]:
    """Clients with 1, 3, 7 and 4 records."""
    jobs, data, mechanism = [], [], subject.mechanism
    for i, size in enumerate(SIZES):
        own = fitted(mechanism.steps, size, local_steps=local_steps) if mechanism.steps else mechanism
        jobs.append(subject.job(f"client {i}", own, size, optimiser=subject.optimiser, rounds=rounds))
        data.append(subject.records(10 * i, 10 * i + size))
    return jobs, data
