"""From the config to each client's job: its plan, its noise, its optimiser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import lru_cache
from typing import Literal, TypeVar

from .accounting import (
    CannotMeet,
    Neighbours,
    NoisySteps,
    OutputPerturbation,
    PrivacyPlan,
    Sampling,
    Target,
    calibrated,
)
from .accounting.statement import down, up
from .config import ClientConfig, Config
from .data import Federation
from .local import Job, Optimiser, Schedule, UnnoisedSteps
from .rules import RULES, Pulled, Rule
from .values import MISSING, BadValue

UNCALIBRATED = 1.0  # stands for the noise until a target has chosen it
T = TypeVar("T")
Margin = Callable[[NoisySteps, Neighbours], float]  # what rounding takes


def rule_of(config: Config) -> Rule:
    """The config's rule, with its own numbers from [rule]."""
    kind = _kind(config)
    return kind(**{field.name: getattr(config.rule, field.name) for field in fields(kind)})


def participation_of(config: Config) -> float:
    """The chance to take part in a round; who trains alone waits for nobody."""
    return config.participation if _kind(config).uploads else 1.0


def _kind(config: Config) -> type[Rule]:
    name = config.rule.name
    if name not in RULES:
        near = get_close_matches(name, RULES, 1, 0)[0]
        raise BadValue("rule.name", name, "is not a rule", f"did you mean {near}? rules: {', '.join(RULES)}")
    return RULES[name]


def jobs_of(
    config: Config, federation: Federation, margin: Margin, told: Callable[[int], None] = lambda done: None
) -> list[Job]:
    """One job a client, overrides applied, noise calibrated where a target is given. Refusals name the client."""
    sizes = {client.name: len(client.train) for client in federation.clients}
    for name in config.clients:
        if name not in sizes:
            near = get_close_matches(name, sizes, 1, 0)
            raise BadValue(f'clients."{name}"', "given", "is not a client of this data", f"did you mean {near[0]}?")
    jobs = []
    for done, (name, present) in enumerate(sizes.items(), start=1):
        try:
            jobs.append(_job(config, name, config.clients.get(name, ClientConfig()), present, federation.copies, margin))
        except BadValue as bad:
            raise BadValue(f"client {name}: {bad.field}", bad.value, bad.rule, bad.remedy) from None
        told(done)
    if federation.copies > 1 and len({job.plan for job in jobs}) > 1:
        rule = "is accounted where all clients have one plan, and these differ"
        raise BadValue("data.overlap", "true", rule, "leave [clients] out, or set data.overlap = false")
    return jobs


def _job(config: Config, name: str, own: ClientConfig, present: int, copies: int, margin: Margin) -> Job:
    private, local = config.privacy, config.local

    rule = rule_of(config)
    batch, steps = either(own.batch, local.batch), either(own.local_steps, local.local_steps)
    counted = rule.noisy_gradients(steps)
    if rule.uploads and rule.upload_steps(steps) < 1:
        raise BadValue(
            "rule.name", rule.name, "sends what no noisy gradient went into", "its upload_steps must be at least 1"
        )
    if private.neighbours == "add-remove" and private.mechanism == "noisy-steps" and counted and own.records is None:
        raise BadValue(
            "records", MISSING, "must be given where neighbours is add-remove, because the true number is private then",
            f'set clients."{name}".records to a public nominal number',
        )  # fmt: skip
    records = either(own.records, present)
    sampling = Sampling(either(own.sampling, local.sampling))
    clip = either(own.clip_norm, private.clip_norm)
    noise = either(own.noise_multiplier, private.noise_multiplier)
    unnoised_steps, plan = None, None
    if private.mechanism != "noisy-steps" or not counted:
        unnoised_steps = UnnoisedSteps(records=present, batch=batch, local_steps=counted or steps, sampling=sampling)
    if private.mechanism != "none" and counted:  # what nobody else ever sees needs no plan
        mechanism: NoisySteps | OutputPerturbation
        if private.mechanism == "noisy-steps":
            mechanism = NoisySteps(
                noise_multiplier=noise or UNCALIBRATED, records=records, batch=batch, sampling=sampling, clip_norm=clip,
                local_steps=counted,
            )  # fmt: skip
            mechanism = replace(mechanism, clip_margin=margin(mechanism, Neighbours(private.neighbours)))
        elif rule.outer or rule.publishes:
            both = f"cannot go with rule {rule.name}" + (", publish = true" if rule.publishes else "")
            remedy = "one noised change does not cover two models: use noisy-steps"
            raise BadValue("privacy.mechanism", private.mechanism, both, remedy)
        else:
            kind: Literal["gaussian", "laplace"] = "laplace" if private.mechanism == "output-laplace" else "gaussian"
            mechanism = OutputPerturbation(noise_multiplier=noise or UNCALIBRATED, clip_norm=clip, noise=kind)
        plan = PrivacyPlan(
            mechanism=mechanism, rounds=config.rounds, participation=participation_of(config),
            neighbours=Neighbours(private.neighbours), copies=copies,
        )  # fmt: skip
        if noise is None:
            plan = _calibrated(plan, _target(config))
    optimiser = Optimiser(
        name=either(own.optimiser, local.optimiser),
        learning_rate=either(own.learning_rate, local.learning_rate),
        momentum=local.momentum,
        betas=local.betas,
        decay=local.decay,
        stability=local.stability,
        weight_decay=local.weight_decay,
        schedule=Schedule(
            kind=local.schedule, every=local.schedule_every, factor=local.schedule_factor, rounds=config.rounds
        ),
        carried=local.state == "carried",
    )
    strength = either(own.strength, config.rule.strength)
    _check_strength(rule, optimiser, strength, steps)
    return Job(
        client=name, plan=plan, optimiser=optimiser, unnoised_steps=unnoised_steps, averaging=local.averaging,
        mixing=either(own.mixing, config.rule.mixing), strength=strength, kept_steps=steps if rule.kept else 0,
        kept_counted=rule.publishes or not rule.uploads,
    )  # fmt: skip


def _check_strength(rule: Rule, optimiser: Optimiser, strength: float, steps: int) -> None:
    """Refuse a pull that throws the weights over what they are pulled to."""
    pulled = any(isinstance(each, Pulled) for each in (rule.steps, rule.kept))
    if pulled and optimiser.name in ("sgd", "momentum") and optimiser.learning_rate * strength > 1:
        rate = optimiser.learning_rate
        raise BadValue("strength", strength, f"with learning_rate = {rate:g} overshoots", f"at most {down(1 / rate, 6)}")
    reach = optimiser.pace(0) * steps
    if rule.name == "mixture" and strength * reach > 1:
        remedy = f"at most {down(1 / reach, 6)}: one over learning_rate times local_steps, less with momentum"
        raise BadValue(
            "strength", strength, f"gives the global model a weight of {up(strength * reach, 6)}, over 1", remedy
        )


def either(mine: T | None, shared: T) -> T:
    """A client's own value, or everybody's."""
    return shared if mine is None else mine


def _target(config: Config) -> Target:
    target, delta = config.privacy.target, config.privacy.delta
    if target.epsilon is not None:
        return Target("epsilon", target.epsilon, delta)
    if target.mu is not None:
        return Target("mu", target.mu, delta)
    assert target.advantage is not None  # the config holds exactly one
    return Target("advantage", target.advantage, delta)


@lru_cache(maxsize=4096)  # clients of the same size have the same answer
def _calibrated(plan: PrivacyPlan, target: Target) -> PrivacyPlan:
    try:
        return calibrated(plan, target)
    except CannotMeet as reason:
        raise BadValue("privacy.target", str(target), f"cannot be met: {reason}", "take fewer rounds or steps") from None
