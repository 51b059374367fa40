"""The public numbers of a run whose clients' noised vectors enter the global model through their sum alone.

Client k sends integers, m_k = round((c_k·S_k + N(0, (c_k·scale_k)²)) / g): S_k is its clipped sum (or clipped change), g a
public grid and c_k a public factor. The server adds integers, which is exact in any order, and takes one step with the
total. So a released model is a function of the model before it and of that total.

    φ_k = weight_k·learning_rate_k/expected batch_k (noisy steps), or weight_k (output perturbation)
    F = max φ_k      c_k = φ_k/F      change of the mean = ∓schedule·F·g·Σ m_k / Σ weight_k, over those in the sum
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..accounting.sums import influences
from ..accounting.views import LAPLACE, ONE_BY_ONE
from ..rules import Rule
from ..rules.rule import beyond_sum
from ..values import BadValue
from .batches import expected_size
from .job import Job
from .optimisers.schedule import CONSTANT, Schedule
from .words import LEAST_STEPS

CELL_BITS = 8  # s = noise ÷ grid of the least noisy client is in [2^8, 2^9)
MOST_BITS = 20  # s of the noisiest client is at most 2^20: noise must be dense at the scale of a cell
WORD_BITS = 32  # masked sums are taken modulo 2^32
EXACT_BITS = 53  # other sums are exact in double precision
TAILS = 64.0  # standard deviations beyond which no noise is

UNNOISED = "nothing is noised"
BEYOND = "rule {} needs more than the sum of the uploads: {}"
UNLIKE = "clients' mechanisms or schedules differ, and one step cannot be taken for all of them"
OPTIMISER = "the local optimiser does more than follow the noisy gradient"
COUNTED = "the learning rate depends on how often each client took part"
PUSHED = "clients are sent models of earlier rounds"
REMEDIES = {
    UNNOISED: "set the noise (privacy.noise_multiplier or privacy.target)",
    UNLIKE: "give all clients the same mechanism and schedule",
    LAPLACE: 'set privacy.mechanism = "output-gaussian"',
    ONE_BY_ONE: 'set local.local_steps = 1, or privacy.mechanism = "output-gaussian"',
    OPTIMISER: 'set local.optimiser = "sgd" and local.weight_decay = 0; [server] optimiser has momentum and adam',
    COUNTED: 'set local.schedule = "constant", or participation = 1',
    PUSHED: 'set rule.delivery = "pull"',
}


@dataclass(frozen=True, kw_only=True)
class Sums:
    """What client and server must agree on to add up messages."""

    grid: float  # g, a power of two
    factors: Mapping[str, float]  # c_k
    weights: Mapping[str, float]
    step: float  # −F where messages are gradients, 1·F where they are changes
    schedule: Schedule = CONSTANT  # of the learning rate, by the round
    least: int = 1  # clients in a sum
    masked: bool = False
    attempts: int = 0  # spare ones, of the whole run

    def change(self, total: Tensor, senders: Sequence[str], round: int) -> Tensor:
        """By how much the mean of the senders' models differs from the global model [P], in double precision."""
        weight = math.fsum(self.weights[name] for name in senders)
        return total.double() * (self.step * self.schedule.at(round) * self.grid / weight)


def why_not(rule: Rule, jobs: Sequence[Job]) -> str:
    """Why the vectors of these clients cannot enter the global model through their sum alone; "" if they can."""
    return why_never(rule, jobs) or _why_no_grid(jobs, _factors(jobs), masked=False)


def why_never(rule: Rule, jobs: Sequence[Job]) -> str:
    """The same, whatever noise is planned for them: it may still have to be found."""
    if any(job.plan is None for job in jobs):
        return UNNOISED
    more = beyond_sum(rule)
    if more:
        return BEYOND.format(rule.name, more)
    if any(job.output and job.output.noise != "gaussian" for job in jobs):
        return LAPLACE
    noisy = [job for job in jobs if job.noisy]
    if noisy and (len(noisy) < len(jobs) or len({job.optimiser.schedule for job in noisy}) > 1):
        return UNLIKE
    if any(job.steps.local_steps > 1 for job in noisy):
        return ONE_BY_ONE
    if any(job.optimiser.name != "sgd" or job.optimiser.weight_decay for job in noisy):
        return OPTIMISER
    if any(job.participation < 1 and job.optimiser.schedule.kind != "constant" for job in noisy):
        return COUNTED
    return ""


def remedy_for(why: str) -> str:
    """What to change in a config that wants sums, where this is why there are none."""
    other_rule = "use a rule whose server needs the sum alone (`prifedsync rules`), and publish no personal models"
    return other_rule if why.startswith(BEYOND.partition("{")[0]) else REMEDIES.get(why, "train without masks")


def sums_of(jobs: Sequence[Job], *, masked: bool = False, attempts: int = 0, least: int = 1) -> Sums:
    """The numbers of these jobs, each of which releases one noised vector a round."""
    gradients = jobs[0].noisy is not None
    factors = _factors(jobs)
    why = _why_no_grid(jobs, factors, masked)
    if why:
        remedy = "add noise, or train without masks" if masked else "let clients' clip norms and weights differ less"
        raise BadValue("the grid of messages", _grid(jobs, factors, masked), f"is too coarse: {why}", remedy)
    largest = max(_influences(jobs))
    return Sums(
        grid=_grid(jobs, factors, masked),
        factors=factors,
        weights={job.client: job.weight for job in jobs},
        step=-largest if gradients else largest,
        schedule=jobs[0].optimiser.schedule if gradients else CONSTANT,
        least=least,
        masked=masked,
        attempts=attempts,
    )


def _influences(jobs: Sequence[Job]) -> tuple[float, ...]:
    """φ_k of each."""
    gradients = jobs[0].noisy is not None
    return influences(
        [job.weight for job in jobs],
        [job.optimiser.learning_rate for job in jobs] if gradients else None,
        [expected_size(job.steps) for job in jobs] if gradients else None,
    )


def _factors(jobs: Sequence[Job]) -> dict[str, float]:
    """c_k by the client's name."""
    shares = _influences(jobs)
    largest = max(shares)
    return {job.client: own / largest for job, own in zip(jobs, shares, strict=True)}


def _grid(jobs: Sequence[Job], factors: Mapping[str, float], masked: bool) -> float:
    """As fine as s in [2^8, 2^9) for the least noisy client; coarser where the sum would not fit into its bits, or where
    the noisiest client would have more than 2^20 steps of noise."""
    noises = [factors[job.client] * _noise(job) for job in jobs]
    fine = 2.0 ** (math.floor(math.log2(min(noises))) - CELL_BITS)
    dense = 2.0 ** (math.frexp(max(noises))[1] - MOST_BITS)  # frexp: noise < 2^exponent, without a logarithm's rounding
    bits = WORD_BITS if masked else EXACT_BITS
    largest = _largest_sum(jobs, factors) + len(jobs) * fine
    return max(fine, dense, 2.0 ** math.ceil(math.log2(largest) - (bits - 1)))


def _why_no_grid(jobs: Sequence[Job], factors: Mapping[str, float], masked: bool) -> str:
    """Why no grid is fine enough for the least noisy client and coarse enough for all others; "" if one is."""
    noises = {job.client: factors[job.client] * _noise(job) for job in jobs}
    quietest = min(noises, key=noises.__getitem__)
    loudest = max(noises, key=noises.__getitem__)
    steps = noises[quietest] / _grid(jobs, factors, masked)
    if steps >= LEAST_STEPS:
        return ""
    bits = WORD_BITS if masked else EXACT_BITS
    largest = _largest_sum(jobs, factors) / noises[quietest]
    return (
        f"on a grid for all clients the noise of client {quietest} would be {steps:.2g} steps, and must be {LEAST_STEPS}; "
        f"in a sum client {loudest} has {noises[loudest] / noises[quietest]:.2g} times that noise (at most 2^{MOST_BITS} "
        f"steps), and all clients may add up to {largest:.2g} times it (in {bits} bits)"
    )


def _largest_sum(jobs: Sequence[Job], factors: Mapping[str, float]) -> float:
    return math.fsum(factors[job.client] * (_bound(job) + TAILS * _noise(job)) for job in jobs)


def _noise(job: Job) -> float:
    assert job.plan is not None
    return job.plan.mechanism.noise_scale


def _bound(job: Job) -> float:
    """On an entry of what is noised."""
    assert job.plan is not None
    return job.plan.mechanism.clip_norm * (job.noisy.records if job.noisy else 1)
