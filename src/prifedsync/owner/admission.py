"""Whether a policy allows a run. Decided by the policy and the run's public document alone, and by no record.

The ledger decides about the budget, and the trainer about what only a built net can tell: shapes, rounding, invariance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from ..asking.document import RunDocument
from ..asking.refusals import Refusal
from ..local import Job
from .policy import Policy

Check = Callable[[Policy, RunDocument, Job], bool]  # whether a run must be refused


def refusal(policy: Policy, document: RunDocument) -> Refusal | None:
    """The first reason why this policy does not allow the run; None if it does."""
    own = document.job(policy.client)
    if own is None:
        return Refusal.CLIENT
    if any(job.plan is None for job in document.jobs):
        return Refusal.NOISE
    return next((reason for reason, refused in CHECKS if refused(policy, document, own)), None)


def _other_model(policy: Policy, document: RunDocument, own: Job) -> bool:
    model = document.model
    known = model.name in policy.limits.models and not model.layer_rules
    return not known or _parameters(document) > policy.limits.parameters


def _parameters(document: RunDocument) -> int:
    """How many parameters a linear model or mlp has on raw records, before anything is built; 0 for other nets.

    Those have one size for all that ask.
    """
    if document.model.name not in ("softmax", "linear", "mlp"):
        return 0
    hidden: Sequence[int] = document.model.hidden if document.model.name == "mlp" else ()
    widths = [math.prod(document.shape), *hidden, document.task.outputs]
    return sum((before + 1) * after for before, after in pairwise(widths))


def _other_rule(policy: Policy, document: RunDocument, own: Job) -> bool:
    return document.rule_name not in policy.limits.rules


def _other_records(policy: Policy, document: RunDocument, own: Job) -> bool:
    assert own.plan is not None  # refusal
    source = policy.source
    rows = policy.data.rows_per_person if source.unit == "person" else 1
    return (
        own.plan.unit != source.unit
        or own.plan.neighbours.value != source.neighbours
        or own.plan.copies < source.holders
        or own.steps.records != source.records
        or (own.noisy is not None and own.noisy.rows_per_unit != rows)
    )


def _too_little_noise(policy: Policy, document: RunDocument, own: Job) -> bool:
    assert own.plan is not None  # refusal
    return own.plan.mechanism.noise_multiplier < policy.limits.least_noise


def _too_large_clip(policy: Policy, document: RunDocument, own: Job) -> bool:
    assert own.plan is not None  # refusal
    return own.plan.mechanism.clip_norm > policy.limits.clip_norm


def _too_many_steps(policy: Policy, document: RunDocument, own: Job) -> bool:
    """All steps of a round count, noisy or not: those for the upload, and those for a model that is kept."""
    return own.upload.steps + own.kept_steps > policy.limits.local_steps


def _too_many_rounds(policy: Policy, document: RunDocument, own: Job) -> bool:
    assert own.plan is not None  # refusal
    return own.plan.slots > policy.limits.rounds


def _other_training(policy: Policy, document: RunDocument, own: Job) -> bool:
    """Optimisers from outside, coins in a masked run, which a list of names does not go with, or another task."""
    outside = any(job.optimiser.own is not None for job in document.jobs)
    coins = document.masks and any(job.participation < 1 for job in document.jobs)
    classes = policy.data.classes or len(policy.data.label_values)
    other_task = document.task.kind != policy.data.task or (classes > 0 and document.task.classes != classes)
    return outside or coins or other_task


def _no_masks(policy: Policy, document: RunDocument, own: Job) -> bool:
    return policy.masks.required and not document.masks


def _too_few(policy: Policy, document: RunDocument, own: Job) -> bool:
    """Too few clients in the roster or, where nobody sees more than a sum, in a sum."""
    fewest = min(len(document.jobs), document.least) if document.masks else len(document.jobs)
    return fewest < policy.limits.participants


def _strangers(policy: Policy, document: RunDocument, own: Job) -> bool:
    others = {job.client for job in document.jobs} - {own.client}
    return document.masks and not (policy.masks.identity and others <= set(policy.masks.peers))


CHECKS: tuple[tuple[Refusal, Check], ...] = (
    (Refusal.MODEL, _other_model),
    (Refusal.RULE, _other_rule),
    (Refusal.RECORDS, _other_records),
    (Refusal.NOISE, _too_little_noise),
    (Refusal.CLIP, _too_large_clip),
    (Refusal.STEPS, _too_many_steps),
    (Refusal.ROUNDS, _too_many_rounds),
    (Refusal.TRAINING, _other_training),
    (Refusal.MASKS, _no_masks),
    (Refusal.PARTICIPANTS, _too_few),
    (Refusal.PEERS, _strangers),
)
