"""What a run of a config will be, before it is trained: each client's plan, its guarantee, and what it adds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..accounting import Calibrator, CannotMeet, Neighbours, NoisySteps, Statement
from ..accounting.contributions import Contributions
from ..accounting.planning import ClientAnswer
from ..config import AUTO, Config, value_of
from ..data import Description, Task
from ..events import Watch, Working
from ..local import Job, clip_margin
from ..planning import UNCALIBRATED, Margin, contributions_of, jobs_of, target_of
from ..record import Guarantees
from ..values import BadValue
from .prepare import inspected

MOST_PARAMETERS = 10**9  # of a model that is not known yet
LONGEST_SUM = 10**6  # inputs and outputs of its largest layer together: what one number of a person's norm sums up
STAND_INS = {"local.learning_rate": 1.0, "privacy.clip_norm": 1.0}  # no guarantee depends on these


@dataclass(frozen=True)
class Forecast:
    """The clients of a run that was planned and not trained."""

    config: Config
    jobs: tuple[Job, ...]  # of those who can meet the target
    answers: tuple[ClientAnswer, ...]  # of all: a plan and what it guarantees, or the reason why there is none
    guarantees: Guarantees

    @property
    def contributions(self) -> Contributions | None:
        """What each client adds to the server's mean; None where some client cannot take part."""
        return contributions_of(self.config, self.jobs) if len(self.jobs) == len(self.answers) else None

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(answer.reason for answer in self.answers if answer.reason)

    def statement(self) -> Statement:
        """What will hold for every client: the worst of each number."""
        if self.reasons:
            raise BadValue("privacy.target", str(target_of(self.config)), f"cannot be met by all: {self.reasons[0]}")
        simulation = self.config.privacy.randomness == "seeded"
        return replace(self.guarantees.worst(job.plan for job in self.jobs if job.plan), simulation=simulation)


def forecast(config: Config, watch: Watch = lambda event: None) -> Forecast:
    """Plan every client of the config's data. Nothing is trained, and no random number is drawn."""
    config, jobs = _uncalibrated(config, watch)
    target = target_of(config)
    if not all(job.plan for job in jobs):
        remedy = "set a mechanism that adds noise, and a rule that sends or publishes something"
        raise BadValue("privacy.mechanism", config.privacy.mechanism, "leaves no guarantee to state", remedy)
    guarantees = Guarantees(config.privacy.delta, len(jobs))
    calibrator = Calibrator(target) if target else None
    planned = []
    answers = []
    for done, job in enumerate(jobs, start=1):
        assert job.plan is not None
        own = config.clients.get(job.client)
        solved = calibrator is not None and (own is None or own.noise_multiplier is None)
        try:
            plan = calibrator(job.plan) if calibrator and solved else job.plan
        except CannotMeet as reason:
            broken = f"client {job.client} cannot meet {target} in {config.rounds} rounds: {reason}"
            answers.append(ClientAnswer(job.client, _records(job), None, None, broken))
        else:
            planned.append(replace(job, plan=plan))
            numbers = guarantees.planned(plan).honest
            answers.append(ClientAnswer(job.client, _records(job), plan, numbers, ""))
        watch(Working("planning clients", done, len(jobs)))
    return Forecast(config, tuple(planned), tuple(answers), guarantees)


def _records(job: Job) -> int | None:
    """The public number of records, if there is one."""
    assert job.plan is not None
    return job.plan.mechanism.records


def _uncalibrated(config: Config, watch: Watch) -> tuple[Config, list[Job]]:
    """The config with numbers where it says "auto", and jobs whose noise is still to be found where there is a target.

    Numbers of records come from the data. Where it is not here, they come from [clients]."""
    sizes = {name: own.records for name, own in config.clients.items() if own.records is not None}
    missing = config.data.path != "" and not Path(config.data.path).exists()
    if missing and sizes and len(sizes) == len(config.clients):
        return config, jobs_of(_loud(_with_stand_ins(config)), _described(config, sizes), _any_margin(config))
    found = inspected(config, watch=watch)
    return found.config, jobs_of(_loud(found.config), found.description, found.net.margin_for, rule=found.rule)


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
    return config.changed(**{"privacy.noise_multiplier": UNCALIBRATED}) if target_of(config) else config
