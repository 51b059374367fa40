"""The name of a run, how often it went on, and how far it is."""

import json

import pytest

from prifedsync.deploy.places import ServerPlaces
from prifedsync.deploy.started import Started, has_checkpoint, rounds_done
from prifedsync.run.checkpoint import MANIFEST
from prifedsync.values import BadValue


@pytest.fixture
def places(tmp_path):
    return ServerPlaces(tmp_path)


def checkpoint(places, text):
    folder = places.run / "checkpoint"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).write_text(text)


def test_a_run_keeps_its_name_and_counts_when_it_goes_on(places):
    first = Started.again(places)
    assert len(bytes.fromhex(first.run)) == 16
    assert first.resumed == 0
    assert Started.again(places) == first  # it was ended before its first round
    checkpoint(places, '{"round": 3}')
    assert [Started.again(places).resumed for _ in range(2)] == [1, 2]
    assert Started.again(places).run == first.run


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run": "00"}', '{"resumed": 1}'])
def test_a_damaged_name_is_not_taken_for_a_new_run(places, text):
    places.begun.write_text(text)
    with pytest.raises(BadValue, match=r"run\.json is damaged; restore it from a copy"):
        Started.again(places)
    assert places.begun.read_text() == text


def test_how_far_it_is(places):
    assert (has_checkpoint(places), rounds_done(places)) == (False, 0)
    checkpoint(places, json.dumps({"round": 7}))
    assert (has_checkpoint(places), rounds_done(places)) == (True, 7)
    checkpoint(places, "damaged")
    assert rounds_done(places) == 0
