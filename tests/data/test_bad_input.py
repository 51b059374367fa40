"""Bad input: one line that names the client or file, the column or field, and the remedy."""

import numpy as np
import pytest

from prifedsync.config import DataConfig
from prifedsync.data import load
from prifedsync.values import BadValue

GOOD = "age,size,label\n1,2,0\n3,4,1\n"


def refusal(config, seed=0):
    with pytest.raises(BadValue) as refused:
        load(config, seed)
    line = str(refused.value)
    assert "\n" not in line
    return line


CSV = {  # files, config, what the line says
    "text in a column of numbers": (
        {"b": "age,size,label\n1,big,0\n"},
        {},
        ("'b'", "b.csv line 2", "'size'", "data.categories.size"),
    ),
    "missing value": ({"b": "age,size,label\n1,2,0\n\n,2,1\n"}, {}, ("'b'", "line 4", "'age'", "data.missing.age")),
    "missing value of a column with blanks": (
        {"a": "my age,label\n?,0\n"},
        {},
        ("'a'", "'my age'", 'data.missing."my age"'),
    ),
    "infinite": ({"b": "age,size,label\n1,inf,0\n"}, {}, ("'b'", "line 2", "'size'", "finite")),
    "infinite with a range": ({"b": "age,size,label\n1,-inf,0\n"}, {"ranges": {"*": (0, 1)}}, ("'b'", "'size'", "finite")),
    "no rule for a column": ({}, {"ranges": {"age": (0, 1)}}, ("feature columns = 'size'", "ranges = { size = [")),
    "range too wide": ({}, {"ranges": {"*": (-1e308, 1e308)}}, ('data.ranges."*"', "difference finite")),
    "grouped digits": ({"b": "age,size,label\n1,1_000,0\n"}, {}, ("'b'", "'size'", "1_000")),
    "text not listed": (
        {"b": "age,size,label\n1,XL,0\n", "a": "age,size,label\n1,S,0\n"},
        {"categories": {"size": ("S", "M")}, "ranges": {"age": (0, 1)}},
        ("'b'", "line 2", "'size'", "'XL'", "data.categories.size"),
    ),
    "missing text": (
        {"a": "age,size,label\n1,,0\n"},
        {"categories": {"size": ("S",)}, "missing": {"*": 0}},
        ("'a'", "'size'", "missing value", "data.categories.size", "data.missing.size"),
    ),
    "label too large": ({"b": "age,size,label\n1,2,2\n"}, {}, ("'b'", "'label'", "0 to 1", "data.classes")),
    "label between": ({"b": "age,size,label\n1,2,0.5\n"}, {}, ("'b'", "'label'", "0.5")),
    "missing label": ({"b": "age,size,label\n1,2,\n"}, {"missing": {"*": 0}}, ("'b'", "'label'", "missing label")),
    "text label": ({"b": "age,size,label\n1,2,yes\n"}, {}, ("'b'", "'label'", "data.label_values")),
    "label not listed": (
        {"b": "age,size,label\n1,2,2\n"},
        {"label_values": ("0", "1")},
        ("'b'", "'label'", "data.label_values"),
    ),
    "infinite target": (
        {"b": "age,size,label\n1,2,inf\n"},
        {"task": "regression", "classes": 0},
        ("'b'", "'label'", "finite"),
    ),
    "target too large": (
        {"b": "age,size,label\n1,2,1e50\n"},
        {"task": "regression", "classes": 0},
        ("'b'", "'label'", "data.ranges"),
    ),
    "no such label": ({}, {"label": "lable"}, ("data.label", "a.csv", "did you mean 'label'?")),
    "no such column": ({}, {"columns": ("age", "weight")}, ("data.columns", "'weight'", "a.csv", "there are 'age'")),
    "the label among the columns": ({}, {"columns": ("age", "label")}, ("data.columns", "'label'")),
    "a column listed twice": ({}, {"columns": ("age", "age")}, ("data.columns", "'age'", "twice")),
    "range of no column": ({}, {"ranges": {"agee": (0, 1)}}, ("data.ranges.agee", "did you mean 'age'?")),
    "range of a class label": ({}, {"ranges": {"label": (0, 1)}}, ("data.ranges.label",)),
    "range turned round": ({}, {"ranges": {"age": (1, 0)}}, ("data.ranges.age", "[1, 0]")),
    "constant of no column": ({}, {"missing": {"label": 0}}, ("data.missing.label",)),
    "constant that is none": ({}, {"missing": {"age": float("nan")}}, ("data.missing.age", "nan")),
    "texts of no column": ({}, {"categories": {"*": ("a",)}}, ("data.categories",)),
    "texts listed twice": ({}, {"categories": {"age": ("1", "1")}}, ("data.categories.age", "each once")),
    "texts with a range": (
        {},
        {"categories": {"age": ("1", "3")}, "ranges": {"age": (0, 1)}},
        ("data.ranges.age", "data.categories.age"),
    ),
    "other columns": (
        {"b": "age,weight,label\n1,2,0\n"},
        {},
        ("'b'", "b.csv", "without 'size'", "with 'weight'", "data.columns"),
    ),
    "a column not there": ({"b": "size,label\n1,0\n"}, {"columns": ("age",)}, ("'b'", "without 'age'")),
    "nothing to learn from": ({"a": "label\n1\n"}, {}, ("data.columns", "a.csv")),
    "row too long": ({"b": "age,size,label\n1,2,0\n1,2,0,5\n"}, {}, ("b.csv line 3", "4", "commas")),
    "no header": ({"b": ""}, {}, ("b.csv", "names")),
    "column without a name": ({"b": ",age,size,label\n0,1,2,0\n"}, {}, ("b.csv line 1", "column 1", "name the column")),
    "column twice": ({"b": "age,age,label\n0,1,0\n"}, {}, ("b.csv line 1", "'age'", "rename")),
    "quote left open": ({"b": 'age,size,label\n1,"2,0\n'}, {}, ("b.csv", "quotes")),
    "semicolons": ({"a": "age;size;label\n1;2;0\n"}, {}, ("a.csv line 1", "semicolons", 'data.separator = ";"')),
    "empty client": ({"b": "age,size,label\n"}, {}, ("'b'", "at least 1")),
    "classes not given": ({}, {"classes": 0}, ("data.classes = 0", "public", "data.label_values")),
    "one class": ({}, {"classes": 1}, ("data.classes = 1", "regression")),
    "classes that are not the listed": ({}, {"classes": 3, "label_values": ("0", "1")}, ("data.classes = 3", "2")),
    "labels listed twice": ({}, {"label_values": ("0", "0")}, ("data.label_values", "twice")),
    "three labels for two": ({}, {"task": "binary", "classes": 0, "label_values": ("0", "1", "2")}, ("data.label_values",)),
    "three classes for two": ({}, {"task": "binary", "classes": 3}, ("data.classes = 3", "binary")),
    "classes for a number": ({}, {"task": "regression"}, ("data.classes = 2", "regression")),
    "unknown task": ({}, {"task": "ranking"}, ("data.task", "ranking")),
    "client column in many files": (
        {"b": "age,size,label\n1,2,0\n"},
        {"client_column": "age"},
        ("data.client_column", "one file"),
    ),
    "partition by a column that is not named": ({}, {"partition": "column"}, ("data.partition", "data.client_column")),
    "all held out": ({}, {"test_fraction": 1.0}, ("data.test_fraction = 1.0", "[0, 1)")),
}


@pytest.mark.parametrize(("files", "changed", "says"), CSV.values(), ids=CSV.keys())
def test_csv(tmp_path, files, changed, says):
    for name, text in ({"a": GOOD} | files).items():
        (tmp_path / f"{name}.csv").write_text(text)
    public = {"source": "csv", "path": str(tmp_path), "classes": 2, "ranges": {"*": (0, 100)}}
    line = refusal(DataConfig(**(public | changed)))
    for part in says:
        assert part in line


def test_one_csv_for_all(tmp_path):
    file = tmp_path / "all.csv"
    public = {"source": "csv", "path": str(file), "classes": 2, "ranges": {"*": (0, 9)}}
    file.write_text("who,x,label\nnorth,1,0\n,2,1\n")
    line = refusal(DataConfig(**public, client_column="who"))
    assert line == "all.csv line 3, column 'who' = '' must name a client; fill in the name of the client"
    file.write_text("who,x,label\nnorth,1,0\nsouth,?,1\n")
    line = refusal(DataConfig(**public, client_column="who"))
    assert line.startswith("client 'south', all.csv line 3, column 'x' = '?' is a missing value; ")
    file.write_text("who,x,label\nnorth/east,1,0\n")
    assert "'north/east'" in refusal(DataConfig(**public, client_column="who"))
    assert "is also the label" in refusal(DataConfig(**public, client_column="label"))
    line = refusal(DataConfig(**public, client_column="site"))
    assert line.startswith("data.client_column = 'site' is not a column of all.csv; there are 'who'")
    line = refusal(
        DataConfig(
            source="csv", path=str(file), classes=2, ranges={"*": (0, 9)}, columns=("x",), clients=2, partition="iid"
        )
    )
    assert line == "data.clients = 2 must be at most the number of records, 1; use fewer clients or shards"
    line = refusal(DataConfig(**public, columns=("x",), partition="column"))
    assert line.startswith("data.partition = column needs a column")


def test_files_that_are_not_csv(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"x,label\n\xff\xfe,0\n")
    assert "UTF-8" in refusal(DataConfig(source="csv", path=str(tmp_path), classes=2))


@pytest.mark.parametrize("source", ["csv", "npz"])
def test_paths(tmp_path, source):
    for path, says in (
        ("", "must be set"),
        (f"{tmp_path}/nowhere", "does not exist"),
        (str(tmp_path), f"no .{source} file"),
    ):
        line = refusal(DataConfig(source=source, path=path, classes=2))
        assert line.startswith("data.path = ")
        assert says in line
        assert "--data" in line


X, Y = np.ones((2, 3)), np.array([0, 1])
NPZ = {
    "no x": ({"X": X, "y": Y}, {}, ("'a', a.npz", "must include x", "X, y")),
    "half a test set": ({"x": X, "y": Y, "x_test": X}, {}, ("'a', a.npz", "must include y_test")),
    "nan": ({"x": np.array([[1, 2], [np.nan, 0]]), "y": Y}, {}, ("'a', a.npz, x[1, 0] = nan", 'data.missing."*"')),
    "infinite": ({"x": X * np.inf, "y": Y}, {"missing": {"*": 0}, "ranges": {"*": (0, 1)}}, ("'a'", "x[0, 0] = inf")),
    "too large": ({"x": X * 1e60, "y": Y}, {}, ("'a'", "32-bit", 'data.ranges."*"')),
    "objects": ({"x": X, "y": np.array([{}, {}])}, {}, ("a.npz", "without objects")),
    "complex": ({"x": X * 1j, "y": Y}, {}, ("'a'", "complex")),
    "lengths": ({"x": X, "y": np.zeros(3)}, {}, ("'a'", "records in x = 2", "3 labels")),
    "labels in a column": ({"x": X, "y": Y[:, None]}, {}, ("'a'", "(2, 1)", "flatten")),
    "label too large": ({"x": X, "y": Y + 1}, {}, ("'a'", "label of record 1 = 2", "data.classes")),
    "text label": ({"x": X, "y": np.array(["0", "cat"])}, {}, ("'a'", "label of record 1 = 'cat'", "data.label_values")),
    "complex labels": ({"x": X, "y": Y * 1j}, {}, ("'a'", "y = complex128")),
    "range of a column": ({"x": X, "y": Y}, {"ranges": {"age": (0, 1)}}, ("data.ranges.age", "no column names")),
    "constant of a column": ({"x": X, "y": Y}, {"missing": {"age": 1}}, ("data.missing.age", "no column names")),
    "texts": ({"x": X, "y": Y}, {"categories": {"age": ("a",)}}, ("data.categories.age", "npz")),
    "columns": ({"x": X, "y": Y}, {"columns": ("age",)}, ("data.columns", "no column names")),
    "empty client": ({"x": np.ones((0, 3)), "y": np.ones(0)}, {}, ("'a'", "at least 1")),
}


@pytest.mark.parametrize(("arrays", "changed", "says"), NPZ.values(), ids=NPZ.keys())
def test_npz(tmp_path, arrays, changed, says):
    np.savez(tmp_path / "a.npz", **arrays)
    line = refusal(DataConfig(**({"source": "npz", "path": str(tmp_path), "classes": 2} | changed)))
    for part in says:
        assert part in line


def test_files_that_are_not_npz(tmp_path):
    config = DataConfig(source="npz", path=str(tmp_path), classes=2)
    np.save(tmp_path / "a.npy", X)
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    assert "single array" in refusal(config)
    for content in (b"", b"not a zip", b"PK\x03\x04 broken"):
        (tmp_path / "a.npz").write_bytes(content)
        assert refusal(config).startswith("file = a.npz cannot be read")


def test_the_same_arrays_under_two_names(tmp_path):
    config = DataConfig(source="npz", path=str(tmp_path), classes=2)
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    np.savez_compressed(tmp_path / "b.npz", y=Y, x=np.asfortranarray(X), x_test=X + 1, y_test=Y)
    assert refusal(config).startswith("client 'b', file = b.npz holds the same records as a.npz")
    np.savez(tmp_path / "b.npz", x=X, y=1 - Y)
    assert len(load(config, 0).clients) == 2


def test_one_npz_for_all(tmp_path):
    file = tmp_path / "all.npz"
    np.savez(file, x=X, y=Y, client=np.array([0.5, 1.5]))
    assert "array client" in refusal(DataConfig(source="npz", path=str(file), classes=2))
    line = refusal(DataConfig(source="npz", path=str(file), classes=2, client_column="site"))
    assert line.startswith("all.npz, arrays = x, y, client must include site")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"source": "digit"}, ("data.source", "did you mean digits?")),
        ({"source": "parquet"}, ("data.source", "module:function")),
        ({"partition": "column"}, ("data.partition = column", "shards")),
        ({"partition": "dirichlet"}, ("data.partition", "iid")),
        ({"clients": 0}, ("data.clients = 0",)),
        ({"clients": 1000}, ("data.clients × data.shards_per_client = 4000", "1797")),
        ({"clients": 2000, "partition": "iid"}, ("data.clients = 2000", "1797")),
        ({"shards_per_client": 0}, ("data.shards_per_client = 0",)),
        ({"classes": 9}, ("data.classes = 9", "digits")),
        ({"task": "regression"}, ("data.task = regression", "digits")),
        ({"source": "breast-cancer", "task": "regression"}, ("data.task = regression", "binary")),
        ({"ranges": {"*": (0, 1)}}, ("data.ranges", "digits")),
        ({"client_column": "who"}, ("data.client_column", "digits")),
        ({"test_fraction": -0.1}, ("data.test_fraction = -0.1",)),
    ],
)
def test_embedded(changed, says):
    line = refusal(DataConfig(**changed))
    for part in says:
        assert part in line


def test_a_seed_below_zero():
    assert refusal(DataConfig(), seed=-1).startswith("seed = -1")


FUNCTIONS = """
import numpy as np
from prifedsync.data import Federation, Records, Task
number = 3
def nothing(): return None
def nobody(): return {}
def three(): return {"a": (1, 2, 3)}
def by_number(): return {0: (np.eye(2), [0, 1])}
def ragged(): return {"a": ([[1], [1, 2]], [0, 1])}
def not_clients(): return Federation(("a", "b"), Task("classes", 2))
def wrong_label(): return {"a": (np.eye(2), [0, 1]), "b": (np.eye(2), [0, 7])}
def fails(): raise RuntimeError("two\\nlines")
def greedy(seed, more): return {}
"""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nothing", "nothing must be a Federation"),
        ("nobody", "nothing must be a Federation"),
        ("three", "client 'a': 3 parts"),
        ("by_number", "client 0"),
        ("ragged", "client 'a'"),
        ("not_clients", "tuple of Clients"),
        ("wrong_label", "client 'b', label of record 1 = 7"),
        ("fails", "raised RuntimeError: two lines"),
        ("greedy", "must take 1 argument or none"),
        ("number", "no number to call"),
        ("absent", "it has"),
    ],
)
def test_functions(tmp_path, name, says):
    (tmp_path / "bad.py").write_text(FUNCTIONS)
    line = refusal(DataConfig(source=f"{tmp_path}/bad.py:{name}", classes=2))
    assert says in line
    assert line.startswith(("data.source = ", "what ", "client "))
