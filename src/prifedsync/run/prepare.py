"""Everything that is fixed before the first round, loaded, checked and planned."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from .. import data, models
from ..accounting import PrivacyPlan
from ..accounting.progress import WorstEpsilon
from ..config import Config, dotted
from ..data import Client, Federation, Records
from ..engines import ENGINES, Cohort, Performance
from ..engines.scoring import Scorer
from ..events import Watch, Working
from ..local import Arithmetic, Draws, Job, Net, losses
from ..local.inspection import check_every_record
from ..metrics import LOWER_IS_BETTER
from ..planning import jobs_of, participation_of, rule_of
from ..record import (
    Score,
)
from ..rules import Rule
from ..values import MISSING, BadValue

MOST_TRIED = 20_000  # records that are all fed to a model without tables before it is trained

SPEED = ("memory_gib", "checkpoint_seconds", "tensorboard", "threads", "chunk", "records_at_once", "compile")

GIVEN = "python:clients"  # the config's source where the records were given from Python


@dataclass(frozen=True)
class Prepared:
    """Everything that is fixed before the first round, checked."""

    config: Config
    federation: Federation
    module: nn.Module
    net: Net
    jobs: tuple[Job, ...]
    rule: Rule
    metric: str

    @cached_property
    def scorer(self) -> Scorer:
        tests = [(client.test.x, client.test.y) for client in self.federation.clients]
        return Scorer(self.net, tests, self.metric, self.config.seed)

    @property
    def plans(self) -> list[PrivacyPlan]:
        return [job.plan for job in self.jobs if job.plan]

    @cached_property
    def spending(self) -> WorstEpsilon | None:
        return WorstEpsilon(self.plans, self.config.privacy.delta) if self.plans else None

    def serves(self, config: Config) -> bool:
        """Whether that config has the same records and the same net, to be trained in another way."""
        same = ("data", "model", "seed", "metric", "performance")
        return all(getattr(self.config, name) == getattr(config, name) for name in same)

    def under(self, config: Config) -> Prepared:
        """The same records and net under another config."""
        jobs = jobs_of(config, self.federation, self.net.margin_for)
        return replace(self, config=config, jobs=tuple(jobs), rule=rule_of(config))

    def cohort(self, draws: Draws, folder: Path | None = None) -> Cohort:
        """An engine with all clients in it."""
        how = self.config.performance
        performance = Performance(
            chunk=how.chunk, records_at_once=how.records_at_once, memory=how.memory_gib * 2**30,
            share=participation_of(self.config), rounds=self.config.rounds, compile=how.compile,
        )  # fmt: skip
        records = [(client.train.x, client.train.y) for client in self.federation.clients]
        tests = [part for client in self.federation.clients for part in (client.test.x, client.test.y)]
        return ENGINES[how.engine](
            self.net, self.jobs, records, self.rule, draws, pushes=self.config.rule.delivery == "push",
            augment=self.config.local.augment, performance=performance, folder=folder, config=self._fixed_fields(),
            bound_to={"task": [repr(self.federation.task), self.metric], "test records": tests},
        )  # fmt: skip

    def _fixed_fields(self) -> dict[str, Any]:
        """The fields of the config that may not change while a run lasts: all but those of speed and display, and the
        place of the data, since the records themselves are compared. Device and dtype are those that were chosen."""
        fields = dotted(self.config)
        for name in ("data.path", *(f"performance.{name}" for name in SPEED)):
            fields.pop(name, None)
        return fields | {"performance.device": self.net.device.type, "performance.dtype": self.net.arithmetic}

    def score(self, values: list[float | None]) -> Score:
        return Score.over(values, self.metric in LOWER_IS_BETTER)


def prepare(
    config: Config,
    clients: Federation | Mapping[str, tuple[Any, ...]] | None = None,
    model: nn.Module | None = None,
    watch: Watch = lambda event: None,
) -> Prepared:
    """Load, check and plan; refuses bad input before anything is trained."""
    rule = rule_of(config)
    device = _device(config.performance.device)
    if config.performance.threads:
        torch.set_num_threads(config.performance.threads)
    if clients is not None:
        federation = data.given(clients, config.data, config.seed)
    elif config.data.source == GIVEN:
        broken = "must be given again, because this run's records came from Python"
        raise BadValue("clients", MISSING, broken, "pass clients= as in the first call")
    else:
        federation = data.load(config.data, config.seed)
    federation = _with_features(federation, config.model.features)
    metric = config.metric
    if metric == "auto":
        metric = "rmse" if federation.task.kind == "regression" else "accuracy"
    if model is None:
        if federation.tokens and ":" not in config.model.name:
            raise BadValue(
                "model.name", config.model.name, "takes numbers, and these records are whole numbers (tokens)",
                'give data.ranges."*" to scale them, or a model of your own',
            )  # fmt: skip
        model = models.build(config.model, federation.shape, federation.task.outputs, config.seed)
    few = [client.train for client in federation.clients[:4]]
    each = -(-4 // len(few))
    x, y = torch.cat([r.x[:each] for r in few]), torch.cat([r.y[:each] for r in few])
    arithmetic = _arithmetic(config.performance.dtype, device)
    dtype = torch.float64 if arithmetic == "float64" else torch.float32
    net = Net(model, losses.BY_TASK[federation.task.kind], x, y, dtype, device, arithmetic=arithmetic)
    _check_every_record(federation, model, net)
    if metric == "auc" and federation.task.outputs > 2:
        raise BadValue("metric", "auc", f"needs two classes, not {federation.task.outputs}", "use accuracy or f1")
    total = len(federation.clients)
    jobs = jobs_of(config, federation, net.margin_for, lambda done: watch(Working("planning clients", done, total)))
    for job in jobs:
        job.check_spread(net.arithmetic)
    return Prepared(config, federation, model, net, tuple(jobs), rule, metric)


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
