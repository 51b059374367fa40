"""Made-up tables are read by the rules that they were made by, as an owner's daemon reads its own."""

import pytest

from prifedsync.data.encoding import Encoding, Listed, Ranged
from prifedsync.data.federation import Task
from prifedsync.data.labels import Label
from prifedsync.deploy.made_up import made_up
from prifedsync.owner.policy import from_mapping
from prifedsync.owner.records import records_of

COLUMNS = (Ranged("age", (0.0, 120.0)), Listed("sex", ("f", "m")), Ranged("pressure", (50.0, 250.0)))
DATA = {
    "source": "csv", "path": "records.csv", "clients": 1, "partition": "iid", "test_fraction": 0.0, "label": "ill",
    "ranges": {"age": [0, 120], "pressure": [50, 250]}, "categories": {"sex": ["f", "m"]},
    "columns": ["age", "sex", "pressure"],
}  # fmt: skip
LABELS = {
    "classes": ({"task": "classes", "classes": 3}, Label("ill", Task("classes", 3))),
    "names": ({"task": "binary", "label_values": ["no", "yes"]}, Label("ill", Task("binary", 2), ("no", "yes"))),
    "numbers": ({"task": "regression"}, Label("ill", Task("regression", 0), span=(3.0, 4.0))),
}


def policy_of(folder, more, **source):
    data = DATA | more
    if more["task"] == "regression":
        data["ranges"] = data["ranges"] | {"ill": [3, 4]}
    return from_mapping(
        {
            "client": "a",
            "source": {"name": "a", "records": 70, **source},
            "data": data,
            "budget": {"mu": 1.0},
            "limits": {"models": ["softmax"]},
        },
        folder,
    )


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("form", [{}, {"separator": ";", "decimal": ","}], ids=["comma", "semicolon"])
def test_a_daemon_reads_what_was_made_up(tmp_path, kind, form):
    more, label = LABELS[kind]
    policy = policy_of(tmp_path, more | form)
    encoding = Encoding(COLUMNS, label, form.get("separator", ","), form.get("decimal", "."))
    (tmp_path / "records.csv").write_bytes(made_up(encoding, policy))
    own = records_of(policy)
    assert own.train.units == 70
    assert own.train.x.shape == (70, 4)
    assert own.train.x.std(0).min() > 0.1, "all records are alike"
    assert own.notes == ()


def test_persons_are_made_up_too(tmp_path):
    more, label = LABELS["classes"]
    policy = policy_of(tmp_path, more | {"person": "patient"}, unit="person")
    (tmp_path / "records.csv").write_bytes(made_up(Encoding(COLUMNS, label), policy))
    assert records_of(policy).train.units == 70
