"""Tests run side by side: one thread each, or they wait for each other's."""

import os
import signal

import pytest

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")  # before torch is imported, and for the processes that tests start
os.environ["PRIFEDSYNC_CACHE"] = f"{os.devnull}/cache"  # where no folder can be made: nothing is downloaded by accident

signal.signal(signal.SIGINT, signal.default_int_handler)  # processes that tests start heed Ctrl-C, also under `pytest &`


@pytest.fixture
def nothing_compiled(monkeypatch):
    """As in a new process: no program is ready, and nothing was said about a compiler."""
    from prifedsync.local.device import compiled

    monkeypatch.setattr(compiled, "_ready", {})
    monkeypatch.setattr(compiled, "_said", set())


@pytest.fixture
def compiler(nothing_compiled, monkeypatch):
    """Counts what it is given, and gives it back as it is."""
    import torch

    seen = []
    monkeypatch.setattr(torch, "compile", lambda graph, **_: seen.append(graph) or graph)
    return seen
