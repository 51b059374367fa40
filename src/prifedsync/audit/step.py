"""`audit step`: attack one noisy step of an engine, in seconds.

The accounting of a run is right if every step is as planned: its sensitivity, the distribution of its noise, the way its
batches are drawn, and how often noise is added. The audit measures these for one model, optimiser and arithmetic, on
made-up clients that hold a few example records. The example records may be random: no private data is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..accounting import Mechanism
from ..engines import Cohort, Vectorised
from ..fdp import Neighbours
from ..local import Arithmetic, Draws, GradMethod, LayerRules, Net, Optimiser, SystemDraws
from ..local.net import Loss
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
from .sums import check_sum

SAMPLES = 60_000  # values of noise: they estimate a standard deviation to two per cent


def audit_step(
    module: nn.Module, x: Tensor, y: Tensor, loss: Loss, *, optimiser: Optimiser,
    mechanism: Mechanism, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu",
    engine: type[Cohort] = Vectorised, neighbours: Neighbours = Neighbours.REPLACE,
    grad_method: GradMethod | None = None, arithmetic: Arithmetic | None = None,
    layer_rules: LayerRules | None = None, augment: str = "none",
    draws: Draws | None = None, samples: int = SAMPLES, summed: bool = False,
) -> StepAudit:  # fmt: skip
    """Measure sensitivity, noise, batches and counts of one step. A correct engine fails once in a million audits or less.

    x, y         a few example records; they are changed, repeated and given to made-up clients
    mechanism    the planned mechanism; the audit keeps its sampling rate, with fewer records
    grad_method  forces one method for per-sample gradients
    arithmetic   of matrix products; the default follows dtype
    layer_rules  your own layer rules, by module class
    augment      how records are augmented in a step
    summed       clients send messages that are added up, and not models
    draws        the source of random numbers; the default is secret draws under a new key
    """
    if len(x) < 1 or len(x) != len(y):
        rule = f"must be at least 1 and equal the number of targets, which is {len(y)}"
        raise BadValue("records", len(x), rule, "give a few example records, each with its target")
    net = Net(module, loss, x, y, dtype, device, grad_method, arithmetic, layer_rules)
    subject = Subject(net, x, y, mechanism, optimiser, engine, neighbours, draws or SystemDraws(), augment, summed)
    if mechanism.output:
        parts = (*check_output(subject), check_carried(subject), *check_noise(subject, samples), check_fresh_noise(subject))
    else:
        parts = (
            *check_sensitivity(subject), *check_rows(subject), check_broken(subject), check_labels(subject),
            *check_noise(subject, samples), check_fresh_noise(subject), check_optimiser(subject), *check_batches(subject),
            check_fresh_batches(subject), check_stack(subject), check_kept(subject),
        )  # fmt: skip
    keys = (check_keys(),) if isinstance(subject.draws, SystemDraws) else ()  # a seed is no secret
    sums = (check_sum(subject),) if summed else ()
    return StepAudit((*parts, check_count(subject), check_padding(subject), *sums, *keys))
