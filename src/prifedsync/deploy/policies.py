"""The policy of each owner for one run: it allows exactly what the run needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..accounting import Budget, PrivacyPlan
from ..accounting.budget import MOST
from ..accounting.statement import ALPHA_MIN, down
from ..asking import document
from ..config import as_mapping
from ..limits import LEAST_NOISE, RECORD
from ..local import Job
from ..owner import admission
from ..owner.policy import Policy, from_mapping
from ..run.prepare import Prepared
from ..values import NOT_GIVEN, BadValue
from .described import document_of
from .schema import Schema

STEP = 1000  # budgets are given in thousandths
ROOM = 1 + 1e-9  # by which the budget is larger than the plan: another machine may round its last digit in another way
IDENTITY = "identity.key"
SOCKET = "../door/owner.sock"  # in a folder of its own, which the asker's user may enter
RUN = 32 * "0"  # stands for the name of the run


def policies_of(prepared: Prepared, schema: Schema, reply_seconds: float) -> dict[str, Policy]:
    """The policy of each client, which accepts the run. The identities that it pins are still those of nobody."""
    _check_runnable(prepared)
    nobody = {job.client: f"{number:064x}" for number, job in enumerate(prepared.jobs)}
    asked = document_of(prepared, schema.description, RUN)
    limits = _limits(prepared, asked)
    found = {}
    for job in prepared.jobs:
        said = _policy(prepared, schema, job) | {"limits": limits | _own_limits(job)}
        said |= {"masks": {"required": asked.masks, "identity": IDENTITY}, "replies": {"seconds": reply_seconds}}
        policy = pinning(from_mapping(said), nobody)
        _check_accepted(policy, asked)
        found[job.client] = policy
    return found


def pinning(policy: Policy, identities: Mapping[str, str]) -> Policy:
    """The policy with the public identities of all other owners, in hexadecimal digits."""
    peers = {name: key for name, key in identities.items() if name != policy.client}
    return replace(policy, masks=replace(policy.masks, peers=peers))


def budget_of(plan: PrivacyPlan) -> float:
    """The least budget, as a μ in thousandths, that covers one run of this plan.

    A first run may have the whole budget to itself, and is then judged by its exact guarantee. Where several owners hold
    the same units, it is judged by what its rounds add up to.
    """
    if plan.copies == 1:
        mu = plan.guarantee().mu(ALPHA_MIN).upper
    else:
        mu = math.sqrt(Budget(mu=1.0).cost(plan).of(plan.rounds, plan.attempts))
    budget = math.ceil(mu * STEP * ROOM) / STEP if math.isfinite(mu) else mu
    if not budget <= MOST:
        rule = f"leave a guarantee of mu = {budget:g}, and no budget is larger than {MOST:g}"
        raise BadValue("[privacy]", NOT_GIVEN, rule, "add more noise, or plan fewer rounds")
    return budget


def _policy(prepared: Prepared, schema: Schema, job: Job) -> dict[str, Any]:
    """What the policy says about this client's records."""
    description = schema.description
    data = as_mapping(schema.config.data) | {"clients": 1}
    if description.unit != RECORD:
        data["person_clients"] = description.copies
    source = {
        "name": f"{job.client}/records",
        "records": job.steps.records,
        "unit": description.unit,
        "neighbours": prepared.config.privacy.neighbours,
        "holders": description.copies,
    }
    return {
        "client": job.client,
        "source": source,
        "data": data,
        "budget": {"mu": budget_of(_plan(job))},
        "files": {"socket": SOCKET},
    }


def _limits(prepared: Prepared, asked: document.RunDocument) -> dict[str, Any]:
    """Limits that are the same for all."""
    return {
        "models": [asked.model.name],
        "rules": [asked.rule_name],
        "parameters": prepared.net.count,
        "participants": asked.least if asked.masks else len(asked.jobs),
    }


def _own_limits(job: Job) -> dict[str, Any]:
    """Limits of one client's plan. The noise is rounded down: another machine may plan it a little smaller."""
    plan = _plan(job)
    return {
        "least_noise": max(LEAST_NOISE, float(down(plan.mechanism.noise_multiplier))),
        "clip_norm": plan.mechanism.clip_norm,
        "local_steps": job.upload.steps + job.kept_steps,
        "rounds": plan.slots,
    }


def _plan(job: Job) -> PrivacyPlan:
    assert job.plan is not None  # _check_runnable
    return job.plan


def _check_runnable(prepared: Prepared) -> None:
    """Refuse what no owner could take part in, by the names of the config's fields."""
    config = prepared.config
    if not prepared.rule.uploads:
        rule = "cannot be deployed: its clients send nothing"
        raise BadValue("rule.name", config.rule.name, rule, "prifedsync rules lists the rules and what they send")
    if len(prepared.plans) < len(prepared.jobs):
        rule = "cannot be deployed: owners release nothing without noise"
        raise BadValue("privacy.mechanism", config.privacy.mechanism, rule, "use a mechanism that adds noise")
    if config.privacy.masks and config.participation < 1:
        rule = "must be 1 with privacy.masks: an owner masks its message for a list of clients that is known before"
        raise BadValue("participation", config.participation, rule, "set it to 1, or train without masks")
    if any(job.optimiser.own is not None for job in prepared.jobs):
        rule = "is code, which an owner does not take from outside"
        raise BadValue("local.optimiser", config.local.optimiser, rule, "use a built-in optimiser")


def _check_accepted(policy: Policy, asked: document.RunDocument) -> None:
    """Refuse a run that its own policies would decline: what owners cannot run at all."""
    reason = admission.refusal(policy, asked)
    if reason is not None:
        rule = f"is declined by its owners: {reason.value}"
        raise BadValue("config", f"the run for {policy.client}", rule, "docs/owner.md says what to change for each reason")
