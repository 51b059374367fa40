"""The end of `train`: how good the models are, what they cost in privacy, and where everything lies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from ..accounting.statement import in_one_line
from ..files import REPORT
from ..limits import Unit
from ..record import KEPT, RunRecord
from ..scores import LEVEL, Interval
from .deployment import print_deployment
from .joining import print_joining
from .lines import say, say_place, screen, show, table_of, warn
from .views import print_views

PRIVATE = ("personal", "released")  # models that the guarantee covers, unless they are kept
MOST_NAMED = 5  # clients
COLUMNS = ["mean over clients", "mean over records", "worst client", "all records"]


def print_record(record: RunRecord, folder: Path | None) -> None:
    """The final tables, the guarantee, and where everything lies."""
    console = screen()
    for metric in record.metrics:
        if record.by_metric[metric]:  # owners may show no score
            show(console, _table(record, metric))
    for line in _explained(record):
        say(console, line)
    if record.uploads_lost:
        say(console, _losses(record))
    if record.deployment is not None:
        print_deployment(console, record.deployment)
    print_joining(console, record.joining_shown, len(record.clients))
    if record.guarantee is not None:
        say(console, guarantee_line(record))
        print_views(console, record.guarantee, simulation=_seeded(record))
    say(console, record.sentence)
    warn(console, record.warnings)
    if folder is not None:
        say_place(console, f"run folder: {folder}")
        if (folder / REPORT).is_file():
            say_place(console, f"report: {folder / REPORT}")


def _table(record: RunRecord, metric: str) -> Table:
    """Two lines a model: its scores, and their intervals."""
    table = table_of(f"{metric} on the clients' own test records, and on all records together", ["model", ""], COLUMNS)
    for name, scores in record.by_metric[metric].items():
        own = scores.own
        pooled = scores.pooled
        cells = [own.mean, own.record_mean, own.worst, pooled.mean]
        table.add_row(name, _protection(record, name), *map(score, cells))
        intervals = [own.interval, own.record_interval, None, pooled.interval]
        if any(intervals):
            table.add_row("", "", *(Text(interval(each), "dim") for each in intervals))
    return table


def about_intervals(unit: Unit) -> str:
    """What the ranges are; whole persons are resampled where they are the unit."""
    return f"Ranges are {LEVEL:.0%} bootstrap intervals over test {unit}s; they do not show how runs vary."


def interval(ends: Interval | None) -> str:
    return "" if ends is None else f"{ends.low:.3f}–{ends.high:.3f}"


def _explained(record: RunRecord) -> Iterator[str]:
    """What is in the means, what the intervals are, and which scores are undefined."""
    for metric, models in record.by_metric.items():
        own = models[record.in_use].own if record.in_use in models else None
        if own and own.record_mean is not None:
            records = "each test record" if own.records is None else f"each of {_count(own.records, 'test record')}"
            yield (
                f"{metric}: each of {_count(own.clients, 'client')} counts once in the mean over clients, "
                f"{records} once in the mean over records."
            )
    if record.note:
        yield f"{record.note}."
    bounded = [both.own.interval for models in record.by_metric.values() for both in models.values()]
    if any(bounded):
        yield about_intervals(record.unit)
    elif record.scores:
        yield "There are no intervals: they need a built-in metric or a mean over records, and scores that vary."
    alike: dict[tuple[str, tuple[str, ...]], dict[str, list[str]]] = {}  # reason and clients → model → metrics
    for (metric, model, why), names in record.undefined.items():
        alike.setdefault((why, names), {}).setdefault(model, []).append(metric)
    for (why, names), undefined in alike.items():
        metrics = ", ".join(dict.fromkeys(metric for each in undefined.values() for metric in each))
        reason = f" ({why})" if why else ""
        yield f"{metrics} of {', '.join(undefined)}: undefined at {_named(names)}{reason}, and left out of the means."


def _named(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more:,} more clients" if more > 0 else "")


def _count(count: int, of: str) -> str:
    return f"{count:,} {of}{'s' * (count != 1)}"


def _losses(record: RunRecord) -> str:
    """What became of uploads that never arrived."""
    lost = f"{_count(record.uploads_lost, 'upload')} never arrived"
    used = f", and the run used {_count(record.attempts_used, 'spare attempt')}" if record.attempts_used else ""
    return f"{lost}{used}. What was spent on them is counted."


def _protection(record: RunRecord, name: str) -> str:
    if name == "personal" and KEPT in record.personal_models:
        return "kept"
    if name == "alone-private":
        return "same noise"
    return "private" if record.guarantee and name in PRIVATE else "not private"


def guarantee_line(record: RunRecord) -> str:
    """The largest ε and the largest μ of any client, on their safe sides."""
    assert record.guarantee is not None
    return in_one_line(record.guarantee, simulation=_seeded(record))


def _seeded(record: RunRecord) -> bool:
    return bool(record.config["privacy"]["randomness"] == "seeded")


def score(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
