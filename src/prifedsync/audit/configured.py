"""`audit step` for what a config describes: its model, its optimiser, its mechanism."""

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

RECORDS = 24
LOSSES = 200


def _made_up(like: Records, task: Task) -> tuple[Tensor, Tensor]:
    """Records of the same kind as these, and none of these: what is printed must not depend on anybody's."""
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
    """Attack one step of the first client's job, and the coin that says who takes part."""
    prepared = run.prepare(config)
    job = prepared.jobs[0]
    if job.plan is None:
        if config.privacy.mechanism != "none":
            raise BadValue(
                "rule.name", config.rule.name, "sends nothing: there is no noise to audit", "or rule.publish=true"
            )
        raise BadValue("privacy.mechanism", "none", "adds no noise: there is nothing to audit", "choose a mechanism")
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
    )
    return StepAudit((*found.checks, _check_loss(prepared), check_coins(prepared, draws)))


def _check_loss(prepared: Prepared) -> Check:
    """The run's loss on made-up outputs and targets."""
    task = prepared.description.task
    outputs = torch.randn(LOSSES, task.outputs, generator=torch.Generator().manual_seed(0))
    y = torch.arange(LOSSES) % max(task.classes, 2)
    if task.kind != "classes":
        y = y.float()
    apart = float((prepared.net.loss(outputs, y) - losses.BY_TASK[task.kind](outputs, y)).abs().max())
    return Check(
        "loss", f"{apart:.2g} from the plain one", "0", apart == 0,
        "A record's loss is that of its own target, without weights that were made from anybody's records.",
    )  # fmt: skip
