"""Everything that is fixed before the first round, loaded, checked and planned.

A federation may be held, with all its records, or only described: a server plans and serves the same run without them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from .. import data, models
from ..accounting import PrivacyPlan
from ..accounting.contributions import Contributions
from ..accounting.progress import WorstEpsilon
from ..config import Config, dotted
from ..data import Client, Description, Federation, Records
from ..data.preprocessing import Preprocessing
from ..engines import ENGINES, Cohort, Performance
from ..engines.outages import Outages
from ..engines.scoring import Scorer
from ..events import ForOwner, Note, Watch, Working
from ..local import Arithmetic, Draws, Job, LayerRules, Net, Update, behaviour, losses
from ..local.net.inspection import check_every_record
from ..local.optimisers import checked
from ..local.sums import Sums
from ..metrics import METRICS, Metric, metrics_of
from ..planning import (
    GIVEN_OPTIMISER,
    GIVEN_RULE,
    contributions_of,
    jobs_of,
    participation_of,
    rule_of,
    sums_of_run,
    with_given_rule,
)
from ..rules import Rule
from ..scores import Score, Values
from ..server import Aggregator
from ..settings import Settings
from ..sync import Synchronisation
from ..values import NOT_GIVEN, BadValue
from .settling import settled

MOST_TRIED = 20_000  # records that are all fed to a model without tables before it is trained
INSPECTED = 4  # records that a model is inspected with
SPEED = ("memory_gib", "checkpoint_seconds", "tensorboard", "threads", "chunk", "records_at_once", "compile")
GIVEN = "python:clients"  # the config's source where the records were given from Python
Given = Federation | Description | Mapping[str, tuple[Any, ...]]  # what may be given from Python


@dataclass(frozen=True)
class Prepared:
    """Everything that is fixed before the first round, checked."""

    config: Config
    description: Description
    federation: Federation | None  # None where it is only described
    module: nn.Module
    net: Net
    jobs: tuple[Job, ...]
    rule: Rule
    metrics: tuple[Metric, ...]
    settings: Settings  # which numbers of the config were chosen, and why
    optimiser: Update | None = None  # where it was given from Python
    rules: Preprocessing | None = None  # how raw rows become records; None where the federation is only described

    @property
    def preprocessing(self) -> Preprocessing:
        """The public rules that turn raw rows into records."""
        if self.rules is None:
            raise BadValue("clients", "a description", "do not say how raw rows become records", "prepare with the records")
        return self.rules

    @property
    def metric(self) -> str:
        """The name of the first metric, which is shown while a run trains."""
        return self.metrics[0].name

    @property
    def held(self) -> Federation:
        """The federation with its records."""
        if self.federation is None:
            raise BadValue("clients", "a description", "hold no records to train on", "train where the records are")
        return self.federation

    @property
    def start(self) -> Tensor:
        """w_0, the same wherever this run is prepared."""
        return self.net.initial()

    @cached_property
    def scorer(self) -> Scorer:
        tests = [(client.test.x, client.test.y) for client in self.held.clients]
        persons = [client.test.persons for client in self.held.clients]
        groups = [each for each in persons if each is not None] or None
        return Scorer(self.net, tests, self.metrics, self.config.seed, groups)

    @property
    def plans(self) -> list[PrivacyPlan]:
        return [job.plan for job in self.jobs if job.plan]

    @cached_property
    def spending(self) -> WorstEpsilon | None:
        return WorstEpsilon(self.plans, self.config.privacy.delta) if self.plans else None

    @cached_property
    def contributions(self) -> Contributions | None:
        """What each client adds to the server's mean; None where there is no mean of several, or no noise in it."""
        return contributions_of(self.config, self.jobs)

    @property
    def synchronisation(self) -> Synchronisation:
        """The numbers of Algorithm 1 that the server reads."""
        config = self.config
        return Synchronisation(rounds=config.rounds, server_rate=config.server_rate, averaging=config.averaging)

    def serves(self, config: Config) -> bool:
        """Whether that config has the same records and the same net, to be trained in another way."""
        same = ("data", "model", "seed", "metrics", "performance")
        return all(getattr(self.config, name) == getattr(config, name) for name in same)

    def under(self, config: Config) -> Prepared:
        """The same records and net under another config."""
        rule = self.rule if config.rule == self.config.rule else rule_of(config)  # one given from Python is here alone
        tokens = self.federation is not None and self.federation.tokens
        settings = settled(config, self.description, self.module, rule, self.optimiser, tokens)
        jobs = jobs_of(settings.config, self.description, self.net.margin_for, rule=rule, optimiser=self.optimiser)
        return replace(self, config=settings.config, jobs=tuple(jobs), rule=rule, settings=settings)

    def aggregator(self, folder: Path | None = None) -> Aggregator:
        """The server's side."""
        return Aggregator(
            self.rule, self.jobs, self.start, delivery=self.config.rule.delivery, memory=self._memory, folder=folder,
            sums=self.sums, optimiser=self.config.server,
        )  # fmt: skip

    @cached_property
    def sums(self) -> Sums | None:
        """The public numbers of the sums of this run; None where clients send models."""
        return sums_of_run(self.config, self.rule, self.jobs)

    def cohort(
        self, draws: Draws, folder: Path | None = None, share: float | None = None, *, alone: bool = False
    ) -> Cohort:
        """An engine with all clients in it; `share` of them are expected in a round, if not by their coins.

        alone: each client has a server of its own, so models are sent, and nothing is lost."""
        how = self.config.performance
        performance = Performance(
            chunk=how.chunk, records_at_once=how.records_at_once, memory=self._memory, compile=how.compile,
            share=share or participation_of(self.config, self.rule), rounds=self.config.rounds,
        )  # fmt: skip
        clients = self.held.clients
        tests = [part for client in clients for part in (client.test.x, client.test.y)]
        return ENGINES[how.engine](
            self.net, self.jobs, [(client.train.x, client.train.y) for client in clients], self.rule, draws,
            augment=self.config.local.augment, performance=performance, folder=folder, scorer=self.scorer,
            config=self._fixed_fields(),
            bound_to={
                "task": [repr(self.description.task), *(metric.name for metric in self.metrics)],
                "metrics": [behaviour.of(metric).hex() for metric in self.metrics],
                "test records": tests,
            },
            persons=self._persons, rows_per_person=self.config.data.rows_per_person,
            sums=None if alone else self.sums,
            outages=Outages() if alone else Outages(self.config.lost, self.config.seed),
        )  # fmt: skip

    @property
    def _persons(self) -> list[Tensor] | None:
        """Whose each training record is, client by client; None where records are the units."""
        persons = [client.train.persons for client in self.held.clients]
        return [each for each in persons if each is not None] or None

    @property
    def _memory(self) -> float:
        """Bytes for each of the stores of client vectors: what clients carry, what they keep, what the server remembers."""
        stores = (True, self.rule.kept, self.rule.reads_uploads, self.config.rule.delivery == "push")
        return self.config.performance.memory_gib * 2**30 / sum(map(bool, stores))

    def _fixed_fields(self) -> dict[str, Any]:
        """The fields of the config that may not change while a run lasts: all but those of speed and display, the owner's
        words, and the place of the data, since the records themselves are compared. Device and dtype are those that were
        chosen, and functions in files are where they are, whatever folder the run is resumed from."""
        fields = dotted(self.config.located(Path.cwd()))
        for name in ("data.path", *(f"performance.{name}" for name in SPEED)):
            fields.pop(name, None)
        fields = {name: value for name, value in fields.items() if not name.startswith("report.")}
        return fields | {"performance.device": self.net.device.type, "performance.dtype": self.net.arithmetic}

    def score(self, found: Iterable[Values | None]) -> list[Score]:
        """The scores of many clients, one for each metric; None: a client that was never scored."""
        rows = [values for values in found if values is not None]
        return [
            Score.over([values[at] for values in rows], metric.lower_is_better) for at, metric in enumerate(self.metrics)
        ]


def prepare(
    config: Config,
    clients: Given | None = None,
    model: nn.Module | None = None,
    watch: Watch = lambda event: None,
    *,
    rule: Rule | type[Rule] | None = None,
    optimiser: Update | type[Update] | None = None,
    metrics: Sequence[Metric | Callable[..., Any]] = (),
    layer_rules: LayerRules | None = None,
) -> Prepared:
    """Load, check and plan; refuses bad input before anything is trained. A `Description` needs no records."""
    found = inspected(
        config, clients, model, watch, rule=rule, optimiser=optimiser, metrics=metrics, layer_rules=layer_rules
    )
    total = len(found.description.sizes)

    def told(done: int) -> None:
        watch(Working("planning clients", done, total))

    jobs = jobs_of(found.config, found.description, found.net.margin_for, told, found.rule, found.optimiser)
    for job in jobs:
        job.check_spread(found.net.arithmetic)
    return replace(found, jobs=tuple(jobs))


def inspected(
    config: Config,
    clients: Given | None = None,
    model: nn.Module | None = None,
    watch: Watch = lambda event: None,
    *,
    rule: Rule | type[Rule] | None = None,
    optimiser: Update | type[Update] | None = None,
    metrics: Sequence[Metric | Callable[..., Any]] = (),
    layer_rules: LayerRules | None = None,
) -> Prepared:
    """All that `prepare` does but planning: no client has a job yet."""
    if rule is not None and config.rule.name != GIVEN_RULE:
        config = with_given_rule(config, rule)
    rule = rule_of(config, rule)
    update = None if optimiser is None else checked("optimiser", GIVEN_OPTIMISER, optimiser)
    device = _device(config.performance.device)
    if config.performance.threads:
        torch.set_num_threads(config.performance.threads)
    federation, description, few, rules = _records(config, clients)
    if federation and federation.notes:
        watch(ForOwner(federation.notes))
    scored_by = metrics_of(config.metrics, description.task.kind, metrics)
    for metric in scored_by:
        metric.check(description.task.kind, description.task.outputs)
    if model is None:
        if not few.x.is_floating_point() and ":" not in config.model.name:
            raise BadValue(
                "model.name", config.model.name, "takes numbers, and these records are whole numbers (tokens)",
                'give data.ranges."*" to scale them, or a model of your own',
            )  # fmt: skip
        model = models.build(config.model, description.shape, description.task.outputs, config.seed)
    arithmetic = _arithmetic(config.performance.dtype, device)
    dtype = torch.float64 if arithmetic == "float64" else torch.float32
    net = Net(
        model, losses.BY_TASK[description.task.kind], few.x, few.y, dtype, device, arithmetic=arithmetic,
        layer_rules=models.layer_rules(config.model.layer_rules, layer_rules),
    )  # fmt: skip
    if federation:
        _check_every_record(federation, model, net)
    settings = settled(config, description, model, rule, update, not few.x.is_floating_point())
    config = settings.config
    for text in settings.reasons:
        watch(Note(text))
    for text in settings.warnings:
        watch(Note(text, warning=True))
    prepared = Prepared(config, description, federation, model, net, (), rule, scored_by, settings, update, rules)
    if federation and any(metric not in METRICS.values() for metric in scored_by):
        prepared.scorer.each(net.initial())  # a metric that fails is refused now, not after a round
    return prepared


def _records(config: Config, clients: Given | None) -> tuple[Federation | None, Description, Records, Preprocessing | None]:
    """The federation and the rules of raw rows if it is held, what is public, and a few records to inspect a model with."""
    features = config.model.features
    if isinstance(clients, Description):
        described = _described_features(clients, features)
        return None, described, described.made_up(INSPECTED), None
    held = _held(config, clients)
    federation = _with_features(held, features)
    return federation, federation.description, _first_records(federation), Preprocessing.of(held, config.data)


def _held(config: Config, clients: Federation | Mapping[str, tuple[Any, ...]] | None) -> Federation:
    if clients is not None:
        return data.given(clients, config.data, config.seed)
    if config.data.source == GIVEN:
        broken = "must be given again, because this run's records came from Python"
        raise BadValue("clients", NOT_GIVEN, broken, "pass clients= as in the first call")
    return data.load(config.data, config.seed)


def _first_records(federation: Federation) -> Records:
    """A few, of several clients where there are several."""
    few = [client.train for client in federation.clients[:INSPECTED]]
    each = -(-INSPECTED // len(few))
    return Records(torch.cat([r.x[:each] for r in few]), torch.cat([r.y[:each] for r in few]))


def _check_every_record(federation: Federation, model: nn.Module, net: Net) -> None:
    """Refuse records that the model fails on, with the client's name: a round would be too late to find out."""
    tables = any(isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) for layer in model.modules())
    records = sum(len(client.train) for client in federation.clients)
    if not tables and not federation.tokens and records > MOST_TRIED:
        return
    tried = copy.deepcopy(model).cpu().to(net.dtype).eval()
    for client in federation.clients:
        for part, x in (("", client.train.x), (", test", client.test.x)):
            wrong = check_every_record(tried, x.to(net.dtype) if x.is_floating_point() else x) if len(x) else None
            if wrong:
                raise BadValue(f"client {client.name}{part}", "records", f"cannot be fed to the model: {wrong}")


def _with_features(federation: Federation, name: str) -> Federation:
    """Fixed features cost no privacy: they are computed once, from each record by itself."""
    transform = models.features(name, federation.shape)
    if transform is None:
        return federation

    def changed(records: Records) -> Records:
        pieces = [transform(piece) for piece in records.x.split(1024)] if len(records) else [records.x[:0]]
        return replace(records, x=torch.cat(pieces))

    def client(old: Client) -> Client:
        train = changed(old.train)
        test = changed(old.test) if len(old.test) else replace(old.test, x=train.x[:0])
        return replace(old, train=train, test=test)

    return replace(federation, clients=tuple(client(old) for old in federation.clients))


def _described_features(description: Description, name: str) -> Description:
    """The same records with fixed features, as far as one can say without them: another shape."""
    transform = models.features(name, description.shape)
    if transform is None:
        return description
    return replace(description, shape=tuple(transform(description.made_up(1).x).shape[1:]))


def _device(name: str) -> torch.device:
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise BadValue("performance.device", name, "is not there", 'use "cpu", or "auto" to take what there is')
    return torch.device("cuda" if name != "cpu" and there else "cpu")


def _arithmetic(name: str, device: torch.device) -> Arithmetic:
    there = device.type == "cuda"
    if name == "auto":
        return "tf32" if there else "float32"
    if name in ("tf32", "bf16") and not there:
        raise BadValue("performance.dtype", name, "is for GPUs", 'use "float32", or "auto" to take what fits')
    return cast(Arithmetic, name)
