"""Progress: a bar that moves on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Iterator
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn, track
from rich.table import Column

from ..accounting.progress import WorstEpsilon
from ..accounting.statement import up
from ..events import Event, ForOwner, Note, Planned, RoundDone
from .contributions import print_contributions
from .lines import say, say_place, screen
from .record import score

PLAIN_EVERY = 2.0  # seconds between plain lines, and between bounds on ε so far
EPSILON_SHARE = 0.05  # of a run's time, about, goes into bounds on ε so far at most
WIDEST_BAR = 24
NARROWEST_BAR = 4
TIME_LEFT = 7  # columns of 0:00:12

T = TypeVar("T")


class View:
    """Shows what `run.train` tells. A context manager: `with View() as watch: run.train(config, watch=watch)`.

    quiet     show nothing
    notes     show what is for the owner of the records all the same
    spending  whether to show ε so far; not where bounding it takes longer than a round
    console   where to show it: the error stream, unless given
    """

    def __init__(
        self, quiet: bool = False, spending: bool = True, console: Console | None = None, notes: bool = False
    ) -> None:
        self.console = console or screen(stderr=True)
        self.quiet = quiet
        self.spending = spending
        self.notes = notes or not quiet
        self.live = self.console.is_terminal and not quiet
        self.last = 0.0
        self.bounded: tuple[WorstEpsilon, int] | None = None  # of whom, and after which round, ε so far was bounded last
        self.bounded_at = time.monotonic()
        self.bar = BarColumn(WIDEST_BAR)
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            self.bar,
            TextColumn("{task.fields[said]}", markup=False, table_column=Column(no_wrap=True)),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
        )
        self.task: TaskID | None = None
        self.phase = ""

    def __enter__(self) -> View:
        if self.live:
            self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.live:
            self.progress.stop()

    def __call__(self, event: Event) -> None:
        if isinstance(event, ForOwner):
            if self.notes:
                self._for_owner(event)
        elif self.quiet:
            return
        elif isinstance(event, RoundDone):
            self._round(event)
        elif isinstance(event, Planned):
            print_contributions(event.contributions, self.console)
        elif isinstance(event, Note):
            say(self.console, f"{'warning: ' if event.warning else ''}{event.text}")
        elif self.live:
            self._move(event.what, event.done, event.of, [])

    def say(self, text: str) -> None:
        """A line of its own, above what moves."""
        if not self.quiet:
            say(self.console, text)

    def _for_owner(self, event: ForOwner) -> None:
        say(self.console, "For the owner of the records alone, because it depends on them; it is not written anywhere:")
        for client, sentences in event.notes.items():
            for sentence in sentences:
                say(self.console, f"  {client}: {sentence}")

    def _round(self, event: RoundDone) -> None:
        now = time.monotonic()
        over = event.round == event.rounds
        due = now - self.last >= PLAIN_EVERY or over or event.round == 1
        parts = self._parts(event, due)
        if self.live:
            self._move(event.phase, event.round, event.rounds, parts)
        elif due:
            left = "" if over else f", {event.seconds * (event.rounds - event.round):.0f} s left"
            say_place(self.console, f"{event.phase}: {', '.join(parts)}{left}")
        if due:
            self.last = now

    def _parts(self, event: RoundDone, due: bool) -> list[str]:
        """What is known after a round, the most important first."""
        parts = [f"round {event.round} of {event.rounds}"]
        if event.spending and self.spending:
            parts.append(self._spent(event, event.spending, due))
        for name, found in (("personal", event.personal), ("released", event.released)):
            if found:
                parts.append(f"{name} {score(found.mean)}")
        return [*parts, f"{event.participants} client{'s' * (event.participants != 1)}"]

    def _spent(self, event: RoundDone, spending: WorstEpsilon, due: bool) -> str:
        """ε so far, and after which round that was if not this one: with many different clients a bound takes long."""
        planned = up(spending.after(event.rounds), 3)
        over = event.round == event.rounds
        rested = time.monotonic() - self.bounded_at >= spending.seconds / EPSILON_SHARE
        if over or (due and rested):
            spending.after(event.round)
            self.bounded = (spending, event.round)
            self.bounded_at = time.monotonic()
        name = "simulated ε" if event.seeded else "ε"
        if self.bounded is None or self.bounded[0] is not spending:
            return f"{name} {planned} after all rounds"
        round = self.bounded[1]
        when = "" if round == event.round else f" (after round {round})"
        return f"{name} {up(spending.after(round), 3)}{when} of {planned}"

    def _move(self, phase: str, done: int, of: int, parts: list[str]) -> None:
        """Move the bar, beside as many of the parts as fit into one line."""
        room = self.console.width - len(phase) - TIME_LEFT - 3  # a space between the columns
        said = parts[:1]
        for part in parts[1:]:
            if len(" · ".join([*said, part])) > room - NARROWEST_BAR:
                break
            said.append(part)
        text = " · ".join(said)
        self.bar.bar_width = max(NARROWEST_BAR, min(WIDEST_BAR, room - len(text)))
        if self.task is None or phase != self.phase:
            if self.task is not None:
                self.progress.remove_task(self.task)
            self.task = self.progress.add_task(phase, total=of, said=text)
            self.phase = phase
        self.progress.update(self.task, completed=done, total=of, said=text)


def tracked(items: Collection[T], what: str, wanted: bool = True) -> Iterable[T]:
    """The items, with progress on the error stream while they are worked through: a bar on a terminal, lines elsewhere."""
    if not wanted or sys.stderr is None:
        return items
    if sys.stderr.isatty():
        return track(items, description=what, console=screen(stderr=True), transient=True)
    return _told(items, what)


def _told(items: Collection[T], what: str) -> Iterator[T]:
    """A line every few seconds; none if all are done before that."""
    begun = last = time.monotonic()
    for done, item in enumerate(items):
        now = time.monotonic()
        if done and now - last >= PLAIN_EVERY:
            left = (now - begun) / done * (len(items) - done)
            say(screen(stderr=True), f"{what}: {done:,} of {len(items):,}, {left:.0f} s left")
            last = now
        yield item
