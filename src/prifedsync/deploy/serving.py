"""The server of a run on real machines: Algorithm 1 with its clients behind owners' daemons, reached over Flower.

All that it needs to go on lies in its folder. Where it or the SuperLink was killed, it is started again: the run is
submitted anew, rounds go on from the last checkpoint, and owners answer what they have answered with the same bytes.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from torch import Tensor

from ..asking.document import RunDocument
from ..asking.tensors import most_answer_bytes
from ..config import Config
from ..config import load as load_config
from ..data.preprocessing import Preprocessing
from ..engines.chosen import Chosen
from ..engines.owners import Asked, Owners
from ..events import Note, Watch, Working
from ..files import RECORD, claimed
from ..local.sums import Sums
from ..record import RunRecord
from ..run.deployment import deployment_of
from ..run.folder import begin, finish
from ..run.history import logged_lines
from ..run.loop import rounds_of
from ..run.prepare import Prepared, prepare
from ..sync import Helpers, Summed, Uploads
from ..values import BadValue
from .board import Board
from .described import described, document_of
from .places import ServerPlaces
from .processes import check_flower
from .roster import check_files, check_roster, roster
from .settings import ServerSettings, server_settings
from .started import Started, has_checkpoint, rounds_done
from .superlink import SuperLink

if TYPE_CHECKING:
    from ..engines.flower.exchange import Exchange
    from ..engines.flower.link import Link

WAITING = 0.5  # seconds between two looks for clients


def serve(folder: Path, watch: Watch = lambda event: None, rehearsal: bool = False) -> RunRecord:
    """The whole run, from wherever it is; its record. A run that is finished has its record at once.

    rehearsal: all parties are on this machine, and the record says so.
    """
    settings = server_settings(folder)
    places = ServerPlaces(settings.folder)
    with claimed(places.run, new=False, field="server") as run:
        if (run / RECORD).is_file():
            return RunRecord.read(run / RECORD)
        return _served(settings, places, watch, rehearsal)


@dataclass(frozen=True)
class _Begun:
    """A run that is prepared, and where it lies."""

    settings: ServerSettings
    places: ServerPlaces
    prepared: Prepared
    started: Started
    rehearsal: bool


def _served(settings: ServerSettings, places: ServerPlaces, watch: Watch, rehearsal: bool) -> RunRecord:
    check_flower()
    check_files(settings, places)
    from ..engines.flower.exchange import Exchange, Patience
    from ..engines.flower.through import Through

    config = _config(places)
    description = described(config, Preprocessing.read(places.preprocessing))
    prepared = prepare(config, description, watch=watch)
    check_roster(settings, places, tuple(description.sizes), watch)
    begun = _Begun(settings, places, prepared, Started.again(places), rehearsal)
    document = document_of(prepared, description, begun.started.run)
    waiting = settings.waiting
    patience = Patience(waiting.round, waiting.question, waiting.offline)
    board = Board(places.status, document, waiting.question)
    exchange = Exchange(_link(settings, places, most_answer_bytes(document, len(prepared.start))))
    connections = {name: Through(exchange, name, patience) for name in document.names}
    asks = cache(partial(begun.started.asks, places))  # once
    owners = Noting(
        document,
        connections,
        prepared.start,
        prepared.sums,
        gathering=waiting.round,
        board=board,
        asks=asks,
        is_over=lambda: exchange.is_over,
    )
    board.missed = lambda: owners.missed
    engine = _asked_by(settings, owners, config.seed)  # refused before anybody has reserved anything
    with ExitStack() as ending:
        ending.enter_context(board)
        if rounds_done(places) < config.rounds:  # else it was ended before its record was written, and needs nobody
            ending.enter_context(SuperLink(settings, places))
            ending.enter_context(exchange)
            ending.enter_context(stopped_by_signals(exchange.stop))
            board.there = exchange
            field = "offline" if has_checkpoint(places) else "begin"
            _wait_for_clients(exchange, document.names, f"waiting.{field}", getattr(waiting, field), watch)
        return _trained(begun, owners, engine, watch)


def _asked_by(settings: ServerSettings, owners: Owners, seed: int) -> Owners | Chosen:
    """Who is asked in a round: everybody, or a share that the server chooses."""
    choice = settings.participation
    return Chosen(owners, choice.share, seed) if choice.chosen_by == "server" else owners


def _trained(begun: _Begun, owners: Owners, engine: Owners | Chosen, watch: Watch) -> RunRecord:
    since = time.perf_counter()
    prepared = begun.prepared
    folder = begun.places.run
    choice = begun.settings.participation
    begin(folder, prepared.config, Preprocessing.read(begun.places.preprocessing))
    if not has_checkpoint(begun.places):
        owners.enrol()  # before the first checkpoint, which keeps the session of masks
    run = rounds_of(prepared, folder, watch, engine=engine)
    said = deployment_of(
        logged_lines(folder),
        engine.names,
        carrier=carrier(),
        participation=choice.chosen_by,
        share=choice.share,
        resumed=max(begun.started.resumed, int(owners.is_older)),
        rehearsal=begun.rehearsal,
    )
    took = time.perf_counter() - since
    timings = {"train": took, "all": took}
    return finish(prepared, run, folder, watch, timings, measured=run.measure(), deployment=said).record


def carrier() -> str:
    """What carries questions and answers, with its version."""
    return f"Flower {version('flwr')}"


class Noting(Owners):
    """Owners whose answers are shown on a board."""

    def __init__(
        self, document: RunDocument, connections: Mapping[str, Asked], start: Tensor, sums: Sums | None, *,
        gathering: float, board: Board, asks: Callable[[], None], is_over: Callable[[], bool],
    ) -> None:  # fmt: skip
        """asks     is called before owners are asked for a round
        is_over  whether nobody waits for answers any more
        """
        super().__init__(document, connections, start, sums, gathering=gathering)
        self._board = board
        self._asks = asks
        self._is_over = is_over

    def train(self, round: int, helpers: Helpers) -> Uploads | Summed:
        self._asks()
        self._board.round_begins(round, helpers.names)
        uploads = super().train(round, helpers)
        if self._is_over():  # Python may lose the exception of a signal; clients that were not waited for are not lost
            raise KeyboardInterrupt
        self._board.round_ends(uploads.answers, self.scores)
        return uploads


def _config(places: ServerPlaces) -> Config:
    """The config of the run. Every round is saved, so that a server that is started again asks what it asked before."""
    return load_config(places.config).changed(compare=[], **{"performance.checkpoint_seconds": 0.0})


def _link(settings: ServerSettings, places: ServerPlaces, most: int) -> Link:
    from ..engines.flower.calls import Address
    from ..engines.flower.link import Link

    authority = None if settings.insecure else places.authority
    return Link(
        Address(settings.place, authority),
        places.secret.read_bytes(),
        lambda: roster(places.nodes),
        keys=not settings.insecure,
        most=most,
    )


def _wait_for_clients(exchange: Exchange, names: Sequence[str], field: str, seconds: float, watch: Watch) -> None:
    """Wait until all are there, or the time is over: whoever comes later joins later."""
    end = time.monotonic() + seconds
    while True:
        there = exchange.online & set(names)
        watch(Working("waiting for clients", len(there), len(names)))
        if len(there) == len(names):
            return
        if time.monotonic() >= end:
            break
        time.sleep(WAITING)
    missing = [name for name in names if name not in there]
    if not there:
        raise BadValue(field, seconds, "seconds are over, and no client has come", "start the clients first")
    exchange.give_up(missing)
    watch(Note(f"begun without {', '.join(missing)}", warning=True))


@contextmanager
def stopped_by_signals(stop: Callable[[], None] = lambda: None) -> Iterator[None]:
    """SIGTERM, a closed terminal and a second Ctrl-C end the run at once: what was saved is enough to go on."""
    is_stopping = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal is_stopping
        if is_stopping:  # the signal before it is at it: to stop twice at once would wait for its own lock
            return
        is_stopping = True
        try:
            stop()  # whoever waits for an answer waits no longer
        finally:
            is_stopping = False
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
