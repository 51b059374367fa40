"""The Python API: what is trained is what is accounted, and a run survives whatever happens to it."""

import json
import math
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import prifedsync
from prifedsync import run
from prifedsync.accounting.statement import Statement
from prifedsync.config import load, to_toml
from prifedsync.engines import Vectorised
from prifedsync.record import NO_GUARANTEE, SCORES_LEAK, SIMULATION, RunRecord
from prifedsync.run.checkpoint import Checkpoint
from prifedsync.values import BadValue

SMALL = ("data.clients=3", "rounds=4", "compare=[]", "performance.checkpoint_seconds=0")
# the paper's recipe carries Adam's state and a pushed helper, and skips clients: the most there is to lose
CARRYING = load("digits-paper", [*SMALL, "local.local_steps=2", "participation=0.5"])


def own_clients(sizes=(20, 31), seed=0):
    draw = torch.Generator().manual_seed(seed)
    return {
        f"site {i}": (torch.randn(n, 5, generator=draw), torch.randint(0, 3, (n,), generator=draw))
        for i, n in enumerate(sizes)
    }


OWN = {"rounds": 3, "data": {"classes": 3}, "privacy": {"noise_multiplier": 2.0}}


# ---------------------------------------------------------------------- what is run is what is accounted


def test_the_record_states_the_guarantee_of_the_plan_that_was_trained():
    prepared = run.prepare(CARRYING)
    record = run.train(CARRYING).record
    for client, job in zip(record.clients, prepared.jobs, strict=True):
        stated = Statement.of(job.plan, 1e-5, 3)
        assert client.planned == stated.as_json() | {"sentence": run.sentence(stated, "seeded")}
        assert client.noisy_queries == 2 * client.rounds_taken
        assert client.plan["noise_multiplier"] == 2.0
        assert client.plan["sampling"] == "fixed"
        taken = job.plan.guarantee(taken=client.rounds_taken).epsilon(1e-5)
        assert client.taken["epsilon"]["upper"] == pytest.approx(taken.upper)
    assert record.guarantee["epsilon"]["upper"] == max(c.planned["epsilon"]["upper"] for c in record.clients)
    assert 0 < sum(c.rounds_taken for c in record.clients) < 3 * 4  # the coin was tossed


def test_a_target_is_met_by_every_client_and_on_the_safe_side():
    record = run.train(load("digits", [*SMALL, "privacy.target.epsilon=1.5", "local.batch=16"])).record
    for client in record.clients:
        assert 1.49 < client.planned["epsilon"]["upper"] <= 1.5


def test_a_count_that_disagrees_with_the_plan_voids_the_guarantee(monkeypatch):
    honest = Vectorised.gradients

    def once_more(self, round, step, clients, weights, part="upload"):
        honest(self, round, step, clients, weights)
        return honest(self, round, step, clients, weights)

    monkeypatch.setattr(Vectorised, "gradients", once_more)
    with pytest.raises(RuntimeError, match="no guarantee can be stated"):
        run.train(CARRYING)


def test_without_privacy_there_is_no_guarantee_anywhere(tmp_path):
    record = run.train(load("digits", [*SMALL, "privacy.mechanism=none"]), out=tmp_path / "run").record
    assert record.guarantee is None
    assert record.sentence == NO_GUARANTEE
    assert all(client.planned is None and client.taken is None and client.plan is None for client in record.clients)
    with safe_open(tmp_path / "run/models/global.safetensors", "pt") as file:
        assert "not private" in file.metadata()["publishing"]


def test_a_seeded_run_says_that_it_is_a_simulation_and_a_secret_one_does_not(tmp_path):
    seeded = run.train(load("digits", SMALL), out=tmp_path / "seeded").record
    secret = run.train(load("digits", [*SMALL, "privacy.randomness=system"]), out=tmp_path / "secret").record
    assert SIMULATION in seeded.sentence
    assert SIMULATION not in secret.sentence
    assert SCORES_LEAK in secret.warnings
    for name, mark in (("seeded", "simulation"), ("secret", "may be published")):
        with safe_open(tmp_path / name / "models/global.safetensors", "pt") as file:
            assert mark in file.metadata()["publishing"]


def test_secret_runs_differ_and_seeded_ones_do_not():
    secret = [run.train(load("digits", [*SMALL, "privacy.randomness=system"])).server.weights for _ in range(2)]
    seeded = [run.train(load("digits", SMALL)).server.weights for _ in range(2)]
    assert not torch.equal(*secret)
    assert torch.equal(*seeded)


@pytest.mark.parametrize("mechanism", ["output-gaussian", "output-laplace"])
def test_output_perturbation_is_trained_and_accounted(mechanism):
    record = run.train(load("digits", [*SMALL, f"privacy.mechanism={mechanism}", "privacy.noise_multiplier=20"])).record
    for client in record.clients:
        assert client.noisy_queries == client.rounds_taken == 4
        assert client.plan["mechanism"] == "OutputPerturbation"
    if mechanism == "output-gaussian":
        assert record.guarantee["mu"]["upper"] == pytest.approx(2 * math.sqrt(4) / 20, rel=1e-6)


def test_clients_differ_where_the_config_says_so():
    own = ['clients."client-00".batch=8', 'clients."client-01".noise_multiplier=4', 'clients."client-02".local_steps=5']
    record = run.train(load("digits-paper", [*SMALL, *own, "participation=1"])).record
    first, second, third = record.clients
    assert first.plan["batch"] == 8
    assert second.plan["noise_multiplier"] == 4
    assert third.noisy_queries == 4 * 5
    assert second.planned["epsilon"]["upper"] < first.planned["epsilon"]["upper"]


def test_the_released_model_is_good_and_better_than_a_client_alone():
    """About 91 % at μ = 1, against 40 % of all ten digits for a client alone."""
    record = run.train("digits").record
    assert record.guarantee["mu"]["upper"] <= 1
    assert record.scores["released"].pooled.mean > 0.86
    assert record.scores["alone"].pooled.mean < 0.5
    assert record.scores["non-private"].pooled.mean > record.scores["released"].pooled.mean


# ---------------------------------------------------------------------- your own records and modules


def test_records_and_module_from_python():
    module = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 3))
    result = prifedsync.train(OWN, clients=own_clients(), model=module)
    module.load_state_dict(result.state_dict)  # plain names, plain tensors
    module.load_state_dict(result.personal("site 1"))
    assert [client.name for client in result.record.clients] == ["site 0", "site 1"]
    assert any("from Python" in warning for warning in result.record.warnings)
    with pytest.raises(BadValue, match="client = site 9 is not in this run"):
        result.personal("site 9")


def test_what_came_from_python_must_be_given_again(tmp_path):
    with pytest.raises(Killed):
        prifedsync.train(OWN, clients=own_clients(), out=tmp_path / "run", watch=killed_in_round(1))
    with pytest.raises(BadValue, match="must be given again"):
        prifedsync.resume(tmp_path / "run")
    assert prifedsync.resume(tmp_path / "run", clients=own_clients()).record.clients


def test_a_presets_seed_is_not_for_your_own_records():
    """Presets are seeded because their data are public."""
    own = ["data.source=npz", "data.path=x", "data.classes=3"]
    assert load("digits", own).privacy.randomness == "system"
    assert load("digits").privacy.randomness == "seeded"
    assert load("digits", ["data.source=npz", "data.path=x", "privacy.randomness=seeded"]).privacy.randomness == "seeded"


@pytest.mark.parametrize(("task", "metric"), [("binary", "auc"), ("binary", "f1"), ("regression", "rmse")])
def test_other_targets_and_metrics(task, metric):
    draw = torch.Generator().manual_seed(3)
    x = {name: torch.randn(60, 4, generator=draw) for name in "ab"}
    clients = {name: (v, (v[:, 0] > 0).float() if task == "binary" else v[:, 0]) for name, v in x.items()}
    config = {**OWN, "metrics": [metric], "rounds": 40, "data": {"task": task}}
    config = {**config, "privacy": {"noise_multiplier": 1.0}, "local": {"learning_rate": 0.5}}
    score = prifedsync.train(config, clients=clients).record.scores["released"].own
    assert score.clients == 2
    assert score.mean < 0.7 if metric == "rmse" else score.mean > 0.8


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"local": {"batch": 26}}, "batch = 26 is larger than records"),
        ({"clients": {"site 7": {"batch": 2}}}, "is not a client of this data; did you mean site"),
        ({"clients": {"site 1": {"records": 4}}}, "but the client has"),
        ({"performance": {"device": "cuda"}}, "performance.device = cuda is not there"),
        (
            {"privacy": {"noise_multiplier": 2.0, "neighbours": "add-remove"}, "data": {"classes": 3, "test_fraction": 0}},
            "records must be set with add-remove adjacency",
        ),
        (
            {"privacy": {"noise_multiplier": 2.0, "neighbours": "add-remove"}},
            "data.test_fraction = 0.2 cannot be combined with",
        ),
        ({"privacy": {"target": {"mu": 1e-4}}}, "cannot be met"),
        ({"performance": {"tensorboard": True}}, "needs a run folder"),
    ],
)
def test_refused_before_the_first_step(changes, said):
    if "device" in changes.get("performance", {}) and torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(BadValue) as refused:
        prifedsync.train({**OWN, **changes}, clients=own_clients())
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_under_add_remove_the_rate_comes_from_the_nominal_number():
    nominal = {"site 0": {"records": 100}, "site 1": {"records": 50}}
    privacy = {"noise_multiplier": 2.0, "neighbours": "add-remove"}
    config = {**OWN, "clients": nominal, "privacy": privacy, "data": {"classes": 3, "test_fraction": 0}}
    record = prifedsync.train(config, clients=own_clients()).record
    assert [client.plan["records"] for client in record.clients] == [100, 50]
    assert [client.records for client in record.clients] == [100, 50]  # the real numbers are not public


def test_under_add_remove_a_record_holds_no_real_number_of_records():
    """With noise on the output no nominal number is needed, and none is stated."""
    privacy = {"mechanism": "output-gaussian", "noise_multiplier": 5.0, "neighbours": "add-remove"}
    config = {**OWN, "merge": "equal", "privacy": privacy, "data": {"classes": 3, "test_fraction": 0}}
    record = prifedsync.train(config, clients=own_clients()).record
    assert [client.records for client in record.clients] == [None, None]
    with pytest.raises(BadValue, match='records must be set with add-remove adjacency and merge = "records"'):
        prifedsync.train({**config, "merge": "records"}, clients=own_clients())


# ---------------------------------------------------------------------- the run folder


def test_the_folder_of_a_run(tmp_path):
    folder = tmp_path / "run"
    result = run.train(CARRYING, out=folder)
    assert RunRecord.read(folder / "record.json") == result.record
    assert load(folder / "config.toml") == CARRYING
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in rounds] == [1, 2, 3, 4]
    assert rounds[-1]["personal"]["mean"] == result.record.scores["personal"].own.mean
    stored = load_file(folder / "models/global.safetensors")
    assert all(torch.equal(stored[name], value) for name, value in result.state_dict.items())
    assert not (folder / "checkpoint").exists()  # and with it the secret key
    again = run.train(load(folder / "config.toml"), out=tmp_path / "again")
    assert again.record.repeatable() == result.record.repeatable()


def test_a_folder_that_is_in_use_is_not_overwritten(tmp_path):
    (tmp_path / "precious").write_text("")
    with pytest.raises(BadValue, match="is not empty"):
        run.train(CARRYING, out=tmp_path)
    with pytest.raises(BadValue, match="is not a run folder"):
        run.resume(tmp_path)


def test_a_finished_run_is_not_run_again(tmp_path):
    run.train(CARRYING, out=tmp_path / "run")
    with pytest.raises(BadValue, match="is finished"):
        run.resume(tmp_path / "run")


def test_a_record_of_another_version_is_refused(tmp_path):
    record = run.train(CARRYING).record
    with pytest.raises(BadValue, match="schema_version = 99"):
        RunRecord.from_json(replace(record, schema_version=99).as_json())


# ---------------------------------------------------------------------- whatever happens


class Killed(BaseException):
    """The process ends here, as far as anything written is concerned."""


def killed_in_round(number):
    """A watcher that ends the process after this round, before its checkpoint."""

    def watch(event):
        if getattr(event, "round", 0) == number:
            raise Killed

    return watch


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    return run.train(CARRYING, out=folder).record.repeatable(), (folder / "rounds.jsonl").read_bytes()


def interrupted_at(operation, count, error, monkeypatch):
    """From the count-th call on, the operation raises."""
    real, calls = getattr(os, operation), []

    def counted(*args, **kwargs):
        calls.append(args)
        if len(calls) >= count:
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(os, operation, counted)


@pytest.mark.parametrize("limit", ["2", "1e-9"], ids=["in memory", "on disk"])
@pytest.mark.parametrize(
    ("operation", "count"),
    [*(("pwrite", n) for n in (1, 2, 3, 4, 6)), *((name, n) for name in ("replace", "fsync") for n in (1, 2, 3, 5, 8, 13))],
)
def test_ended_at_any_write_it_resumes_to_the_same_record(tmp_path, undisturbed, operation, count, limit, monkeypatch):
    config = CARRYING.changed(**{"performance.memory_gib": float(limit)})
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupted_at(operation, count, Killed(), patch)
        with pytest.raises(Killed):
            run.train(config, out=folder)
    if not (folder / "config.toml").exists():
        return  # it had not begun
    record, log = undisturbed
    resumed = run.resume(folder).record.repeatable()
    resumed["config"]["performance"]["memory_gib"] = record["config"]["performance"]["memory_gib"]
    assert resumed == record
    assert (folder / "rounds.jsonl").read_bytes() == log


@pytest.mark.parametrize(
    "change", ["noise_multiplier = 2.0", "rounds = 4", "learning_rate = 0.05", "shards_per_client = 4"]
)
def test_a_run_that_was_changed_on_the_way_is_refused(tmp_path, change):
    """Twenty rounds with little noise and ten with much are not thirty with much."""

    with pytest.raises(Killed):
        run.train(CARRYING, out=tmp_path / "run", watch=killed_in_round(3))
    path = tmp_path / "run/config.toml"
    text = path.read_text()
    name, value = change.split(" = ")
    assert change in text
    path.write_text(text.replace(change, f"{name} = {float(value) * 2 if '.' in value else int(value) + 1}"))
    with pytest.raises(BadValue, match=rf"differs from the run that was begun: .*{name} = \S+ \(was {value}\)"):
        run.resume(tmp_path / "run")
    path.write_text(text)
    assert run.resume(tmp_path / "run").record


def test_a_key_is_bound_to_its_records_before_anything_is_drawn(tmp_path):
    """Killed in the first round and given other records, a run would add the same noise to two sums."""
    config = load("digits", [*SMALL, "privacy.randomness=system"])
    with pytest.raises(Killed):
        run.train(config, out=tmp_path / "run", watch=killed_in_round(1))
    path = tmp_path / "run/config.toml"
    path.write_text(path.read_text().replace("seed = 0", "seed = 1"))  # another split
    with pytest.raises(BadValue, match=r"seed = 1 \(was 0\), .*records"):
        run.resume(tmp_path / "run")


def test_a_full_disk_loses_nothing_already_written(tmp_path, undisturbed, monkeypatch):
    with monkeypatch.context() as patch:
        interrupted_at("pwrite", 4, OSError(28, "No space left on device"), patch)
        with pytest.raises(OSError, match="No space left"):
            run.train(CARRYING, out=tmp_path / "run")
    assert Checkpoint(tmp_path / "run/checkpoint").exists()
    assert run.resume(tmp_path / "run").record.repeatable() == undisturbed[0]


def test_the_secret_key_is_for_its_owner_only_and_makes_resume_repeat_the_noise(tmp_path):
    config = CARRYING.changed(**{"privacy.randomness": "system"})
    results = []

    with pytest.raises(Killed):
        run.train(config, out=tmp_path / "run", watch=killed_in_round(2))
    key = tmp_path / "run/checkpoint/secret.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    secret = key.read_bytes()
    assert len(secret) == 32
    for name in ("one", "two"):
        shutil.copytree(tmp_path / "run", tmp_path / name)
        results.append(run.resume(tmp_path / name).server.weights)
        assert not list((tmp_path / name).rglob("secret.key"))
        assert not any(secret in file.read_bytes() for file in (tmp_path / name).rglob("*") if file.is_file())
    assert torch.equal(*results)
    key.chmod(0o644)
    with pytest.raises(BadValue, match="can be read by others"):
        run.resume(tmp_path / "run")


def killed_copies(tmp_path, *names, **changes):
    """Copies of a run with secret draws that was killed in its second round."""
    with pytest.raises(Killed):
        run.train(
            CARRYING.changed(**{"privacy.randomness": "system", **changes}), out=tmp_path / "run", watch=killed_in_round(2)
        )
    for name in names:
        shutil.copytree(tmp_path / "run", tmp_path / name)
    return [tmp_path / name for name in names]


def test_a_round_repeated_by_another_process_is_the_same_release(tmp_path):
    """What noise is bound to must not depend on addresses or on the order of sets."""
    here, there = killed_copies(tmp_path, "here", "there")
    weights = run.resume(here).server.weights
    script = (
        f"import torch; torch.set_num_threads({torch.get_num_threads()}); from prifedsync import run; "
        f"print(run.resume({str(there)!r}).server.weights.double().tolist())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "5"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == weights.double().tolist()


@pytest.mark.parametrize(
    "change", [{"chunk": 1}, {"records_at_once": 3}, {"threads": 2}, {"memory_gib": 1e-9}, {"compile": "off"}]
)
def test_a_run_goes_on_at_another_speed(tmp_path, change):
    (folder,) = killed_copies(tmp_path, "copy")
    threads = torch.get_num_threads()
    changed = load(folder / "config.toml").changed(performance=change)
    (folder / "config.toml").write_text(to_toml(changed))
    try:
        assert run.resume(folder).record.guarantee
    finally:
        torch.set_num_threads(threads)


def test_data_may_lie_elsewhere_when_a_run_goes_on(tmp_path):
    """The records are compared, not where they come from."""
    draw = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=draw.normal(size=(40, 5)), y=draw.integers(0, 2, 40))
    own = {"source": "npz", "path": str(tmp_path / "data.npz"), "classes": 2, "clients": 2, "partition": "iid"}
    own |= {"ranges": {"*": (-4, 4)}}
    config = {**OWN, "data": own, "performance": {"checkpoint_seconds": 0}}
    with pytest.raises(Killed):
        run.train(config, out=tmp_path / "run", watch=killed_in_round(2))
    (tmp_path / "data.npz").rename(tmp_path / "moved.npz")
    moved = load(tmp_path / "run/config.toml").changed(**{"data.path": str(tmp_path / "moved.npz")})
    (tmp_path / "run/config.toml").write_text(to_toml(moved))
    assert run.resume(tmp_path / "run").record.guarantee


def test_only_changed_clients_are_rewritten(tmp_path, monkeypatch):
    """At p = 1/2 a checkpoint after every round writes as many states as clients took part (and were pushed to)."""
    written, real = [], os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *args: written.append(len(args[1])) or real(*args))
    result = run.train(CARRYING, out=tmp_path / "run")
    size = len(result.engine.slots) * result.net.count * 4
    states = [length for length in written if length == size]
    taken = sum(client.rounds_taken for client in result.record.clients)
    assert len(states) == taken < 3 * 4


def test_tensorboard_events_are_written_if_asked_for(tmp_path):
    pytest.importorskip("tensorboard")
    run.train(CARRYING.changed(**{"performance.tensorboard": True}), out=tmp_path / "run")
    (events,) = (tmp_path / "run/events").iterdir()
    assert b"accuracy/released/mean" in events.read_bytes()
