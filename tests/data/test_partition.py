"""Partitions: every record with exactly one client, the same for the same seed, each client's split its own."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prifedsync.config import DataConfig
from prifedsync.data import Records
from prifedsync.data.partition import held_out, iid, partitioned, shards


def numbered(n, labels=None):
    """Records that know their own number."""
    y = torch.arange(n) % 3 if labels is None else torch.as_tensor(labels)
    return Records(torch.arange(n, dtype=torch.float32).unsqueeze(1), y)


sizes = st.tuples(st.integers(1, 12), st.integers(1, 5)).flatmap(
    lambda cs: st.tuples(st.just(cs[0]), st.just(cs[1]), st.integers(cs[0] * cs[1], 300), st.integers(0, 2**40))
)


@settings(deadline=None)
@given(sizes)
def test_every_record_is_dealt_exactly_once(case):
    clients, each, n, seed = case
    labels = np.random.default_rng(seed).integers(0, 10, n)
    for dealt in (iid(n, clients, seed), shards(labels, clients, each, seed)):
        assert len(dealt) == clients
        assert sorted(np.concatenate(dealt)) == list(range(n))
    assert {len(part) for part in iid(n, clients, seed)} <= {n // clients, -(-n // clients)}


@settings(deadline=None)
@given(sizes)
def test_a_client_has_few_labels_under_shards(case):
    clients, each, n, seed = case
    labels = np.sort(np.random.default_rng(seed).integers(0, 10, n))
    borders = len(set(labels)) - 1  # a shard has one label, and one more for each border within it
    seen = sum(len(set(labels[part])) for part in shards(labels, clients, each, seed))
    assert seen <= clients * each + borders


@pytest.mark.parametrize("partition", ["shards", "iid"])
def test_the_seed_decides(partition):
    config = DataConfig(partition=partition, clients=5)
    split = [partitioned(config, numbered(200), seed) for seed in (7, 7, 8)]
    assert all(torch.equal(split[0][name].x, split[1][name].x) for name in split[0])
    assert not all(torch.equal(split[0][name].x, split[2][name].x) for name in split[0])


def test_records_keep_their_labels():
    records = numbered(100)
    for mine in partitioned(DataConfig(clients=4), records, 0).values():
        assert torch.equal(mine.y, mine.x[:, 0].long() % 3)


def test_shards_of_numbers_are_neighbours_on_the_line():
    values = torch.randperm(100, generator=torch.Generator().manual_seed(0)).float()
    config = DataConfig(clients=4, shards_per_client=1)
    spans = sorted((float(c.y.min()), float(c.y.max())) for c in partitioned(config, numbered(100, values), 0).values())
    assert all(high < low for (_, high), (low, _) in pairwise(spans))


@pytest.mark.parametrize(("clients", "last"), [(1, "client-00"), (10, "client-09"), (101, "client-100")])
def test_names_have_one_width(clients, last):
    names = list(partitioned(DataConfig(clients=clients, partition="iid"), numbered(200), 0))
    assert names[-1] == last
    assert names == sorted(names)


@settings(deadline=None)
@given(st.integers(0, 60), st.floats(0, 1, exclude_max=True), st.integers(0, 1000))
def test_held_out_records_are_apart_and_one_is_left(n, fraction, seed):
    client = held_out("a", numbered(n), fraction, seed)
    numbers = torch.cat([client.train.x, client.test.x])[:, 0].tolist()
    assert sorted(numbers) == list(range(n))
    assert len(client.test) == max(0, min(round(n * fraction), n - 1))
    assert len(client.train) >= min(n, 1)


def test_a_client_is_split_by_its_name_and_the_seed_alone():
    first, again = held_out("a", numbered(50), 0.2, 3), held_out("a", numbered(50), 0.2, 3)
    assert torch.equal(first.test.x, again.test.x)
    for other in (held_out("b", numbered(50), 0.2, 3), held_out("a", numbered(50), 0.2, 4)):
        assert not torch.equal(first.test.x, other.test.x)


def test_nothing_is_held_out_on_request():
    client = held_out("a", numbered(10), 0.0, 0)
    assert len(client.train) == 10
    assert client.test.x.shape == (0, 1)


def test_torch_and_numpy_keep_their_random_state():
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    partitioned(DataConfig(), numbered(100), 0)
    held_out("a", numbered(10), 0.5, 0)
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)  # noqa: NPY002
