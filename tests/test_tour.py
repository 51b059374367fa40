"""docs/tour.ipynb runs from top to bottom, and shows what it says it shows."""

import re

import pytest
from scripts.tour import PAGE, code_cells, read, run, shown, written


@pytest.fixture(scope="module")
def done():
    return run(read())


def test_every_cell_shows_what_the_notebook_says(done):
    stored = code_cells(read())
    assert len(stored) >= 10
    for now, before in zip(code_cells(done), stored, strict=True):
        assert shown(now) == shown(before), "the tour shows something else: run make tour"
        assert now["execution_count"] == before["execution_count"]


def test_the_figures_are_stored_as_small_images():
    assert written(read()).count("data:image/png;base64,iVBOR") == 2
    assert len(written(read())) < 200_000


def test_no_simulated_epsilon_is_shown_without_saying_so():
    """All runs of the tour are seeded; the statement of a plan alone is about no run."""
    (plan, *rest) = [shown(cell) for cell in code_cells(read()) if "ε ≤" in shown(cell)]
    assert "simulat" not in plan
    assert len(rest) == 4
    for text in rest:
        labelled = all("simulated ε" in line for line in text.splitlines() if "ε ≤" in line)
        assert labelled or "(a simulation)" in " ".join(text.split())


def test_the_notebook_is_one_that_jupyter_reads():
    notebook = read()
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[\w-]{1,64}", each) for each in ids)
    assert PAGE.read_text(encoding="utf-8") == written(notebook)


def test_a_cell_shows_what_it_prints_and_its_last_value():
    cell = {"cell_type": "code", "source": ["%pip install nothing\n", "a = 1\n", "print(a)\n", "[a, 2]"], "outputs": []}
    other = {"cell_type": "code", "source": ["a += 1\n", "a"], "outputs": []}
    first, second = code_cells(run({"cells": [cell, other]}))
    assert shown(first) == "1\n\n[1, 2]"
    assert shown(second) == "2"
    assert other["outputs"] == []
