"""The table of `evaluate`: a row for each file or client, and one for all records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .lines import say, screen, show, table_of
from .record import score


class Part(Protocol):
    """The records of one file or client, and the score on them."""

    @property
    def name(self) -> str: ...
    @property
    def records(self) -> int: ...
    @property
    def refused(self) -> int: ...
    @property
    def score(self) -> float | None: ...


class Evaluation(Protocol):
    """The scores of one model."""

    @property
    def model(self) -> str: ...
    @property
    def metric(self) -> str: ...
    @property
    def parts(self) -> Sequence[Part]: ...
    @property
    def together(self) -> Part: ...
    @property
    def note(self) -> str: ...
    @property
    def sentence(self) -> str: ...


def print_evaluation(found: Evaluation) -> None:
    """The scores, what they are measured in, and that no guarantee covers them."""
    console = screen()
    table = table_of(f"{found.metric} of the model {found.model}", ["records of"], ["records", "left out", found.metric])
    rows = [*found.parts, found.together] if len(found.parts) > 1 else found.parts
    for part in rows:
        table.add_row(part.name, f"{part.records:,}", f"{part.refused:,}", score(part.score))
    show(console, table)
    for sentence in (found.note, found.sentence):
        if sentence:
            say(console, sentence)
