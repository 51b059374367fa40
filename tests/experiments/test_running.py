"""Runs of experiments: kept by what was run, ended at the target, resumed, never run twice."""

import json
from pathlib import Path

import pytest

from prifedsync.experiments.declared import Experiment
from prifedsync.experiments.running import Run, Runs
from prifedsync.record import plan_as_json, plan_from_json
from prifedsync.values import BadValue

from .settings import QUICK, write_mnist

TABLE = Experiment.named("table1")
NEVER, AT_ONCE = 1.0, 0.0  # targets


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_mnist(tmp_path_factory.mktemp("data"))


@pytest.fixture
def config(data):
    return TABLE.config(TABLE.rows[0], 0, QUICK, data, "cpu")


class Told(list):
    """Notes which runs were begun."""

    def __call__(self, title):
        self.append(title)


def test_a_run_is_kept_and_not_run_again(config, tmp_path):
    told = Told()
    first = Runs(tmp_path, told=told).private(config, NEVER, "one")
    assert told == ["one"]
    assert len(first.personal) == len(first.released) == 4
    assert Runs(tmp_path, told=told).private(config, NEVER, "again") == first
    assert told == ["one"]
    assert not any((tmp_path / "unfinished").iterdir())


def test_it_ends_at_the_round_that_passes_the_target(config, tmp_path):
    whole = Runs(tmp_path).private(config, NEVER, "")
    target = whole.personal[1]
    assert max(whole.personal[:1]) < target  # it learns
    short = Runs(tmp_path).private(config, target, "")
    assert short.personal == whole.personal[:2]
    assert short.reached(target) == 2
    assert whole.reached(NEVER) is None
    assert len(Runs(tmp_path).private(config, AT_ONCE, "").personal) == 1


def test_the_plan_is_the_one_of_all_rounds(config, tmp_path):
    run = Runs(tmp_path).private(config, AT_ONCE, "")
    (plan,) = run.privacy_plans
    assert plan.rounds == config.rounds == 4
    assert [plan_as_json(plan)] == run.plans
    assert plan.mechanism.noise_multiplier == 2.0
    with pytest.raises(BadValue, match="mechanism"):
        plan_from_json(run.plans[0] | {"mechanism": "OutputPerturbation"})


def test_a_run_kept_with_the_plan_of_one_client_is_refused(config, tmp_path):
    """An earlier version kept the plan of the client with the largest ε only: what others cost cannot be said."""
    Runs(tmp_path).private(config, AT_ONCE, "")
    (path,) = (tmp_path / "runs").iterdir()
    kept = json.loads(path.read_text())
    kept["plan"] = kept.pop("plans")[0]
    path.write_text(json.dumps(kept))
    with pytest.raises(BadValue, match="one client's plan"):
        Runs(tmp_path).private(config, AT_ONCE, "")


@pytest.mark.parametrize(
    "change",
    [
        "privacy.noise_multiplier=1.9",
        "rounds=5",
        "local.batch=8",
        "data.clients=5",
        "participation=0.5",
        "performance.dtype=float64",
        "performance.engine=reference",
        "local.augment=crop-flip",
    ],
)
def test_another_config_is_another_run(config, data, tmp_path, change):
    runs = Runs(tmp_path, only_finished=True)
    Runs(tmp_path).private(config, AT_ONCE, "")
    assert runs.private(config, AT_ONCE, "") is not None
    assert runs.private(TABLE.config(TABLE.rows[0], 0, [*QUICK, change], data, "cpu"), AT_ONCE, "") is None
    assert runs.private(config, 0.1, "") is None
    assert runs.private(config.changed(seed=1), AT_ONCE, "") is None


def test_where_it_ran_and_where_the_data_lay_make_no_other_run(config, tmp_path):
    run = Runs(tmp_path).private(config, AT_ONCE, "")
    moved = config.changed(**{"data.path": "/elsewhere", "performance.threads": 1, "performance.device": "auto"})
    assert Runs(tmp_path, only_finished=True).private(moved, AT_ONCE, "") == run
    (file,) = (tmp_path / "runs").iterdir()
    assert config.data.path not in file.read_text()


def test_a_field_at_its_default_is_not_in_the_name(config, tmp_path):
    """So that one which is added later does not make finished runs unknown."""
    from prifedsync.experiments.running import _identity

    told = _identity(config)
    assert "missing" not in told["data"]
    assert "momentum" not in told["local"]
    assert told["local"]["local_steps"] == 3
    assert told["privacy"]["noise_multiplier"] == 2.0


def test_published_runs_are_found_by_todays_configs():
    """They were finished before `merge` was a field, and merged as the paper does."""
    published = Runs(Path(__file__).parents[2] / "docs" / "results")
    row = TABLE.rows[0]
    paper = TABLE.config(row, 0, device="cpu")
    more = {"target": TABLE.target, "rounds": paper.rounds}
    assert published._path(paper, more).is_file()
    assert not published._path(paper.changed(merge="records"), more).is_file()


def test_without_privacy_a_longer_run_begins_with_the_shorter(config, tmp_path):
    told = Told()
    runs = Runs(tmp_path, told=told)
    short, long = runs.open(config, 2, "two"), runs.open(config, 3, "three")
    assert short.personal == long.personal[:2]
    assert runs.open(config, 1, "one") == runs.open(config, 3, "three again") == long
    assert told == ["two", "three"]
    assert long.plans == []


def test_where_global_models_are_averaged_each_length_is_its_own(config, tmp_path):
    """Which of them are averaged depends on the last round."""
    runs, averaged = Runs(tmp_path), config.changed(averaging=0.5)
    assert (len(runs.open(averaged, 4, "").released), len(runs.open(averaged, 2, "").released)) == (4, 2)
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_models_that_diverge_get_nothing_right(config, tmp_path):
    wild = config.changed(**{"local.optimiser": "sgd", "local.learning_rate": 1e38})
    assert Runs(tmp_path).private(wild, NEVER, "").personal[-1] == 0.0


def test_what_was_stopped_goes_on(config, tmp_path):
    """An error in the middle, as if the process had been killed; the run that goes on is the one that was not stopped."""
    whole = Runs(tmp_path / "whole").private(config, NEVER, "")
    seen = []

    def dies(event):
        seen.append(getattr(event, "round", None))
        if seen[-1] == 3:
            raise OSError("killed")

    with pytest.raises(OSError, match="killed"):
        Runs(tmp_path / "parts", watch=dies).private(config, NEVER, "")
    rounds = []
    again = Runs(tmp_path / "parts", watch=lambda event: rounds.append(getattr(event, "round", None)))
    assert again.private(config, NEVER, "").personal == whole.personal
    assert [round for round in rounds if round] == [3, 4]


def test_a_file_that_cannot_be_read_is_named(config, tmp_path):
    Runs(tmp_path).private(config, AT_ONCE, "")
    (file,) = (tmp_path / "runs").iterdir()
    for text in (file.read_text()[:-20], json.dumps({"personal": []})):
        file.write_text(text)
        with pytest.raises(BadValue, match=f"{file.name}.*remove that file"):
            Runs(tmp_path).private(config, AT_ONCE, "")


@pytest.mark.parametrize(
    ("change", "field"),
    [("evaluate_every=2", "evaluate_every"), ("data.test_records=0", "test_records"),
     ("privacy.mechanism=output-gaussian", "mechanism"), ("rule.name=alone", "rule.name"), ("metrics=f1", "metrics"),
     ("privacy.randomness=system", "randomness"),
     ("data.source=mine:load", "data.source")],
)  # fmt: skip
def test_what_leaves_nothing_to_compare_is_refused(data, tmp_path, change, field):
    config = TABLE.config(TABLE.rows[0], 0, [*QUICK, change], data, "cpu")
    with pytest.raises(BadValue, match=field):
        Runs(tmp_path).private(config, NEVER, "")


def test_reached_counts_from_one():
    run = Run({}, [0.5, 0.9, 0.8], [0.1] * 3, [], 0.0, "cpu", {})
    assert (run.reached(0.5), run.reached(0.9), run.reached(0.91)) == (1, 2, None)
