"""What an absent client's reply carries: a vector like those that are sent, made of fresh noise and no record.

The asker reads "absent" and discards it. It is for those who see only bytes pass. A body of zeros would have the same
length, and still be told apart on the way: Flower names each piece of a body by its digest and sends a piece once, and a
compressing transport shortens zeros. So it is what a client would send to whose model no record contributes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..local import Job, noise
from ..local.batches import expected_size
from ..local.draws import Draws, Key, SystemDraws
from ..local.perturbation import released
from ..local.sums import Sums

MOST_DRAWS = 4  # more steps do not change how such a vector looks


def filler(job: Job, helper: Tensor, sums: Sums | None) -> Tensor:
    """A reply's vector [P] for a client that was sent this helper: finite, and never the same twice.

    Its noise is fresh from the operating system, whatever the run draws from: it is no release, and nothing depends on it.
    """
    assert job.plan is not None
    draws = SystemDraws()
    key = Key(job.client, 0, 0, "absent")
    scale = job.plan.mechanism.noise_scale
    nothing = torch.zeros(len(helper), dtype=torch.float64)
    if sums is not None:
        return noise.integers(nothing, scale, sums.factors[job.client], sums.grid, draws, key).value
    if job.output is not None:
        return _finite(released(helper, helper, job.output, draws, key).value)
    step = job.optimiser.learning_rate / expected_size(job.steps)
    return _finite((helper.double() - step * _noise_of_steps(job, nothing, draws)).to(helper.dtype))


def _noise_of_steps(job: Job, nothing: Tensor, draws: Draws) -> Tensor:
    """What is like the noise of all steps together: on its grid, unless the optimiser leaves that."""
    assert job.plan is not None
    scale = job.plan.mechanism.noise_scale
    if job.optimiser.name != "sgd" or job.optimiser.weight_decay:
        return scale * draws.normal(Key(job.client, 0, 0, "absent"), len(nothing))
    total = nothing
    for number in range(min(job.upload.steps, MOST_DRAWS)):
        key = Key(job.client, 0, number, "absent")
        total = total + noise.gaussian(nothing, scale, job.plan.mechanism.clip_norm, draws, key).value
    return total


def _finite(vector: Tensor) -> Tensor:
    return torch.nan_to_num(vector)
