# ruff: noqa: E501
"""Forty bad tables as hospitals really have them, one line each, and the line that cures them."""

import pytest

from prifedsync.config import DataConfig
from prifedsync.data import load
from prifedsync.values import BadValue

CONFIG = {
    "source": "csv", "label": "ill", "task": "binary", "test_fraction": 0.0,
    "ranges": {"age": (0, 100)}, "categories": {"sex": ("f", "m")},
}  # fmt: skip
NUMBER = {"task": "regression", "label": "stay", "ranges": {"age": (0, 100)}, "categories": {}}
HERE = "client 'b', b.csv line 2, column 'age' = "

# What b.csv holds, beside a.csv, which is good; what the config says; and the line.
TABLES = [
    ("age,sex,ill\n140 mmHg,f,0\n", {}, HERE + "'140 mmHg' has the unit 'mmHg'; write 140 alone, in the same unit in the whole column"),
    ("age,sex,ill\n37.5°C,f,0\n", {}, HERE + "'37.5°C' has the unit '°C'; write 37.5 alone, in the same unit in the whole column"),
    ("age,sex,ill\n€ 12,f,0\n", {}, HERE + "'€ 12' has the unit '€'; write 12 alone, in the same unit in the whole column"),
    ("age,sex,ill\n12 %,f,0\n", {}, HERE + "'12 %' has a percent sign; write 12 alone, with the whole column in percent"),
    ('age,sex,ill\n"4,5",f,0\n', {}, HERE + "'4,5' must be a number; set data.decimal = \",\" if that is the decimal mark, or write 4.5"),
    ('age,sex,ill\n"1,234",f,0\n', {}, HERE + "'1,234' must be a number; set data.decimal = \",\" if that is the decimal mark, or write 1234 if it separates thousands"),
    ('age,sex,ill\n"0,234",f,0\n', {}, HERE + "'0,234' must be a number; set data.decimal = \",\" if that is the decimal mark, or write 0.234"),
    ('age,sex,ill\n"1,234,567",f,0\n', {}, HERE + "'1,234,567' must be a number; write it without thousands separators"),
    ("age;sex;ill\n1.234;f;0\n", {"separator": ";", "decimal": ","}, HERE + "'1.234' must be a number; set data.decimal = \".\" if that is the decimal mark, or write 1234 if it separates thousands"),
    ("age,sex,ill\n<5,f,0\n", {}, HERE + "'<5' is a bound, not a number; write the number that your analysis takes for it, or leave the cell empty"),
    ("age,sex,ill\n120/80,f,0\n", {}, HERE + "'120/80' holds two numbers; write 120 and 80 in two columns"),
    ("age,sex,ill\n1975-03-01,f,0\n", {}, HERE + "'1975-03-01' is a date or a time; write a number, such as a year, an age or a number of days"),
    ("age,sex,ill\n01.03.1975,f,0\n", {}, HERE + "'01.03.1975' is a date or a time; write a number, such as a year, an age or a number of days"),
    ("age,sex,ill\n#DIV/0!,f,0\n", {}, HERE + "'#DIV/0!' is the error of a spreadsheet's formula; correct the formula, or leave the cell empty"),
    ("age,sex,ill\nTRUE,f,0\n", {}, HERE + "'TRUE' must be a number; list both values in data.categories.age"),
    ("age,sex,ill\nn/a,f,0\n", {}, HERE + "'n/a' must be a number; leave the cell empty if it is missing, and set data.missing.age"),
    ("age,sex,ill\n,f,0\n", {}, HERE + "'' is a missing value; fill it in, or set data.missing.age to a constant that replaces it"),
    ("age,sex,ill\nold,f,0\n", {}, HERE + "'old' must be a number; list the values of a text column in data.categories.age, or leave it out with data.columns"),
    ("age,sex,ill\n1e999,f,0\n", {}, HERE + "1e999 must be finite; correct it, or leave the cell empty for a missing value"),
    ("age,sex,ill\n50,F,0\n", {}, "client 'b', b.csv line 2, column 'sex' = 'F' must be one of data.categories.sex = f, m; write 'f', or add 'F' to the list"),
    ("age,sex,ill\n50,,0\n", {}, "client 'b', b.csv line 2, column 'sex' = '' is a missing value; fill it in, or add a value for it to data.categories.sex and name it in data.missing.sex"),
    ("age,sex,ill\n50,01,0\n", {"categories": {"sex": (1, 2)}}, "client 'a', a.csv line 2, column 'sex' = 'f' must be one of data.categories.sex = 1, 2; correct it, or add 'f' to the list"),
    ("age,sex,ill\n50,f,\n", {}, "client 'b', b.csv line 2, column 'ill' = '' is a missing label; fill it in, or leave the row out"),
    ("age,sex,ill\n50,f,\n", {"label_values": ("0", "1")}, "client 'b', b.csv line 2, column 'ill' = '' is a missing label; fill it in, or leave the row out"),
    ("age,sex,ill\n50,f,yes\n", {}, "client 'b', b.csv line 2, column 'ill' = 'yes' must be a number; correct it, or list the labels as texts in data.label_values"),
    ("age,stay\n50,3 days\n", NUMBER, "client 'b', b.csv line 2, column 'stay' = '3 days' has the unit 'days'; write 3 alone, in the same unit in the whole column"),
    ('age,sex,ill\n"1\n",f,0\n"2\n\n",f,0\nold,"f\n",1\n', {}, "client 'b', b.csv line 7, column 'age' = 'old' must be a number; list the values of a text column in data.categories.age, or leave it out with data.columns"),
    ("age,sex,ill\n50,f,0\nage,sex,ill\n", {}, "b.csv line 3 repeats the names of the columns; delete this line: tables were joined with their headers"),
    ("age,sex,ill\n50,f,0\n,,\n", {}, "b.csv line 3 holds no value; delete this line"),
    ("age,sex,ill\n50,f,0,\n", {}, "b.csv line 2, number of values = 4 must be 3, as in the header; remove the separators at the end of the line, or name their columns in the header"),
    ("age,sex,ill,,\n50,f,0,,\n", {}, "b.csv line 1, name of column 4 = '' must be printable and not empty; name the column, or remove the separators at the end of the lines"),
    ("age,sex,ill\n50,f,0,1\n", {}, "b.csv line 2, number of values = 4 must be 3, as in the header; check for commas without quotes: put values that contain the separator in quotes"),
    ("age,sex,ill\n50,f,0\nTotal: 1\n", {}, "b.csv line 3, number of values = 1 must be 3, as in the header; complete the row, or delete it if it is no record; check for line breaks and separators without quotes"),
    ("Export of Monday\nage,sex,ill\n50,f,0\n", {}, "b.csv line 2, number of values = 3 must be 1, as in the header; write the names of all columns in the first line, and no title above them"),
    ("sep=;\nage;sex;ill\n50;f;0\n", {}, "b.csv line 1 = 'sep=;' is a line for Excel, not the names of the columns; delete this line, and set data.separator = \";\""),
    ("age;sex;ill\n50,5;f;0\n", {}, "b.csv line 1 = 'age;sex;ill' is a single column, with semicolons in its name; if semicolons separate the columns, set data.separator = \";\"; if the numbers have decimal commas, set data.decimal = \",\" too"),
    ("age\tsex\till\n50\tf\t0\n", {}, "b.csv line 1 = 'age\\tsex\\till' is a single column, with tabs in its name; if tabs separate the columns, set data.separator = \"tab\""),
    ("age|sex|ill\n50|f|0\n", {}, "b.csv line 1 = 'age|sex|ill' is a single column, with vertical bars in its name; separate the columns by commas"),
    ("age,sex,ill\n", {}, "client 'b', rows of b.csv = 0 must be at least 1; the file has a header alone: add records, or take the file away"),
    ("\nage,sex,ill\n50,f,0\n", {}, "file = b.csv cannot be read: its first line is empty; write the names of the columns in the first line"),
    ("Age,sex,ill\n50,f,0\n", {}, "client 'b', columns of b.csv = without 'age', with 'Age' must be the same as in a.csv; rename 'Age' to 'age' in b.csv"),
    ("age,gender,ill\n50,f,0\n", {}, "client 'b', columns of b.csv = without 'sex', with 'gender' must be the same as in a.csv; give all files the same columns, or list the features in data.columns"),
    ("age,age,ill\n50,f,0\n", {}, "b.csv line 1, column = 'age' is the name of two columns; rename one of them"),
    ('age,sex,ill\n50,f,0\n51,"f,0\n52,f,0\n', {}, "file = b.csv cannot be read: the row that begins in line 3: unexpected end of data; check the quotes in this row"),
    ("ill,sex,age\r\n1,m,60.0\r\n0, f ,50\r\n", {}, "client 'b', file = b.csv holds the same records as a.csv: each record would leak through both clients; take one of the two files away"),
    ("age,sex,ill\n50,f,0\n".encode("utf-16"), {}, 'file = b.csv cannot be read: it is UTF-16 text; save the table as "CSV UTF-8"'),
    ("age,sex,ill\n50,f,0\n".encode("utf-16-le"), {}, 'file = b.csv cannot be read: line 1 holds a NUL byte, as binary files and UTF-16 text do; save the table as "CSV UTF-8"'),
    ("age,sex,ill\n50,f,0\n50,Zürich,0\n".encode("latin-1"), {}, 'file = b.csv cannot be read: line 3 is not UTF-8 text; save the table as "CSV UTF-8"'),
    (b"PK\x03\x04", {}, 'file = b.csv cannot be read: it is an Excel workbook or a zip archive; save the table as "CSV UTF-8"'),
    ("age,sex,ill\n50,f,0\n", {"label": "sick"}, "data.label = 'sick' is not a column of a.csv; there are 'age', 'sex', 'ill'"),
    ("age,sex,ill\n50,f,0\n", {"label": "ILL "}, "data.label = 'ILL ' is not a column of a.csv; did you mean 'ill'?"),
    ("age,sex,ill\n50,f,0\n", {"ranges": {}}, "feature columns = 'age' must each have a public rule: without one, a value has no bound and no scale; add ranges = { age = [LOWEST, HIGHEST] } to [data], list the values of a text column in data.categories, or leave columns out with data.columns"),
    ("age,sex,ill\n50,f,0\n", {"missing": {"sex": "unknown"}}, "data.missing.sex = 'unknown' must be one of data.categories.sex = f, m; add it to that list"),
    ("age,sex,ill\n50,f,0\n", {"missing": {"age": "unknown"}}, "data.missing.age = unknown must be a finite number; choose a number inside the column's range; a text is for a column with data.categories"),
    ("age,sex,ill\n50,f,0\n", {"categories": {"sex": (1, "1.0")}}, "data.categories.sex = ['1', '1.0'] must list at least one value, and each once; correct the list; 1 and 1.0 are the same value"),
]  # fmt: skip


def refusal(folder, **changed):
    with pytest.raises(BadValue) as refused:
        load(DataConfig(**(CONFIG | {"path": str(folder)} | changed)), 0)
    return str(refused.value)


@pytest.mark.parametrize(("table", "changed", "line"), TABLES, ids=range(1, len(TABLES) + 1))
def test_a_bad_table(tmp_path, table, changed, line):
    good = "age,stay\n50,3\n" if "stay" in changed.get("label", "") else "age,sex,ill\n50,f,0\n60.0,m,1\n"
    separator = changed.get("separator", ",")
    (tmp_path / "a.csv").write_text(good.replace(",", separator).replace(".", changed.get("decimal", ".")))
    (tmp_path / "b.csv").write_bytes(table if isinstance(table, bytes) else table.encode())
    assert refusal(tmp_path, **changed) == line


@pytest.mark.parametrize("listed", [(), ("age", "sex")])
def test_the_file_whose_header_differs_is_named_and_not_the_config(tmp_path, listed):
    """The config says age: a.csv is to be changed, although it is the first."""
    written(tmp_path, a=GOOD.replace("age", "Age"), b=OTHER)
    said = refusal(tmp_path, columns=listed)
    assert said.startswith("client 'a', columns of a.csv = without 'age'")
    assert said.endswith("must be the same as in b.csv; rename 'Age' to 'age' in a.csv")
    written(tmp_path, b=OTHER.replace("age", "Age"))  # all files have it: now it is the config's
    assert "did you mean 'Age'?" in refusal(tmp_path, columns=listed)


def test_there_are_forty():
    assert len({table for table, changed, line in TABLES if not changed}) >= 40


GOOD = "age,sex,ill\n50,f,0\n60.0,m,1\n"
OTHER = "age,sex,ill\n70,f,1\n"


def loaded(folder, **changed):
    return load(DataConfig(**(CONFIG | {"path": str(folder)} | changed)), 0)


def written(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def test_files_that_are_no_tables_are_not_read(tmp_path):
    written(tmp_path, north=GOOD, south=OTHER)
    for name in ("~$north.csv", ".~lock.north.csv#", "._south.csv", ".hidden.csv", "Thumbs.db", "desktop.ini", "notes.txt"):
        (tmp_path / name).write_bytes(b"\x00 not a table")
    (tmp_path / "south.xlsx").write_bytes(b"PK")  # the workbook that south.csv was saved from
    (tmp_path / "north.csv.gz").write_bytes(b"")
    (tmp_path / "old.csv").mkdir()
    assert [client.name for client in loaded(tmp_path).clients] == ["north", "south"]


@pytest.mark.parametrize("name", ["south.xlsx", "South.XLS", "south.ods", "south.tsv", "south.csv.gz", "south.parquet"])
def test_a_table_of_another_format_is_not_left_out_without_a_word(tmp_path, name):
    (tmp_path / name).write_bytes(b"PK")
    line = f'data.path = {tmp_path} holds {name}, and only CSV files are read; save the table as "CSV UTF-8", or take the file away'
    assert refusal(tmp_path) == line
    written(tmp_path, north=GOOD)
    assert refusal(tmp_path) == line


def test_a_folder_without_a_table(tmp_path):
    (tmp_path / "readme.md").write_text("nothing")
    assert "holds no .csv file" in refusal(tmp_path)


def test_numbers_are_categories_by_their_value(tmp_path):
    written(tmp_path, a="sex,ill\n0,0\n0.0,0\n1,1\n1.00,1\n+1,1\n")
    for listed in ((0, 1), (0.0, 1.0), ("0", "1"), ("0.0", 1)):
        x = loaded(tmp_path, categories={"sex": listed}, ranges={}).clients[0].train.x
        assert x.tolist() == [[1, 0], [1, 0], [0, 1], [0, 1], [0, 1]]


def test_a_leading_zero_makes_a_code(tmp_path):
    written(tmp_path, a="sex,ill\n01,0\n1,0\n")
    assert loaded(tmp_path, categories={"sex": (1, "01")}, ranges={}).clients[0].train.x.tolist() == [[0, 1], [1, 0]]
    assert "'01' must be one of" in refusal(tmp_path, categories={"sex": (1, 2)}, ranges={})


def test_labels_are_matched_by_their_value_too(tmp_path):
    written(tmp_path, a="age,ill\n1,2.0\n2,1\n")
    assert loaded(tmp_path, categories={}, label_values=(1, 2)).clients[0].train.y.tolist() == [1, 0]


@pytest.mark.parametrize("text", ["", "NA", "nan", "?"])
def test_a_category_stands_for_missing_values(tmp_path, text):
    written(tmp_path, a=f"sex,ill\n{text or ' '},0\nf,0\nunknown,1\n")
    config = {"categories": {"sex": ("f", "unknown")}, "missing": {"sex": "unknown"}, "ranges": {}}
    assert loaded(tmp_path, **config).clients[0].train.x.tolist() == [[0, 1], [1, 0], [0, 1]]
    by_number = {"categories": {"sex": ("f", "unknown", 9)}, "missing": {"sex": 9.0}, "ranges": {}}
    assert loaded(tmp_path, **by_number).clients[0].train.x.tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]


def test_a_listed_value_is_not_missing(tmp_path):
    written(tmp_path, a="sex,ill\nNA,0\n,0\n")
    config = {"categories": {"sex": ("NA", "none")}, "missing": {"sex": "none"}, "ranges": {}}
    assert loaded(tmp_path, **config).clients[0].train.x.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(("separator", "mark"), [(";", ";"), ("tab", "\t"), (",", ",")])
def test_european_tables(tmp_path, separator, mark):
    rows = [["age", "sex", "ill"], ["49,5", "f", "0"], ["60", "m", "1"], ["1e2", "m", "1,0"]]
    text = "".join(mark.join(f'"{cell}"' for cell in row) + "\r\n" for row in rows)
    written(tmp_path, a=text)
    records = loaded(tmp_path, separator=separator, decimal=",").clients[0].train
    assert records.x[:, 0].tolist() == pytest.approx([-0.01, 0.2, 1])
    assert records.y.tolist() == [0, 1, 1]


def test_cells_in_quotes_may_hold_line_breaks_and_separators(tmp_path):
    written(tmp_path, a='\ufeffage,sex,ill\n50,"f\n(born)",0\n\n60,"m, born",1\n')
    x = loaded(tmp_path, categories={"sex": ("f\n(born)", "m, born")}).clients[0].train.x
    assert x[:, 1:].tolist() == [[1, 0], [0, 1]]


def test_the_same_rows_under_two_names_are_found_in_any_form(tmp_path):
    written(tmp_path, a=GOOD, b=OTHER, c='\ufeff"ill","age","sex"\r\n1,60.0,m\r\n\r\n0,50,f')
    assert "client 'c', file = c.csv holds the same records as a.csv" in refusal(tmp_path)
    written(tmp_path, c=GOOD + "60.0,m,1\n")  # a record more
    assert len(loaded(tmp_path).clients) == 3


def test_of_columns_without_a_rule_all_are_named(tmp_path):
    written(tmp_path, a="age,my size,ill\n1,2,0\n")
    line = refusal(tmp_path, ranges={}, categories={})
    assert line.startswith("feature columns = 'age', 'my size' must each have a public rule")
    assert 'add ranges = { age = [LOWEST, HIGHEST], "my size" = [LOWEST, HIGHEST] } to [data]' in line


def test_the_first_line_holds_numbers(tmp_path):
    written(tmp_path, a="50,1,0\n60,0,1\n")
    assert refusal(tmp_path) == (
        "data.label = 'ill' is not a column of a.csv; write the names of the columns in the first line: it holds only numbers"
    )
