"""A run seen from a terminal: progress while it lasts, tables when it is over. Plain lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from .accounting.progress import WorstEpsilon
from .accounting.statement import up
from .events import RoundDone, Working
from .record import KEPT, SIMULATION, RunRecord

if TYPE_CHECKING:
    from .audit import StepAudit

PLAIN_EVERY = 2.0  # seconds between plain lines, and between bounds on ε so far
EPSILON_SHARE = 0.05  # of a run's time, about, goes into bounds on ε so far at most
LABELS = {
    "personal": "each client's own",
    "released": "one global model, released",
    "alone": "each client alone, no privacy",
    "non-private": "all together, no privacy",
}

TIMED = {  # what `bench` times, in the order of its table
    "iteration_ms": "ours, private",
    "nonprivate_ms": "ours, no privacy",
    "opacus_ms": "Opacus, client by client",
    "opacus_ghost_ms": "Opacus with ghost clipping",
    "plain_loop_ms": "plain PyTorch, no privacy",
    "reference_ms": "our reference, record by record",
}


class View:
    """Shows what `run.train` tells; a context manager."""

    def __init__(self, quiet: bool, spending: bool = True) -> None:
        self.console, self.spending = Console(stderr=True), spending  # without ε so far, where it takes longer than a round
        self.quiet, self.live = quiet, self.console.is_terminal and not quiet
        self.last = 0.0
        self.bounded: tuple[WorstEpsilon, int] | None = None  # of whom, and after which round, ε so far was bounded last
        self.bounded_at = time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(24),
            TextColumn("{task.fields[said]}"),
            TimeRemainingColumn(),
        )
        self.progress = Progress(*columns, console=self.console, transient=True)
        self.task: TaskID | None = None
        self.phase = ""

    def __enter__(self) -> View:
        if self.live:
            self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.live:
            self.progress.stop()

    def __call__(self, event: RoundDone | Working) -> None:
        if self.quiet:
            return
        if not isinstance(event, RoundDone):
            if self.live:
                self._bar(event.what, event.done, event.of, "")
            return
        now, over = time.monotonic(), event.round == event.rounds
        due = now - self.last >= PLAIN_EVERY or over or event.round == 1
        said = [f"round {event.round} of {event.rounds}", f"{event.participants} clients"]
        said += [f"{name} {_value(score.mean)}" for name, score in (("personal", event.personal),
                 ("released", event.released)) if score]  # fmt: skip
        if event.spending and self.spending:
            said.append(self._spent(event, event.spending, due))
        if self.live:
            self._bar(event.phase, event.round, event.rounds, " · ".join(said))
        elif due:
            left = event.seconds * (event.rounds - event.round)
            print(f"{event.phase}: {', '.join(said)}" + ("" if over else f", {left:.0f} s left"), file=sys.stderr)
        if due:
            self.last = now

    def say(self, text: str) -> None:
        """A line of its own, above what moves."""
        if not self.quiet:
            self.console.print(text, highlight=False, markup=False)

    def _spent(self, event: RoundDone, spending: WorstEpsilon, due: bool) -> str:
        """ε so far, and after which round that was if not this one: with many different clients a bound takes long."""
        planned = up(spending.after(event.rounds), 3)
        over = event.round == event.rounds
        rested = time.monotonic() - self.bounded_at >= spending.seconds / EPSILON_SHARE
        if over or (due and rested):
            spending.after(event.round)
            self.bounded = (spending, event.round)
            self.bounded_at = time.monotonic()
        simulated = " (a simulation)" if event.seeded else ""
        if self.bounded is None or self.bounded[0] is not spending:
            return f"ε {planned} after all rounds{simulated}"
        round = self.bounded[1]
        when = "" if round == event.round else f" (after round {round})"
        return f"ε {up(spending.after(round), 3)}{when} of {planned}{simulated}"

    def _bar(self, phase: str, done: int, of: int, said: str) -> None:
        if self.task is None or phase != self.phase:
            if self.task is not None:
                self.progress.remove_task(self.task)
            self.task, self.phase = self.progress.add_task(phase, total=of, said=said), phase
        self.progress.update(self.task, completed=done, total=of, said=said)


def print_record(record: RunRecord, folder: object) -> None:
    """The final table, the guarantee, and where everything lies."""
    console = Console()
    table = Table(title=f"{record.metric} on each client's own test records, and on all clients'", title_justify="left")
    table.add_column("model")
    table.add_column("what it is")
    for heading in ("own: mean", "worst", "all: mean", "worst"):
        table.add_column(heading, justify="right")
    for name, scores in record.scores.items():
        cells = [scores.own.mean, scores.own.worst, scores.everybody.mean, scores.everybody.worst]
        protected = ", private" if record.guarantee and name in ("personal", "released") else ""
        if name == "personal" and KEPT in record.personal_models:
            protected = ", kept"
        table.add_row(name, LABELS[name] + protected, *map(_value, cells))
    console.print(table)
    if record.guarantee is None:
        console.print(record.sentence, highlight=False)
    else:
        console.print(guarantee_line(record), highlight=False)
        console.print(record.sentence, highlight=False)
    for warning in record.warnings:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}", highlight=False)
    if folder is not None:
        console.print(f"run folder: {folder}", highlight=False, soft_wrap=True, markup=False)


def print_table(table: Mapping[str, Any], page: object) -> None:
    """A table of the paper beside what was found, and where the whole page lies."""
    from .experiments.pages import CERTIFIED, HEADINGS, certified_cells, reached_cells

    console, ran = Console(), dict(table, rows=[row for row in table["rows"] if row["runs"]])
    planned = "At the rounds planned: what is certified, beside what the paper prints (a limit, no bound)"
    copies = max((row["copies"] for row in ran["rows"]), default=1)
    planned += f", for a record that up to {copies} clients hold" if copies > 1 else ""
    for title, headings, cells in (
        (f"{table['title']}: rounds until {table['target']:.0%}", HEADINGS[:-1], reached_cells(ran)),
        (planned, CERTIFIED, certified_cells(ran, "planned")),
    ):
        shown = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 0, 0, 1))
        for at, heading in enumerate(headings):
            # numbers stay whole; headings, and lists of numbers between them, may be broken
            widest = max((len(word) for row in cells for word in row[at].split()), default=0)
            shown.add_column(heading, justify="right", min_width=widest, overflow="fold")
        for row in cells:
            shown.add_row(*row[: len(headings)])
        console.print(shown)
    if table.get("sentence"):
        console.print(table["sentence"], highlight=False)
    console.print(f"{page} has all of it", highlight=False, soft_wrap=True, markup=False)


def print_audit(audit: StepAudit) -> None:
    """One row a check; what a failed one means."""
    console = Console()
    table = Table(title="One noisy step, measured", title_justify="left")
    for heading in ("check", "measured", "allowed", ""):
        table.add_column(heading)
    for check in audit.checks:
        table.add_row(
            check.name, check.measured, check.allowed, "[green]ok[/green]" if check.passed else "[red]FAILED[/red]"
        )
    console.print(table)
    for check in audit.checks:
        if not check.passed:
            console.print(f"[red]{check.name}:[/red] {check.explanation}", highlight=False)
    console.print("all checks passed" if audit.passed else "the guarantee does not hold for this step", highlight=False)


def print_bench(found: Mapping[str, Any], folder: object) -> None:
    """One row a variant, with how much longer it takes than ours; then scaling, and what to know about the numbers."""
    console = Console()
    title = (
        f"{found['preset']} on {found['device']}: one step of each of {found['clients']} clients "
        f"(batch {found['batch']}, {found['parameters']:,} parameters)"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("variant")
    for heading in ("ms", "middle half", "against ours"):
        table.add_column(heading, justify="right")
    ours = found["iteration_ms"]
    for name, label in TIMED.items():
        if found[name] is not None:
            low, high = found["spread"][name]
            times = "" if name == "iteration_ms" else f"{found[name] / ours:.2f} ×"
            table.add_row(label, _ms(found[name]), f"{_ms(low)} … {_ms(high)}", times)
    console.print(table)
    if len(found["scaling"]) > 1:
        table = Table(title="private, by how many clients", title_justify="left")
        for heading in ("clients", "ms", "ms a client"):
            table.add_column(heading, justify="right")
        for row in found["scaling"]:
            table.add_row(str(row["clients"]), _ms(row["iteration_ms"]), _ms(row["client_step_ms"]))
        console.print(table)
    console.print(
        f"a round of {found['local_steps']} steps: {_ms(found['round_ms'])} ms, the first {found['first_round_s']:.1f} s; "
        f"{found['repetitions']} repetitions, {found['arithmetic']}, {found['draws']} draws, {found['threads']} threads, "
        f"peak memory {found['peak_memory_mib']:.0f} MiB",
        highlight=False,
    )
    for note in found["notes"]:
        console.print(note, highlight=False, markup=False)
    if folder is not None:
        console.print(f"written: {folder}/bench.json and bench.png", highlight=False, soft_wrap=True, markup=False)


def guarantee_line(record: RunRecord) -> str:
    """The largest ε and the largest μ of any client, on their safe sides."""
    assert record.guarantee is not None
    epsilon, mu = record.guarantee["epsilon"]["upper"], record.guarantee["mu"]["upper"]
    worst = record.guarantee["worst_case_participation"]["epsilon"]["upper"]
    text = f"ε ≤ {_up(epsilon)} at δ = {record.guarantee['delta']:g}, μ ≤ {_up(mu)} for α in 1e-5 … 1−1e-5"
    if worst != epsilon:
        text += f" (ε ≤ {_up(worst)} if others choose who takes part)"
    seeded = record.config["privacy"]["randomness"] == "seeded"
    return f"{text}, {record.guarantee['neighbours']} neighbours" + (f": {SIMULATION}" if seeded else "")


def _up(value: float | None) -> str:
    return "∞" if value is None else up(value)


def _value(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _ms(value: float) -> str:
    """Three figures, whatever the size."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
