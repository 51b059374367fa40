"""Runs that many tests only read, and copies for those that change them."""

import shutil

import pytest

from .runs import SAID, TESTED, trained


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    """A run with secret draws and no scores, of which nothing is said."""
    return trained(tmp_path_factory.mktemp("plain") / "run")


@pytest.fixture(scope="session")
def sampled(tmp_path_factory):
    """Batches, coins and several steps a round, with scores."""
    changes = {"local__batch": 8, "local__local_steps": 3, "participation": 0.5, "rounds": 12, "compare": ["alone"]}
    return trained(tmp_path_factory.mktemp("sampled") / "run", TESTED, privacy__noise_multiplier=2.0, **changes)


@pytest.fixture(scope="session")
def said(tmp_path_factory):
    """A run whose owner has said everything."""
    return trained(tmp_path_factory.mktemp("said") / "run", report=SAID)


@pytest.fixture
def copied(tmp_path):
    """A copy of a run folder."""

    def made(folder):
        return shutil.copytree(folder, tmp_path / "copy")

    return made
