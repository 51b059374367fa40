"""`predict` and `evaluate` as people call them: what is printed where, and with which exit status."""

import csv
import io
import json
import shutil
import sys

import pytest

from prifedsync import cli

from .predicting.folders import tables, trained, with_weights


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("used")
    tables(folder / "tables")
    return trained(folder, rule={"name": "ditto"})


@pytest.fixture
def call(made, tmp_path, monkeypatch, capsys):
    """Call the command line beside a copy of the run; returns exit status, output and errors."""
    shutil.copytree(made, tmp_path / "run")
    with_weights(tmp_path / "run", [[1.0, 0, 0, 0]], [0.0])
    monkeypatch.chdir(tmp_path)

    def called(*words):
        monkeypatch.setattr(sys, "argv", ["prifedsync", *words])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        seen = capsys.readouterr()
        return stopped.value.code or 0, seen.out, seen.err

    return called


def rows(path, *lines):
    path.write_text("\n".join(["age,sex,weight", *lines]) + "\n", encoding="utf-8")


def test_answers_are_csv_in_the_order_of_the_rows(call, tmp_path):
    rows(tmp_path / "rows.csv", "60,f,60", "40,f,60", "90,m,60")
    code, out, err = call("predict", "run", "rows.csv")
    assert (code, err) == (0, "")
    lines = list(csv.DictReader(io.StringIO(out)))
    assert [line["prediction"] for line in lines] == ["yes", "no", "yes"]
    assert list(lines[0]) == ["prediction", "p_no", "p_yes"]
    assert float(lines[0]["p_no"]) + float(lines[0]["p_yes"]) == pytest.approx(1)
    assert float(lines[0]["p_yes"]) == pytest.approx(0.549834, abs=1e-6)  # 1 / (1 + exp(−0.2))
    code, nothing, err = call("predict", "run", "rows.csv", "--out", "answers.csv")
    assert (code, nothing, err) == (0, "", "")
    assert (tmp_path / "answers.csv").read_text(encoding="utf-8") == out


def test_refused_rows_keep_their_line_and_the_first_twenty_are_explained(call, tmp_path):
    rows(tmp_path / "rows.csv", "60,f,60", *["60,x,60"] * 25, "40,f,60")
    code, out, err = call("predict", "run", "rows.csv")
    lines = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert [line["prediction"] for line in lines] == ["yes", *[""] * 25, "no"]
    assert lines[0]["refused"] == lines[26]["refused"] == ""
    assert lines[1]["refused"].startswith("rows.csv line 3, column 'sex' = 'x' must be one of")
    said = err.splitlines()
    assert len(said) == 21
    assert said[0] == f"prifedsync: refused: {lines[1]['refused']}"
    assert said[20] == "prifedsync: 5 more rows are refused"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["60,x,60", "old,f,60"], "has no row that can be answered; the first refusal is: rows.csv line 2, column 'sex'"),
        ([], "rows = rows.csv has no rows"),
    ],
)
def test_no_answer_at_all_is_bad_input(call, tmp_path, lines, message):
    rows(tmp_path / "rows.csv", *lines)
    code, out, err = call("predict", "run", "rows.csv")
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_bad_input_is_one_line(call, tmp_path):
    (tmp_path / "rows.csv").write_text("Age,sex\n1,f\n", encoding="utf-8")
    rows(tmp_path / "good.csv", "60,f,60")
    (tmp_path / "some.npz").write_bytes(b"PK\x03\x04")
    (tmp_path / "folder.png").mkdir()
    for words, message in (
        (
            ("predict", "run", "rows.csv"),
            "missing columns = 'age', 'weight' must be there: .* rename 'Age' if that is 'age'",
        ),
        (("predict", "run", "good.csv", "--model", "noth"), "did you mean north?"),
        (("predict", "run", "good.csv", "--out", "no/such/file.csv"), "lies in a folder that does not exist"),
        (("predict", "run", "good.csv", "--out", "./good.csv"), "is the file of the rows, which would be lost"),
        (("predict", "run", "good.csv", "--out", "run"), "out = run is a folder; name a file, as in run/answers.csv"),
        (("predict", "run", "some.npz"), "is an npz file, and this run was trained on tables; give a CSV file"),
        (("evaluate", "run", "--data", "some.npz"), "is an npz file, and this run was trained on tables; give a CSV file"),
        (
            ("evaluate", "run", "--data", "good.csv", "--metrics", "foo"),
            'metrics = "foo" must be "auto", "accuracy", "auc",',
        ),
        (("partition", "digits", "--out", "folder.png"), "out = folder.png is a folder"),
        (("predict", "nowhere", "good.csv"), "has no config.toml"),
        (("predict", "run", "good.csv", "--code", "a:b"), "is not needed"),
        (("evaluate", "run", "--data", "nowhere"), "does not exist"),
        (("evaluate", "run", "--data", "good.csv"), "missing columns = 'ill' must be there"),
    ):
        code, out, err = call(*words)
        assert (code, out, len(err.splitlines())) == (2, "", 1), words
        for part in message.split(".*"):
            assert part in err


def test_a_kept_model_is_used_with_a_warning(call, tmp_path):
    rows(tmp_path / "rows.csv", "60,f,60")
    code, out, err = call("predict", "run", "rows.csv", "--model", "north")
    assert code == 0
    assert out.startswith("prediction,p_no,p_yes\n")
    assert err == "prifedsync: model north must not be published: kept by the client, trained without noise\n"


def test_evaluate_prints_a_table_or_one_object(call, tmp_path):
    (tmp_path / "later").mkdir()
    for name in ("a", "b"):
        (tmp_path / "later" / f"{name}.csv").write_text(
            f"age,sex,weight,ill\n60,f,60,yes\n40,f,60,{'no' if name == 'a' else 'yes'}\nx,f,60,yes\n", encoding="utf-8"
        )
    code, out, err = call("evaluate", "run", "--data", "later")
    assert code == 0
    table = [line.split() for line in out.splitlines()]
    assert ["a", "2", "1", "1.000"] in table
    assert ["b", "2", "1", "0.500"] in table
    assert ["all", "4", "2", "0.750"] in table
    assert "the guarantee of the run does not cover them" in out
    assert [line.split(",")[0] for line in err.splitlines()] == [
        "prifedsync: refused: a.csv line 4",
        "prifedsync: refused: b.csv line 4",
    ]
    code, out, err = call("evaluate", "run", "--data", "later", "--metrics", "f1,auc", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["together"]["scores"]["f1"]["value"] == pytest.approx(0.8)  # 2·2 / (2 + 3)
    code, out, err = call("evaluate", "run", "--data", "later/a.csv", "--model", "south")
    assert "model south must not be published" in err
    assert "of the model south" in out
