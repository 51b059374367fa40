"""npz files: one a client, or one for all."""

import numpy as np
import pytest
import torch

from prifedsync.config import DataConfig
from prifedsync.data import load
from prifedsync.data.arrays import read
from prifedsync.values import BadValue


def loaded(path, **changed):
    return load(DataConfig(**({"source": "npz", "path": str(path), "classes": 2, "test_fraction": 0.0} | changed)), 0)


def test_one_file_a_client_with_or_without_its_own_test_set(tmp_path):
    np.savez(tmp_path / "b.npz", x=np.ones((4, 2, 3)), y=[0, 1, 1, 0])
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 2, 3)), y=[0, 1], x_test=np.ones((3, 2, 3)), y_test=[1, 1, 1])
    a, b = loaded(tmp_path, test_fraction=0.5).clients
    assert (a.name, len(a.train), len(a.test)) == ("a", 2, 3)
    assert (b.name, len(b.train), len(b.test)) == ("b", 2, 2)
    assert a.train.x.dtype == torch.float32
    assert a.train.x.shape == (2, 2, 3)


@pytest.mark.parametrize("owners", [np.array(["n", "s", "n"]), np.array([b"n", b"s", b"n"]), np.array([7, 8, 7])])
def test_one_file_with_an_array_for_the_client(tmp_path, owners):
    for given, array in (("", "client"), ("site", "site")):
        np.savez(tmp_path / "all.npz", x=np.eye(3), y=[0, 1, 1], **{array: owners})
        first, second = loaded(tmp_path / "all.npz", client_column=given).clients
        assert (first.name, second.name) in (("n", "s"), ("7", "8"))
        assert first.train.x.tolist() == [[1, 0, 0], [0, 0, 1]]


def test_one_file_without_clients_is_split(tmp_path):
    np.savez(tmp_path / "all.npz", x=np.arange(40.0).reshape(40, 1), y=np.arange(40) % 2)
    federation = loaded(tmp_path / "all.npz", clients=4)
    assert sorted(torch.cat([c.train.x for c in federation.clients])[:, 0].tolist()) == list(range(40))


def test_whole_numbers_are_tokens_unless_a_range_says_otherwise(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([[0, 255]], dtype=np.uint8), y=[1])
    tokens = loaded(tmp_path)
    assert tokens.tokens
    assert tokens.clients[0].train.x.tolist() == [[0, 255]]
    values = loaded(tmp_path, ranges={"*": (0, 255)})
    assert not values.tokens
    assert values.clients[0].train.x.tolist() == [[-1, 1]]


def test_missing_values_and_texts(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([[np.nan, 4.0]]), y=np.array(["cat"]))
    records = loaded(tmp_path, missing={"*": 0}, ranges={"*": (-4, 4)}, label_values=("dog", "cat")).clients[0].train
    assert (records.x.tolist(), records.y.tolist()) == ([[0, 1]], [1])


def test_a_target_has_a_range_under_the_label_s_name(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones((2, 1)), y=[0.0, 10.0])
    records = loaded(tmp_path, task="regression", classes=0, ranges={"label": (0, 20)}).clients[0].train
    assert records.y.tolist() == [-1, 0]


def test_a_file_that_is_gone_is_a_sentence(tmp_path):
    with pytest.raises(BadValue, match=r"^file = gone.npz cannot be read: No such file or directory; "):
        read(tmp_path / "gone.npz")
