"""Whether anybody sees progress: on a terminal and in a notebook, and nowhere else unless it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from .view import View

NOTEBOOK = "ZMQInteractiveShell"  # IPython's class of shells behind Jupyter; Colab's inherits from it


@contextmanager
def shown(progress: bool | None = None) -> Iterator[View]:
    """A watch for `run.train`. True shows progress, False shows none, None shows it where somebody looks on."""
    notebook = in_notebook()
    if progress is None:
        progress = notebook or _on_a_terminal()
    with View(quiet=not progress, console=_below_the_cell() if notebook else None) as view:
        yield view


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook; a program that has not loaded IPython is none."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return any(kind.__name__ == NOTEBOOK for kind in type(shell).__mro__)


def _on_a_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _below_the_cell() -> Console:
    """Plain lines on standard output: notebooks show the error stream as if something had gone wrong."""
    return Console(file=sys.stdout, force_jupyter=False, force_terminal=False, markup=False, emoji=False, highlight=False)
