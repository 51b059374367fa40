"""Paths: in a config file they start at its folder, elsewhere at the working directory; a record has names alone."""

import json
import os

import pytest

import prifedsync
from prifedsync.config import as_mapping, from_mapping, load

OWN = """
rounds = 2
metrics = ["measures.py:score"]
[data]
source = "csv"
path = "tables"
label = "ill"
task = "binary"
label_values = ["a.py:b", "yes"]
ranges = { age = [0, 100] }
[model]
name = "{nets}:small"
layer_rules = ["nets.py:rules", "package.nets:rules"]
[local]
batch = 4
[clients.north]
optimiser = "steps/own.py:Own"
[privacy]
noise_multiplier = 2.0
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    (tmp_path / "study").mkdir()
    (tmp_path / "study/own.toml").write_text(OWN.replace("{nets}", "nets.py"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_paths_in_a_file_start_at_its_folder(study, monkeypatch):
    config = load("study/own.toml")
    assert config.data.path == "study/tables"
    assert config.model.name == "study/nets.py:small"
    assert config.model.layer_rules == ("study/nets.py:rules", "package.nets:rules")
    assert config.metrics == ("study/measures.py:score",)
    assert config.clients["north"].optimiser == "study/steps/own.py:Own"
    assert config.data.label_values == ("a.py:b", "yes")  # no path, whatever it looks like
    monkeypatch.chdir(study / "study")
    assert load("own.toml").data.path == "tables"
    assert load(study / "study/own.toml").data.path == str(study / "study/tables")


def test_a_source_in_a_file_starts_there_too(study):
    (study / "study/own.toml").write_text(OWN.replace('"csv"', '"records.py:load"').replace("{nets}", "nets.py"))
    config = load("study/own.toml")
    assert config.data.source == "study/records.py:load"
    assert config.for_the_record()["data"]["source"] == "records.py:load"


def test_absolute_paths_stay(study):
    (study / "study/own.toml").write_text(OWN.replace('"tables"', '"/srv/tables"').replace("{nets}", "/srv/nets.py"))
    config = load("study/own.toml")
    assert (config.data.path, config.model.name) == ("/srv/tables", "/srv/nets.py:small")


def test_paths_from_elsewhere_start_at_the_working_directory(study):
    assert load("study/own.toml", ["data.path=here"]).data.path == "here"
    assert load("study/own.toml", data="here").data.path == "here"
    mapping = as_mapping(load("study/own.toml")) | {"data": {"source": "csv", "path": "here"}}
    assert from_mapping(mapping).data.path == "here"


def test_a_data_table_that_is_none_is_refused_by_its_name(study):
    (study / "study/own.toml").write_text("data = 3")
    with pytest.raises(prifedsync.BadValue, match="data = 3 must be a table"):
        load("study/own.toml")


NETS = """
from torch import nn
def small(): return nn.Linear(1, 1)
"""


@pytest.fixture
def trainable(study):
    text = OWN.replace("{nets}", "nets.py").replace('metrics = ["measures.py:score"]\n', "").replace('"a.py:b"', '"no"')
    text = text.replace('layer_rules = ["nets.py:rules", "package.nets:rules"]\n', "")
    text = text.replace('[clients.north]\noptimiser = "steps/own.py:Own"\n', "")
    (study / "study/own.toml").write_text(text)
    (study / "study/nets.py").write_text(NETS)
    (study / "study/tables").mkdir()
    rows = [f"{age},{('no', 'yes')[age % 2]}" for age in range(20, 60)]
    (study / "study/tables/north.csv").write_text("\n".join(["age,ill", *rows]))
    return study


def test_a_run_is_resumed_from_another_folder(trainable, monkeypatch):
    def stop(event):
        if isinstance(event, prifedsync.run.RoundDone):
            raise KeyboardInterrupt

    (trainable / "elsewhere").mkdir()
    text = (trainable / "study/own.toml").read_text()
    (trainable / "study/own.toml").write_text(text + "[performance]\ncheckpoint_seconds = 0\n")
    with pytest.raises(KeyboardInterrupt):
        prifedsync.train("study/own.toml", out="run", watch=stop)
    monkeypatch.chdir(trainable / "elsewhere")
    assert len(prifedsync.resume("../run").history) == 2


def test_a_record_has_no_places(trainable):
    prifedsync.train("study/own.toml", out="run")
    text = (trainable / "run/record.json").read_text()
    record = json.loads(text)
    assert record["config"]["data"]["path"] == "tables"
    assert record["config"]["model"]["name"] == "nets.py:small"
    assert "study" not in text
    written = load(trainable / "run/config.toml")
    assert written.data.path == str(trainable / "study/tables")
    assert os.path.isabs(written.model.name)
