"""`shown`: progress where somebody looks on, and nowhere else unless it is asked for."""

import io
import subprocess
import sys
from types import ModuleType

import pytest

from prifedsync.events import RoundDone
from prifedsync.terminal import in_notebook, shown

LAST = RoundDone("private", 2, 2, 3, None, None, 1.0, None, False)


class ZMQInteractiveShell:
    """Named as IPython's class of shells behind Jupyter."""


class ColabShell(ZMQInteractiveShell):
    """Colab's inherits from it."""


class TerminalInteractiveShell:
    """IPython in a terminal."""


def run_in(shell, monkeypatch):
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: shell
    monkeypatch.setitem(sys.modules, "IPython", ipython)


@pytest.fixture
def elsewhere(monkeypatch):
    """Neither a terminal nor a notebook."""
    monkeypatch.delitem(sys.modules, "IPython", raising=False)


def test_without_anybody_looking_on_nothing_is_shown(elsewhere, capsys):
    with shown(None) as watch:
        watch(LAST)
    with shown(False) as watch:
        watch(LAST)
    seen = capsys.readouterr()
    assert seen.out == seen.err == ""


def test_it_is_shown_where_it_is_asked_for(elsewhere, capsys):
    with shown(True) as watch:
        watch(LAST)
    assert capsys.readouterr().err == "private: round 2 of 2, 3 clients\n"


def test_on_a_terminal_a_bar_moves(elsewhere, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    with shown(None) as watch:
        assert watch.live
        watch(LAST)
    assert "round 2 of 2" in terminal.getvalue()
    terminal.truncate(0)
    with shown(False) as watch:
        watch(LAST)
    assert terminal.getvalue().strip("\0") == ""


@pytest.mark.parametrize("shell", [ZMQInteractiveShell(), ColabShell()])
def test_a_notebook_gets_plain_lines_below_its_cell(shell, monkeypatch, capsys):
    run_in(shell, monkeypatch)
    assert in_notebook()
    with shown(None) as watch:
        watch(LAST)
    seen = capsys.readouterr()
    assert seen.out == "private: round 2 of 2, 3 clients\n"
    assert seen.err == ""
    with shown(False) as watch:
        watch(LAST)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("shell", [None, TerminalInteractiveShell()])
def test_ipython_in_a_terminal_is_no_notebook(shell, monkeypatch, capsys):
    run_in(shell, monkeypatch)
    assert not in_notebook()
    with shown(None) as watch:
        watch(LAST)
    seen = capsys.readouterr()
    assert seen.out == seen.err == ""


def test_without_an_error_stream_nothing_is_shown(elsewhere, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)
    with shown(None) as watch:
        watch(LAST)
    assert capsys.readouterr().out == ""


def test_neither_ipython_nor_torch_is_loaded():
    script = (
        "import sys; from prifedsync.terminal import in_notebook, shown\n"
        "assert not in_notebook()\n"
        "with shown(None): pass\n"
        "sys.exit(bool({'IPython', 'torch', 'matplotlib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
