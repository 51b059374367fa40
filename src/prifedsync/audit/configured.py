"""`audit step` for a config: its model, optimiser, mechanism and arithmetic, on records that are made up.

Of the config's own records only the shape, the dtype and, for tokens, the largest token are used. So the table of the audit
tells nothing else about them.
"""

from __future__ import annotations

import secrets

import torch
from torch import Tensor

from .. import run
from ..config import Config
from ..data import Records, Task
from ..engines import ENGINES
from ..fdp import Neighbours
from ..local import SeededDraws, SystemDraws, losses
from ..run import Prepared
from ..values import BadValue
from .check import Check, StepAudit
from .coins import check_coins
from .step import audit_step

RECORDS = 24  # made-up example records
LOSSES = 200  # made-up outputs at which the loss is compared


def _made_up(like: Records, task: Task) -> tuple[Tensor, Tensor]:
    """Random records of the same shape and dtype as these. None of these records is used."""
    draw = torch.Generator().manual_seed(0)
    shape = (RECORDS, *like.x.shape[1:])
    if like.x.is_floating_point():
        x = torch.randn(shape, generator=draw)
    else:
        x = torch.randint(0, int(like.x.max()) + 1, shape, generator=draw)
    if task.kind == "regression":
        return x, torch.randn(RECORDS, generator=draw)
    return x, torch.randint(0, task.classes, (RECORDS,), generator=draw).to(like.y.dtype)


def audit_config(config: Config) -> StepAudit:
    """Attack one step of the first client's job, and the random choice of who takes part."""
    prepared = run.prepare(config)
    job = prepared.jobs[0]
    if job.plan is None:
        if config.privacy.mechanism != "none":
            rule = "sends nothing, so there is no noise to audit"
            raise BadValue("rule.name", config.rule.name, rule, "choose another rule, or set rule.publish = true")
        rule = "adds no noise, so there is nothing to audit"
        raise BadValue("privacy.mechanism", "none", rule, "choose a mechanism that adds noise")
    x, y = _made_up(prepared.held.clients[0].train, prepared.description.task)
    draws = SeededDraws(secrets.randbits(63)) if config.privacy.randomness == "seeded" else SystemDraws()
    found = audit_step(
        prepared.module,
        x,
        y,
        prepared.net.loss,
        optimiser=job.optimiser,
        mechanism=job.plan.mechanism,
        dtype=prepared.net.dtype,
        device=prepared.net.device,
        arithmetic=prepared.net.arithmetic,
        layer_rules=prepared.net.bookkeeping.own_rules,
        engine=ENGINES[config.performance.engine],
        neighbours=Neighbours(config.privacy.neighbours),
        augment=config.local.augment,
        draws=draws,
        summed=prepared.sums is not None,
    )
    return StepAudit((*found.checks, _check_loss(prepared), check_coins(prepared, draws)))


def _check_loss(prepared: Prepared) -> Check:
    """Compare the loss of the run with the plain one, at made-up outputs and targets."""
    task = prepared.description.task
    outputs = torch.randn(LOSSES, task.outputs, generator=torch.Generator().manual_seed(0))
    y = torch.arange(LOSSES) % max(task.classes, 2)
    if task.kind != "classes":
        y = y.float()
    apart = float((prepared.net.loss(outputs, y) - losses.BY_TASK[task.kind](outputs, y)).abs().max())
    return Check(
        "loss", f"{apart:.2g} from the plain one", "0", apart == 0,
        "The loss of a record depends on its own target only, without weights that were computed from other records.",
    )  # fmt: skip
