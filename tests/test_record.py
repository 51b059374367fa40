"""The record of a run as JSON: in the version of today, and in earlier ones."""

import json

import pytest

from prifedsync.record import SCHEMA_VERSION, RunRecord
from prifedsync.values import BadValue

from .terminal.printed import record


def version_1(data):
    """The JSON as schema version 1 had it."""
    scores = {name: {"own": both["own"], "everybody": both["pooled"]} for name, both in data["scores"].items()}
    return {**data, "scores": scores, "schema_version": 1}


def test_a_record_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record().as_json()))
    assert RunRecord.read(path) == record()
    assert json.loads(path.read_text())["scores"]["released"]["pooled"]["mean"] == 0.72


def test_a_record_of_version_1_has_its_scores_under_the_new_name():
    old = RunRecord.from_json(version_1(record().as_json()))
    assert old == record()
    assert old.scores["released"].pooled.mean == 0.72
    assert old.schema_version == SCHEMA_VERSION == 2


@pytest.mark.parametrize("version", [0, 3, None, "1"])
def test_other_versions_are_refused(version):
    with pytest.raises(BadValue, match="must be a schema version that this program can read, 1 to 2"):
        RunRecord.from_json({**record().as_json(), "schema_version": version})


def test_a_name_of_the_other_version_is_refused(tmp_path):
    path = tmp_path / "record.json"
    path.write_text(json.dumps({**version_1(record().as_json()), "schema_version": 2}))
    with pytest.raises(BadValue, match=r"cannot be read: KeyError\('pooled'\); restore the file"):
        RunRecord.read(path)
