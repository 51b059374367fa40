"""The record of a run as JSON: in the version of today, and in earlier ones."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import prifedsync
from prifedsync.accounting import NoisySteps, PrivacyPlan
from prifedsync.accounting.statement import Statement
from prifedsync.record import SCHEMA_VERSION, ClientRecord, Guarantees, RunRecord, plan_from_json
from prifedsync.run import recording
from prifedsync.scores import Interval, Measured, Score
from prifedsync.values import BadValue

from .terminal.printed import record, statement

RANGE = Interval(0.8912, 0.9765)
MODELS = ("personal", "released", "alone", "alone-private", "non-private")


def client(name, number=0, models=MODELS, metrics=("accuracy",), interval=RANGE):
    """Clients of one number share their plan and guarantees by value, not by identity."""
    stated = statement().as_json() | {"curve": [[i / 60, 1 - i / 60 - number / 1e6] for i in range(60)]}
    return ClientRecord(
        name=name, records=400 + number, plan={"mechanism": "NoisySteps", "records": 400 + number, "rounds": 30},
        rounds_taken=30, slots_taken=31, noisy_queries=31, planned=stated,
        taken={"epsilon": {"lower": 1.0, "upper": 2.0 + number}}, test_records=100,
        scores={model: {metric: Measured(0.934217, interval) for metric in metrics} for model in models},
        difference=interval and Interval(-0.01234, 0.04567),
    )  # fmt: skip


def old_client(name, personal):
    new = ("scores", "test_records", "difference", "slots_taken")
    own = {name: value for name, value in vars(client(name)).items() if name not in new}
    return own | {"personal": personal, "released": 0.75}


def old_version(version):
    """The JSON as schema versions 1 and 2 had it: one metric, and all of a client with it."""
    today = record()
    pooled = {1: "everybody", 2: "pooled"}[version]
    short = {name: (each.own, each.pooled) for name, each in today.scores.items()}
    scores = {
        name: {key: {"mean": score.mean, "worst": score.worst, "clients": score.clients}
               for key, score in zip(("own", pooled), both, strict=True)}
        for name, both in short.items()
    }  # fmt: skip
    new = ("by_metric", "lower_is_better", "in_use", "shared", "joining", "clients")
    rest = {name: value for name, value in today.as_json().items() if name not in new}
    clients = [old_client("a", 0.5), old_client("b", None)]
    return {**rest, "metric": "accuracy", "scores": scores, "clients": clients, "schema_version": version}


def test_a_record_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "record.json"
    clients = (client("a", 1), client("b", 2, interval=None), client("c", 1))
    clients[2].scores["alone"]["accuracy"] = Measured(None, None, "no test records")
    whole = record(clients=clients, lower_is_better=("rmse",), in_use="personal")
    path.write_text(whole.text(), encoding="utf-8")
    found = RunRecord.read(path)
    assert found == whole
    assert found.joining == whole.joining
    assert found.undefined == {("accuracy", "alone", "no test records"): ("c",)}
    data = json.loads(path.read_text(encoding="utf-8"))
    assert data["by_metric"]["accuracy"]["released"]["own"] == {
        "mean_over_clients": 0.92, "mean_over_clients_interval": [0.881, 0.951],
        "mean_over_records": 0.905, "mean_over_records_interval": [0.871, 0.941],
        "worst": 0.82, "clients": 3, "records": 90,
    }  # fmt: skip
    assert [row["client"] for row in data["joining"]] == ["a", "b", "c"]


def test_each_different_plan_and_guarantee_stands_once():
    data = record(clients=(client("a", 1), client("b", 2), client("c", 1))).as_json()
    assert [each["plan"] for each in data["clients"]] == [0, 1, 0]
    assert [each["planned"] for each in data["clients"]] == [0, 1, 0]
    assert [len(data["shared"][name]) for name in ("plan", "planned", "taken")] == [2, 2, 2]
    assert client("a").plan is not client("c").plan  # equal is enough


@pytest.mark.parametrize("plans", [1, 30])
def test_ten_thousand_clients_stay_under_five_megabytes(plans):
    shared = [client("", number) for number in range(plans)]
    few = replace(shared[0], name="", scores={})

    def one(i):
        like = shared[i % plans]
        bare = client("", metrics=("auc", "accuracy"), interval=None).scores
        return replace(few, name=f"hospital-of-somewhere-{i:05}", plan=like.plan, planned=like.planned, taken=like.taken,
                       records=like.records, scores=bare)  # fmt: skip

    scores = record().scores
    whole = record(clients=tuple(one(i) for i in range(10_000)), by_metric={"auc": scores, "accuracy": scores})
    text = whole.text()
    assert len(text.encode()) < 5_000_000
    assert len(json.loads(text)["shared"]["planned"]) == plans
    assert RunRecord.from_json(json.loads(text)).clients[4_321] == whole.clients[4_321]


def test_many_different_plans_keep_their_numbers_and_give_their_curves_back():
    """2,000 plans with statements and plans as a run writes them. The curve that holds for all stays in `guarantee`."""
    steps = NoisySteps(noise_multiplier=1.23, records=400, batch=16, local_steps=10)
    plan = PrivacyPlan(mechanism=steps, rounds=30, participation=0.5)
    guarantees = Guarantees(1e-5, 3)
    once = recording._Once(guarantees, "system", whole=False)
    short = once.planned(plan)
    whole = Statement.of(plan).as_json()
    assert short == {name: whole[name] for name in short}
    assert "curve" not in short
    assert "curve" in recording._Once(guarantees, "system", whole=True).planned(plan)
    levels, betas = zip(*whole["curve"], strict=True)
    assert plan_from_json(once.plan(plan)).guarantee()(np.array(levels)).tolist() == list(betas)
    size, text = _size_of_ten_thousand(2_000, once.plan(plan), short, once.taken(plan, 15))
    assert len(json.loads(text)["shared"]["planned"]) == 2_000
    assert size < 5_000_000


def _size_of_ten_thousand(different, plan, planned, taken):
    """10,000 clients of so many plans, which differ from these in their last digits."""

    def one(i):
        number = i % different
        upper = {"epsilon": {"lower": 1.2345678901234567, "upper": 1.3 + number / 1e16 * 3}}
        return replace(few, name=f"client-{i:05}", plan=plan | {"noise_multiplier": 1.23 + number / 7e3},
                       planned=planned | {"delta": 1e-5 + number / 1e16}, taken=taken | upper)  # fmt: skip

    few = client("", models=("personal", "released"), interval=None)
    text = record(clients=tuple(one(i) for i in range(10_000))).text()
    return len(text.encode()), text


@pytest.mark.parametrize(("most", "kept"), [(3, True), (2, False)])
def test_a_run_keeps_the_curves_of_few_plans(monkeypatch, most, kept):
    monkeypatch.setattr(recording, "MOST_WHOLE", most)
    config = {"rounds": 2, "data": {"classes": 2}, "local": {"batch": 4}}
    config |= {"privacy": {"noise_multiplier": 2.0, "randomness": "seeded"}}
    draw = torch.Generator().manual_seed(0)
    rows = {
        name: (torch.randn(n, 3, generator=draw), torch.arange(n) % 2) for name, n in {"a": 40, "b": 50, "c": 60}.items()
    }
    found = prifedsync.train(config, clients=rows).record
    assert all(("curve" in each.planned) == kept for each in found.clients)
    assert found.guarantee["curve"]


@pytest.mark.parametrize("version", [1, 2])
def test_a_record_of_an_earlier_version_is_read(version):
    old = RunRecord.from_json(json.loads(json.dumps(old_version(version))))
    assert old.schema_version == SCHEMA_VERSION == 5
    assert (old.metric, old.metrics, old.in_use) == ("accuracy", ("accuracy",), "released")
    assert old.scores["released"].own == Score(0.92, 0.82, 3)
    assert old.scores["released"].pooled == Score(0.72, 0.62, 3)
    first, second = old.clients
    assert (first.personal, first.released, first.plan) == (0.5, 0.75, client("a").plan)
    assert (second.personal, second.planned) == (None, client("b").planned)
    assert RunRecord.from_json(old.as_json()) == old


def test_a_plan_of_a_record_before_spare_attempts_has_none():
    """Schema version 3 is that of version 5 without attempts in plans, views in guarantees and deployment."""
    new = record().as_json()
    for plan in new["shared"]["plan"]:
        plan.pop("attempts", None)
    old = RunRecord.from_json({**new, "schema_version": 3})
    assert old.schema_version == SCHEMA_VERSION
    assert old.clients == record().clients


def test_a_record_of_version_4_was_in_one_process():
    new = record(clients=(client("a"),)).as_json()
    assert new.pop("deployment") is None
    old = RunRecord.from_json({**new, "schema_version": 4})
    assert old == record(clients=(client("a"),))
    assert old.schema_version == SCHEMA_VERSION


def test_what_happened_between_machines_is_read_as_it_was_written(tmp_path):
    said = {
        "carrier": "Flower 1.41.0", "participation": "server", "share": 0.5, "resumed": 2,
        "answers": {"a": {"sent": 1, "stayed": 0, "absent": 0, "refused": 0, "lost": 1}},
        "events": [{"round": 2, "client": "a", "answer": "lost", "reason": "was not reached"}], "events_left_out": 0,
    }  # fmt: skip
    path = tmp_path / "record.json"
    whole = record(clients=(client("a"),), deployment=said)
    path.write_text(whole.text(), encoding="utf-8")
    assert RunRecord.read(path).deployment == said
    assert json.loads(path.read_text(encoding="utf-8"))["schema_version"] == 5
    assert whole.repeatable() == record(clients=(client("a"),)).repeatable()  # when who was reached cannot be repeated


@pytest.mark.parametrize("version", [0, 6, None, "1"])
def test_other_versions_are_refused(version):
    with pytest.raises(BadValue, match="must be a schema version that this program can read, 1 to 5"):
        RunRecord.from_json({**record().as_json(), "schema_version": version})


def test_a_name_of_the_other_version_is_refused(tmp_path):
    path = tmp_path / "record.json"
    path.write_text(json.dumps({**old_version(1), "schema_version": 2}))
    with pytest.raises(BadValue, match=r"cannot be read: KeyError\('pooled'\); restore the file"):
        RunRecord.read(path)


def test_a_place_that_is_not_there_is_refused(tmp_path):
    path = tmp_path / "record.json"
    data = record(clients=(client("a"),)).as_json()
    data["clients"][0]["plan"] = 7
    path.write_text(json.dumps(data))
    with pytest.raises(BadValue, match="cannot be read: IndexError"):
        RunRecord.read(path)
