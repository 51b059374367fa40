"""Settings that nobody gave: rounds, batch, clip norm and learning rate, from public numbers alone.

Notation, for a full batch, one step a round, and a model whose outputs are linear in its P parameters:

  g  the norm of an output's gradient in the weights, for a typical record; of a linear model, the norm of a record
  τ  learning rate × steps: how long the gradient is followed
  κ  the noise of all rounds together: following noise alone for the time τ moves each weight by τ·C·κ (standard deviation).
     With all records in each step and a target μ, κ = 2·√m / (μ·N) for m clients that have N records together.

An output then carries noise τ·C·g·κ, and records can have moved it by at most τ·C·g. Both grow with τ, so a longer run has
no worse a ratio until the records are fitted. From then on only the noise grows: a longer run fits better, and is noisier.
The rule follows the gradient until an output's noise is about `_allowed`. docs/maths.md derives it, and
docs/results/settings.md compares it with a grid.

How τ is divided into steps matters little: with more rounds the noise of a round grows and its step shrinks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .accounting import NoisySteps
from .config import AUTO, AUTOMATIC, ClientConfig, Config, value_of, with_values
from .config.defaults import Automatic
from .data import Description
from .fdp import Neighbours
from .limits import LEAST_CLIP, MOST_CLIP
from .local import Optimiser, Schedule, Update
from .local.optimisers import OPTIMISERS
from .planning import either, jobs_of, participation_of
from .rules import Rule
from .values import BadValue

PASSES = 100  # over the records, in all rounds together
OPEN_PASSES = 300  # without noise
FEWEST_ROUNDS, MOST_ROUNDS = 10, 500
CLIP_SHARE = 0.1  # clip norm over g
MOST_NOISE = 6.0  # in an output of a classifier, in logits
NOISE_OF_INPUTS = 30.0  # the same for many inputs, times the root of their number
FURTHEST = 3000.0  # how far a classifier's outputs may be led, in logits
MOST_ERROR = 0.3  # noise in an output of a regression, whose labels lie in [−1, 1]
FURTHEST_ERROR = 100.0
STABLE = 4.0  # learning rate × g² that no logistic loss diverges under; 1 for a squared error
TINY_RATE = 1e-9  # stands for the learning rate until it is chosen


@dataclass(frozen=True)
class Model:
    """What is public about a model: how strongly its outputs depend on its weights, and how many weights there are."""

    gradient: float  # g, measured on made-up records
    parameters: int


@dataclass(frozen=True)
class Settings:
    """A config with numbers in place of "auto", and why they are what they are."""

    config: Config
    reasons: tuple[str, ...] = ()  # a sentence for each field that was chosen
    warnings: tuple[str, ...] = ()


def wanted(config: Config) -> bool:
    """Whether a field is, or was, "auto"."""
    return any(value_of(config, name) == AUTO for name in AUTOMATIC) or bool(config.chosen)


def unchosen(config: Config) -> dict[str, Any]:
    """The changes that make a config say "auto" again wherever a number was chosen."""
    return {**dict.fromkeys(config.chosen, AUTO), "chosen": []} if config.chosen else {}


def record_norm(config: Config, shape: tuple[int, ...]) -> float:
    """The public norm of a scaled record: columns spread evenly over [−1, 1], and a one in each group of categories."""
    if config.model.features != "none":
        return 1.0  # fixed features have unit norm
    inputs = math.prod(shape)
    groups = config.data.categories
    ones = sum(map(len, groups.values()))
    numbers = max(0, inputs - ones)
    return math.sqrt(numbers / 3 + len(groups))


def chosen(config: Config, description: Description, model: Model, rule: Rule, optimiser: Update | None = None) -> Settings:
    """The config with numbers where it says "auto". They depend on public numbers only, so they cost no privacy.

    Fields that an earlier run wrote as chosen keep their numbers, and are explained again if the rule still gives them.
    """
    asked = config.changed(**unchosen(config))
    rule_says = _Chooser(asked, description, model, rule, optimiser).numbers()
    numbers: dict[str, Any] = {name: _kept(config, name, each.value) for name, each in rule_says.items()}
    settled = replace(config, **with_values(config, numbers), chosen=tuple(rule_says))
    reasons = [f"{name} = {each.value}: {each.reason}" for name, each in rule_says.items() if numbers[name] == each.value]
    return Settings(settled, tuple(reasons), _warnings(settled, description, model, rule, optimiser))


def _kept(config: Config, name: str, chosen: Any) -> Any:
    """A number that is there already stays."""
    there = value_of(config, name)
    return chosen if there == AUTO else there


@dataclass(frozen=True)
class _Number:
    value: Any
    reason: str


@dataclass(frozen=True)
class _Chooser:
    """The rule, one field after the other: each choice may depend on those before."""

    config: Config
    description: Description
    model: Model
    rule: Rule
    optimiser: Update | None

    def numbers(self) -> dict[Automatic, _Number]:
        found: dict[Automatic, _Number] = {}
        if self.config.local.batch == AUTO:
            found["local.batch"] = _Number("full", "with all records in each step, the noise is exactly Gaussian")
        batch = self._with(found)
        rounds = self._rounds(batch)
        trial = replace(batch, **with_values(batch, _trial(rounds)))
        noise = _noise(trial, self.description, self.rule, self.optimiser)
        time = self._time(trial, noise)
        if self.config.local.learning_rate == AUTO:
            found["local.learning_rate"] = self._rate(trial, time, noise)
        if self.config.rounds == AUTO:
            found["rounds"] = self._rounds_of(trial, time, found)
        if self.config.privacy.clip_norm == AUTO:
            found["privacy.clip_norm"] = self._clip(self._with(found))
        return {name: found[name] for name in AUTOMATIC if name in found}

    def _with(self, found: Mapping[Automatic, _Number]) -> Config:
        return replace(self.config, **with_values(self.config, {str(name): each.value for name, each in found.items()}))

    @property
    def _open(self) -> bool:
        """Whether no gradient is clipped and noised."""
        counted = self.rule.noisy_gradients(self.config.local.local_steps)
        return self.config.privacy.mechanism == "none" or not counted

    @property
    def _regression(self) -> bool:
        return self.description.task.kind == "regression"

    @property
    def _steps(self) -> int:
        """Of a round, towards the upload, or towards a model that stays where there is none."""
        local = self.config.local.local_steps
        return self.rule.upload_steps(local) or local

    def _rounds(self, config: Config) -> int:
        """As many as make the passes over the records, or those that are given."""
        if config.rounds != AUTO:
            return config.rounds
        sizes = public_sizes(config, self.description)
        seen = sum(_batch(config, name, size) for name, size in sizes.items()) / sum(sizes.values()) if sizes else 1.0
        passes = OPEN_PASSES if self._open else PASSES
        rounds = round(passes / (self._steps * seen * participation_of(config, self.rule)))
        return min(max(rounds, FEWEST_ROUNDS), MOST_ROUNDS)

    def _time(self, trial: Config, noise: float) -> float:
        """τ·g²: how far outputs are led, if each record's gradient is followed in full."""
        steps = self._steps * trial.rounds
        stable = (1.0 if self._regression else STABLE) * steps
        if self._open:
            return stable
        reach = self._output_noise(noise) / noise
        private = self.config.privacy
        if private.mechanism != "noisy-steps":  # gradients are not clipped, and the rate must be stable by itself
            return min(reach / CLIP_SHARE, stable)
        share = CLIP_SHARE if private.clip_norm == AUTO else private.clip_norm / self.model.gradient
        return reach / share if share < 1 else min(reach / share, stable)  # nor are they by a clip that is too large

    def _output_noise(self, noise: float) -> float:
        """The noise that an output carries at the end: what is allowed, or less where the path ends before."""
        furthest = FURTHEST_ERROR if self._regression else FURTHEST
        return min(_allowed(self.description, self.model), furthest * noise)

    def _rate(self, trial: Config, time: float, noise: float) -> _Number:
        update = self._proportional()
        if update is None:
            rule = (
                f"cannot be chosen for the optimiser {trial.local.optimiser}, whose steps need not grow with the gradient"
            )
            raise BadValue("local.learning_rate", AUTO, rule, "give a number, for adam 0.01 to 0.1, or use sgd")
        pace = sum(_unit(trial, update).pace(taken) for taken in range(trial.rounds))
        rate = time / (self.model.gradient**2 * self._steps * pace * trial.server_rate)
        if "strength" in self.rule.numbers and trial.rule.strength > 0:
            rate = min(rate, 1 / (trial.rule.strength * self._steps * _unit(trial, update).pace(0)))
        if self._open:
            return _Number(_short(rate), f"the largest that is stable where gradients have norm {self.model.gradient:.3g}")
        reason = f"after all rounds an output carries noise of about {self._output_noise(noise):.2g}"
        return _Number(_short(rate), f"{reason}; {_why_noise(self.description, self.model, noise)}")

    def _proportional(self) -> Update | None:
        """The optimiser, if a gradient twice as long makes a step twice as long. One that a config names is not tried."""
        update = OPTIMISERS.get(self.config.local.optimiser, self.optimiser)
        return update if update and update.proportional else None

    def _rounds_of(self, trial: Config, time: float, found: Mapping[Automatic, _Number]) -> _Number:
        update = self._proportional()
        if "local.learning_rate" in found or update is None:
            passes = OPEN_PASSES if self._open else PASSES
            return _Number(trial.rounds, f"{passes} passes over the records; with more rounds each has more noise")
        each = _unit(trial, update).pace(0) * self.config.local.learning_rate * self.model.gradient**2 * self._steps
        rounds = round(time / (each * trial.server_rate))
        rounds = min(max(rounds, FEWEST_ROUNDS), MOST_ROUNDS)
        return _Number(
            rounds, f"as far as the target allows with local.learning_rate = {self.config.local.learning_rate:g}"
        )

    def _clip(self, config: Config) -> _Number:
        share = CLIP_SHARE * self.model.gradient
        reason = f"a tenth of {self.model.gradient:.3g}, the public norm of a gradient: noise grows with it"
        if config.privacy.mechanism in ("output-gaussian", "output-laplace"):
            share *= config.local.learning_rate * self._steps
            reason = f"what {self._steps} steps with gradients of norm {CLIP_SHARE * self.model.gradient:.3g} can change"
        if config.privacy.mechanism == "output-laplace":
            share *= math.sqrt(self.model.parameters)  # it bounds the sum of all changes
        return _Number(min(max(_short(share), LEAST_CLIP), MOST_CLIP), reason)


def public_sizes(config: Config, description: Description) -> dict[str, int]:
    """The numbers of records that are public; none where one of them is private and has no nominal number."""
    nominal = {name: config.clients.get(name, ClientConfig()).records for name in description.sizes}
    if config.privacy.neighbours == "add-remove" and config.privacy.mechanism != "none":
        known = {name: size for name, size in nominal.items() if size is not None}
        return known if len(known) == len(nominal) else {}
    return {name: either(nominal[name], size) for name, size in description.sizes.items()}


def _allowed(description: Description, model: Model) -> float:
    """The noise that an output may carry at the end. With many inputs each one adds noise, and less of what is learnt."""
    if description.task.kind == "regression":
        return MOST_ERROR
    return min(MOST_NOISE, NOISE_OF_INPUTS / math.sqrt(_inputs(description, model)))


def _inputs(description: Description, model: Model) -> float:
    """Weights behind one output: of a linear model its inputs, with the bias."""
    return model.parameters / description.task.outputs


def _batch(config: Config, name: str, size: int) -> int:
    batch = either(config.clients.get(name, ClientConfig()).batch, config.local.batch)
    return size if batch == "full" else batch


def _noise(config: Config, description: Description, rule: Rule, optimiser: Update | None) -> float:
    """κ of the mean over clients. The noise multiplier of the client of median size stands for those of all."""
    if config.privacy.mechanism == "none":
        return 0.0
    sizes = public_sizes(config, description)
    order = sorted(description.sizes, key=lambda name: sizes.get(name, 0))
    typical = order[len(order) // 2]
    one = replace(description, sizes={typical: description.sizes[typical]})
    own = {typical: config.clients[typical]} if typical in config.clients else {}
    (job,) = jobs_of(
        replace(config, clients=own), one, _no_margin, rule=rule, optimiser=optimiser, of=len(description.sizes)
    )
    if job.plan is None:  # nothing leaves
        return 0.0
    mechanism = job.plan.mechanism
    each = {name: 1 / _batch(config, name, sizes[name]) if mechanism.steps else 1.0 for name in description.sizes}
    weight = {name: float(sizes[name]) if config.merge == "records" and sizes else 1.0 for name in description.sizes}
    total = sum(weight.values())
    spread = math.sqrt(sum((weight[name] / total * each[name]) ** 2 for name in each))
    if not rule.uploads:  # nothing is averaged
        spread = each[typical]
    queries = mechanism.queries_per_round * config.rounds * job.participation
    law = math.sqrt(2) if mechanism.noise == "laplace" else 1.0
    return law * mechanism.noise_multiplier * spread / math.sqrt(queries)


def _no_margin(steps: NoisySteps, neighbours: Neighbours) -> float:
    """What rounding adds to the noise does not matter to a choice of this kind."""
    return 0.0


def _trial(rounds: int) -> dict[str, Any]:
    """Numbers to plan with before all are chosen: noise does not depend on the clip norm and the learning rate."""
    return {"rounds": rounds, "local.learning_rate": TINY_RATE, "privacy.clip_norm": 1.0}


def _unit(config: Config, update: Update) -> Optimiser:
    """The optimiser with a learning rate of one: how far it goes then."""
    local = config.local
    schedule = Schedule(
        kind=local.schedule, every=local.schedule_every, factor=local.schedule_factor, rounds=config.rounds
    )  # fmt: skip
    own = None if local.optimiser in OPTIMISERS else update
    return Optimiser(name=local.optimiser, own=own, momentum=local.momentum, schedule=schedule)


def _why_noise(description: Description, model: Model, noise: float) -> str:
    """The public numbers behind κ."""
    task = description.task
    inputs = _inputs(description, model)
    kind = "a regression" if task.kind == "regression" else f"{task.classes} classes"
    return (
        f"κ = {noise:.2g} for this target and these {len(description.sizes)} clients, "
        f"{inputs:.0f} weights behind an output, {kind}"
    )


def _warnings(
    config: Config, description: Description, model: Model, rule: Rule, optimiser: Update | None
) -> tuple[str, ...]:
    """Where the noise is larger than all that the records of one class can do."""
    noise = _noise(config, description, rule, optimiser)
    classes = max(1, description.task.classes)
    inputs = min(
        _inputs(description, model), math.prod(description.shape) + 1
    )  # a deep net does not follow all its weights
    ratio = noise * math.sqrt(inputs) * classes
    if ratio <= 1:
        return ()
    who = "all records" if classes == 1 else f"all records of one of {classes} classes"
    return (
        f"this target leaves little but noise: over all rounds the noise in the weights of an output is {ratio:.2g} times "
        f"as large as the most that {who} can move them by; use more records, fewer inputs or a larger target",
    )


def _short(value: float) -> float:
    """Three digits: a choice of this kind has no more."""
    return float(f"{value:.3g}")
