"""The owner's records: all of one client, in the number that the policy makes public, and refused to the owner alone."""

import pytest

from prifedsync.owner.policy import EXAMPLE, from_mapping
from prifedsync.owner.records import records_of
from prifedsync.values import BadValue


def table(path, rows):
    path.write_text("x,y,label\n" + "".join(f"{row}\n" for row in rows))


def policy(folder, **changes):
    tables = {name: dict(value) if isinstance(value, dict) else value for name, value in EXAMPLE.items()}
    for name, value in changes.items():
        where, _, key = name.rpartition("__")
        tables[where][key] = value
    return from_mapping(tables, folder)


@pytest.fixture
def folder(tmp_path):
    table(tmp_path / "records.csv", [f"0.{i},0.{9 - i},{i % 2}" for i in range(10)])
    return tmp_path


def test_all_records_are_the_owners(folder, monkeypatch):
    monkeypatch.chdir("/")  # the path starts at the policy's folder
    own = records_of(policy(folder, source__records=10))
    assert len(own.train) == 10
    assert len(own.test) == 0
    assert own.description.sizes == {"hospital-a": 10}
    assert own.description.shape == (2,)
    assert own.train.x.min() >= -1


def test_however_the_policy_would_split_a_federation(folder):
    own = records_of(policy(folder, source__records=10, data__clients=7, data__partition="shards"))
    assert len(own.train) == 10


def test_the_same_records_are_held_out_every_time(folder):
    held = [records_of(policy(folder, source__records=7, data__test_fraction=0.3)) for _ in range(2)]
    assert [len(each.test) for each in held] == [3, 3]
    assert held[0].test.x.tolist() == held[1].test.x.tolist()
    with pytest.raises(BadValue, match=r"source\.records = 10 must be the number of units to train on"):
        records_of(policy(folder, source__records=10, data__test_fraction=0.3))


@pytest.mark.parametrize("records", [9, 11])
def test_a_public_number_must_be_right(folder, records):
    with pytest.raises(BadValue, match="and there are 10 records"):
        records_of(policy(folder, source__records=records))


@pytest.mark.parametrize("records", [9, 10, 11])
def test_a_nominal_number_is_not_compared_with_the_private_one(folder, records):
    own = records_of(policy(folder, source__records=records, source__neighbours="add-remove"))
    assert own.description.sizes == {"hospital-a": records}
    assert len(own.train) == 10


def test_persons_are_counted_where_they_are_the_unit(tmp_path):
    (tmp_path / "records.csv").write_text("who,x,label\n" + "".join(f"p{i % 4},0.{i},{i % 2}\n" for i in range(8)))
    changes = {"source__unit": "person", "source__records": 4, "data__person": "who"}
    own = records_of(policy(tmp_path, **changes, source__holders=3, data__person_clients=3))
    assert own.description.unit == "person"
    assert own.description.copies == 3
    assert len(own.train) == 8
    with pytest.raises(BadValue, match=r"must be at most data\.rows_per_person = 1"):
        records_of(policy(tmp_path, **changes, data__rows_per_person=1))
    with pytest.raises(BadValue, match="and there are 4 persons"):
        records_of(policy(tmp_path, **{**changes, "source__records": 8}))


def test_records_of_several_clients_are_refused(tmp_path):
    for name in "ab":
        table(tmp_path / f"{name}.csv", ["0.1,0.2,1", f"0.{ord(name)},0.1,0"])
    with pytest.raises(BadValue, match="holds the records of 2 clients"):
        records_of(policy(tmp_path, data__path=".", source__records=4))


def test_an_invalid_row_is_refused_with_its_place(folder):
    table(folder / "records.csv", ["0.1,0.2,1", "0.3,nothing,0"])
    with pytest.raises(BadValue, match="line 3"):
        records_of(policy(folder, source__records=2))
