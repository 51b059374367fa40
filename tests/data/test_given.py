"""Records from Python: a function by its name, or given as they are."""

import numpy as np
import pytest
import torch

from prifedsync.config import DataConfig
from prifedsync.data import Client, Federation, Records, Task, given, load
from prifedsync.values import BadValue

SOURCE = """
import numpy as np
import torch
from prifedsync.data import Client, Federation, Records, Task

def two():
    return {"a": (np.eye(4), [0, 1, 0, 1]), "b": (torch.ones(2, 4), torch.tensor([1, 0]), np.ones((1, 4)), [1])}

def seeded(seed):
    return {"a": (np.full((3, 2), float(seed)), np.zeros(3))}

def empty_test():
    return {"a": (np.eye(2), [0, 1], [], [])}

def half():
    return {"a": (torch.ones(2, 3, dtype=torch.bfloat16), torch.tensor([True, False]))}

def federation():
    some = Records(torch.ones(3, 2, dtype=torch.float64), torch.tensor([0.5, 1.5, 2.5], dtype=torch.float64))
    return Federation((Client("only", some, some),), Task("regression", 0))
"""


@pytest.fixture
def source(tmp_path):
    (tmp_path / "mine.py").write_text(SOURCE)
    return f"{tmp_path}/mine.py"


def loaded(source, name, **changed):
    return load(DataConfig(**({"source": f"{source}:{name}", "classes": 2, "test_fraction": 0.0} | changed)), 7)


def test_a_dict_of_arrays_or_tensors(source):
    a, b = loaded(source, "two", test_fraction=0.25).clients
    assert (len(a.train), len(a.test), len(b.train), len(b.test)) == (3, 1, 2, 1)
    assert b.train.y.dtype == torch.int64


def test_the_seed_is_given_to_who_takes_it(source):
    assert loaded(source, "seeded").clients[0].train.x.unique().tolist() == [7]


def test_an_empty_test_set_has_no_shape(source):
    assert loaded(source, "empty_test").clients[0].test.x.shape == (0, 2)


def test_other_kinds_of_numbers(source):
    records = loaded(source, "half").clients[0].train
    assert (records.x.dtype, records.y.tolist()) == (torch.float32, [1, 0])


def test_a_federation_is_taken_with_its_own_task(source):
    federation = loaded(source, "federation", classes=0)
    assert federation.task.kind == "regression"
    assert federation.clients[0].train.x.dtype == torch.float32
    assert federation.clients[0].test.y.tolist() == [0.5, 1.5, 2.5]


def test_public_ranges_hold_for_functions_too(source):
    x = loaded(source, "seeded", ranges={"*": (0, 14)}).clients[0].train.x
    assert np.allclose(x, 0)


def test_clients_given_as_they_are():
    config = DataConfig(classes=2, test_fraction=0.5)
    a, b = given(
        {"a": (np.eye(4), [0, 1, 0, 1]), "b": (np.ones((2, 4)), [1, 0], np.ones((3, 4)), [1, 1, 1])}, config, 0
    ).clients
    assert (len(a.train), len(a.test), len(b.train), len(b.test)) == (2, 2, 2, 3)
    some = Records(torch.ones(3, 2), torch.zeros(3))
    assert given(Federation((Client("only", some, some),), Task("binary", 2)), DataConfig(), 0).task.kind == "binary"


def test_clients_given_wrongly():
    for clients in ([1, 2], torch.ones(3, 2)):
        with pytest.raises(BadValue, match=r"^clients = a (list|Tensor) must be a Federation, or a dict"):
            given(clients, DataConfig(classes=2), 0)
    with pytest.raises(BadValue, match=r"^client 'b', label of record 1 = 7"):
        given({"a": (np.eye(2), [0, 1]), "b": (np.eye(2), [0, 7])}, DataConfig(classes=2), 0)
