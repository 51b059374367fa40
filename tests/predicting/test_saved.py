"""A run folder is enough to answer raw rows, by the rules of the training; answers are compared with work by hand."""

import json
import math
import pickle
import shutil
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import prifedsync
from prifedsync.values import BadValue

from .folders import DATA, PRIVATE, Frame, table, tables, trained, with_weights

# inputs: age and weight in [−1, 1], sex=f, sex=m
WEIGHT = [[1.0, 0.5, -0.5, 2.0]]
BIAS = [0.25]


def by_hand(age, sex, weight):
    """The probability of "yes", by the formulas of the public rules."""
    x = [min(max(age / 50 - 1, -1), 1), float(sex == "f"), float(sex == "m"), min(max((weight - 40) / 50 - 1, -1), 1)]
    return 1 / (1 + math.exp(-(sum(w * v for w, v in zip(WEIGHT[0], x, strict=True)) + BIAS[0])))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    tables(folder / "tables", names=("north", "south"))
    return trained(folder)


@pytest.fixture
def folder(made, tmp_path):
    """A copy with weights that one can calculate with."""
    shutil.copytree(made, tmp_path / "run")
    with_weights(tmp_path / "run", WEIGHT, BIAS)
    return tmp_path / "run"


ROWS = [(70, "f", 60), (10, "m", 130), (100, "m", 40), (0, "f", 90)]


def given_as(kind):
    age, sex, weight = ([row[at] for row in ROWS] for at in range(3))
    return {
        "mapping": {"weight": weight, "sex": sex, "age": age, "nobody reads this": sex},
        "frame": Frame(id=age, age=np.array(age), weight=torch.tensor(weight).tolist(), sex=np.array(sex)),
        "rows": [list(row) for row in ROWS],
        "objects": np.array(ROWS, dtype=object),
    }[kind]


@pytest.mark.parametrize("kind", ["mapping", "frame", "rows", "objects"])
def test_answers_are_those_of_the_formulas(folder, kind):
    run = prifedsync.open_run(folder)
    expected = [by_hand(*row) for row in ROWS]
    assert run.columns == ("age", "sex", "weight")
    np.testing.assert_allclose(run.predict_proba(given_as(kind)), [[1 - p, p] for p in expected], rtol=1e-6)
    assert run.predict(given_as(kind)).tolist() == ["yes" if p > 0.5 else "no" for p in expected]
    assert {p > 0.5 for p in expected} == {True, False}


def test_pandas_and_polars_frames(folder):
    run = prifedsync.open_run(folder)
    columns = {"age": [70, 10], "sex": ["f", "m"], "weight": [60.0, float("nan")]}
    for module in ("pandas", "polars"):
        frame = pytest.importorskip(module).DataFrame(columns)
        assert run.predict_proba(frame)[:, 1] == pytest.approx([by_hand(70, "f", 60), by_hand(10, "m", 90)])


def test_values_outside_are_clamped_missing_ones_replaced_and_the_rest_refused_by_row(folder):
    run = prifedsync.open_run(folder)
    rows = {
        "age": ["70", "170", "-3", "", "70", "old", "70", "inf"],
        "sex": ["f", "f", "m", "f", "x", "f", "", "f"],
        "weight": ["60", "60", "500", "60", "60", "60", "60", "60"],
    }
    answers = run.answers(rows)
    assert sorted(answers.refused) == [3, 4, 5, 6, 7]
    expected = [by_hand(70, "f", 60), by_hand(100, "f", 60), by_hand(0, "m", 140)]
    assert answers.probabilities[:3, 1] == pytest.approx(expected, rel=1e-6)
    assert np.isnan(answers.probabilities[3:]).all()
    assert answers.predictions[3:] == [None] * 5
    why = [str(reason) for _, reason in sorted(answers.refused.items())]
    for reason, part in zip(why, ("missing value", "data.categories.sex", "number", "missing", "finite"), strict=True):
        assert part in reason
        assert "rules are those that the model was trained with" in reason
    assert why[1].startswith("row 4, column 'sex' = 'x'")
    filled = run.answers({"age": ["70"], "sex": ["f"], "weight": [None]})
    assert filled.probabilities[0, 1] == pytest.approx(by_hand(70, "f", 90))
    with pytest.raises(BadValue, match=r"row 3, column 'age' = '' is a missing value; .*`answers` answers the other rows"):
        run.predict(rows)


def test_an_answer_that_is_not_a_number_is_refused(folder):
    with_weights(folder, [[3e38, 3e38, 0, 0]], BIAS)
    answers = prifedsync.open_run(folder).answers({"age": [100, 50], "sex": ["f", "m"], "weight": [60, 60]})
    assert list(answers.refused) == [0]
    assert "not a finite number" in str(answers.refused[0])
    assert answers.predictions == [None, "yes"]
    assert np.isnan(answers.probabilities[0]).all()
    assert answers.probabilities[1, 1] == pytest.approx(1 / (1 + math.exp(-0.25)))  # 3e38·0 + 0.25


def test_a_file_is_read_as_in_training_and_named_by_its_lines(folder, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('sex,note,weight,age\nf,"two\nlines",60,70\nx,,60,70\n', encoding="utf-8")
    answers = prifedsync.open_run(folder).answers(path)
    assert answers.probabilities[0, 1] == pytest.approx(by_hand(70, "f", 60))
    assert str(answers.refused[1]).startswith("rows.csv line 4, column 'sex' = 'x'")
    assert answers.as_csv().splitlines()[0] == "prediction,p_no,p_yes,refused"
    assert answers.as_csv().splitlines()[1].startswith("yes,0.") == (by_hand(70, "f", 60) > 0.5)
    assert answers.as_csv().splitlines()[2].startswith(',,,"rows.csv line 4')


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"sex": ["f"], "weight": [1]}, "rows, missing columns = 'age' must be there"),
        ({" Age": [1], "sex": ["f"], "weight": [1]}, r"rename ' Age' if that is 'age'"),
        ({"age": [1], "sex": ["f"], "wieght": [1]}, r"rename 'wieght' if that is 'weight'"),
        ([[1, 2]], r"shape of the array = \(1, 2\) must be \(n, 3\): the raw values of age, sex, weight"),
        (np.zeros(3), r"shape of the array = \(3,\) must be \(n, 3\)"),
        ("no-such-file.csv", "rows = no-such-file.csv is not a file"),
        ([[1, "f"], [2]], "rows have different lengths"),
    ],
)
def test_rows_that_cannot_be_read_at_all_are_refused(folder, rows, message):
    with pytest.raises(BadValue, match=message):
        prifedsync.open_run(folder).answers(rows)


def test_semicolons_and_decimal_commas_are_those_of_the_training(tmp_path):
    folder = tables(tmp_path / "tables")
    for path in folder.iterdir():
        path.write_text(path.read_text(encoding="utf-8").replace(",", ";"), encoding="utf-8")
    run = trained(tmp_path, {"separator": ";", "decimal": ","})
    with_weights(run, WEIGHT, BIAS)
    (tmp_path / "new.csv").write_text("age;sex;weight\n70,5;f;60\n", encoding="utf-8")
    assert prifedsync.open_run(run).predict_proba(tmp_path / "new.csv")[0, 1] == pytest.approx(by_hand(70.5, "f", 60))
    (tmp_path / "commas.csv").write_text("age,sex,weight\n70,f,60\n", encoding="utf-8")
    with pytest.raises(BadValue, match=r"with commas in its name; save it with ; between columns, as in training$"):
        prifedsync.open_run(run).predict(tmp_path / "commas.csv")
    (tmp_path / "excel.csv").write_text("sep=;\nage;sex;weight\n70;f;60\n", encoding="utf-8")
    with pytest.raises(BadValue, match=r"names of the columns; delete this line$"):
        prifedsync.open_run(run).predict(tmp_path / "excel.csv")


# ---------------------------------------------------------------------- other tasks


def test_a_regression_answers_in_the_unit_of_its_label(tmp_path):
    tables(tmp_path / "tables", label=lambda age: age / 10, name="stay")
    own = {"task": "regression", "label": "stay", "label_values": [], "ranges": DATA["ranges"] | {"stay": [0, 20]}}
    folder = trained(tmp_path, own)
    with_weights(folder, WEIGHT, BIAS)
    run = prifedsync.open_run(folder)
    output = 1.0 * 0.4 + 0.5 + 2.0 * -0.6 + 0.25  # age 70, sex f, weight 60
    answers = run.answers({"age": [70], "sex": ["f"], "weight": [60]})
    assert answers.predictions == [pytest.approx(0 + (output + 1) / 2 * 20, rel=1e-6)]
    assert answers.as_csv() == f"prediction\n{answers.predictions[0]:.9g}\n"
    with pytest.raises(BadValue, match="probabilities do not exist for a regression"):
        run.predict_proba({"age": [70], "sex": ["f"], "weight": [60]})


def test_classes_have_a_probability_each_and_their_own_names(tmp_path):
    tables(tmp_path / "tables", label=lambda age: age % 3)
    folder = trained(tmp_path, {"task": "classes", "label_values": [], "classes": 3})
    with_weights(folder, [[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]], [0.0, 0, 0.5])
    run = prifedsync.open_run(folder)
    answers = run.answers({"age": [100, 50], "sex": ["f", "m"], "weight": [60, 60]})
    scores = np.exp([[1, 1, 0.5], [0, 0, 1.5]])
    np.testing.assert_allclose(answers.probabilities, scores / scores.sum(1, keepdims=True), rtol=1e-6)
    assert answers.predictions[1] == 2
    assert answers.as_csv().splitlines()[0] == "prediction,p_0,p_1,p_2"
    assert run.predict({"age": [50], "sex": ["m"], "weight": [60]}).dtype.kind == "i"


# ---------------------------------------------------------------------- which model


def test_result_and_folder_give_the_same_answers(tmp_path):
    tables(tmp_path / "tables")
    data = DATA | {"path": str(tmp_path / "tables")}
    config = {
        "rounds": 2,
        "local": {"local_steps": 2},
        "privacy": PRIVATE,
        "data": data,
    }  # clients have models of their own
    result = prifedsync.train(config, out=tmp_path / "run")
    run = prifedsync.open_run(tmp_path / "run")
    rows = {"age": [70, 20], "sex": ["f", "m"], "weight": [60, 100]}
    for model in ("global", "north", "south"):
        assert (result.predict_proba(rows, model) == run.predict_proba(rows, model)).all()
    assert (run.predict_proba(rows) != run.predict_proba(rows, "north")).any()
    assert result.columns == run.columns
    assert torch.equal(result.personal("north")["1.weight"], run.personal("north")["1.weight"])
    x = torch.randn(3, 4)
    assert torch.equal(result.model(x), run.model(x))
    assert result.evaluate(tmp_path / "tables").as_json() == run.evaluate(tmp_path / "tables").as_json()
    assert run.record.sentence == result.record.sentence
    assert run.config.rounds == 2
    assert "north, south" in repr(run)


def test_names_of_models(folder, made):
    run = prifedsync.open_run(folder)
    rows = {"age": [70], "sex": ["f"], "weight": [60]}
    with pytest.raises(
        BadValue, match=r"""model = 'nroth' must be "global" or the name of a client; did you mean north\?"""
    ):
        run.predict(rows, "nroth")
    with pytest.raises(BadValue, match="the clients are north, south"):
        run.predict(rows, "?")
    (folder / "models" / "personal" / "north.safetensors").unlink()
    with pytest.raises(BadValue, match="client = 'north' has no model of its own"):
        run.predict(rows, "north")


def test_names_that_are_not_printable_are_shown_as_python_writes_them(folder):
    record = (folder / "record.json").read_text(encoding="utf-8")
    (folder / "record.json").write_text(record.replace('"north"', '"no\\u001b[2Jrth"'), encoding="utf-8")
    said = repr(prifedsync.open_run(folder))
    assert "clients: 'no\\x1b[2Jrth', south" in said
    assert "\x1b" not in said


def test_without_a_released_model_a_client_must_be_named(tmp_path):
    tables(tmp_path / "tables")
    run = prifedsync.open_run(trained(tmp_path, rule={"name": "alone"}))
    rows = {"age": [70], "sex": ["f"], "weight": [60]}
    with pytest.raises(
        BadValue, match=r'under rule "alone" no client may have sent a model; name a client as model: north'
    ):
        run.predict(rows)
    assert len(run.predict(rows, "south")) == 1
    assert "kept by the client" in run.publishing("south")


def test_fixed_features_and_raw_pixels_of_digits(tmp_path):
    from sklearn.datasets import load_digits

    config = prifedsync.config.load("digits", ["rounds=2", "compare=[]", "data.clients=3"])
    result = prifedsync.train(config, out=tmp_path / "run")
    assert config.model.features == "hog"
    raw = load_digits().images[:5]
    run = prifedsync.open_run(tmp_path / "run")
    expected = result.model(torch.tensor(raw[:, None] / 16, dtype=torch.float32)).softmax(1).detach()
    for given in (raw[:, None], raw, raw.reshape(5, 64), raw.reshape(5, 64).tolist()):
        np.testing.assert_allclose(run.predict_proba(given), expected, rtol=1e-5)
    lines = [",".join(f"pixel {i}" for i in range(64)), *(",".join(map(str, row)) for row in raw.reshape(5, 64).tolist())]
    (tmp_path / "pixels.csv").write_text("\n".join(lines), encoding="utf-8")
    np.testing.assert_allclose(run.predict_proba(tmp_path / "pixels.csv"), expected, rtol=1e-5)
    assert run.columns[:2] == ("x0", "x1")
    with pytest.raises(BadValue, match=r"must be \(n, 1, 8, 8\) or \(n, 8, 8\) or \(n, 64\); give"):
        run.predict(raw[:, :4])


def test_the_embedded_table_is_used_by_its_columns(tmp_path):
    from sklearn.datasets import load_breast_cancer

    config = prifedsync.config.load("breast-cancer", ["rounds=2", "compare=[]"])
    prifedsync.train(config, out=tmp_path / "run")
    run = prifedsync.open_run(tmp_path / "run")
    bunch = load_breast_cancer()
    assert run.columns == tuple(bunch.feature_names)
    assert (
        run.predict(dict(zip(run.columns, bunch.data[:4].T, strict=True))).tolist() == run.predict(bunch.data[:4]).tolist()
    )


# ---------------------------------------------------------------------- arrays


def test_arrays_are_scaled_as_in_training_and_refused_by_row(tmp_path):
    values = np.random.default_rng(0).uniform(0, 10, (60, 3))
    clients = {"a": (values[:30], values[:30, 0] > 5), "b": (values[30:], values[30:, 0] > 5)}
    data = {"classes": 2, "ranges": {"*": [0, 10]}, "missing": {"*": 5}}
    config = {"rounds": 2, "data": data, "privacy": PRIVATE}
    result = prifedsync.train(config, clients=clients, out=tmp_path / "run")
    with_weights(tmp_path / "run", [[0.0, 0, 0], [1.0, 2, 3]], [0.0, 0.5])
    run = prifedsync.open_run(tmp_path / "run")
    answers = run.answers(np.array([[10.0, 0, 5], [99, np.nan, 5], [np.inf, 0, 0]]))
    odds = np.array([1 - 2 + 0 + 0.5, 1 + 0 + 0 + 0.5])
    np.testing.assert_allclose(answers.probabilities[:2, 1], 1 / (1 + np.exp(-odds)), rtol=1e-6)
    assert list(answers.refused) == [2]
    assert "row 2, column 'x0' = inf" in str(answers.refused[2])
    np.savez(tmp_path / "new.npz", x=values[:4])
    assert run.predict(tmp_path / "new.npz").shape == (4,)
    assert result.predict(values[:4]).dtype.kind == "i"
    with pytest.raises(BadValue, match="must hold numbers"):
        run.predict([["a", "b", "c"]])
    with pytest.raises(BadValue, match=r"= \(4, 2\) must be \(n, 3\); give"):
        run.predict(values[:4, :2])
    with pytest.raises(BadValue, match=r"^rows = none.npz is not a file; name an npz file"):
        run.predict("none.npz")
    with pytest.raises(BadValue, match="number of columns = 2 must be 3: one column for each value"):
        run.predict({"a": [1], "b": [2]})
    assert run.evaluate((values, values[:, 0] > 5)).together.records == 60


class Bag(nn.Module):
    """Counts tokens, and answers with a sum of their vectors."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 2)

    def forward(self, x):
        return self.table(x).sum(1)


def test_tokens_stay_whole_numbers_and_a_module_from_python_is_needed_again(tmp_path):
    x = torch.randint(0, 5, (40, 6))
    config = {"rounds": 1, "data": {"classes": 2}, "privacy": PRIVATE}
    result = prifedsync.train(config, clients={"a": (x, x[:, 0] > 2)}, model=Bag(), out=tmp_path / "run")
    assert result.record.config["model"]["name"] == "python:model"
    with pytest.raises(BadValue, match=r"the model of this run is your own code \(given from Python\)"):
        prifedsync.open_run(tmp_path / "run")
    run = prifedsync.open_run(tmp_path / "run", model=Bag())
    assert (run.predict_proba(x) == result.predict_proba(x)).all()
    answers = run.answers(np.array([[0, 1, 2, 3, 4, 0.5], [0, 1, 2, 3, 4, 0]]))
    assert list(answers.refused) == [0]
    assert "whole number" in str(answers.refused[0])
    with pytest.raises(BadValue, match="model = Bag fails on these records: IndexError"):
        run.predict([[9] * 6])
    with pytest.raises(BadValue, match="does not fit the model"):
        prifedsync.open_run(tmp_path / "run", model=nn.Linear(6, 2)).predict(x)
    shutil.rmtree(tmp_path / "run" / "models")
    (tmp_path / "run" / "record.json").unlink()
    with pytest.raises(BadValue, match=r"model.name = python:model was given from Python when this run began"):
        prifedsync.resume(tmp_path / "run", clients={"a": (x, x[:, 0] > 2)})


def test_a_federation_from_python_is_used_as_it_is(tmp_path):
    from prifedsync.data import Client, Federation, Records, Task

    x = torch.randn(30, 2)
    part = Records(x, (x[:, 0] > 0).long())
    federation = Federation((Client("a", part, part),), Task("classes", 2))
    config = {"rounds": 1, "data": {"ranges": {"*": [0, 1]}, "label_values": ["low", "high"]}, "privacy": PRIVATE}
    prifedsync.train(config, clients=federation, out=tmp_path / "run")
    with_weights(tmp_path / "run", [[0.0, 0], [1.0, 0]], [0.0, 0])
    run = prifedsync.open_run(tmp_path / "run")
    assert run.predict([[7.0, 0], [-7.0, 0]]).tolist() == ["high", "low"]
    assert run.predict_proba([[3.0, 0]])[0, 1] == pytest.approx(1 / (1 + math.exp(-3)))


# ---------------------------------------------------------------------- folders from somebody else


def own_code(tmp_path, marker):
    (tmp_path / "nets.py").write_text(
        f"from pathlib import Path\nfrom torch import nn\nPath({str(marker)!r}).touch()\n\n"
        "def net(shape, outputs):\n    return nn.Sequential(nn.Linear(*shape, outputs))\n\n"
        "def score(outputs, y):\n    return 0.5\n",
        encoding="utf-8",
    )


def test_code_that_a_folder_names_is_never_imported_by_itself(tmp_path, monkeypatch):
    marker = tmp_path / "imported"
    own_code(tmp_path, marker)
    tables(tmp_path / "tables")
    monkeypatch.chdir(tmp_path)
    code = f"{tmp_path}/nets.py"
    folder = trained(tmp_path, model={"name": f"{code}:net"}, metrics=[f"{code}:score"])
    marker.unlink()
    for name in [name for name in sys.modules if name.startswith("nets_")]:
        del sys.modules[name]
    with pytest.raises(BadValue, match=r"is your own code \(made by .*nets.py:net\).*--code module:function"):
        prifedsync.open_run(folder)
    assert not marker.exists()
    run = prifedsync.open_run(folder, model=nn.Sequential(nn.Linear(4, 1)))
    rows = {"age": [70], "sex": ["f"], "weight": [60]}
    answer = run.predict_proba(rows)
    with pytest.raises(BadValue, match=r"a metric of this run = .*nets.py:score is your own code"):
        run.evaluate(tmp_path / "tables")
    assert run.evaluate(tmp_path / "tables", metrics="accuracy").metrics == ("accuracy",)
    assert not marker.exists()
    assert (prifedsync.open_run(folder, model=f"{code}:net").predict_proba(rows) == answer).all()
    assert marker.exists()
    assert run.evaluate(tmp_path / "tables", metrics=f"{code}:score").together.score == 0.5
    with pytest.raises(BadValue, match=r"must be a torch.nn.Module, or a function that returns one"):
        prifedsync.open_run(folder, model=f"{code}:score")


def test_a_module_that_is_not_needed_is_refused(folder):
    with pytest.raises(BadValue, match="is not needed: this run was trained with the package's own softmax"):
        prifedsync.open_run(folder, model=nn.Linear(4, 1))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.toml", "has no config.toml; name the folder"),
        ("record.json", "holds a run that is not finished; finish it: prifedsync train --resume"),
        ("preprocessing.json", "has no preprocessing.json"),
    ],
)
def test_a_folder_that_lacks_a_file_is_refused_with_what_to_do(folder, name, message):
    (folder / name).unlink()
    with pytest.raises(BadValue, match=message):
        prifedsync.open_run(folder)


class Bomb:
    def __reduce__(self):
        return (print, ("a pickle was opened",))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(pickle.dumps(Bomb())), "cannot be read"),
        (lambda path: path.write_bytes(path.read_bytes()[:-4]), "cannot be read"),
        (lambda path: save_file({"1.weight": torch.zeros(1, 4)}, path), "1.bias has shape None in the file"),
        (
            lambda path: save_file(load_file(path) | {"1.bias": torch.zeros(2)}, path),
            r"1.bias has shape \(2,\) in the file",
        ),
        (lambda path: save_file(load_file(path) | {"more": torch.zeros(2)}, path), "more has shape"),
        (lambda path: save_file(load_file(path) | {"1.bias": torch.tensor([math.nan])}, path), "not finite"),
    ],
)
def test_a_damaged_model_is_refused(folder, damage, message, capsys):
    damage(folder / "models" / "global.safetensors")
    with pytest.raises(BadValue, match=message):
        prifedsync.open_run(folder).predict([[70, "f", 60]])
    assert "pickle" not in capsys.readouterr().out


def test_sizes_that_a_folder_invents_take_no_memory(folder):
    text = (folder / "config.toml").read_text(encoding="utf-8").replace('name = "softmax"', 'name = "mlp"')
    (folder / "config.toml").write_text(text.replace("hidden = [64]", "hidden = [1000000, 1000000]"), encoding="utf-8")
    with pytest.raises(BadValue, match="does not fit the model"):  # 4 TB of weights
        prifedsync.open_run(folder).predict([[70, "f", 60]])


def change(path, *keys, to):
    said = json.loads(path.read_text(encoding="utf-8"))
    inner = said
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = to
    path.write_text(json.dumps(said), encoding="utf-8")


@pytest.mark.parametrize(
    ("keys", "to"),
    [
        (["schema_version"], 2), (["shape"], [10**9]), (["shape"], [5]), (["shape"], [True]), (["shape"], []),
        (["columns", 0, "range"], [1, 0]), (["columns", 0, "range"], [0, math.nan]), (["columns", 0, "missing"], "x"),
        (["columns", 1, "categories"], []), (["columns"], 3), (["label", "task"], "guessing"), (["label", "classes"], 7),
        (["label", "values"], ["no"]), (["separator"], "--"), (["decimal"], "x"), (["kind"], "arrays"),
    ],
)  # fmt: skip
def test_rules_that_no_run_writes_are_refused(folder, keys, to):
    change(folder / "preprocessing.json", *keys, to=to)
    with pytest.raises(BadValue, match=r"preprocessing = .* cannot be read: .*; restore the file from a copy"):
        prifedsync.open_run(folder)


# ---------------------------------------------------------------------- preprocessing.json


def test_the_rules_hold_nothing_of_the_records(tmp_path, made):
    tables(tmp_path / "tables", seed=7, rows=55, label=lambda age: "no")
    other = trained(tmp_path)
    assert (other / "preprocessing.json").read_bytes() == (made / "preprocessing.json").read_bytes()


def test_the_rules_are_written_before_the_first_round(tmp_path):
    tables(tmp_path / "tables")
    seen = []

    def watch(event):
        if type(event).__name__ == "RoundDone":
            seen.append((tmp_path / "run" / "preprocessing.json").is_file())

    config = {"rounds": 2, "privacy": PRIVATE, "data": DATA | {"path": str(tmp_path / "tables")}}
    prifedsync.train(config, out=tmp_path / "run", watch=watch)
    assert seen == [True, True]


def test_two_hundred_rows_at_a_time_or_all_at_once_are_answered_alike(folder, tmp_path):
    path = table(tmp_path / "many.csv", rows=3000)
    run = prifedsync.open_run(folder)
    whole = run.predict_proba(path)
    first = run.predict_proba({name: run_column(path, name)[:200] for name in run.columns})
    np.testing.assert_allclose(whole[:200], first, rtol=1e-6)
    assert len(whole) == 3000


def run_column(path, name):
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    return [line.split(",")[header.split(",").index(name)] for line in lines]
