"""From the config to its rule, and to each client's job: its plan, its noise, its optimiser."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal, TypeVar

from .accounting import (
    Calibrator,
    CannotMeet,
    Crowd,
    Neighbours,
    NoisySteps,
    OutputPerturbation,
    PrivacyPlan,
    Sampling,
    Target,
)
from .accounting import coalition as coalitions
from .accounting.contributions import Contributions, contributions
from .accounting.statement import down, up
from .accounting.sums import check_masked, least_clients
from .config import AUTO, AUTOMATIC, ClientConfig, Config, value_of
from .data import Description
from .limits import LEAST_NOISE, RECORD
from .local import Job, Optimiser, Schedule, UnnoisedSteps, Update
from .local.optimisers import OPTIMISERS, by_name
from .local.sums import PUSHED, Sums, remedy_for, sums_of, why_never, why_not
from .named import function
from .rules import RULES, Mixture, Pulled, Rule
from .rules.fields import own_values, with_fields
from .rules.outside import check_takes_weights, checked_class, made
from .server import check_optimiser
from .values import NOT_GIVEN, BadValue, counted, whole

UNCALIBRATED = 1.0  # stands for the noise until a target has chosen it
GIVEN_RULE = "python:rule"  # the config's rule where it was given from Python
GIVEN_OPTIMISER = "python:optimiser"  # the config's optimiser where it was given from Python
T = TypeVar("T")
Margin = Callable[[NoisySteps, Neighbours], float]  # what rounding takes


# The rule


def rule_of(config: Config, rule: Rule | type[Rule] | None = None) -> Rule:
    """The config's rule, or the one given from Python, with its own fields from [rule], checked."""
    name = config.rule.name
    own = config.rule.own
    if rule is not None:
        found = _given(rule, own)
        if name == GIVEN_RULE and own_values(found) != own:
            raise BadValue("rule", rule, f"differs from [rule] in the config, which has {dict(own)}", "give the same rule")
        return found
    if name in RULES:
        return with_fields(RULES[name], own)
    if name == GIVEN_RULE:
        reason = "is missing: the rule of this run was given from Python, and must be given again"
        raise BadValue("rule", NOT_GIVEN, reason, "pass rule=…")
    if ":" in name:
        return made(checked_class(function("rule.name", name), "rule.name", name, RULES), own, "rule.name", name)
    near = get_close_matches(name, RULES, 1, 0)[0]
    remedy = f'did you mean {near}? The rules are {", ".join(RULES)}, or "module:Rule" for your own'
    raise BadValue("rule.name", name, "is not a rule", remedy)


def with_given_rule(config: Config, rule: Rule | type[Rule]) -> Config:
    """The config of a run whose rule is given from Python: [rule] has the values of its fields, and names no code."""
    return config.with_rule(GIVEN_RULE, **own_values(_given(rule, config.rule.own)))


def _given(rule: Rule | type[Rule], own: Mapping[str, Any]) -> Rule:
    """A rule from Python. A class takes its fields from the config's [rule]; an instance has its own."""
    kind = rule if isinstance(rule, type) else type(rule)
    taken = [name for name, known in RULES.items() if known is not kind]
    checked_class(kind, "rule", rule, taken)
    return made(kind, own if isinstance(rule, type) else own_values(rule), "rule", rule)


def with_rule_defaults(config: Config) -> Config:
    """The config as it will run: the rule's own fields have their defaults where none are given."""
    return config if config.rule.name == GIVEN_RULE else config.with_rule(config.rule.name, **own_values(rule_of(config)))


def participation_of(config: Config, rule: Rule) -> float:
    """The probability to take part in a round; a client that sends nothing takes part in all."""
    return config.participation if rule.uploads else 1.0


# The jobs


def jobs_of(
    config: Config, federation: Description, margin: Margin, told: Callable[[int], None] = lambda done: None,
    rule: Rule | None = None, optimiser: Update | None = None, of: int | None = None,
) -> list[Job]:  # fmt: skip
    """One job a client, overrides applied, noise calibrated where a target is given. Refusals name the client.

    of: the number of clients of the run, where one client stands for all of them.
    rule: what `rule_of` made of this config, if the caller has it already.
    optimiser: the one that the config calls "python:optimiser".
    """
    check_numbers(config)
    rule = rule_of(config) if rule is None else rule
    updates = _updates(config, optimiser)
    sizes = federation.sizes
    target = target_of(config)
    least_noise = Calibrator(target) if target else None
    _check_names(config, sizes)
    if federation.copies > 1:
        margin = _largest(margin, [either(config.clients.get(n, ClientConfig()).records, own) for n, own in sizes.items()])
    jobs = []
    for done, (name, present) in enumerate(sizes.items(), start=1):
        own = config.clients.get(name, ClientConfig())
        try:
            jobs.append(_Planned(config, rule, name, own, present, federation, margin, updates, least_noise).job())
        except BadValue as bad:
            raise BadValue(f"client {name}: {bad.field}", bad.value, bad.rule, bad.remedy) from None
        told(done)
    if len({job.weight for job in jobs}) > 1:
        check_takes_weights(rule)
    check_optimiser(config.server, rule)
    check_sums(config, rule, jobs, of or len(jobs))
    try:
        jobs = with_coalition(config, rule, jobs, of)
    except CannotMeet as reason:
        mu = config.privacy.target.coalition.mu
        remedy = "plan fewer rounds, or allow fewer colluders"
        raise BadValue(coalitions.MU, mu, f"cannot be met: {reason}", remedy) from None
    if of is None:
        check_planned(config, rule, jobs, federation)
    return jobs


def check_planned(config: Config, rule: Rule, jobs: Sequence[Job], federation: Description) -> None:
    """Refuse what shows once all noise is known: holders of one unit whose plans differ, and masks without a grid."""
    if federation.copies > 1 and len({job.plan.accounted for job in jobs if job.plan}) > 1:
        raise _unlike(federation)
    sums_of_run(config, rule, jobs)


def _largest(margin: Margin, sizes: list[int]) -> Margin:
    """The largest margin of all clients, where the number of units decides nothing else: then their plans leak alike."""

    def largest(steps: NoisySteps, neighbours: Neighbours) -> float:
        if steps.batch != "full":
            return margin(steps, neighbours)
        return margin(replace(steps, records=max(sizes)), neighbours)

    return largest


def _unlike(federation: Description) -> BadValue:
    """Several clients hold one unit, and the guarantee is about all they send: it must be clear how they compose."""
    if federation.unit == RECORD:
        reason = "needs the same plan for all clients, and here plans differ"
        return BadValue("data.overlap", "true", reason, "remove [clients], or set data.overlap = false")
    reason = "needs plans of all clients that leak alike, and here they differ: a person may be at any of them"
    remedy = 'use local.batch = "full" and the same noise and steps for all clients'
    return BadValue("data.person_clients", federation.copies, reason, remedy)


def check_numbers(config: Config) -> None:
    """Nothing is planned with a setting that is still to be chosen."""
    for name in AUTOMATIC:
        if value_of(config, name) == AUTO:
            raise BadValue(name, AUTO, "is chosen where the data can be read, and here it cannot", "give a number")


def _updates(config: Config, given: Update | None) -> dict[str, Update]:
    """The optimisers from outside that the config names, each made once: clients of one optimiser are stacked."""
    fields = {own.optimiser: f'clients."{name}".optimiser' for name, own in config.clients.items() if own.optimiser}
    fields[config.local.optimiser] = "local.optimiser"
    if given is not None and GIVEN_OPTIMISER not in fields:
        reason = f'is given from Python, and the config says local.optimiser = "{config.local.optimiser}"'
        raise BadValue("optimiser", type(given).__name__, reason, "leave out one of the two")
    updates = {}
    for name, field in fields.items():
        if name == GIVEN_OPTIMISER:
            if given is None:
                raise BadValue(field, name, "was given from Python when this run began", "give it again: optimiser=…")
            updates[name] = given
        elif name not in OPTIMISERS:
            updates[name] = by_name(field, name)
    return updates


def _check_names(config: Config, sizes: Mapping[str, int]) -> None:
    for name in config.clients:
        if name not in sizes:
            near = get_close_matches(name, sizes, 1, 0)
            raise BadValue(f'clients."{name}"', NOT_GIVEN, "is not a client of this data", f"did you mean {near[0]}?")


@dataclass(frozen=True)
class _Planned:
    """What one client's job is made of."""

    config: Config
    rule: Rule
    name: str
    own: ClientConfig
    present: int  # units that the client has
    federation: Description
    margin: Margin
    updates: Mapping[str, Update]  # optimisers from outside, by the config's names for them
    least_noise: Calibrator | None  # where there is a target

    def job(self) -> Job:
        self._check()
        optimiser = self._optimiser()
        strength = either(self.own.strength, self.config.rule.strength)
        _check_strength(self.rule, optimiser, strength, self.steps)
        return Job(
            client=self.name,
            plan=self._plan(),
            optimiser=optimiser,
            unnoised_steps=self._unnoised_steps(),
            averaging=self.config.local.averaging,
            mixing=either(self.own.mixing, self.config.rule.mixing),
            strength=strength,
            weight=self._weight(),
            kept_steps=self.steps if self.rule.kept else 0,
            participation=participation_of(self.config, self.rule),
            kept_counted=self.rule.publishes or not self.rule.uploads,
        )

    @property
    def steps(self) -> int:
        return either(self.own.local_steps, self.config.local.local_steps)

    @property
    def counted(self) -> int:
        """Noisy gradients of a round."""
        return self.rule.noisy_gradients(self.steps)

    @property
    def batch(self) -> int | Literal["full"]:
        return either(self.own.batch, self.config.local.batch)

    @property
    def sampling(self) -> Sampling:
        return Sampling(either(self.own.sampling, self.config.local.sampling))

    @property
    def noise(self) -> float | None:
        return either(self.own.noise_multiplier, self.config.privacy.noise_multiplier)

    def _check(self) -> None:
        private = self.config.privacy
        if self.rule.uploads:
            uploaded = self.rule.upload_steps(self.steps)
            remedy = f"rule {self.rule.name} would upload what no noisy gradient went into"
            whole("rule.upload_steps", uploaded, 1, remedy=remedy)
        noisy = private.mechanism == "noisy-steps" and self.counted
        if private.neighbours == "add-remove" and noisy and self.own.records is None:
            rule = "must be set with add-remove adjacency: a public nominal number, never the actual one"
            raise BadValue("records", NOT_GIVEN, rule, f'set clients."{self.name}".records')

    def _weight(self) -> float:
        """Its weight in the server's mean. It leaves with every global model, so it must be a public number."""
        if self.config.merge == "equal" or not self.rule.uploads:
            return 1.0
        private = self.config.privacy
        secret_count = private.neighbours == "add-remove" and private.mechanism != "none"
        if secret_count and self.own.records is None:
            rule = 'must be set with add-remove adjacency and merge = "records", which weighs clients by it'
            raise BadValue("records", NOT_GIVEN, rule, f'set clients."{self.name}".records, or merge = "equal"')
        return float(either(self.own.records, self.present))

    def _unnoised_steps(self) -> UnnoisedSteps | None:
        if self.config.privacy.mechanism == "noisy-steps" and self.counted:
            return None
        steps = self.counted or self.steps
        return UnnoisedSteps(records=self.present, batch=self.batch, local_steps=steps, sampling=self.sampling)

    def _plan(self) -> PrivacyPlan | None:
        """None where there is no mechanism, and where nobody else ever sees anything."""
        if self.config.privacy.mechanism == "none" or not self.counted:
            return None
        plan = PrivacyPlan(
            mechanism=self._mechanism(),
            rounds=self.config.rounds,
            participation=participation_of(self.config, self.rule),
            neighbours=Neighbours(self.config.privacy.neighbours),
            copies=self.federation.copies,
            unit=self.federation.unit,
            attempts=self.config.privacy.attempts,
        )
        return plan if self.noise is not None or self.least_noise is None else self._calibrated(plan, self.least_noise)

    def _calibrated(self, plan: PrivacyPlan, least_noise: Calibrator) -> PrivacyPlan:
        try:
            return least_noise(plan)
        except CannotMeet as reason:
            broken = f"cannot be met: {reason}"
            remedy = "plan fewer rounds or fewer local steps"
            raise BadValue("privacy.target", str(least_noise.target), broken, remedy) from None

    def _mechanism(self) -> NoisySteps | OutputPerturbation:
        private = self.config.privacy
        clip = either(self.own.clip_norm, private.clip_norm)
        noise = self.noise or (UNCALIBRATED if self.least_noise else LEAST_NOISE)  # a coalition's target raises it
        if private.mechanism == "noisy-steps":
            steps = NoisySteps(
                noise_multiplier=noise, records=either(self.own.records, self.present), batch=self.batch,
                sampling=self.sampling, clip_norm=clip, local_steps=self.counted,
                rows_per_unit=self.config.data.rows_per_person if self.federation.unit != RECORD else 1,
            )  # fmt: skip
            return replace(steps, clip_margin=self.margin(steps, Neighbours(private.neighbours)))
        if self.rule.outer or self.rule.publishes:
            which = f"rule {self.rule.name}{', publish = true' if self.rule.publishes else ''}"
            rule = f"cannot be combined with {which}: one noised update does not cover two models"
            raise BadValue("privacy.mechanism", private.mechanism, rule, "use noisy-steps")
        kind: Literal["gaussian", "laplace"] = "laplace" if private.mechanism == "output-laplace" else "gaussian"
        return OutputPerturbation(noise_multiplier=noise, clip_norm=clip, noise=kind)

    def _optimiser(self) -> Optimiser:
        local = self.config.local
        schedule = Schedule(
            kind=local.schedule,
            every=local.schedule_every,
            factor=local.schedule_factor,
            rounds=self.config.rounds,
        )
        name = either(self.own.optimiser, local.optimiser)
        return Optimiser(
            name=name,
            own=self.updates.get(name),
            learning_rate=either(self.own.learning_rate, local.learning_rate),
            momentum=local.momentum,
            betas=local.betas,
            decay=local.decay,
            stability=local.stability,
            weight_decay=local.weight_decay,
            schedule=schedule,
            carried=local.state == "carried",
        )


def _check_strength(rule: Rule, optimiser: Optimiser, strength: float, steps: int) -> None:
    """Refuse a pull that throws the weights beyond what they are pulled to."""
    pulled = any(isinstance(each, Pulled) for each in (rule.steps, rule.kept))
    rate = optimiser.learning_rate
    if pulled and optimiser.update.proportional and rate * strength > 1:
        reason = f"is too large for learning_rate = {rate:g}: a step would overshoot what the weights are pulled to"
        raise BadValue("strength", strength, reason, f"use at most {down(1 / rate, 6)}")
    reach = optimiser.pace(0) * steps
    if isinstance(rule, Mixture) and strength * reach > 1:
        reason = f"gives the global model a weight of {up(strength * reach, 6)}, which is above 1"
        remedy = f"use at most {down(1 / reach, 6)}: 1 / (learning_rate × local_steps), less with momentum"
        raise BadValue("strength", strength, reason, remedy)


# The sum of the messages


def not_summed(config: Config, rule: Rule, jobs: Sequence[Job]) -> str:
    """Why clients' vectors do not enter this run's global model through their sum alone; "" where they do.

    Where there is no grid for all of them, masks are refused (`sums_of`), and a run without masks is not summed.
    """
    return _never_summed(config, rule, jobs) or ("" if config.privacy.masks else why_not(rule, jobs))


def _never_summed(config: Config, rule: Rule, jobs: Sequence[Job]) -> str:
    """The same, whatever the noise, which may still have to be found."""
    if config.rule.delivery == "push":
        return PUSHED
    return why_never(rule, jobs)


def sums_of_run(config: Config, rule: Rule, jobs: Sequence[Job]) -> Sums | None:
    """The public numbers of the sums of this run; None where it is not summed."""
    if not_summed(config, rule, jobs):
        return None
    privacy = config.privacy
    return sums_of(jobs, masked=privacy.masks, attempts=privacy.attempts, least=least_clients_of(config, len(jobs)))


def check_sums(config: Config, rule: Rule, jobs: Sequence[Job], clients: int) -> None:
    """Refuse masks, and numbers about sums of so many clients, where they would protect nothing or could not work."""
    privacy = config.privacy
    why = _never_summed(config, rule, jobs)
    _check_masks(config, why)
    if not privacy.masks and privacy.attempts:
        broken = "is about masked sums: without masks a sum without the lost client is of use"
        raise BadValue("privacy.attempts", privacy.attempts, broken, "set privacy.masks = true, or remove it")
    least = privacy.least_clients
    if least is not None and why:
        raise BadValue("privacy.least_clients", least, f"is about sums, and there are none: {why}", "remove it")
    if not why:
        _check_least(config, clients)


def _check_masks(config: Config, why: str) -> None:
    privacy = config.privacy
    if not privacy.masks:
        return
    if why:
        raise BadValue("privacy.masks", "true", f"cannot be set: {why}", remedy_for(why))
    if config.participation < 1 and privacy.least_clients is None:
        broken = "must be set with masks and participation < 1: how many clients take part is left to their coins"
        raise BadValue("privacy.least_clients", NOT_GIVEN, broken, "give the least number of clients in a sum")


def _check_least(config: Config, clients: int) -> None:
    privacy = config.privacy
    asked = privacy.least_clients
    if asked is not None and asked > clients:
        raise BadValue(
            "privacy.least_clients", asked, f"is more than all {counted(clients, 'client')}", "give a smaller number"
        )
    least = least_clients_of(config, clients)
    if privacy.masks:
        check_masked(least, asked, privacy.attempts, "privacy.")


def least_clients_of(config: Config, clients: int) -> int:
    """The least number of clients in a sum of this run."""
    private = config.privacy
    return least_clients(clients, private.least_clients, private.masks, private.attempts, config.participation, config.lost)


def crowd_of(config: Config, rule: Rule, jobs: Sequence[Job]) -> Crowd | None:
    """What hides each client's noise in the sums of this run; None where a client has no plan."""
    members = _members(config, jobs)
    if not members:
        return None
    least = least_clients_of(config, len(members))
    return coalitions.crowd_of(members, least, config.privacy.masks, not_summed(config, rule, jobs))


def with_coalition(config: Config, rule: Rule, jobs: list[Job], of: int | None = None) -> list[Job]:
    """The jobs with as much more noise as a target against a coalition needs. Raises `CannotMeet` where it is too much.

    of: the number of clients of the run, where one client stands for all of them.
    """
    asked = config.privacy.target.coalition
    if asked.mu is None or asked.colluders is None:
        return jobs
    members = _members(config, jobs)
    if not members:
        raise BadValue(
            coalitions.MU, asked.mu, "cannot be met: a client has no plan", "use a rule whose uploads are noised"
        )
    if of is not None and members[0].fixed:
        return jobs  # whether its noise is enough is judged with all clients
    total = of or len(members)
    least = least_clients_of(config, total)
    crowd = Crowd.alike(total, least, config.privacy.masks, _never_summed(config, rule, jobs))
    plans = coalitions.meeting(members, Target("mu", asked.mu, config.privacy.delta), asked.colluders, crowd)
    return [replace(job, plan=plan) for job, plan in zip(jobs, plans, strict=True)]


def _members(config: Config, jobs: Sequence[Job]) -> tuple[coalitions.Member, ...]:
    """The clients of a sum; none where one of them has no plan."""
    planned = [(job.client, job.weight, job.optimiser.learning_rate, job.plan) for job in jobs if job.plan]
    own = frozenset(name for name, client in config.clients.items() if client.noise_multiplier is not None)
    return coalitions.members_of(planned, own) if len(planned) == len(jobs) else ()


def contributions_of(config: Config, jobs: Sequence[Job]) -> Contributions | None:
    """What each client adds to the server's mean; None where there is no mean of several, or no noise in it."""
    planned = [(job.client, job.weight, job.plan) for job in jobs if job.plan and job.upload.steps]
    return contributions(planned, config.merge) if len(planned) > 1 else None


def either(mine: T | None, shared: T) -> T:
    """A client's own value, or everybody's."""
    return shared if mine is None else mine


def target_of(config: Config) -> Target | None:
    """The guarantee that every client is to meet; None where the config gives the noise, or wants none."""
    target, delta = config.privacy.target, config.privacy.delta
    if target.epsilon is not None:
        return Target("epsilon", target.epsilon, delta)
    if target.mu is not None:
        return Target("mu", target.mu, delta)
    return None if target.advantage is None else Target("advantage", target.advantage, delta)
