"""Public rules: one way from a table's cells to a record, and back from answers to the table's words."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prifedsync.config import DataConfig
from prifedsync.data import Encoding, Task, load
from prifedsync.data.labels import Label
from prifedsync.values import BadValue

CONFIG = DataConfig(
    source="csv",
    path="-",
    label="sick",
    label_values=("no", "yes"),
    ranges={"age": (0, 100)},
    categories={"sex": ("f", "m", "unknown"), "ward": (1, 2.5, "03")},
    missing={"*": 50, "sex": "unknown"},
)
ENCODING = Encoding.of(CONFIG, ("sex", "age", "ward"), Task("classes", 2))
ROWS = {"age": ["0", "150", ""], "sex": ["f", "NA", "m"], "ward": ["1.0", "2.50", "03"]}


def test_a_record_follows_the_order_of_the_rules():
    assert ENCODING.names == ("sex", "age", "ward")
    assert ENCODING.inputs == ("sex=f", "sex=m", "sex=unknown", "age", "ward=1", "ward=2.5", "ward=03")
    encoded = ENCODING.encode(ROWS)
    assert encoded.x.shape == (3, ENCODING.width) == (3, 7)
    assert encoded.x.dtype == np.float32
    assert encoded.checked().tolist() == [[1, 0, 0, -1, 1, 0, 0], [0, 0, 1, 1, 0, 1, 0], [0, 1, 0, 0, 0, 0, 1]]


def test_values_of_a_frame_are_read_as_the_texts_of_a_file():
    frame = {"age": np.array([0.0, 150, math.nan]), "sex": ["f", None, "m"], "ward": [1, np.float32(2.5), "03"]}
    assert np.array_equal(ENCODING.encode(frame).checked(), ENCODING.encode(ROWS).checked())


def test_each_row_is_answered_or_refused_by_itself():
    rows = {"age": ["20", "old", "30", "inf"], "sex": ["f", "x", "m", "f"], "ward": ["1", "1", "3", "1"]}
    encoded = ENCODING.encode(rows)
    assert list(encoded.refusals) == [1, 2, 3]
    assert str(encoded.refusals[1]).startswith("row 2, column 'sex' = 'x' must be one of data.categories.sex")
    assert str(encoded.refusals[2]).startswith("row 3, column 'ward' = '3' must be one of data.categories.ward")
    assert str(encoded.refusals[3]).startswith("row 4, column 'age' = inf must be finite")
    assert np.isfinite(encoded.x[0]).all()
    assert not np.isfinite(encoded.x[1:]).all(axis=1).any()
    with pytest.raises(BadValue, match="row 2, column 'sex'"):
        encoded.checked()


def test_values_of_a_frame_are_named_as_they_are_printed():
    frame = {"age": [math.inf, np.str_("old"), -(10**400), 1e300], "sex": ["f"] * 4, "ward": np.array([1, 1, 1, 2.5])}
    encoded = ENCODING.encode(frame)
    said = [str(refusal).partition(";")[0] for refusal in encoded.refusals.values()]
    assert said[:2] == ["row 1, column 'age' = inf must be finite", "row 2, column 'age' = 'old' must be a number"]
    assert said[2].endswith("… must be finite")
    assert encoded.x[3].tolist() == [1, 0, 0, 1, 0, 1, 0]
    assert np.array_equal(encoded.outside[:, 1], [math.nan, math.nan, math.nan, 1], equal_nan=True)


def test_a_range_that_is_none_is_refused_in_json_too():
    said = ENCODING.as_json()
    said["columns"][1]["range"] = [3, 3]
    with pytest.raises(BadValue, match="must be two finite numbers"):
        Encoding.from_json(said)


def test_a_row_does_not_depend_on_the_others():
    alone = {name: cells[:1] for name, cells in ROWS.items()}
    assert np.array_equal(ENCODING.encode(alone).x[0], ENCODING.encode(ROWS).x[0])


def test_a_table_without_a_column_is_refused_by_its_name():
    with pytest.raises(BadValue, match="columns = 'age', 'sex' must include 'ward'"):
        ENCODING.encode({"age": ["1"], "sex": ["f"]})
    with pytest.raises(BadValue, match="column 'age', number of values = 2 must be 1"):
        ENCODING.encode({"age": ["1", "2"], "sex": ["f"], "ward": ["1"]})


def test_json_makes_the_same_encoding_again():
    for encoding in (
        ENCODING,
        Encoding.of(
            DataConfig(ranges={"*": (0, 1), "y": (2, 3)}, label="y", separator="tab"), ("x",), Task("regression", 0)
        ),
    ):
        assert Encoding.from_json(json.loads(json.dumps(encoding.as_json(), allow_nan=False))) == encoding
    whole = ENCODING.as_json()
    short = {"name": "age", "range": [1], "missing": None}
    for broken in ({}, {**whole, "columns": [{"name": "age"}]}, {**whole, "columns": [short]}, {**whole, "label": None}):
        with pytest.raises(BadValue, match="must be written by Encoding"):
            Encoding.from_json(broken)


def test_answers_in_the_words_of_the_table():
    assert ENCODING.label.texts == ("no", "yes")
    assert Label("y", Task("binary", 2)).texts == ("0", "1")
    assert ENCODING.encode_labels(["yes", "no"]).tolist() == [1, 0]
    assert Label("y", Task("regression", 0)).in_its_unit(np.array([3.0])).tolist() == [3]


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.floats(0, 1))
def test_a_prediction_returns_to_its_unit(low, width, part):
    label = Label("y", Task("regression", 0), span=(low, low + width))
    value = low + part * width
    scaled = label.from_numbers(np.array([value]), lambda i: "y").numpy()
    assert label.in_its_unit(scaled)[0] == pytest.approx(value, abs=1e-6 * width + 1e-9 * abs(low))


def test_training_encodes_by_the_same_rules(tmp_path):
    (tmp_path / "a.csv").write_text("ward,age,sex,sick\n1.0,0,f,no\n2.50,150,NA,yes\n03,,m,no\n")
    config = DataConfig(**{**vars(CONFIG), "path": str(tmp_path), "test_fraction": 0.0, "columns": ("sex", "age", "ward")})
    federation = load(config, 0)
    assert federation.encoding == ENCODING
    assert federation.clients[0].train.x.tolist() == ENCODING.encode(ROWS).x.tolist()
