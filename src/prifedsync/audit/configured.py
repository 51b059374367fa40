"""`audit step` for what a config describes: its model, its optimiser, its mechanism, a few of its records."""

from __future__ import annotations

import torch

from .. import run
from ..config import Config
from ..engines import ENGINES
from ..fdp import BadValue, Neighbours
from ..local import losses
from .check import StepAudit
from .step import audit_step

RECORDS = 24


def audit_config(config: Config) -> StepAudit:
    """Attack one step of the first client's job."""
    prepared = run.prepare(config)
    job, clients = prepared.jobs[0], prepared.federation.clients
    if job.plan is None:
        raise BadValue("privacy.mechanism", "none", "adds no noise: there is nothing to audit", "choose a mechanism")
    each = -(-RECORDS // len(clients))
    x = torch.cat([client.train.x[:each] for client in clients])[:RECORDS]
    y = torch.cat([client.train.y[:each] for client in clients])[:RECORDS]
    return audit_step(
        prepared.module,
        x,
        y,
        losses.BY_TASK[prepared.federation.task.kind],
        optimiser=job.optimiser,
        mechanism=job.plan.mechanism,
        dtype=prepared.net.dtype,
        device=prepared.net.device,
        engine=ENGINES[config.performance.engine],
        neighbours=Neighbours(config.privacy.neighbours),
    )
