"""The rounds of one run, resumed where there is a checkpoint."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..config import Config
from ..engines import Cohort
from ..events import RoundDone, Until, Watch
from ..files import LOG, round_log
from ..local import Draws, Key, SeededDraws, SystemDraws
from ..planning import participation_of
from ..record import (
    Score,
)
from ..rules import Server
from ..sync import Engine, Sent, Stayed, Synchronisation, Uploads, synchronise
from .checkpoint import Checkpoint
from .prepare import Prepared
from .scores import scores_of_own
from .tensorboard import events_of


def rounds_of(
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
    events = events_of(folder, config)
    if prepared.spending:
        prepared.spending.after(config.rounds)  # a plan that cannot be accounted is refused here
    saved = begun = time.perf_counter()
    first = server.round
    enough: bool = progress.get("enough", False)  # the run was ended before its last round, and stays so
    rounds = () if enough else synchronised(prepared, cohort, cohort.coins, server)
    with round_log(folder, progress["log"]) as log, _gentle_interrupt() as interrupted:

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
                for i, found in zip(changed, scores_of_own(prepared, cohort, changed), strict=True):
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
        participation=participation_of(config, prepared.rule),
        server_rate=config.server_rate,
        delivery=config.rule.delivery,
        averaging=config.averaging,
    )

    def coin(client: int, round: int) -> float:
        return draws.uniform(Key(names[client], round, 0, "coin"), 1).item()

    return synchronise(plan, prepared.rule, engine, coin, server)


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
