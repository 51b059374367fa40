"""Whether a random number is ever used twice: in a later round, or under another key.

Each round below is the first round of a new cohort, from the same weights. So rounds differ only in their number, and state
that a client carries cannot hide a draw that is used again. There are two keys: draws that depend on a public seed only are
the same under both.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

from ..accounting import NoisySteps, Sampling
from ..local import Draws, Net
from ..local.batches import expected_size
from . import statistics
from .batches import looked_at, transparent, watched
from .check import CHANCE, Check
from .subject import PLAIN, Subject, another_key, far_below, fitted, transparent_net, uploads

# with powers of two and ten, where a round number that is cut to a few bits or digits repeats
ROUNDS = (*range(20), 100, 1000, 10_000, *(2**bits for bits in range(5, 21)))
SECOND_KEY = ROUNDS[:2]
ALL = len(ROUNDS) + len(SECOND_KEY)
PAIRS = math.comb(ALL, 2)
WIDTH = 64
RECORDS = 4
MOST_RECORDS = 48
STILL = 1e-30  # a learning rate too small to change any weight


# ------------------------------------------------------------------ noise


def check_fresh_noise(subject: Subject) -> Check:
    net = transparent_net(subject.net, WIDTH)
    rows = [_noise(subject, net, draws, round) for draws, round in _draws_and_rounds(subject)]
    largest, chance = statistics.correlation(statistics.normal_scores(np.stack(rows), subject.mechanism.noise))
    return Check(
        "noise used again", f"largest correlation {largest:.3f}", f"p at least {CHANCE:g}", chance >= CHANCE,
        f"No two rounds up to number {ROUNDS[-1]}, and no two keys, have the same noise: it could be cancelled.",
    )  # fmt: skip


def _noise(subject: Subject, net: Net, draws: Draws, round: int) -> np.ndarray:
    """The noise in one client's upload of this round, divided by its planned scale."""
    mechanism = subject.mechanism
    unit = mechanism.noise_scale
    known = torch.zeros(WIDTH, dtype=torch.float64)
    x = torch.eye(RECORDS, WIDTH)
    if mechanism.steps:
        mechanism = fitted(mechanism.steps, RECORDS, batch="full", local_steps=1)
        optimiser = replace(PLAIN, learning_rate=RECORDS)
        known = mechanism.clip_norm * x.sum(0).double()
    else:
        optimiser = replace(PLAIN, learning_rate=STILL)
    job = subject.job("client", mechanism, RECORDS, optimiser=optimiser, rounds=round + 1)
    start = torch.zeros(WIDTH, dtype=net.dtype)
    records = (x, far_below(mechanism.clip_norm, RECORDS))
    cohort = replace(subject, draws=draws).cohort([job], [records], net=net, start=start)
    (left,) = uploads(cohort, round, start)
    noise: np.ndarray = ((-left.double() - known) / unit).numpy()
    return noise


def _draws_and_rounds(subject: Subject) -> list[tuple[Draws, int]]:
    other = another_key(subject.draws)
    return [(subject.draws, round) for round in ROUNDS] + [(other, round) for round in SECOND_KEY]


# ------------------------------------------------------------------ batches


def check_fresh_batches(subject: Subject) -> Check:
    steps = fitted(subject.noisy, min(subject.noisy.records, MOST_RECORDS), local_steps=1)
    if steps.rate >= 1:
        return Check("batches used again", "none are drawn", "none are drawn", True, _BATCHES)
    net = transparent_net(subject.net, steps.records)
    seen = {_batches(subject, net, steps, draws, round) for draws, round in _draws_and_rounds(subject)}
    again = ALL - len(seen)
    return Check("batches used again", f"{again} of {ALL}", "0", again == 0, _BATCHES)


_BATCHES = "No two rounds and no two keys have the same batches: known or repeated batches give no amplification."


def _batches(subject: Subject, net: Net, steps: NoisySteps, draws: Draws, round: int) -> bytes:
    """Which records are used by enough clients to tell two rounds apart."""
    jobs = watched(subject, [steps] * clients_that_tell(steps), round + 1)
    cohort = transparent(subject, jobs, steps.records, draws, net=net)
    return np.round(looked_at(cohort, round)).astype(np.int8).tobytes()


def clients_that_tell(steps: NoisySteps, pairs: int = PAIRS) -> int:
    """Enough clients that two of these rounds have equal batches by accident with probability CHANCE at most."""
    if steps.sampling is Sampling.FIXED:
        agree = 1 / math.comb(steps.records, expected_size(steps))
    else:
        agree = (steps.rate**2 + (1 - steps.rate) ** 2) ** steps.records
    return math.ceil(math.log(CHANCE / pairs) / math.log(agree))
