"""Scores on other records: by hand, by file, by client, and with what is left out counted."""

import numpy as np
import pytest

import prifedsync
from prifedsync.metrics import Metric
from prifedsync.record import RunRecord
from prifedsync.terminal import print_record
from prifedsync.values import BadValue

from .folders import DATA, PRIVATE, table, tables, trained, with_weights

WEIGHT, BIAS = [[1.0, 0, 0, 0]], [0.0]  # "yes" above an age of 50


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluated")
    tables(folder / "tables")
    out = trained(folder)
    with_weights(out, WEIGHT, BIAS)
    return prifedsync.open_run(out)


def rows(path, *lines, header="age,sex,weight,ill"):
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def test_scores_by_file_and_of_all_records(run, tmp_path):
    rows(tmp_path / "a.csv", "60,f,60,yes", "40,f,60,no", "70,m,60,no", "30,m,60,no")  # three of four are right
    rows(tmp_path / "b.csv", "60,f,60,no", "80,f,60,no", "x,f,60,yes", "20,?,60,no")  # none of two
    found = run.evaluate(tmp_path)
    assert found.metrics == ("accuracy",)
    assert [(part.name, part.records, part.refused, part.score) for part in found.parts] == [
        ("a", 4, 0, 0.75),
        ("b", 2, 2, 0.0),
    ]
    assert (found.together.records, found.together.refused, found.together.score) == (6, 2, 0.5)
    assert [str(reason).split(" =")[0] for reason in found.refusals] == [
        "b.csv line 4, column 'age'",
        "b.csv line 5, column 'sex'",
    ]
    assert found.sentence.endswith("the guarantee of the run does not cover them")
    assert found.as_json()["together"]["scores"]["accuracy"]["value"] == 0.5
    assert len(found.as_json()["refused"]) == 2


def test_another_metric_one_of_your_own_and_one_that_is_undefined(run, tmp_path):
    path = rows(tmp_path / "a.csv", "60,f,60,yes", "40,f,60,no", "70,m,60,no", "30,m,60,yes")
    assert run.evaluate(path, metrics="auc").together.score == pytest.approx(0.25)  # one of four pairs is in order
    assert run.evaluate(path, metrics=Metric(name="rows", of=lambda outputs, y: len(y))).together.score == 4
    assert run.evaluate(rows(path, "60,f,60,yes"), metrics="auc").together.score is None
    with pytest.raises(BadValue, match=r"metrics = rmse does not fit data.task = binary"):
        run.evaluate(path, metrics="rmse")


def test_a_frame_with_its_label(run):
    frame = {"age": [60, 40], "sex": ["f", "f"], "weight": [60, 60], "ill": ["yes", "yes"]}
    assert run.evaluate(frame).together.score == 0.5
    del frame["ill"]
    with pytest.raises(BadValue, match="missing columns = 'ill' must be there"):
        run.evaluate(frame)


def test_a_bad_label_is_refused_with_its_line_also_after_a_row_that_is_left_out(run, tmp_path):
    path = rows(tmp_path / "a.csv", "60,f,60,yes", "x,f,60,yes", "60,f,60,perhaps")
    with pytest.raises(BadValue, match=r"a.csv line 4, column 'ill' = 'perhaps' must be one of data.label_values"):
        run.evaluate(path)


def test_nothing_to_score_is_refused(run, tmp_path):
    with pytest.raises(BadValue, match=r"has no record that can be scored; the first refusal is: a.csv line 2"):
        run.evaluate(rows(tmp_path / "a.csv", "x,f,60,yes"))
    with pytest.raises(BadValue, match="holds no records"):
        run.evaluate(rows(tmp_path / "a.csv"))


def test_one_file_with_a_client_column_is_scored_by_client(tmp_path):
    extra = [("hospital", lambda i: "north" if i % 3 else "south")]
    path = table(tmp_path / "all.csv", rows=60, extra=extra)
    run = trained(tmp_path, {"path": str(path), "client_column": "hospital"})
    with_weights(run, WEIGHT, BIAS)
    header = "age,sex,weight,ill,hospital"
    other = rows(tmp_path / "o.csv", "60,f,60,yes,b", "60,f,60,no,a", "x,f,60,no,a", header=header)
    found = prifedsync.open_run(run).evaluate(other)
    assert [(part.name, part.records, part.refused, part.score) for part in found.parts] == [("a", 1, 1, 0), ("b", 1, 0, 1)]
    assert "o.csv line 4" in str(found.refusals[0])
    without = rows(tmp_path / "p.csv", "60,f,60,yes")
    assert [part.name for part in prifedsync.open_run(run).evaluate(without).parts] == ["p"]


def test_the_error_of_a_regression_says_its_unit(tmp_path, capsys):
    tables(tmp_path / "tables", label=lambda age: age / 10, name="stay")
    own = {"task": "regression", "label": "stay", "label_values": [], "ranges": DATA["ranges"] | {"stay": [0, 20]}}
    folder = trained(tmp_path, own)
    with_weights(folder, WEIGHT, BIAS)
    path = rows(tmp_path / "a.csv", "100,f,60,10", "0,f,60,0", header="age,sex,weight,stay")
    found = prifedsync.open_run(folder).evaluate(path)
    assert found.together.score == pytest.approx(np.sqrt((1 - 0) ** 2 / 2))  # answers 1 and −1, labels 0 and −1
    assert found.note.endswith("times 10 it has its unit")
    record = RunRecord.read(folder / "record.json")
    assert record.note == found.note
    print_record(record, None)
    assert f"{found.note}." in capsys.readouterr().out


def test_npz_files_with_their_labels(tmp_path):
    x = np.random.default_rng(0).uniform(0, 10, (60, 3))
    config = {"rounds": 2, "data": {"classes": 2, "ranges": {"*": [0, 10]}}, "privacy": PRIVATE}
    prifedsync.train(config, clients={"a": (x, x[:, 0] > 5)}, out=tmp_path / "run")
    with_weights(tmp_path / "run", [[0.0, 0, 0], [1.0, 0, 0]], [0.0, 0])
    run = prifedsync.open_run(tmp_path / "run")
    given = np.array([[9.0, 1, 1], [1, 1, 1], [np.nan, 1, 1], [8, 1, 1]])
    np.savez(tmp_path / "new.npz", x=given, y=np.array([1, 1, 7, 1]))
    found = run.evaluate(tmp_path / "new.npz")
    assert (found.together.records, found.together.refused) == (3, 1)
    assert found.together.score == pytest.approx(2 / 3)
    with pytest.raises(BadValue, match="label of record 3 = 5 must be a class from 0 to 1"):
        run.evaluate((given, np.array([1, 1, 1, 5])))
    with pytest.raises(BadValue, match=r"shape of y = \(3,\) must be \(4,\)"):
        run.evaluate((given, np.array([1, 1, 1])))
    with pytest.raises(BadValue, match=r"must be \(x, y\)"):
        run.evaluate(given)
    np.savez(tmp_path / "new.npz", x=given)
    with pytest.raises(BadValue, match="must include y"):
        run.evaluate(tmp_path / "new.npz")
