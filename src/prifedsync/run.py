"""Config in, result out: the Python API behind `prifedsync.train`."""

from __future__ import annotations

import copy
import fcntl
import json
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import quote

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from . import __version__, data, models
from .accounting import PrivacyPlan, Target
from .accounting.planning import rare_events
from .accounting.progress import WorstEpsilon
from .accounting.statement import Statement
from .config import PUBLIC, Config, as_mapping, dotted, from_mapping, load, to_toml
from .data import Client, Federation, Records
from .engines import ENGINES, Cohort, Performance
from .engines.checkpoint import Checkpoint, write_file
from .engines.jobs import jobs_of, participation_of, rule_of
from .engines.scoring import LOWER_IS_BETTER, Scorer
from .engines.store import checksum, damaged, hashing
from .fdp import BadValue
from .local import Arithmetic, Draws, Job, Key, Net, SeededDraws, SystemDraws, losses
from .local.inspection import check_every_record
from .record import (
    KEPT,
    NO_GUARANTEE,
    NOTHING_LEAVES,
    OVERLAP,
    SCORES_LEAK,
    SIMULATION,
    TIMINGS_LEAK,
    ClientRecord,
    Guarantees,
    RunRecord,
    Score,
    Scores,
    plan_as_json,
)
from .rules import Noised, OnlyHere, Rule, Server, Unprotected
from .sync import Engine, Sent, Stayed, Synchronisation, Uploads, synchronise

LOG, RECORD, CONFIG = "rounds.jsonl", "record.json", "config.toml"
MOST_TRIED = 20_000  # records that are all fed to a model without tables before it is trained
SPEED = ("memory_gib", "checkpoint_seconds", "tensorboard", "threads", "chunk", "records_at_once", "compile")
GIVEN = "python:clients"  # the config's source where the records were given from Python


@dataclass(frozen=True)
class RoundDone:
    """What is known after a round; `phase` is "private", "non-private", or what is trained for comparison."""

    phase: str
    round: int
    rounds: int
    participants: int
    personal: Score | None
    released: Score | None
    seconds: float
    spending: WorstEpsilon | None  # None without a guarantee
    seeded: bool

    def epsilon_so_far(self) -> float | None:
        """An upper bound on every client's ε after these rounds; `spending.seconds` says how long the last one took."""
        return self.spending.after(self.round) if self.spending else None

    def epsilon_planned(self) -> float | None:
        """An upper bound on every client's ε after all rounds."""
        return self.spending.after(self.rounds) if self.spending else None


@dataclass(frozen=True)
class Working:
    """Something else takes time: what, and how far it is."""

    what: str
    done: int
    of: int


Watch = Callable[[RoundDone | Working], None]
Until = Callable[[RoundDone], bool]


@dataclass(frozen=True)
class Result:
    """A finished run: the record, and the models as plain state_dicts."""

    record: RunRecord
    net: Net
    server: Server
    cohort: Cohort
    folder: Path | None

    @property
    def state_dict(self) -> dict[str, Tensor]:
        """The released global model."""
        return self.net.state_dict(self.server.released)

    def personal(self, client: str) -> dict[str, Tensor]:
        """A client's own model; `record.personal_models` says whether it may be published."""
        names = [job.client for job in self.cohort.jobs]
        if client not in names:
            raise BadValue("client", client, "is not in this run", f"clients: {', '.join(names[:5])}…")
        return self.net.state_dict(self.cohort.personal(names.index(client)).value)


def train(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    *,
    clients: Federation | Mapping[str, tuple[Any, ...]] | None = None,
    model: nn.Module | None = None,
    out: str | Path | None = None,
    watch: Watch | None = None,
) -> Result:
    """Train as the config says (a preset's name, a file, or a mapping of its fields).

    clients: your records instead of the config's source, client → (x, y) or (x, y, x_test, y_test).
    model: your module instead of the config's. out: a new folder for the run.
    """
    if isinstance(config, Mapping):
        source = {} if clients is None else {"source": GIVEN}
        config = from_mapping({**config, "data": {**config.get("data", {}), **source}})
    elif not isinstance(config, Config):
        overrides = [] if clients is None else [f'data.source="{GIVEN}"']
        config = load(config, overrides)
    elif clients is not None:
        config = config.changed(**{"data.source": GIVEN})
    watch = watch or (lambda event: None)
    if out is None:
        return _run(config, clients, model, None, watch)
    with _claimed(Path(out), new=True) as folder:
        return _run(config, clients, model, folder, watch)


def resume(
    folder: str | Path,
    *,
    clients: Federation | Mapping[str, tuple[Any, ...]] | None = None,
    model: nn.Module | None = None,
    watch: Watch | None = None,
) -> Result:
    """Go on with an interrupted run; what was given from Python before must be given again. Raises Finished."""
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        if folder.is_dir() and _not_begun(folder):
            raise BadValue("resume", folder, "was ended before the run began", f"begin it again: --out {folder}")
        raise BadValue("resume", folder, "is not a run folder", f"it has no {CONFIG}")
    with _claimed(folder, new=False):
        if (folder / RECORD).is_file():  # it is written last, and whole
            Checkpoint(folder / "checkpoint").remove()  # the run may have been ended while it tidied up
            raise Finished(folder)
        return _run(load(folder / CONFIG), clients, model, folder, watch or (lambda event: None))


class Finished(BadValue):
    """There is nothing to go on with: the run in this folder has its record."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / RECORD
        super().__init__("resume", folder, "is finished", f"its record is {self.path}")

    @cached_property
    def record(self) -> RunRecord:
        return RunRecord.read(self.path)


@dataclass(frozen=True)
class Trace:
    """What an experiment keeps of a run: its rounds, as rounds.jsonl has them, and what they were taken under."""

    rounds: list[dict[str, Any]]
    prepared: Prepared
    device: str
    versions: dict[str, str]

    @property
    def plans(self) -> tuple[PrivacyPlan, ...]:
        """All that differ: no single one is the worst in every respect."""
        return tuple(dict.fromkeys(self.prepared.plans))


def trace(
    config: Config, folder: str | Path, *, until: Until = lambda done: False, watch: Watch = lambda event: None,
    like: Prepared | None = None,
) -> Trace:  # fmt: skip
    """The rounds alone, for experiments: no models, no comparisons, no record.

    It ends after the round of which `until` says so, and goes on from the folder's last checkpoint. Ending a run by its
    scores is ending it by the data: a guarantee is about the rounds that were planned, never about those that were taken.
    """
    with _claimed(Path(folder), new=False) as folder:
        if (folder / RECORD).is_file():
            raise BadValue("folder", folder, "holds a finished run", "name another")
        # a checkpoint of other plans or records is refused when it is loaded
        prepared = like.under(config) if like and like.serves(config) else prepare(config, watch=watch)
        write_file(folder / CONFIG, to_toml(config).encode())
        _rounds(prepared, folder, watch, lambda done: until(done) or done.round == done.rounds)
        rounds = [json.loads(line) for line in (folder / LOG).read_text(encoding="utf-8").splitlines()]
        device = _device_name(prepared.net.device)
        return Trace(rounds, prepared, device, _versions())


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
        raise BadValue("clients", "nothing", "must be given again: this run's records came from Python")
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


# ---------------------------------------------------------------------- one run


def _run(config: Config, clients: Any, model: nn.Module | None, folder: Path | None, watch: Watch) -> Result:
    started = time.perf_counter()
    prepared = prepare(config, clients, model, watch)
    if folder:
        write_file(folder / CONFIG, to_toml(config).encode())
    server, cohort, personal = _rounds(prepared, folder, watch)
    trained = time.perf_counter()
    scores = {"personal": Scores(prepared.score(personal), prepared.score(_everywhere(prepared, cohort)))}
    if prepared.rule.uploads:  # else there is no global model
        scores["released"] = _scores_of_one(prepared, server.released)
    for kind in config.compare:
        scores[kind] = _comparison(prepared, kind, watch)
    timings = {"train": trained - started, "all": time.perf_counter() - started}
    given = clients is not None or model is not None
    record = _record(prepared, server, cohort, personal, scores, given, watch)
    record = replace(record, timings=timings, host=platform.platform())
    if folder:
        _write_models(folder / "models", prepared, server, cohort)
        write_file(folder / RECORD, json.dumps(record.as_json(), indent=1, allow_nan=False).encode())
        Checkpoint(folder / "checkpoint").remove()
    return Result(record, prepared.net, server, cohort, folder)


def _rounds(
    prepared: Prepared, folder: Path | None, watch: Watch, until: Until = lambda done: False
) -> tuple[Server, Cohort, list[float | None]]:
    """The run itself, resumed if there is a checkpoint."""
    config, names = prepared.config, [job.client for job in prepared.jobs]
    checkpoint = Checkpoint(folder / "checkpoint") if folder else None
    if checkpoint:
        checkpoint.folder.mkdir(exist_ok=True)
    draws: Draws = SeededDraws(config.seed)
    if config.privacy.randomness == "system":
        draws = SystemDraws(checkpoint.secret(begun=_has_rounds(folder))) if checkpoint else SystemDraws()
    cohort = prepared.cohort(draws, checkpoint.folder if checkpoint else None)
    server = Server(cohort.start)
    progress: dict[str, Any] = {"log": None, "personal": [None] * len(names), "stale": []}
    if checkpoint and checkpoint.exists():
        server, progress = checkpoint.load(cohort)
    elif checkpoint:
        checkpoint.save(server, cohort, progress)  # binds the key to these plans and records before anything is drawn
    personal: list[float | None] = progress["personal"]
    stale: set[int] = set(progress["stale"])  # clients whose model changed since it was scored
    events = _events(folder, config)
    if prepared.spending:
        prepared.spending.after(config.rounds)  # a plan that cannot be accounted is refused here
    saved = begun = time.perf_counter()
    first = server.round
    enough: bool = progress.get("enough", False)  # the run was ended before its last round, and stays so
    rounds = () if enough else synchronised(prepared, cohort, cohort.coins, server)
    with _log(folder, progress["log"]) as log, _gentle_interrupt() as interrupted:

        def save() -> None:
            if checkpoint:
                notes = {"log": log.synced(), "personal": personal, "stale": sorted(stale), "enough": enough}
                checkpoint.save(server, cohort, notes)

        for server, uploads in rounds:
            sent = [i for i, upload in uploads.of.items() if isinstance(upload, (Sent, Stayed))] if uploads else []
            line: dict[str, Any] = {"round": server.round, "participants": len(sent)}
            scored: dict[str, Score] = {}
            stale |= set(sent)
            if server.round == config.rounds:
                stale |= {i for i, score in enumerate(personal) if score is None}
            if _is_due(server.round, config):
                changed = sorted(stale)
                for i, found in zip(changed, _scores_of_own(prepared, cohort, changed), strict=True):
                    personal[i] = found
                stale.clear()
                scored["personal"] = prepared.score(personal)
                if prepared.rule.uploads:
                    scored["released"] = prepared.score(prepared.scorer.each(server.released))
                for name, score in scored.items():
                    line[name] = {"mean": score.mean, "worst": score.worst}
                    events(f"{prepared.metric}/{name}", score, server.round)
            now = time.perf_counter()
            done = RoundDone(
                "private" if prepared.plans else "non-private",
                server.round,
                config.rounds,
                len(sent),
                scored.get("personal"),
                scored.get("released"),
                (now - begun) / (server.round - first),
                prepared.spending,
                config.privacy.randomness == "seeded",
            )
            enough = until(done)
            log.append(line)
            watch(done)
            late = server.round == config.rounds or now - saved >= config.performance.checkpoint_seconds
            if late and not (enough or interrupted()):  # nobody goes on from where there was enough
                save()
                saved = time.perf_counter()
            if enough or interrupted():
                break
        if interrupted():
            save()
            raise KeyboardInterrupt
    return server, cohort, personal


def _has_rounds(folder: Path | None) -> bool:
    """Whether rounds were logged there, and so something was drawn."""
    log = folder / LOG if folder else None
    return log is not None and log.is_file() and log.stat().st_size > 0


def _is_due(round: int, config: Config) -> bool:
    return round == config.rounds or bool(config.evaluate_every and round % config.evaluate_every == 0)


def synchronised(
    prepared: Prepared, engine: Engine, draws: Draws, server: Server
) -> Iterator[tuple[Server, Uploads | None]]:
    """Algorithm 1 with the config's numbers and a coin drawn by key."""
    config, names = prepared.config, [job.client for job in prepared.jobs]
    plan = Synchronisation(
        clients=len(names),
        rounds=config.rounds,
        participation=participation_of(config),
        server_rate=config.server_rate,
        delivery=config.rule.delivery,
        averaging=config.averaging,
    )

    def coin(client: int, round: int) -> float:
        return draws.uniform(Key(names[client], round, 0, "coin"), 1).item()

    return synchronise(plan, prepared.rule, engine, coin, server)


def _everywhere(prepared: Prepared, cohort: Cohort) -> list[float | None]:
    """Each client's own model on everybody's test records; those that never took part all have the first one."""
    trained = [i for i, rounds in enumerate(cohort.taken) if rounds]
    models = (cohort.personal(i).value for i in trained)
    found = dict(zip(trained, prepared.scorer.everybody(models), strict=True))
    first = prepared.scorer.everybody([cohort.start])[0] if 0 in cohort.taken else None
    return [found.get(i, first) for i in range(len(prepared.jobs))]


def _scores_of_own(prepared: Prepared, cohort: Cohort, clients: Sequence[int]) -> list[float | None]:
    """Each of these clients' personal models on its own test records."""
    return prepared.scorer.own(lambda i: cohort.personal(i).value, clients)


def _scores_of_one(prepared: Prepared, weights: Tensor) -> Scores:
    return Scores(prepared.score(prepared.scorer.each(weights)), prepared.score(prepared.scorer.everybody([weights])))


def _comparison(prepared: Prepared, kind: str, watch: Watch) -> Scores:
    """What it would be without privacy: all together, or each client alone."""
    config = prepared.config.changed(**{"privacy.mechanism": "none"})
    if kind == "alone":
        config = config.changed(**{"rule.name": "alone", "rule.publish": False})
    elif not prepared.rule.uploads:
        config = config.changed(**{"rule.name": "fedavg"})
    bare = prepared.under(config)
    cohort, names = bare.cohort(SeededDraws(config.seed)), [job.client for job in bare.jobs]
    server, begun = Server(cohort.start), time.perf_counter()
    rounds = synchronised(bare, cohort, cohort.coins, server)
    for server, uploads in rounds:
        pace = (time.perf_counter() - begun) / server.round
        sent = len(uploads.of) if uploads else 0
        watch(RoundDone(kind, server.round, config.rounds, sent, None, None, pace, None, True))
    if kind == "alone":
        own = _scores_of_own(bare, cohort, range(len(names)))
        return Scores(bare.score(own), bare.score(_everywhere(bare, cohort)))
    return _scores_of_one(bare, server.released)


# ---------------------------------------------------------------------- what it leaves behind


def _record(
    prepared: Prepared, server: Server, cohort: Cohort, personal: list[float | None], scores: dict[str, Scores],
    given: bool, watch: Watch,
) -> RunRecord:  # fmt: skip
    config = prepared.config
    guarantees, most = Guarantees(config.privacy.delta, len(prepared.jobs)), max(cohort.taken)
    randomness, public_count = config.privacy.randomness, config.privacy.neighbours == "replace"
    released = prepared.scorer.each(server.released) if prepared.rule.uploads else [None] * len(prepared.jobs)
    clients = []
    for i, job in enumerate(prepared.jobs):
        _check_count(job, cohort.taken[i], cohort.queries[i])
        planned = _stated(guarantees.planned(job.plan), randomness) if job.plan else None
        rounds = most if job.plan and job.plan.copies > 1 else cohort.taken[i]  # who else holds a record is not asked
        taken = guarantees.taken(job.plan, rounds).as_json() if job.plan else None
        clients.append(
            ClientRecord(
                name=job.client,
                records=job.steps.records if job.noisy or public_count else None,  # else the real number is not public
                plan=plan_as_json(job.plan) if job.plan else None,
                rounds_taken=cohort.taken[i],
                noisy_queries=cohort.queries[i],
                planned=planned,
                taken=taken,
                personal=personal[i],
                released=released[i],
            )
        )
        watch(Working("accounting", i + 1, len(prepared.jobs)))
    statement = guarantees.worst(prepared.plans) if prepared.plans else None
    return RunRecord(
        config=as_mapping(config),
        clients=tuple(clients),
        guarantee=_stated(statement, randomness) if statement else None,
        sentence=_nothing_leaves(prepared) or sentence(statement, config.privacy.randomness),
        metric=prepared.metric,
        scores=scores,
        warnings=_warnings(prepared, given, guarantees, statement),
        versions=_versions(),
        device=_device_name(prepared.net.device),
        gradients=prepared.net.gradients,
        parameters=prepared.net.count,
        personal_models=_publishing(prepared, cohort.personal(0)),
    )


def _nothing_leaves(prepared: Prepared) -> str:
    """What is said instead of a guarantee where there is nothing to guarantee."""
    rule = prepared.rule
    return NOTHING_LEAVES if not rule.uploads and not prepared.plans and not rule.publishes else ""


def _publishing(prepared: Prepared, model: Noised[Tensor] | Unprotected[Tensor] | OnlyHere[Tensor]) -> str:
    """Whether a model of this run may be published."""
    if isinstance(model, OnlyHere):
        return f"not private if published: {KEPT}"
    if isinstance(model, Unprotected):
        return f"not private if published: {NO_GUARANTEE}"
    if prepared.config.privacy.randomness == "seeded":
        return f"a simulation: the guarantee is {SIMULATION}"
    return "may be published: covered by the guarantee in record.json"


def _check_count(job: Job, taken: int, queries: int) -> None:
    """The guarantee is stated from counts; if they disagree, there is none."""
    per_round = job.noisy.local_steps if job.noisy else 1 if job.output else 0
    if queries != taken * per_round:
        raise RuntimeError(
            f"client {job.client}: {queries} noisy queries in {taken} rounds of {per_round}; no guarantee can be stated"
        )


def sentence(statement: Statement | None, randomness: str) -> str:
    """The guarantee in one sentence, and what it is not."""
    if statement is None:
        return NO_GUARANTEE
    return statement.sentence() + (f" (A simulation: {SIMULATION}.)" if randomness == "seeded" else "")


def _stated(statement: Statement, randomness: str) -> dict[str, Any]:
    return statement.as_json() | {"sentence": sentence(statement, randomness)}


def _warnings(prepared: Prepared, given: bool, guarantees: Guarantees, statement: Statement | None) -> tuple[str, ...]:
    config = prepared.config
    found = list(statement.warnings) if statement else []
    found += _rare_events(prepared, guarantees)
    private = config.privacy.randomness == "system" or config.data.source not in PUBLIC
    if private and any(len(c.test) for c in prepared.federation.clients):
        found.append(SCORES_LEAK)
    if private and prepared.plans:
        found.append(TIMINGS_LEAK)
    if config.data.source in ("csv", "npz") and Path(config.data.path).is_file() and not config.data.client_column:
        found.append("where records were dealt to clients here, the guarantee is about a record after it was dealt")
    if prepared.federation.copies > 1 and prepared.plans:
        found.append(f"{OVERLAP}: here up to {prepared.federation.copies}, and the guarantee is composed over so many")
    if prepared.rule.kept and not prepared.rule.publishes and config.privacy.mechanism != "none":
        found.append(f"personal models: {KEPT}; neither they nor their scores may leave the client")
    if given:
        found.append("records or model were given from Python: config.toml alone does not repeat this run")
    return tuple(found)


def _rare_events(prepared: Prepared, guarantees: Guarantees) -> tuple[str, ...]:
    """What a target on the advantage leaves open, where this run has one."""
    privacy = prepared.config.privacy
    if privacy.target.advantage is None:
        return ()
    target = Target("advantage", privacy.target.advantage, privacy.delta)
    return rare_events(target, ((job.client, guarantees.planned(job.plan).honest) for job in prepared.jobs if job.plan))


def _write_models(folder: Path, prepared: Prepared, server: Server, cohort: Cohort) -> None:
    (folder / "personal").mkdir(parents=True, exist_ok=True)

    def write(path: Path, model: Noised[Tensor] | Unprotected[Tensor] | OnlyHere[Tensor]) -> None:
        state = {name: value.contiguous() for name, value in prepared.net.state_dict(model.value).items()}
        content = save(state, metadata={"publishing": _publishing(prepared, model)})
        write_file(path, content, private=isinstance(model, OnlyHere))

    if prepared.rule.uploads:  # else it is made of nothing
        write(folder / "global.safetensors", (Noised if prepared.plans else Unprotected)(server.released))
    for i, job in enumerate(prepared.jobs):
        if cohort.taken[i]:  # the others still have the first weights
            write(folder / "personal" / f"{quote(job.client, safe='')}.safetensors", cohort.personal(i))


def _versions() -> dict[str, str]:
    return {
        "prifedsync": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


@contextmanager
def _claimed(folder: Path, new: bool) -> Iterator[Path]:
    """The run folder, for this process alone: two that worked in one would share their noise."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadValue("out" if new else "resume", folder, "is in use by another process", "wait for it") from None
        except OSError as error:
            rule = f"cannot be locked ({error.strerror}), and two processes that worked in it would share their noise"
            raise BadValue("out" if new else "resume", folder, rule, "use a folder on a local disk") from None
        if new and not _not_begun(folder):
            raise BadValue("out", folder, "is not empty", f"name a new folder, or go on with it: --resume {folder}")
        try:
            yield folder
        finally:
            if new and not any(folder.iterdir()):
                folder.rmdir()  # refused before anything was begun
    finally:
        os.close(lock)


def _not_begun(folder: Path) -> bool:
    """Whether it holds nothing but what a run leaves that was ended while it wrote its config."""
    return all(path.name == f"{CONFIG}.new" for path in folder.iterdir())


class _Log:
    """rounds.jsonl, or nothing where there is no folder."""

    def __init__(self, file: BinaryIO | None, written: bytes = b"") -> None:
        self.file = file
        self.length = len(written)
        self.hashing = hashing(written)

    def append(self, line: dict[str, Any]) -> None:
        if self.file:
            content = json.dumps(line, allow_nan=False).encode() + b"\n"
            self.file.write(content)
            self.file.flush()
            self.length += len(content)
            self.hashing.update(content)

    def synced(self) -> dict[str, Any]:
        """What is all on the disk now: a checkpoint that names this length may follow."""
        if self.file:
            os.fsync(self.file.fileno())
        return {"length": self.length, "checksum": self.hashing.hexdigest()}


@contextmanager
def _log(folder: Path | None, saved: dict[str, Any] | None) -> Iterator[_Log]:
    """The log of rounds, cut back to the last checkpoint."""
    if folder is None:
        yield _Log(None)
        return
    path = folder / LOG
    written = path.read_bytes()[: saved["length"]] if saved and path.is_file() else b""
    if saved and len(written) < saved["length"]:
        raise BadValue("resume", folder, f"has lost lines of {LOG}", "train anew")
    if saved and checksum(written) != saved["checksum"]:
        raise damaged(path)
    with path.open("ab") as file:
        file.truncate(len(written))
        file.seek(len(written))
        yield _Log(file, written)


@contextmanager
def _gentle_interrupt() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C waits for the end of the round; a second one stops at once, and the last checkpoint stands."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = signal.getsignal(signal.SIGINT)

    def once(number: int, frame: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, before)
        os.write(2, b"finishing this round, then saving (Ctrl-C again to stop at once)\n")  # print may be busy

    signal.signal(signal.SIGINT, once)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def _events(folder: Path | None, config: Config) -> Callable[[str, Score, int], None]:
    """TensorBoard events, if asked for."""
    if not config.performance.tensorboard:
        return lambda name, score, round: None
    if folder is None:
        raise BadValue("performance.tensorboard", True, "needs a run folder", "give out = a folder")
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise BadValue(
            "performance.tensorboard", True, "needs the package tensorboard", "pip install prifedsync[tensorboard]"
        ) from None
    writer = SummaryWriter(str(folder / "events"))

    def write(name: str, score: Score, round: int) -> None:
        for kind in ("mean", "worst"):
            value = getattr(score, kind)
            if value is not None:
                writer.add_scalar(f"{name}/{kind}", value, round)
        writer.flush()

    return write
