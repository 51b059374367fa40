"""Several metrics in one run: in the log, the history, the record, on TensorBoard, and after a run was resumed."""

import json

import numpy as np
import pytest
import torch

import prifedsync
from prifedsync.config import load
from prifedsync.metrics import Metric
from prifedsync.record import SCORES_LEAK, RunRecord
from prifedsync.run import RoundDone
from prifedsync.terminal import print_record
from prifedsync.values import BadValue

TWO = {
    "rounds": 3,
    "metrics": ["auc", "accuracy"],
    "data": {"task": "binary"},
    "local": {"learning_rate": 2.0},
    "privacy": {"noise_multiplier": 2.0, "randomness": "seeded"},
    "performance": {"checkpoint_seconds": 0, "tensorboard": True},
    "compare": ["alone", "alone-private"],
}


def clients():
    """The third one has one class among its test records, the fourth has none to test on."""
    draw = torch.Generator().manual_seed(0)
    given = {}
    for name, tested in (("a", 40), ("b", 25), ("one-class", 30), ("untested", 0)):
        x = torch.randn(60 + tested, 4, generator=draw)
        y = (x[:, 0] > 0).float() if name != "one-class" else torch.cat([(x[:60, 0] > 0).float(), torch.ones(tested)])
        given[name] = (x[:60], y[:60], x[60:], y[60:])
    return given


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return prifedsync.train(TWO, clients=clients(), out=tmp_path_factory.mktemp("two") / "run")


def test_every_metric_is_in_every_round(result):
    lines = [json.loads(line) for line in (result.folder / "rounds.jsonl").read_text().splitlines()]
    assert [set(line) for line in lines] == [{"round", "participants", "personal", "released", "others"}] * 3
    assert all(set(line["others"]) == {"accuracy"} for line in lines)
    for line, row in zip(lines, result.history, strict=True):
        assert row["released_mean"] == line["released"]["mean"]
        assert row["accuracy_released_mean"] == line["others"]["accuracy"]["released"]["mean"]
        assert row["accuracy_personal_worst"] == line["others"]["accuracy"]["personal"]["worst"]
    assert len({tuple(row) for row in result.history}) == 1
    assert lines[-1]["released"]["mean"] == pytest.approx(result.record.by_metric["auc"]["released"].own.mean)
    other = lines[-1]["others"]["accuracy"]["personal"]["mean"]
    assert other == pytest.approx(result.record.by_metric["accuracy"]["personal"].own.mean)


def test_each_metric_scores_what_it_does_alone(result):
    for metric in ("auc", "accuracy"):
        alone = prifedsync.train({**TWO, "metrics": [metric], "performance": {}}, clients=clients()).record
        assert alone.by_metric[metric] == result.record.by_metric[metric]


def test_undefined_scores_are_said_by_name(result):
    record = result.record
    assert record.undefined["auc", "released", "one class only"] == ("one-class",)
    assert record.undefined["auc", "released", "no test records"] == ("untested",)
    assert record.undefined["accuracy", "alone", "no test records"] == ("untested",)
    assert ("accuracy", "released", "one class only") not in record.undefined
    assert [record.by_metric[name]["released"].own.clients for name in ("auc", "accuracy")] == [2, 3]
    assert [record.by_metric[name]["released"].own.records for name in ("auc", "accuracy")] == [65, 95]


def test_the_record_has_both_means_intervals_and_what_joining_brings(result):
    record = RunRecord.read(result.folder / "record.json")
    assert record == result.record
    own = record.by_metric["accuracy"]["released"].own
    values = [client.scores["released"]["accuracy"].value for client in record.clients[:3]]
    assert own.mean == pytest.approx(sum(values) / 3, abs=1e-5)
    assert own.record_mean == pytest.approx(np.dot(values, [40, 25, 30]) / 95, abs=1e-5)
    assert own.mean != pytest.approx(own.record_mean, abs=1e-5)
    assert own.interval.low < own.mean < own.interval.high
    assert [row.client for row in result.joining] == ["a", "b", "one-class", "untested"]
    assert set(result.joining[0].scores) == {"alone", "alone-private", "released", "personal"}
    assert result.joining[0].epsilon == record.clients[0].planned["epsilon"]["upper"]
    for client in record.clients[:2]:
        joined, alone = (client.scores[model]["auc"].value for model in ("released", "alone-private"))
        assert client.difference.contains(joined - alone)
        assert client.difference.low < client.difference.high
    assert [client.difference for client in record.clients[2:]] == [None, None]
    assert record.joining[2].sentence.endswith("(undefined: one class only).")
    assert "accuracy on the clients' own test records:" in repr(result)
    assert f"mean over clients {own.mean:.3f}, over records {own.record_mean:.3f}, worst {own.worst:.3f}" in repr(result)


@pytest.mark.parametrize("neighbours", ["replace", "add-remove"])
def test_a_number_of_test_records_that_is_not_public_is_nowhere(neighbours, capsys):
    private = {**TWO["privacy"], "neighbours": neighbours}
    nominal = {name: {"records": 60} for name in clients()}
    own = {"clients": nominal, "data": {"task": "binary", "test_fraction": 0}} if neighbours == "add-remove" else {}
    config = {**TWO, "privacy": private, "performance": {}, **own}
    record = prifedsync.train(config, clients=clients()).record
    counts = [score.records for models in record.by_metric.values() for both in models.values()
              for score in (both.own, both.pooled)]  # fmt: skip
    print_record(record, None)
    text = capsys.readouterr().out
    if neighbours == "replace":
        assert {65, 95} <= set(counts)
        assert "each of 65 test records once" in text
        return
    assert set(counts) == {None} == {client.test_records for client in record.clients}
    assert "each test record once in the mean over records" in text
    again = RunRecord.from_json(json.loads(record.text()))
    assert again == record
    for number in ("65", "95", "40", "25", "30"):
        assert f'records":{number}' not in record.text()
        assert f"{number} test record" not in text


@pytest.mark.parametrize("ranges", [{}, {"label": [0, 20]}])
def test_an_error_is_said_to_be_that_of_the_scaled_label_where_it_is(ranges):
    draw = np.random.default_rng(0)
    config = {"rounds": 2, "data": {"task": "regression", "ranges": ranges}, "privacy": TWO["privacy"]}
    given = {"a": (draw.normal(size=(40, 3)), draw.uniform(0, 20, 40))}
    record = prifedsync.train(config, clients=given).record
    assert record.metrics == ("rmse",)
    assert record.note.endswith("scaled to [−1, 1], as in training; times 10 it has its unit" if ranges else "")
    assert bool(record.note) == bool(ranges)


def test_joining_and_intervals_are_covered_by_the_warning(result):
    assert SCORES_LEAK in result.record.warnings
    for words in ("intervals", "comparisons", "joining", "without noise", "does not cover"):
        assert words in SCORES_LEAK


def test_tensorboard_has_every_metric(result):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = events.EventAccumulator(str(result.folder / "events"))
    found.Reload()
    tags = found.Tags()["scalars"]
    assert {"auc/released/mean", "accuracy/released/mean", "accuracy/personal/worst"} <= set(tags)


def test_the_first_metric_is_shown_and_the_others_are_told():
    told = []
    prifedsync.train({**TWO, "compare": [], "performance": {}}, clients=clients(), watch=told.append)
    last = [event for event in told if isinstance(event, RoundDone)][-1]
    assert last.released.clients == 2
    assert last.others["accuracy"]["released"].clients == 3


def test_names_functions_and_metrics_together(tmp_path):
    def negative(outputs, y):
        return -float(outputs.mean())

    error = Metric(name="error", of=lambda outputs, y: ((outputs[:, 0] > 0) != (y > 0.5)).double(), mean=True,
                   lower_is_better=True)  # fmt: skip
    config = {**TWO, "compare": [], "performance": {"checkpoint_seconds": 0}}
    config.pop("metrics")

    def stop(event):
        if getattr(event, "round", 0) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prifedsync.train(config, clients=clients(), metrics=["auc", negative, error], out=tmp_path / "run", watch=stop)
    with pytest.raises(BadValue, match=r"metrics = .* differ from those that the run was begun with, .*give the same"):
        prifedsync.resume(tmp_path / "run", clients=clients(), metric=negative)
    with pytest.raises(BadValue, match=r"differs from the run that was begun: .*metrics"):
        prifedsync.resume(tmp_path / "run", clients=clients(), metrics=["auc", error, negative])
    resumed = prifedsync.resume(tmp_path / "run", clients=clients(), metrics=["auc", negative, error])
    whole = prifedsync.train(config, clients=clients(), metrics=["auc", negative, error])
    assert resumed.record.by_metric == whole.record.by_metric
    assert [{**row, "seconds": 0} for row in resumed.history] == [{**row, "seconds": 0} for row in whole.history]
    assert whole.record.metrics == ("auc", "negative", "error")
    assert whole.record.config["metrics"] == ["auc", "python:metric", "python:metric"]
    assert whole.record.lower_is_better == ("error",)
    assert whole.record.by_metric["negative"]["released"].own.interval is None
    assert any("metrics came from Python" in warning for warning in whole.record.warnings)
    named = prifedsync.train(config, clients=clients(), metrics=["auc", "accuracy"]).record
    assert named.metrics == ("auc", "accuracy")
    assert not any("metrics" in warning for warning in named.warnings)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"metrics": ["accuracy", "auto"]}, "metrics = accuracy is named more than once"),
        ({"metrics": ["auc", "rmse"]}, "metrics = rmse does not fit"),
        ({"metric": max, "metrics": ["auc"]}, "metric = .* is given beside metrics"),
    ],
)
def test_metrics_that_do_not_go_together_are_refused(given, says):
    config = {name: value for name, value in TWO.items() if name not in ("metrics", "performance")}
    with pytest.raises(BadValue, match=says):
        prifedsync.train(config, clients=clients(), **given)


def test_a_run_of_an_earlier_version_is_not_resumed(tmp_path):
    """Its config has the field `metric`, and secret draws are bound to the program that began it."""
    (tmp_path / "config.toml").write_text('metric = "auc"\nrounds = 2\n')
    with pytest.raises(BadValue, match="was begun by another version; resume with that one"):
        prifedsync.resume(tmp_path)


def test_runs_are_scored_as_often_as_they_are_told():
    few = ["data.clients=2", "rounds=4", "compare=[]", "metrics=f1,accuracy"]
    rows = prifedsync.train(load("digits", [*few, "evaluate_every=3"])).history
    assert [row["f1_released_mean" if "f1_released_mean" in row else "released_mean"] is not None for row in rows] == [
        False, False, True, True,
    ]  # fmt: skip
    assert [row["accuracy_released_mean"] is not None for row in rows] == [False, False, True, True]
