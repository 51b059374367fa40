"""Persons in tables and arrays: ids, refusals, and splits that never divide a person."""

import numpy as np
import pytest
import torch

from prifedsync import config
from prifedsync.config import DataConfig
from prifedsync.data import Client, Federation, Records, Task, check, given, load
from prifedsync.data.census import census
from prifedsync.values import BadValue

from .test_table import write

TABLE = "who,x,label\nb,1,0\na,2,1\nb,3,1\na,4,0\nc,5,0\n"


def loaded(path, seed=0, **changed):
    settings = {
        "source": "csv",
        "path": str(path),
        "classes": 2,
        "test_fraction": 0.0,
        "person": "who",
        "ranges": {"x": (-100, 100)},
    }
    settings |= changed
    return load(DataConfig(**settings), seed)


def values(x):
    """The column of numbers as it is in the file."""
    return x.mul(100).round().flatten().tolist()


def test_rows_of_a_person_stand_side_by_side_in_the_order_of_ids(tmp_path):
    (client,) = loaded(write(tmp_path, north=TABLE)).clients
    assert values(client.train.x) == [2, 4, 1, 3, 5]  # the id is no feature
    assert client.train.persons.tolist() == [0, 0, 1, 1, 2]
    assert client.train.units == 3


def test_what_the_rows_are_decides_nothing_about_others(tmp_path):
    """A person's rows moved, changed and multiplied: who is held out and who comes where stays."""
    other = "who,x,label\nc,9,1\nc,9,1\na,2,1\nb,1,0\nc,9,1\nb,3,1\na,4,0\n"
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = (loaded(write(tmp_path / name, north=text), test_fraction=0.4, seed=3).clients[0]
                for name, text in (("one", TABLE), ("two", other)))  # fmt: skip
    assert one.train.units == two.train.units == 2
    both = [{p: values(rows.x[rows.persons == p]) for p in range(rows.units)} for rows in (one.train, two.train)]
    held = [{tuple(values(rows.x[rows.persons == p])) for p in range(rows.units)} for rows in (one.test, two.test)]
    replaced = {(5.0,): (9.0, 9.0, 9.0)}
    assert {p: list(replaced.get(tuple(rows), tuple(rows))) for p, rows in both[0].items()} == both[1]
    assert {replaced.get(rows, rows) for rows in held[0]} == held[1]


@pytest.mark.parametrize(("ids", "persons"), [
    (["7", "7.0", " 7", "007", "8"], 2), (["p1", "P1", "p1 "], 2), (["7", "7a"], 2), (["1e3", "1000"], 1),
    ([str(2**60), str(2**60 + 1)], 2), (["inf", "Infinity"], 2), (["0", "-0", "0.0"], 1),
    (["Jos\u00e9", "Jose\u0301", "Jos\u00e9\u200b", "\ufeffJos\u00e9"], 1), (["7", "\uff17"], 1),
])  # fmt: skip
def test_ids_that_are_numbers_are_compared_as_numbers(ids, persons, tmp_path):
    rows = "".join(f'"{each}",1,0\n' for each in ids)
    (client,) = loaded(write(tmp_path, a=f"who,x,label\n{rows}")).clients
    assert client.train.units == persons


@pytest.mark.parametrize(("text", "changed", "said"), [
    ("who,x,label\na,1,0\n,2,1\n", {}, ("'north'", "north.csv line 3", "column 'who'", "must name a person")),
    ("who,x,label\na,1,0\nNA,2,1\n", {}, ("line 3", "must name a person")),
    (TABLE, {"person": "whom"}, ("data.person", "is not a column", "did you mean 'who'?")),
    (TABLE, {"person": "label"}, ("data.person", "is also the label")),
    (TABLE, {"columns": ("who", "x")}, ("data.columns", "the person")),
    (TABLE, {"rows_per_person": 1}, ("client 'north'", "records of one person = 2", "data.rows_per_person = 1", "public")),
    (TABLE, {"person_clients": 2}, ("data.person_clients = 2", "number of clients, 1")),
])  # fmt: skip
def test_tables_that_are_refused(text, changed, said, tmp_path):
    with pytest.raises(BadValue) as refused:
        loaded(write(tmp_path, north=text), **changed)
    assert all(part in str(refused.value) for part in said), refused.value


def test_settings_that_are_refused():
    with pytest.raises(BadValue, match=r"data\.person = .*digits"):
        config.load("digits", ["data.person=who"])
    with pytest.raises(BadValue, match=r"data\.person_clients = 2 is about persons"):
        config.load("digits", ["data.person_clients=2"])


def test_another_id_moves_at_most_one_other_person_to_the_other_side(tmp_path):
    """Else training sets of neighbours would differ in many persons, and the guarantee is about one."""

    def held(first, folder):
        folder.mkdir()
        ids = [str(first), *map(str, range(2, 101))]
        table = "who,x,label\n" + "".join(f"{each},{n / 2},0\n" for n, each in enumerate(ids))
        (client,) = loaded(write(folder, a=table), test_fraction=0.2).clients
        return {round(value) for value in client.test.x.mul(200).flatten().tolist()} - {0}

    before = held(1, tmp_path / "one")
    for other in (1000, -5, "anna", "zoë"):
        after = held(other, tmp_path / str(other))
        assert len(before ^ after) <= 1
    assert before


def test_a_checked_federation_can_be_checked_again(tmp_path):
    once = loaded(write(tmp_path, a=TABLE, b=TABLE.replace("c,5", "c,6")), test_fraction=0.34)
    again = check(once)
    for one, two in zip(once.clients, again.clients, strict=True):
        assert torch.equal(one.train.persons, two.train.persons)
        assert torch.equal(one.test.persons, two.test.persons)
        assert not set(one.train.persons.tolist()) & set(one.test.persons.tolist())


def test_persons_are_not_dealt_to_clients_that_share_records(tmp_path):
    write(tmp_path, all=TABLE)
    with pytest.raises(BadValue, match="would deal one person's records to several clients"):
        loaded(tmp_path / "all.csv", partition="dirichlet", overlap=True, clients=2, records_per_client=3)


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5])
def test_a_person_is_trained_on_or_tested_on_never_both(fraction, tmp_path):
    rng = np.random.default_rng(0)
    rows = [(f"p{person}", person) for person in range(40) for _ in range(rng.integers(1, 31))]
    rng.shuffle(rows)
    text = "who,x,label\n" + "".join(f"{who},{x},0\n" for who, x in rows)
    for seed in range(3):
        (client,) = loaded(write(tmp_path, a=text), test_fraction=fraction, seed=seed).clients
        train, test = (set(values(part.x)) for part in (client.train, client.test))
        assert not train & test
        assert len(test) == round(40 * fraction)  # of persons, whatever rows they have
        assert len(client.train) + len(client.test) == len(rows)
        assert (client.train.units, client.test.units) == (len(train), len(test))


@pytest.mark.parametrize("partition", ["iid", "quantity"])
def test_a_file_is_dealt_by_person(partition, tmp_path):
    rows = [f"p{i % 23},{i % 23},0\n" for i in range(100)]
    path = write(tmp_path, a="who,x,label\n" + "".join(rows)) + "/a.csv"
    clients = loaded(path, clients=4, partition=partition).clients
    whose = [set(values(client.train.x)) for client in clients]
    assert sum(map(len, whose)) == 23 == len(set.union(*whose))
    assert sum(client.train.units for client in clients) == 23
    with pytest.raises(BadValue, match="deals records by their labels"):
        loaded(path, clients=4, partition="shards")


def test_arrays_with_persons(tmp_path):
    x, y, who = np.arange(5.0).reshape(5, 1), np.array([0, 1, 1, 0, 0]), np.array([4, 2, 4, 2, 9])
    settings = DataConfig(source="npz", path=str(tmp_path), classes=2, person="who", test_fraction=0.0, person_clients=2)
    np.savez(tmp_path / "a.npz", x=x, y=y, who=who)
    np.savez(tmp_path / "b.npz", x=x + 1, y=y, who=who, x_test=x[:1], y_test=y[:1], who_test=np.array([7]))
    federation = load(settings, 0)
    assert (federation.unit, federation.copies) == ("person", 2)
    assert federation.description.sizes == {"a": 3, "b": 3}
    assert federation.clients[1].test.units == 1
    from_python = given({"a": (x, y, who), "b": (x, y, [str(each) for each in who])}, settings, 0)
    for client in from_python.clients:
        assert client.train.x.flatten().tolist() == [0, 2, 1, 3, 4]  # the records of 4, of 2 and of 9
    both = {"a": (x, y, who, x, y, who), "b": (x, y, who)}
    with pytest.raises(BadValue, match="has training and test records"):
        given(both, settings, 0)
    with pytest.raises(BadValue, match=r"with data\.person a dict of client name"):
        given({"a": (x, y)}, settings, 0)
    with pytest.raises(BadValue, match="3 parts must be a Federation"):
        given({"a": (x, y, who)}, DataConfig(classes=2), 0)
    shifted = {"a": (x, y, [4, 2, 4, 2, 9, 9], x, y, [1, 1, 1, 1])}
    with pytest.raises(BadValue, match="one whole number or text for each of the 5 records"):
        given(shifted, settings, 0)
    with pytest.raises(BadValue, match="person of record 1"):
        given({"a": (x, y, ["a", " ", "b", "c", "d"])}, DataConfig(classes=2, person="who", source="npz", path="."), 0)


def test_a_federation_from_python():
    def records(persons, n=4):
        return Records(torch.ones(n, 2), torch.zeros(n), persons)

    task, whose = Task("binary", 2), torch.tensor([5, 3, 5, 3])
    federation = check(Federation((Client("a", records(whose), records(None, 0)),), task))
    assert federation.unit == federation.description.unit == "person"
    assert federation.clients[0].train.persons.tolist() == [0, 0, 1, 1]
    assert federation.clients[0].test.persons.tolist() == []
    for clients, said in (
        ((Client("a", records(whose), records(None)),), "all clients, or for none"),
        ((Client("a", records(whose), records(None, 0)), Client("b", records(None), records(None, 0))), "client 'b'"),
        ((Client("a", records(whose), records(whose)),), "has training and test records"),
        ((Client("a", records(whose.float()), records(None, 0)),), "int64"),
        ((Client("a", records(whose[:3]), records(None, 0)),), "each of the 4 records"),
    ):
        with pytest.raises(BadValue, match=said):
            check(Federation(clients, task))
    plain = Federation((Client("a", records(None), records(None, 0)),), task)
    with pytest.raises(BadValue, match="these records have no persons"):  # never silently about records
        given(plain, DataConfig(person="who", source="npz", path="."), 0)


def test_the_census_counts_both(tmp_path):
    found = census(loaded(write(tmp_path, a=TABLE, b=TABLE.replace("c,5", "c,6")), test_fraction=0.34))
    assert found.persons == 4
    assert [client.persons for client in found.clients] == [(2, 1), (2, 1)]
    assert sum(client.train + client.test for client in found.clients) == 10
