"""`audit step`: attack one noisy step of an engine as it is, in seconds.

The accounting of a run is right if every step is what the plan says: a sum that one record moves by so much, noise of
such a law, batches drawn in such a way, so many times. That is measured here for one model, optimiser and arithmetic, on
made-up clients with a few example records; no private data is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..accounting import Mechanism
from ..engines import Cohort, Vectorised
from ..fdp import Neighbours
from ..local import Arithmetic, Draws, Net, Optimiser, SystemDraws
from ..local.net import Loss
from ..local.programs import Way
from ..values import BadValue
from .batches import check_batches
from .check import StepAudit
from .fresh import check_fresh_batches, check_fresh_noise
from .kept import check_kept
from .keys import check_keys
from .labels import check_labels
from .noise import check_noise
from .output import check_carried, check_output
from .release import check_count, check_optimiser, check_padding
from .rows import check_rows
from .sensitivity import check_broken, check_sensitivity
from .stack import check_stack
from .subject import Subject

SAMPLES = 60_000  # pieces of noise: a standard deviation is then known to two per cent


def audit_step(
    module: nn.Module, x: Tensor, y: Tensor, loss: Loss, *, optimiser: Optimiser,
    mechanism: Mechanism, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu",
    engine: type[Cohort] = Vectorised, neighbours: Neighbours = Neighbours.REPLACE, way: Way | None = None,
    arithmetic: Arithmetic | None = None, augment: str = "none",
    draws: Draws | None = None, samples: int = SAMPLES,
) -> StepAudit:  # fmt: skip
    """Measure sensitivity, noise, batches and counts of one step; a right engine fails in less than one case of a million.

    x, y      a few example records; they are twisted, repeated and given to made-up clients
    mechanism what is planned; its records and batch give the rate, the clients of the audit are smaller
    way       force one of the ways to per-record gradients
    arithmetic  of products: "float32" or "float64", by dtype, unless given
    augment   how records are augmented in a step
    draws     where random numbers come from: secret ones under a fresh key unless given
    """
    if len(x) < 1 or len(x) != len(y):
        raise BadValue("records", len(x), f"with {len(y)} targets", "give a few example records, each with its target")
    net = Net(module, loss, x, y, dtype, device, way, arithmetic)
    subject = Subject(net, x, y, mechanism, optimiser, engine, neighbours, draws or SystemDraws(), augment)
    if mechanism.output:
        parts = (*check_output(subject), check_carried(subject), *check_noise(subject, samples), check_fresh_noise(subject))
    else:
        parts = (
            *check_sensitivity(subject), *check_rows(subject), check_broken(subject), check_labels(subject),
            *check_noise(subject, samples), check_fresh_noise(subject), check_optimiser(subject), *check_batches(subject),
            check_fresh_batches(subject), check_stack(subject), check_kept(subject),
        )  # fmt: skip
    keys = (check_keys(),) if isinstance(subject.draws, SystemDraws) else ()  # a seed is no secret
    return StepAudit((*parts, check_count(subject), check_padding(subject), *keys))
