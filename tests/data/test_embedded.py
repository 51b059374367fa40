"""Data sets that come with scikit-learn."""

import torch

from prifedsync.config import DataConfig
from prifedsync.data import load


def test_digits_are_the_default():
    digits = load(DataConfig(), 0)
    assert digits.shape == (1, 8, 8)
    assert (digits.task.kind, digits.task.classes, digits.task.outputs) == ("classes", 10, 10)
    assert [client.name for client in digits.clients] == [f"client-{i:02}" for i in range(10)]
    assert sum(len(c.train) + len(c.test) for c in digits.clients) == 1797
    assert all(0.19 < len(c.test) / (len(c.train) + len(c.test)) < 0.21 for c in digits.clients)
    x = torch.cat([c.train.x for c in digits.clients])
    assert (x.dtype, x.min().item(), x.max().item()) == (torch.float32, 0, 1)
    assert digits.clients[0].train.y.dtype == torch.int64
    assert not digits.tokens


def test_digits_differ_between_clients_under_shards_only():
    for partition, most in (("shards", 8), ("iid", 10)):
        federation = load(DataConfig(partition=partition), 1)
        seen = [len(client.train.y.unique()) for client in federation.clients]
        assert max(seen) <= most
        assert partition == "shards" or min(seen) == 10


def test_a_client_of_digits_does_not_depend_on_the_global_random_state():
    first = load(DataConfig(), 5)
    torch.manual_seed(99)
    again = load(DataConfig(), 5)
    assert all(torch.equal(a.train.x, b.train.x) for a, b in zip(first.clients, again.clients, strict=True))


def test_breast_cancer_is_scaled_by_public_numbers():
    cancer = load(DataConfig(source="breast-cancer", clients=5, partition="iid"), 0)
    assert cancer.shape == (30,)
    assert (cancer.task.kind, cancer.task.outputs) == ("binary", 1)
    x = torch.cat([part.x for c in cancer.clients for part in (c.train, c.test)])
    y = torch.cat([part.y for c in cancer.clients for part in (c.train, c.test)])
    assert len(x) == 569
    assert y.dtype == torch.float32
    assert y.sum() == 357  # benign
    assert x.abs().max() == 1
    # a range that does not fit its column would clamp most of it
    assert (x.abs() == 1).float().mean(0).max() < 0.05


def test_breast_cancer_may_be_called_binary():
    assert load(DataConfig(source="breast-cancer", task="binary", classes=2), 0).task.kind == "binary"
