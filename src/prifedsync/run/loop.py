"""The rounds of one run, resumed where there is a checkpoint."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config import Config
from ..events import RoundDone, Until, Watch, Working
from ..files import LOG, RoundLog, round_log
from ..local import Draws, SeededDraws, SystemDraws
from ..rules import Server
from ..scores import Measurement, Score, Values
from ..server import Aggregator
from ..sync import Aggregation, Answers, Clients, Engine, Summed, Uploads, synchronise
from .checkpoint import Checkpoint
from .deployment import answers_in_line
from .history import Row, logged_rows, row_of
from .prepare import Prepared
from .tensorboard import events_of

Scored = dict[str, dict[str, Score]]  # metric → model → score; empty where a round is not evaluated


@dataclass
class Scores:
    """The last scores of each client's own model, and whose model has changed since."""

    personal: dict[str, Values | None]  # None: it was never scored
    stale: set[str]

    def changed(self, uploads: Answers, last: bool) -> None:
        """After a round; at the end everybody is scored who never was."""
        self.stale |= {*uploads.trained, *uploads.lost}
        if last:
            self.stale |= {name for name, scores in self.personal.items() if scores is None}

    def after(self, prepared: Prepared, engine: Engine, server: Server) -> Scored:
        """Scores of personal models and of the released one, metric by metric; none where clients do not show theirs."""
        released = server.released if prepared.rule.uploads else None
        names = [name for name in self.personal if name in self.stale]
        evaluation = engine.evaluate(released, names)
        if evaluation is None:
            return {}
        self.personal |= evaluation.personal
        self.stale.clear()
        scored = {"personal": prepared.score(self.personal.values())}
        if released is not None:
            scored["released"] = prepared.score(evaluation.released.values())
        return {
            metric.name: {model: found[at] for model, found in scored.items()} for at, metric in enumerate(prepared.metrics)
        }


@dataclass
class Session:
    """One run while it lasts: both sides of Algorithm 1, and what is known of it."""

    prepared: Prepared
    engine: Engine
    aggregator: Aggregator
    server: Server
    scores: Scores
    checkpoint: Checkpoint | None
    log: dict[str, Any] | None = None  # how much of the log of rounds was saved
    enough: bool = False  # the run was ended before its last round, and stays so
    history: list[Row] = field(default_factory=list)  # one row for each round

    def save(self, log: RoundLog) -> None:
        if self.checkpoint:
            self.log = log.synced()
            self.checkpoint.save(self.server, self.engine, self.aggregator, self.progress())

    def measure(self) -> Mapping[str, tuple[Measurement, ...]]:
        """All scores at the end, with intervals: model → one measurement for each metric."""
        released = self.server.released if self.prepared.rule.uploads else None
        return self.engine.measure(released, own=True) or {}

    def progress(self) -> dict[str, Any]:
        """What a checkpoint notes besides models."""
        stale = [name for name in self.scores.personal if name in self.scores.stale]
        return {"log": self.log, "personal": self.scores.personal, "stale": stale, "enough": self.enough}


def session(prepared: Prepared, folder: Path | None, engine: Engine | None = None) -> Session:
    """A run that begins, or goes on from its checkpoint; `engine`: its clients, where they are not all in this process."""
    checkpoint = Checkpoint(folder / "checkpoint") if folder else None
    if checkpoint:
        checkpoint.folder.mkdir(exist_ok=True)
    if engine is None:
        draws = _draws(prepared.config, checkpoint, folder)
        engine = prepared.cohort(draws, checkpoint.folder if checkpoint else None)
    aggregator = prepared.aggregator(checkpoint.folder if checkpoint else None)
    scores = Scores(dict.fromkeys(engine.names), set())
    begun = Session(prepared, engine, aggregator, Server(prepared.start), scores, checkpoint)
    if checkpoint and checkpoint.exists():
        begun.server, progress = checkpoint.load(engine, aggregator)
        last = {name: None if scores is None else tuple(scores) for name, scores in progress["personal"].items()}
        begun.scores = Scores(last, set(progress["stale"]))
        begun.log = progress["log"]
        begun.enough = progress["enough"]
    elif checkpoint:  # binds the key to these plans and records before anything is drawn
        checkpoint.save(begun.server, engine, aggregator, begun.progress())
    return begun


def _draws(config: Config, checkpoint: Checkpoint | None, folder: Path | None) -> Draws:
    if config.privacy.randomness != "system":
        return SeededDraws(config.seed)
    return SystemDraws(checkpoint.secret(begun=_has_rounds(folder))) if checkpoint else SystemDraws()


def rounds_of(
    prepared: Prepared, folder: Path | None, watch: Watch, until: Until = lambda done: False, engine: Engine | None = None
) -> Session:
    """The run itself, to its last round, or to that of which `until` says that it is enough."""
    run = session(prepared, folder, engine)
    config = prepared.config
    events = events_of(folder, config)
    _check_accounted(prepared, watch)
    first = run.server.round
    begun = last = saved = time.perf_counter()
    rounds = () if run.enough else synchronised(prepared, run.aggregator, run.engine, run.server)
    with round_log(folder, run.log) as log, _gentle_interrupt() as interrupted:
        others = [metric.name for metric in prepared.metrics[1:]]
        run.history = logged_rows(folder, others)
        for run.server, uploads in rounds:
            scored = _scored(run, uploads)
            now = time.perf_counter()
            done = _done(run, uploads, scored, (now - begun) / (run.server.round - first))
            run.enough = until(done)
            line = _line(done) | answers_in_line(uploads, run.engine.names)
            log.append(line)
            run.history.append(row_of(line, now - last, others))
            last = now
            for metric, models in scored.items():
                for model, score in models.items():
                    events(f"{metric}/{model}", score, run.server.round)
            watch(done)
            late = done.round == done.rounds or now - saved >= config.performance.checkpoint_seconds
            if late and not (run.enough or interrupted()):  # nobody goes on from where there was enough
                run.save(log)
                saved = time.perf_counter()
            if run.enough or interrupted():
                break
        if interrupted():
            run.save(log)
            raise KeyboardInterrupt
    return run


def _check_accounted(prepared: Prepared, watch: Watch) -> None:
    """Refuse a plan that cannot be accounted before anything is drawn."""
    spending = prepared.spending
    if spending:
        spending.after(prepared.config.rounds, lambda done: watch(Working("checking plans", done, len(spending.plans))))


def _scored(run: Session, uploads: Answers) -> Scored:
    """The scores of a round, where they are due."""
    config = run.prepared.config
    round = run.server.round
    run.scores.changed(uploads, last=round == config.rounds)
    due = round == config.rounds or bool(config.evaluate_every and round % config.evaluate_every == 0)
    return run.scores.after(run.prepared, run.engine, run.server) if due else {}


def _done(run: Session, uploads: Answers, scored: Scored, pace: float) -> RoundDone:
    prepared = run.prepared
    first = scored.get(prepared.metric, {})
    return RoundDone(
        phase="private" if prepared.plans else "non-private",
        round=run.server.round,
        rounds=prepared.config.rounds,
        participants=len(uploads.trained),
        personal=first.get("personal"),
        released=first.get("released"),
        seconds=pace,
        spending=prepared.spending,
        seeded=prepared.config.privacy.randomness == "seeded",
        others={metric: models for metric, models in scored.items() if metric != prepared.metric},
        attempts=uploads.attempts if isinstance(uploads, Summed) else 1,
        lost=len(uploads.missing),
    )


def _line(done: RoundDone) -> dict[str, Any]:
    """A round's line in the log: scores by the first metric, then those by the others.

    Attempts and losses are public: losses are simulated by the run's public seed, and never by a client's draws.
    """
    line: dict[str, Any] = {"round": done.round, "participants": done.participants}
    line |= {"attempts": done.attempts} if done.attempts > 1 else {}
    line |= {"lost": done.lost} if done.lost else {}
    line |= _means({"personal": done.personal, "released": done.released})
    others = {metric: _means(models) for metric, models in done.others.items()}
    return line | ({"others": others} if others else {})


def _means(scores: Mapping[str, Score | None]) -> dict[str, Any]:
    """Of each model the mean over clients, where each counts once, and the worst client's."""
    return {model: {"mean": score.mean, "worst": score.worst} for model, score in scores.items() if score}


def _has_rounds(folder: Path | None) -> bool:
    """Whether rounds were logged there, and so something was drawn."""
    log = folder / LOG if folder else None
    return log is not None and log.is_file() and log.stat().st_size > 0


def synchronised(
    prepared: Prepared, aggregation: Aggregation, clients: Clients, server: Server
) -> Iterator[tuple[Server, Uploads | Summed]]:
    """Algorithm 1 with the config's numbers."""
    return synchronise(prepared.synchronisation, aggregation, clients, server)


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
