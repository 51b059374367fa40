"""Who is told of a run's events: the caller, and whoever looks at a terminal or a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..events import Note, RoundDone, Watch, Working


@contextmanager
def watching(progress: bool | None, watch: Watch | None) -> Iterator[Watch]:
    """One watch for both: `watch` gets every event, and progress is shown as `terminal.shown` decides."""
    from ..terminal import shown  # a program that only accounts never loads it

    with shown(progress) as view:

        def told(event: RoundDone | Working | Note) -> None:
            view(event)
            if watch:
                watch(event)

        yield told
