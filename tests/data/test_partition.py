"""Partitions: every record with exactly one client unless they overlap, the same for the same seed, each split its own."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prifedsync.config import DataConfig
from prifedsync.data import Records, Task, check, load
from prifedsync.data.dirichlet import LabelDistribution, by_label, dirichlet
from prifedsync.data.partition import deal, divided, federated, held_out, iid, quantity, shards, subset
from prifedsync.values import BadValue


def numbered(n, labels=None):
    """Records that know their own number."""
    y = torch.arange(n) % 3 if labels is None else torch.as_tensor(labels)
    return Records(torch.arange(n, dtype=torch.float32).unsqueeze(1), y)


def partitioned(config, records, seed):
    """The records of each client before any are held out."""
    return {name: subset(records, rows) for name, rows in deal(config, records.y.numpy(), seed).rows.items()}


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


# ---------------------------------------------------------------------- labels and sizes by a Dirichlet distribution


def drawn(n=600, classes=10, seed=0, labels=None, **changed):
    """A Dirichlet split of records that know their own number, as rows by client."""
    y = torch.arange(n) % classes if labels is None else torch.as_tensor(labels)
    config = DataConfig(**({"partition": "dirichlet", "clients": 6, "records_per_client": 50} | changed))
    return {name: records.x[:, 0].long().tolist() for name, records in partitioned(config, numbered(n, y), seed).items()}


def refused(**changed):
    with pytest.raises(BadValue) as stopped:
        drawn(**changed)
    return str(stopped.value)


dirichlet_cases = st.tuples(
    st.integers(1, 8), st.integers(1, 40), st.sampled_from([1e-300, 1e-6, 0.05, 0.5, 10.0, 1e6]), st.integers(0, 2**40)
)


@settings(deadline=None)
@given(dirichlet_cases, st.integers(0, 50), st.integers(1, 30))
def test_clients_without_overlap_have_as_many_records_as_asked_for_and_share_none(case, spare, classes):
    clients, each, beta, seed = case
    n = clients * each + spare
    labels = np.random.default_rng(seed).integers(0, classes, n)
    split = drawn(n, labels=labels, seed=seed, clients=clients, records_per_client=each, concentration=beta)
    assert [len(mine) for mine in split.values()] == [each] * clients
    every = [row for mine in split.values() for row in mine]
    assert len(set(every)) == len(every) == clients * each
    assert set(every) <= set(range(n))


@settings(deadline=None)
@given(dirichlet_cases, st.integers(0, 50), st.integers(1, 30), st.floats(0, 0.9))
def test_with_overlap_sizes_are_exact_and_no_test_record_is_trained_on(case, spare, classes, fraction):
    clients, each, beta, seed = case
    n = each + spare
    labels = torch.from_numpy(np.random.default_rng(seed).integers(0, classes, n))
    config = DataConfig(
        partition="dirichlet", overlap=True, clients=clients, records_per_client=each, concentration=beta,
        test_fraction=fraction,
    )  # fmt: skip
    records = numbered(n, labels)
    federation = divided(config, records, Task("classes", max(2, classes)), seed)
    held = max(0, min(round(each * fraction), each - 1))
    trained, tested = set(), set()
    for client in federation.clients:
        train, test = (part.x[:, 0].long().tolist() for part in (client.train, client.test))
        assert len(set(train)) == len(train) == each - held
        assert len(set(test)) == len(test) <= held
        assert len(test) == held or classes > 1  # a rare label may have no training record, and then no chance
        assert torch.equal(client.train.y, labels[train])
        assert torch.equal(client.test.y, labels[test])
        trained |= {*train}
        tested |= {*test}
    assert not trained & tested


def test_with_overlap_a_client_is_tested_on_labels_as_it_has_them():
    config = DataConfig(partition="dirichlet", overlap=True, clients=8, records_per_client=1000, test_fraction=0.3)
    labels = torch.arange(20_000) % 4
    federation = divided(config, numbered(20_000, labels), Task("classes", 4), 0)
    for client in federation.clients:
        assert (len(client.train), len(client.test)) == (700, 300)
        shares = [np.bincount(part.y, minlength=4) / len(part) for part in (client.train, client.test)]
        assert abs(shares[0] - shares[1]).max() < 0.15  # four standard deviations of a half in 700 and in 300
    assert np.std([np.bincount(client.train.y, minlength=4)[0] / 700 for client in federation.clients]) > 0.15


def test_a_tiny_concentration_gives_a_client_one_label_and_a_huge_one_all_alike():
    one = drawn(6000, clients=30, records_per_client=100, concentration=1e-9)
    seen = [{row % 10 for row in mine} for mine in one.values()]
    assert {len(labels) for labels in seen} == {1}
    assert len(set.union(*seen)) > 5
    for mine in drawn(6000, clients=5, records_per_client=1000, concentration=1e6).values():
        counts = np.bincount(np.array(mine) % 10)
        assert abs(counts - 100).max() < 50  # five standard deviations of a fair draw


def test_one_client_may_take_everything():
    assert drawn(60, clients=1, records_per_client=60) == {"client-00": list(range(60))}
    assert drawn(60, clients=1, records_per_client=60, overlap=True, test_fraction=0.0) == {"client-00": list(range(60))}


def test_a_label_that_is_used_up_is_replaced_by_others():
    labels = np.array([0] * 5 + [1] * 100)
    for overlap in (False, True):
        split = drawn(105, labels=labels, clients=2, records_per_client=50, concentration=1e-9, overlap=overlap, seed=1,
                      test_fraction=0.0)  # fmt: skip
        assert [len(set(mine)) for mine in split.values()] == [50, 50]


def test_labels_that_nobody_has_and_more_labels_than_records():
    gaps = drawn(20, labels=np.array([3] * 10 + [900] * 10), clients=2, records_per_client=10)
    assert sorted(row for mine in gaps.values() for row in mine) == list(range(20))
    assert [len(mine) for mine in drawn(12, classes=12, clients=4, records_per_client=3).values()] == [3, 3, 3, 3]


def test_labels_of_a_binary_task_are_floats():
    labels = torch.arange(200).remainder(2).float()
    split = drawn(200, labels=labels, clients=3, records_per_client=30, concentration=1e-9, task="binary")
    assert all(len({row % 2 for row in mine}) == 1 for mine in split.values())


@pytest.mark.parametrize("overlap", [False, True])
def test_dirichlet_is_decided_by_the_seed(overlap):
    first, again, other = (drawn(overlap=overlap, seed=seed) for seed in (7, 7, 8))
    assert first == again
    assert all(first[name] != other[name] for name in first)


def test_more_clients_do_not_change_the_first_ones():
    few, many = (drawn(clients=clients, overlap=True) for clients in (3, 6))
    assert few == {name: many[name] for name in few}
    few, many = (drawn(clients=clients) for clients in (3, 6))
    assert few == {name: many[name] for name in few}


def test_the_order_of_clients_in_a_dict_changes_nothing():
    config = DataConfig(partition="dirichlet", clients=4, records_per_client=50)
    split = partitioned(config, numbered(300), 5)
    turned = {name: split[name] for name in reversed(split)}
    one, other = (federated(config, clients, Task("classes", 3), 5) for clients in (split, turned))
    others = {client.name: client for client in other.clients}
    for client in one.clients:
        assert torch.equal(client.train.x, others[client.name].train.x)
        assert torch.equal(client.test.x, others[client.name].test.x)


def test_labels_follow_the_distribution_that_was_drawn():
    """Averaged over many draws by one distribution, labels are as frequent as it says; so are those of test records."""
    distribution = LabelDistribution(np.arange(4), np.array([0.1, 0.2, 0.7, 0.0]))
    labels = np.repeat(np.arange(4), 1000)
    random = np.random.default_rng(0)
    for draw in (
        lambda: distribution.drawn(200, by_label(labels, distribution.labels), random),
        lambda: distribution.tests(200, labels, random),
    ):
        counts = sum(np.bincount(labels[draw()], minlength=4) for _ in range(200))
        assert counts[3] == 0
        spread = np.sqrt(distribution.probabilities * (1 - distribution.probabilities) / 40_000)
        assert (abs(counts / 40_000 - distribution.probabilities) <= 4 * spread).all()


def test_chances_vary_as_the_concentration_says():
    """In a Dirichlet distribution of ten labels, one probability has mean 1/10 and variance 0.09 / (10 β + 1)."""
    labels = np.arange(100) % 10
    for beta in (0.1, 1.0, 20.0):
        _, distributions = dirichlet(labels, 2000, 1, beta, True, np.random.default_rng)
        first = np.array([each.probabilities[0] for each in distributions])
        assert abs(first.mean() - 0.1) < 4 * np.sqrt(0.09 / (10 * beta + 1) / 2000)
        assert first.var() == pytest.approx(0.09 / (10 * beta + 1), rel=0.2)


def test_what_is_drawn_again_keeps_the_proportions_of_the_rest():
    distribution, random = LabelDistribution(np.arange(3), np.array([0.8, 0.15, 0.05])), np.random.default_rng(1)
    there = np.array([10, 10_000, 10_000])
    counts = sum(distribution.counts(1000, there, random) for _ in range(50))
    assert counts[0] == 500
    assert counts.sum() == 50_000
    assert counts[1] / counts[2] == pytest.approx(3, rel=0.05)
    bare = sum(LabelDistribution(np.arange(3), np.array([1.0, 0.0, 0.0])).counts(1000, there, random) for _ in range(50))
    assert bare[0] == 500
    assert bare[1] / bare[2] == pytest.approx(1, rel=0.05)  # no mass left: the others are equally likely


def test_tests_come_from_likely_labels_only():
    distribution = LabelDistribution(np.array([2, 5]), np.array([1.0, 0.0]))
    found = distribution.tests(100, np.array([2, 5, 7, 2, 5, 2]), np.random.default_rng(0))
    assert found.tolist() == [0, 3, 5]


def write_digitlike(folder, source):
    """Sixty records that know their number, in a file of the source's kind."""
    if source == "csv":
        (folder / "all.csv").write_text("x,label\n" + "".join(f"{i},{i % 3}\n" for i in range(60)), encoding="utf-8")
    else:
        np.savez(folder / "all.npz", x=np.arange(60.0)[:, None], y=np.arange(60) % 3)
    return str(folder / f"all.{source}")


@pytest.mark.parametrize("source", ["csv", "npz", "digits"])
@pytest.mark.parametrize("overlap", [True, False])
def test_copies_are_counted_over_training_records(source, overlap, tmp_path):
    own = {"path": write_digitlike(tmp_path, source), "classes": 3, "ranges": {"*": (0, 60)}} if source != "digits" else {}
    config = DataConfig(
        source=source, partition="dirichlet", overlap=overlap, clients=5, records_per_client=12, concentration=0.3, **own
    )
    federation = load(config, 2)
    holders = {}
    for client in federation.clients:
        for record in client.train.x:
            holders.setdefault(tuple(record.flatten().tolist()), set()).add(client.name)
    counted = max(len(names) for names in holders.values())
    assert federation.copies == counted
    assert overlap or counted == 1
    assert counted > 1 or not overlap
    assert check(federation).copies == counted


def test_every_record_with_every_client():
    config = DataConfig(partition="dirichlet", overlap=True, clients=7, records_per_client=30, test_fraction=0.0)
    federation = divided(config, numbered(30), Task("classes", 3), 0)
    assert federation.copies == 7


def test_other_partitions_have_no_copies():
    for partition in ("iid", "shards", "quantity"):
        config = DataConfig(partition=partition, clients=4)
        assert divided(config, numbered(60), Task("classes", 3), 0).copies == 1


@pytest.mark.parametrize(("changed", "says"), [
    ({"clients": 13}, ("data.clients × data.records_per_client = 650", "600", "data.overlap = true")),
    ({"records_per_client": 601, "overlap": True}, ("data.records_per_client = 601", "600", "draw fewer")),
    ({"records_per_client": 0}, ("data.records_per_client = 0", "at least 1")),
    ({"concentration": 0.0}, ("data.concentration = 0", "(0, 1e+06]")),
    ({"concentration": float("nan"), "overlap": True}, ("data.concentration = nan",)),
    ({"concentration": -1.0, "partition": "quantity"}, ("data.concentration = -1",)),
    ({"clients": 0, "overlap": True}, ("data.clients = 0",)),
    ({"clients": 601, "partition": "quantity"}, ("data.clients = 601", "600")),
    ({"task": "regression"}, ("data.partition = dirichlet needs classes", "quantity")),
    ({"task": "regression", "overlap": True}, ("data.partition = dirichlet needs classes", "quantity")),
    ({"partition": "dirichlets"}, ("data.partition = 'dirichlets'", "dirichlet, quantity or column")),
])  # fmt: skip
def test_splits_that_cannot_be_made(changed, says):
    line = refused(**changed)
    assert "\n" not in line
    for part in says:
        assert part in line


@settings(deadline=None)
@given(dirichlet_cases, st.integers(0, 100))
def test_quantity_deals_every_record_once_and_leaves_nobody_without(case, spare):
    clients, _, beta, seed = case
    n = clients + spare
    dealt = quantity(n, clients, beta, seed)
    assert sorted(np.concatenate(dealt)) == list(range(n))
    assert len(dealt) == clients
    assert min(map(len, dealt)) >= (2 if n >= 2 * clients else 1)


def test_sizes_differ_by_the_concentration():
    spread = {beta: np.std([len(part) for part in quantity(10_000, 50, beta, 3)]) for beta in (0.1, 1.0, 1e6)}
    assert spread[0.1] > 2 * spread[1.0] > 4 * spread[1e6]
    assert spread[1e6] < 30  # of a fair draw: 14
    assert [len(part) for part in quantity(100, 5, 1e-9, 0)].count(2) == 4  # one has all the rest


def test_quantity_is_for_numbers_too():
    config = DataConfig(partition="quantity", clients=3, task="regression")
    split = [partitioned(config, numbered(50, torch.rand(50)), seed) for seed in (0, 0, 1)]
    assert sum(map(len, split[0].values())) == 50
    assert all(torch.equal(split[0][name].x, split[1][name].x) for name in split[0])
    assert [len(each) for each in split[0].values()] != [len(each) for each in split[2].values()]
