"""A federation whose patients have 1 to 30 rows, from its files to the record of a run."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from prifedsync.accounting.statement import Statement
from prifedsync.audit.configured import audit_config
from prifedsync.config import load
from prifedsync.planning import UNCALIBRATED, jobs_of
from prifedsync.record import plan_from_json
from prifedsync.run import prepare, resume, train
from prifedsync.run.forecast import forecast
from prifedsync.terminal import print_record
from prifedsync.values import BadValue

HOSPITALS = {"north": 40, "south": 25, "west": 12}
SETTINGS = """
rounds = 4
compare = ["alone", "non-private"]
[data]
source = "csv"
path = "{path}"
person = "patient_id"
task = "binary"
ranges = {{ "*" = [-4, 4] }}
[local]
learning_rate = 1.0
[privacy]
noise_multiplier = 3.0
randomness = "seeded"
"""


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A file a hospital; a patient's rows are alike, and stand anywhere."""
    folder, rng = tmp_path_factory.mktemp("hospitals"), np.random.default_rng(0)
    for name, patients in HOSPITALS.items():
        rows = []
        for patient in range(patients):
            usual = rng.normal(size=3)
            for _ in range((1, 30, *rng.integers(1, 31, patients))[patient]):
                x = usual + 0.3 * rng.normal(size=3)
                rows.append([f"{name} {patient}", *np.round(x, 3), int(x @ (2, -1, 0.5) > 0)])
        rng.shuffle(rows)
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["patient_id", "a", "b", "c", "label"], *rows])
    return folder


@pytest.fixture(scope="module")
def settings(tables, tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "run.toml"
    path.write_text(SETTINGS.format(path=tables))
    return path


TRAINED = {name: patients - round(patients * 0.2) for name, patients in HOSPITALS.items()}


def test_a_run_counts_samples_and_states_persons(settings):
    record = train(load(str(settings), ["local.batch=8", "rounds=20", "privacy.noise_multiplier=1.0"])).record
    assert {client.name: client.records for client in record.clients} == TRAINED
    for client in record.clients:
        plan = plan_from_json(client.plan)
        assert (plan.unit, plan.mechanism.records, plan.mechanism.rows_per_unit) == ("person", TRAINED[client.name], 32)
        assert plan.mechanism.rate == 8 / TRAINED[client.name] if TRAINED[client.name] > 8 else 1
        assert client.planned["epsilon"]["upper"] == Statement.of(plan, 1e-5, 3).honest.epsilon.upper
        assert client.noisy_queries == 20
    assert record.sentence.startswith("For any person of any client")
    assert record.guarantee["unit"] == "person"
    assert record.scores["released"].pooled.mean > 0.75
    assert record.scores["non-private"].pooled.mean > 0.85


def test_a_record_counts_test_persons_and_no_rows(settings, capsys, monkeypatch):
    """How many rows a person has is private, and so is how many rows are tested on."""
    monkeypatch.setenv("COLUMNS", "200")
    record = train(load(str(settings), ["compare=alone"])).record
    assert record.unit == "person"
    assert {client.name: client.test_records for client in record.clients} == {
        name: patients - TRAINED[name] for name, patients in HOSPITALS.items()
    }
    for both in record.scores.values():
        assert both.own.record_mean is not None
        assert both.own.records is both.pooled.records is None
    print_record(record, None)
    text = capsys.readouterr().out
    assert "each of 3 clients counts once in the mean over clients, each test record once in the mean over records" in text
    assert "bootstrap intervals over test persons" in text
    assert "(2 test persons are too few)" in text
    assert text.partition("Is joining worth it?")[2].split()[:12].count("persons") == 1


@pytest.mark.parametrize("engine", ["vectorised", "reference"])
def test_both_engines_train_it(settings, engine):
    """Single precision and the same seeds: the same models up to rounding."""
    with_engine = train(load(str(settings), [f"performance.engine={engine}", "compare=[]", "performance.dtype=float64"]))
    other = train(load(str(settings), ["compare=[]", "performance.dtype=float64"]))
    for name, weights in with_engine.model.state_dict().items():
        np.testing.assert_allclose(weights.numpy(), other.model.state_dict()[name].numpy(), rtol=1e-6, atol=1e-6)


def test_a_person_at_several_clients_leaks_through_each(settings):
    """Full batches: clients of any size leak alike, and two of them as twice as many rounds."""
    record = train(load(str(settings), ["data.person_clients=2", "compare=[]"])).record
    assert record.guarantee["copies"] == 2
    twice = train(load(str(settings), ["rounds=8", "compare=[]"])).record
    assert record.guarantee["epsilon"]["upper"] == pytest.approx(twice.guarantee["epsilon"]["upper"], rel=1e-9)
    assert "the 2 clients that hold records of that person send" in record.sentence
    assert any("data.person_clients" in warning and "up to 2" in warning for warning in record.warnings)
    for changed in ("local.batch=8", 'clients."north".noise_multiplier=2.0', 'clients."north".local_steps=2'):
        with pytest.raises(BadValue, match=r"data\.person_clients = 2 needs plans of all clients that leak alike"):
            prepare(load(str(settings), ["data.person_clients=2", changed]))
    met = train(load(str(settings), ["data.person_clients=3", "compare=[]", "privacy.target.mu=1"]))
    assert 0.99 < met.record.guarantee["mu"]["upper"] <= 1.0


def test_holders_are_compared_once_all_noise_is_known(settings, monkeypatch):
    """A target against everybody is met after jobs were made, and one against a coalition raises noise after that."""
    refused = r"data\.person_clients = 2 needs plans of all clients that leak alike"
    own = ["data.person_clients=2", "privacy.target.mu=1", f'clients."north".noise_multiplier={UNCALIBRATED}']
    with pytest.raises(BadValue, match=refused):
        forecast(load(str(settings), own))
    found = prepare(load(str(settings), ["data.person_clients=2"]))

    def louder(config, rule, jobs, of=None):
        return [replace(job, plan=job.plan.changed(noise_multiplier=3.0 + place)) for place, job in enumerate(jobs)]

    monkeypatch.setattr("prifedsync.planning.with_coalition", louder)
    with pytest.raises(BadValue, match=refused):
        jobs_of(found.config, found.description, found.net.margin_for)


def test_the_margin_of_the_largest_client_is_that_of_all_who_share_persons(settings):
    """Sizes may differ by so much that margins do: plans still leak alike, by the largest margin."""
    config = load(str(settings), ["data.person_clients=2"])
    prepared = prepare(config)
    config = prepared.config
    sizes = {"small": 10, "large": 200_000}
    apart = jobs_of(config, replace(prepared.description, sizes=sizes, copies=1), prepared.net.margin_for)
    margins = [job.plan.mechanism.clip_margin for job in apart]
    assert margins[1] > 2 * margins[0]
    together = jobs_of(config, replace(prepared.description, sizes=sizes, copies=2), prepared.net.margin_for)
    assert [job.plan.mechanism.clip_margin for job in together] == [margins[1]] * 2
    assert together[0].plan.accounted == together[1].plan.accounted


def test_a_run_is_not_resumed_with_other_persons(settings, tables, tmp_path):
    def dies(event):
        if getattr(event, "round", None) == 2:
            raise OSError("killed")

    config = load(str(settings), ["privacy.randomness=system", "performance.checkpoint_seconds=0", "compare=[]"])
    with pytest.raises(OSError, match="killed"):
        train(config, out=tmp_path / "run", watch=dies)
    path = tables / "west.csv"
    before = path.read_text()
    try:
        path.write_text(before.replace("west 0,", "west 1,", 1))  # one row more of somebody else
        with pytest.raises(BadValue, match="differs from the run that was begun"):
            resume(tmp_path / "run")
    finally:
        path.write_text(before)
    assert resume(tmp_path / "run").record.guarantee["unit"] == "person"


def test_the_audit_passes_on_persons(settings):
    found = audit_config(load(str(settings), ["local.batch=8"]))
    assert found.passed, found.failed
