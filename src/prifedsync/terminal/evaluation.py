"""The table of `evaluate`: a row for each file or client, and one for all records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ..limits import Unit
from ..scores import Measured
from .lines import say, screen, show, table_of
from .record import about_intervals, interval, score


class Part(Protocol):
    """The records of one file or client, and the scores on them."""

    @property
    def name(self) -> str: ...
    @property
    def records(self) -> int: ...
    @property
    def refused(self) -> int: ...
    @property
    def scores(self) -> Mapping[str, Measured]: ...


class Evaluation(Protocol):
    """The scores of one model."""

    @property
    def model(self) -> str: ...
    @property
    def metrics(self) -> Sequence[str]: ...
    @property
    def parts(self) -> Sequence[Part]: ...
    @property
    def together(self) -> Part: ...
    @property
    def unit(self) -> Unit: ...
    @property
    def note(self) -> str: ...
    @property
    def sentence(self) -> str: ...


def print_evaluation(found: Evaluation) -> None:
    """The scores, what they are measured in, and that no guarantee covers them."""
    console = screen()
    table = table_of(f"scores of the model {found.model}", ["records of"], ["records", "left out", *found.metrics])
    rows = [*found.parts, found.together] if len(found.parts) > 1 else found.parts
    for part in rows:
        scores = [part.scores[metric] for metric in found.metrics]
        table.add_row(part.name, f"{part.records:,}", f"{part.refused:,}", *(score(each.value) for each in scores))
        if any(each.interval for each in scores):
            table.add_row("", "", "", *(interval(each.interval) for each in scores))
    show(console, table)
    if any(each.interval for part in rows for each in part.scores.values()):
        say(console, about_intervals(found.unit))
    for part in rows:
        for metric in found.metrics:
            if part.scores[metric].why:
                say(console, f"{metric} of {part.name} is undefined: {part.scores[metric].why}")
    for sentence in (found.note, found.sentence):
        if sentence:
            say(console, sentence)
