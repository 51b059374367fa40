"""CSV files: one a client, one for all, and the public rules for columns."""

import pytest
import torch

from prifedsync.config import DataConfig
from prifedsync.data import load


def write(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    return str(folder)


HUNDRED = {"*": (-100, 100)}


def loaded(path, **changed):
    public = {"source": "csv", "path": str(path), "classes": 2, "test_fraction": 0.0, "ranges": HUNDRED}
    return load(DataConfig(**(public | changed)), 0)


def values(records):
    """The values of the file, where the range is ±100."""
    return (records.x.double() * 100).round().tolist()


def test_one_file_a_client(tmp_path):
    path = write(tmp_path, b="x,z,label\n1,2,0\n3,4,1\n", a="label,z,x\n1,6,5\n\n")
    (tmp_path / "notes.txt").write_text("not read")
    federation = loaded(path)
    a, b = federation.clients
    assert (a.name, b.name) == ("a", "b")
    # the first file decides the order of columns
    assert values(a.train) == [[6, 5]]
    assert values(b.train) == [[2, 1], [4, 3]]
    assert b.train.y.tolist() == [0, 1]
    assert (a.train.x.dtype, a.train.y.dtype) == (torch.float32, torch.int64)


def test_one_file_with_a_column_for_the_client(tmp_path):
    path = write(tmp_path, all="who,x,label\nnorth,1,0\nsouth,2,1\nnorth,3,1\n") + "/all.csv"
    for given in (path, str(tmp_path)):  # the file, or the folder it lies in alone
        north, south = loaded(given, client_column="who").clients
        assert (north.name, south.name) == ("north", "south")
        assert values(north.train) == [[1], [3]]
        assert south.train.y.tolist() == [1]


def test_the_split_of_a_client_is_the_same_in_both_forms(tmp_path):
    rows = [f"{i},{i % 2}" for i in range(20)]
    (tmp_path / "apart").mkdir()
    write(tmp_path / "apart", a="x,label\n" + "\n".join(rows[:10]), b="x,label\n" + "\n".join(rows[10:]))
    mixed = [f"{'ab'[i >= 10]},{row}" for i, row in enumerate(rows)]
    write(tmp_path, all="who,x,label\n" + "\n".join(mixed[10:] + mixed[:10]))
    apart = loaded(tmp_path / "apart", test_fraction=0.3)
    together = loaded(tmp_path / "all.csv", test_fraction=0.3, client_column="who")
    for one, other in zip(apart.clients, together.clients, strict=True):
        assert torch.equal(one.train.x, other.train.x)
        assert torch.equal(one.test.y, other.test.y)


def test_one_file_without_clients_is_split(tmp_path):
    path = write(tmp_path, all="x,label\n" + "".join(f"{i},{i % 2}\n" for i in range(30))) + "/all.csv"
    federation = loaded(path, clients=3, partition="iid")
    assert [client.name for client in federation.clients] == ["client-00", "client-01", "client-02"]
    assert sorted(row[0] for c in federation.clients for row in values(c.train)) == list(range(30))


def test_ranges_scale_and_clamp(tmp_path):
    path = write(tmp_path, a="age,pay,label\n0,5,0\n50,10,1\n150,-99,1\n")
    both = loaded(path, ranges={"age": (0, 100), "*": (0, 10)}).clients[0].train.x
    assert both.tolist() == [[-1, 0], [0, 1], [1, -1]]


@pytest.mark.parametrize("text", ["", " ", "NA", "na", "NaN", "null", "NULL", "?"])
def test_missing_values_get_their_constant_before_scaling(tmp_path, text):
    path = write(tmp_path, a=f"age,pay,label\n{text},1,0\n20,{text},1\n")
    x = loaded(path, missing={"age": 50, "*": 2}, ranges={"age": (0, 100), "*": (-4, 4)}).clients[0].train.x
    assert x[0].tolist() == [0, 0.25]
    assert x[1].tolist() == pytest.approx([-0.6, 0.5])


def test_listed_texts_become_columns_of_zeros_and_ones(tmp_path):
    path = write(tmp_path, a='size,x,label\nS,1,0\n"L, wide",2,1\n,3,1\n')
    x = loaded(path, categories={"size": ("S", "L, wide", "")}, missing={"*": 0}, ranges={"x": (-4, 4)}).clients[0].train.x
    assert x.tolist() == [[1, 0, 0, 0.25], [0, 1, 0, 0.5], [0, 0, 1, 0.75]]


def test_columns_choose_and_order(tmp_path):
    path = write(tmp_path, a="note,x,z,label\nhello,1,2,0\n", b="x,z,label,other\n3,4,1,free text\n")
    federation = loaded(path, columns=("z", "x"))
    assert [values(c.train) for c in federation.clients] == [[[2, 1]], [[4, 3]]]


def test_labels_by_their_public_texts(tmp_path):
    path = write(tmp_path, a="x,kind\n1,cat\n2,dog\n3,NA\n")
    classes = loaded(path, label="kind", label_values=("dog", "NA", "cat"), classes=0)
    assert classes.task.classes == 3
    assert classes.clients[0].train.y.tolist() == [2, 0, 1]


def test_binary_labels(tmp_path):
    path = write(tmp_path, a="x,label\n1,no\n2,yes\n")
    federation = loaded(path, task="binary", classes=0, label_values=("no", "yes"))
    y = federation.clients[0].train.y
    assert (y.tolist(), y.dtype, federation.task.outputs) == ([0, 1], torch.float32, 1)
    path = write(tmp_path, a="x,label\n1,1.0\n2,0\n")
    assert loaded(path, task="binary", classes=0).clients[0].train.y.tolist() == [1, 0]


def test_a_target_is_scaled_by_a_range_of_its_own_only(tmp_path):
    path = write(tmp_path, a="x,label\n5,100\n10,200\n")
    config = {"task": "regression", "classes": 0}
    plain = loaded(path, **config, ranges={"*": (0, 10)}).clients[0].train
    assert (plain.x.tolist(), plain.y.tolist(), plain.y.dtype) == ([[0], [1]], [100, 200], torch.float32)
    ranged = loaded(path, **config, ranges={"label": (100, 200), "x": (0, 10)}).clients[0].train
    assert (ranged.x.tolist(), ranged.y.tolist()) == ([[0], [1]], [-1, 1])


def test_no_statistic_of_the_records_reaches_them(tmp_path):
    """A record's numbers stay what they are when the other records change."""
    first = loaded(write(tmp_path, a="x,z,label\n1,2,0\n3,4,1\n")).clients[0].train
    second = loaded(write(tmp_path, a="x,z,label\n1,2,0\n3000,-4,1\n")).clients[0].train
    assert torch.equal(first.x[0], second.x[0])


def test_a_byte_order_mark_and_blanks_are_taken_off(tmp_path):
    (tmp_path / "a.csv").write_bytes("\ufeffx , label\r\n 1 , 0 \r\n".encode())
    assert values(loaded(tmp_path).clients[0].train) == [[1]]
