"""What a run of a config will be, before it is trained: each client's plan, its guarantee, and what it adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..accounting import Calibrator, CannotMeet, Neighbours, NoisySteps, Statement
from ..accounting.contributions import Contributions
from ..accounting.planning import ClientAnswer
from ..config import AUTO, Config, value_of
from ..data import Description, Task
from ..events import Watch, Working
from ..limits import LEAST_NOISE
from ..local import Job, clip_margin
from ..planning import UNCALIBRATED, Margin, check_planned, contributions_of, jobs_of, rule_of, target_of, with_coalition
from ..record import Guarantees
from ..rules import Rule
from ..values import BadValue
from .prepare import inspected
from .recording import stated

MOST_PARAMETERS = 10**9  # of a model that is not known yet
LONGEST_SUM = 10**6  # inputs and outputs of its largest layer together: what one number of a person's norm sums up
STAND_INS = {"local.learning_rate": 1.0, "privacy.clip_norm": 1.0}  # where all have the same, no guarantee depends on these


@dataclass(frozen=True)
class Forecast:
    """The clients of a run that was planned and not trained."""

    config: Config
    jobs: tuple[Job, ...]  # of those who can meet the target
    answers: tuple[ClientAnswer, ...]  # of all: a plan and what it guarantees, or the reason why there is none
    guarantees: Guarantees
    rule: Rule

    @property
    def contributions(self) -> Contributions | None:
        """What each client adds to the server's mean; None where some client cannot take part."""
        return contributions_of(self.config, self.jobs) if len(self.jobs) == len(self.answers) else None

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(answer.reason for answer in self.answers if answer.reason)

    def statement(self, colluders: int | None = None) -> Statement:
        """What will hold for every client: the worst of each number. One `colluders` more is a view of its own."""
        if self.reasons:
            raise BadValue("privacy.target", str(target_of(self.config)), f"cannot be met by all: {self.reasons[0]}")
        return stated(self.config, self.rule, self.jobs, self.guarantees, colluders)


def forecast(config: Config, watch: Watch = lambda event: None) -> Forecast:
    """Plan every client of the config's data. Nothing is trained, and no random number is drawn."""
    config, rule, description, jobs = _uncalibrated(config, watch)
    if not all(job.plan for job in jobs):
        remedy = "set a mechanism that adds noise, and a rule that sends or publishes something"
        raise BadValue("privacy.mechanism", config.privacy.mechanism, "leaves no guarantee to state", remedy)
    planned, reasons = _calibrated(config, jobs, watch)
    if not reasons:
        try:
            planned = with_coalition(config, rule, planned)
        except CannotMeet as reason:
            broken = f"the target against a coalition cannot be met in {config.rounds} rounds: {reason}"
            planned, reasons = [], {job.client: broken for job in jobs}
    if not reasons:
        check_planned(config, rule, planned, description)
    guarantees = Guarantees(config.privacy.delta, len(jobs))
    solved = {job.client: job.plan for job in planned if job.plan}
    answers = []
    for job in jobs:
        plan = solved.get(job.client)
        numbers = guarantees.planned(plan).honest if plan else None
        answers.append(ClientAnswer(job.client, _records(job), plan, numbers, reasons.get(job.client, "")))
    return Forecast(config, tuple(planned), tuple(answers), guarantees, rule)


def _calibrated(config: Config, jobs: Sequence[Job], watch: Watch) -> tuple[list[Job], dict[str, str]]:
    """The jobs of those who can meet the target against everybody, and the reasons of those who cannot."""
    target = target_of(config)
    calibrator = Calibrator(target) if target else None
    planned = []
    reasons = {}
    for done, job in enumerate(jobs, start=1):
        assert job.plan is not None
        own = config.clients.get(job.client)
        given = config.privacy.noise_multiplier is not None or (own is not None and own.noise_multiplier is not None)
        plan = job.plan
        try:
            if not given:  # without a target against everybody, a coalition's raises the least noise
                plan = calibrator(plan) if calibrator else plan.changed(noise_multiplier=LEAST_NOISE)
        except CannotMeet as reason:
            reasons[job.client] = f"client {job.client} cannot meet {target} in {config.rounds} rounds: {reason}"
        else:
            planned.append(replace(job, plan=plan))
        watch(Working("planning clients", done, len(jobs)))
    return planned, reasons


def _records(job: Job) -> int | None:
    """The public number of records, if there is one."""
    assert job.plan is not None
    return job.plan.mechanism.records


def _uncalibrated(config: Config, watch: Watch) -> tuple[Config, Rule, Description, list[Job]]:
    """The config with numbers where it says "auto", and jobs whose noise is still to be found where there is a target.

    Numbers of records come from the data. Where it is not here, they come from [clients]."""
    sizes = {name: own.records for name, own in config.clients.items() if own.records is not None}
    missing = config.data.path != "" and not Path(config.data.path).exists()
    if missing and sizes and len(sizes) == len(config.clients):
        rule = rule_of(config)
        described = _described(config, sizes)
        jobs = jobs_of(_loud(_with_stand_ins(config)), described, _any_margin(config), rule=rule)
        return config, rule, described, jobs
    found = inspected(config, watch=watch)
    jobs = jobs_of(_loud(found.config), found.description, found.net.margin_for, rule=found.rule)
    return found.config, found.rule, found.description, jobs


def _described(config: Config, sizes: dict[str, int]) -> Description:
    """The federation by the numbers in [clients]. How many clients may hold one person is what the owners state."""
    data = config.data
    if data.overlap:
        rule = "needs the data: how many clients hold one record is counted there, and here they cannot be read"
        raise BadValue("data.overlap", "true", rule, "name the data with --data, or set data.overlap = false")
    task = Task("regression", 0)
    return (
        Description(sizes, (1,), task, data.person_clients, unit="person")
        if data.person
        else Description(sizes, (1,), task)
    )


def _with_stand_ins(config: Config) -> Config:
    """The config with numbers for what no guarantee depends on. What a guarantee depends on must be given."""
    needed = ["rounds", "local.batch"]
    if any(own.clip_norm is not None for own in config.clients.values()):
        needed.append("privacy.clip_norm")  # whose noise is how large beside the others' depends on it
    if any(own.learning_rate is not None for own in config.clients.values()):
        needed.append("local.learning_rate")  # and on this
    absent = [name for name in needed if value_of(config, name) == AUTO]
    if absent:
        are, they, numbers = ("is", "it", "a number") if len(absent) == 1 else ("are", "they", "numbers")
        rule = f"{are} chosen where the data can be read, and here {they} cannot"
        raise BadValue(" and ".join(absent), AUTO, rule, f"give {numbers}")
    return config.changed(**{name: value for name, value in STAND_INS.items() if value_of(config, name) == AUTO})


def _any_margin(config: Config) -> Margin:
    """A clip margin that covers any device and any model that is not gigantic."""

    def margin(steps: NoisySteps, neighbours: Neighbours) -> float:
        found = clip_margin(steps, neighbours, "float64", MOST_PARAMETERS, torch.float64, LONGEST_SUM)
        if config.performance.device == "cpu":
            return found
        return max(found, clip_margin(steps, neighbours, "tf32", MOST_PARAMETERS, torch.float32, LONGEST_SUM))

    return margin


def _loud(config: Config) -> Config:
    sought = config.privacy.noise_multiplier is None and config.privacy.mechanism != "none"
    return config.changed(**{"privacy.noise_multiplier": UNCALIBRATED}) if sought else config
