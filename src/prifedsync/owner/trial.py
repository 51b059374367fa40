"""A model tried on the owner's records as the daemon would train it: inspected, probed and timed. Nothing of it leaves."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch

from ..accounting import Neighbours, NoisySteps, PrivacyPlan
from ..asking.document import RunDocument
from ..asking.tensors import HELPER, packed
from ..config import ModelConfig
from ..data import Records
from ..local import Job, Optimiser, SystemDraws
from ..values import BadValue
from .policy import Policy
from .records import OwnRecords
from .trainer import Trainer, net_of

ROUNDS = 3  # the first one sets things up and is not timed
STEPS = 10  # of a round, so that what a round takes besides its steps counts little
MOST_UNITS = 1000  # that are trained on; the time of more is in proportion


@dataclass(frozen=True)
class Trial:
    """What was seen of one model."""

    model: str
    parameters: int
    gradients: str  # how they are computed, in words
    seconds: float  # of one step on all records
    notes: tuple[str, ...]  # what the trainer logged for the owner


def tried(policy: Policy, own: OwnRecords, model: str) -> Trial:
    """The model trained for a few rounds with full batches of the first records. Refused where a run would be."""
    few = _first(own.train)
    document = _document(policy, own, model, few.units)
    notes: list[str] = []
    try:
        trainer = Trainer(document, policy.client, few, draws=SystemDraws(), log=notes.append)
    except BadValue as refused:
        rule = f"cannot be trained on these records: {refused}"
        raise BadValue("limits.models", model, rule, "remove it") from None
    if not trainer.probe():
        rule = "computes another gradient for a record when other records are beside it"
        raise BadValue("limits.models", model, rule, "a clipped gradient must depend on its own record alone")
    helper = packed(HELPER, trainer.net.initial())
    seconds = []
    for round in range(ROUNDS):
        begun = time.perf_counter()
        trainer.answer(round, 0, (), helper)
        seconds.append(time.perf_counter() - begun)
    one_step = max(seconds[1:]) / STEPS * len(own.train) / len(few)
    return Trial(model, trainer.count, trainer.net.gradients, one_step, tuple(notes))


def _first(records: Records) -> Records:
    """The records of the first units."""
    if records.persons is None:
        return Records(records.x[:MOST_UNITS], records.y[:MOST_UNITS])
    chosen = records.persons < MOST_UNITS
    return Records(records.x[chosen], records.y[chosen], records.persons[chosen])


def _document(policy: Policy, own: OwnRecords, model: str, units: int) -> RunDocument:
    """A run of this owner alone, with the least noise that the policy allows and the margin that the net needs."""
    source = policy.source
    neighbours = Neighbours(source.neighbours)
    steps = NoisySteps(
        noise_multiplier=policy.limits.least_noise,
        records=units,
        batch="full",
        local_steps=STEPS,
        clip_norm=min(1.0, policy.limits.clip_norm),
        rows_per_unit=policy.data.rows_per_person if source.unit == "person" else 1,
    )
    plan = PrivacyPlan(mechanism=steps, rounds=ROUNDS, neighbours=neighbours, copies=source.holders, unit=source.unit)
    document = RunDocument(
        run="0" * 32,
        jobs=(Job(client=policy.client, plan=plan, optimiser=Optimiser()),),
        rule_name="fedavg",
        rule_fields={},
        model=ModelConfig(name=model),
        task=own.description.task,
        shape=own.description.shape,
        tokens=_vocabulary(own),
        seed=0,
        arithmetic="float32",
        augment="none",
        metrics=(),
        summed=False,
        masks=False,
        attempts=0,
        least=1,
    )
    margin = net_of(document).margin_for(steps, neighbours)
    (job,) = document.jobs
    return replace(document, jobs=(replace(job, plan=plan.changed(clip_margin=margin)),))


def _vocabulary(own: OwnRecords) -> int:
    """The least vocabulary that the records fit; 0 where they are numbers."""
    return 0 if own.train.x.is_floating_point() else int(torch.max(own.train.x)) + 1
