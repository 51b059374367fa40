"""What is checked of any federation, whatever it came from."""

from dataclasses import replace

import pytest
import torch

from prifedsync.data import Client, Federation, Records, Task, check
from prifedsync.values import BadValue


def records(n=3, shape=(2,), dtype=torch.float32, labels=None):
    return Records(torch.ones(n, *shape, dtype=dtype), torch.zeros(n, dtype=torch.int64) if labels is None else labels)


THREE = Task("classes", 3)


def federation(task=THREE, **second):
    """A good client and one that is not."""
    changed = Client("bad", records(), records(1))
    return Federation((Client("good", records(), records(1)), replace(changed, **second)), task)


def test_a_good_federation_is_converted():
    given = federation(train=records(dtype=torch.float64, labels=torch.tensor([0, 1, 2], dtype=torch.uint8)))
    checked = check(given)
    assert checked.clients[1].train.x.dtype == torch.float32
    assert checked.clients[1].train.y.dtype == torch.int64
    assert (checked.shape, len(checked.clients)) == ((2,), 2)


def test_labels_of_two_classes_become_floats():
    assert check(federation(task=Task("binary", 2))).clients[0].train.y.dtype == torch.float32


def nan_at(row):
    x = torch.ones(3, 2)
    x[row, 1] = float("nan")
    return x


BAD = {
    "label too large": (federation(train=records(labels=torch.tensor([0, 3, 1]))), ("'bad'", "label of record 1 = 3")),
    "label below zero": (federation(test=records(labels=torch.tensor([0, 1, -1]))), ("'bad'", "test set", "record 2 = -1")),
    "label between": (federation(train=records(labels=torch.tensor([0, 0.5, 1]))), ("'bad'", "record 1 = 0.5")),
    "binary label": (federation(task=Task("binary", 2), train=records(labels=torch.tensor([0, 1, 2]))), ("'bad'", "= 2")),
    "nan": (federation(train=Records(nan_at(2), torch.zeros(3))), ("'bad'", "x of record 2 = nan")),
    "too large for float32": (
        federation(train=Records(torch.full((3, 2), 1e300, dtype=torch.float64), torch.zeros(3))),
        ("'bad'", "float32"),
    ),
    "infinite target": (
        federation(task=Task("regression", 0), train=records(labels=torch.tensor([0.0, 1.0, float("inf")]))),
        ("'bad'", "y of record 2 = inf"),
    ),
    "nobody": (Federation((), Task("classes", 3)), ("federation.clients",)),
    "empty client": (federation(train=records(0)), ("'bad'", "at least 1")),
    "shape": (federation(train=records(shape=(2, 1))), ("'bad'", "(2, 1)", "'good'")),
    "shape of the test set": (federation(test=records(shape=(5,))), ("'bad'", "test set", "(5,)")),
    "kind of numbers": (federation(train=records(dtype=torch.int32)), ("'bad'", "int64", "float32")),
    "complex": (federation(train=records(dtype=torch.complex64)), ("'bad'", "complex")),
    "lengths": (federation(train=Records(torch.ones(3, 2), torch.zeros(2))), ("'bad'", "3", "2 labels")),
    "labels in a column": (federation(train=records(labels=torch.zeros(3, 1))), ("'bad'", "(3, 1)")),
    "flat records": (federation(train=Records(torch.ones(3), torch.zeros(3))), ("'bad'", "(n, 1)")),
    "no columns": (federation(train=records(shape=(0,))), ("'bad'", "(3, 0)")),
    "not a tensor": (federation(train=Records([[1.0]], [0])), ("'bad'", "list")),
    "same name": (federation(name="good"), ("'good'", "two clients")),
    "no name": (federation(name=" "), ("client name", "not empty")),
    "name with a folder": (federation(name="../up"), ("client name", "'../up'")),
    "name of two lines": (federation(name="a\nb"), ("client name", r"'a\nb'")),
}


@pytest.mark.parametrize(("given", "says"), BAD.values(), ids=BAD.keys())
def test_a_bad_client_is_refused_by_name(given, says):
    with pytest.raises(BadValue) as refused:
        check(given)
    assert "\n" not in str(refused.value)
    for part in says:
        assert part in str(refused.value)


@pytest.mark.parametrize(("kind", "classes"), [("classes", 1), ("binary", 3), ("regression", 2), ("ranking", 2)])
def test_a_task_that_makes_no_sense_is_refused(kind, classes):
    with pytest.raises(BadValue):
        Task(kind, classes)
