"""An optimiser and a metric from a file outside the package, by name and from Python, trained on digits."""

import json

import pytest
import torch

import prifedsync
from prifedsync import run
from prifedsync.config import load
from prifedsync.local import Key, SystemDraws
from prifedsync.metrics import Metric
from prifedsync.named import function
from prifedsync.values import BadValue

SOURCE = '''
import torch
from prifedsync.local import Update
from prifedsync.metrics import Metric

SLOPE = 20.0


class Lion(Update):
    """A smooth sign of a blend of the last mean and the gradient."""

    name = "lion"
    slots = ("mean",)
    reads = ("beta1", "beta2")

    def step(self, w, g, slots, numbers, count):
        blend = torch.lerp(g, slots["mean"], numbers["beta1"])
        slots["mean"] = torch.lerp(g, slots["mean"], numbers["beta2"])
        return w - numbers["rate"] * torch.tanh(SLOPE * blend)


def right(outputs, y):
    return (outputs.argmax(1) == y).double().mean()


def wrong(outputs, y):
    return (outputs.argmax(1) != y).double()


ERROR = Metric(name="error", of=wrong, mean=True, lower_is_better=True, tasks=("classes",))


def broken(outputs, y):
    return outputs[0, 99]
'''
SMALL = (
    "data.clients=3", "rounds=3", "compare=[]", "performance.checkpoint_seconds=0", "performance.dtype=float64",
    "local.learning_rate=0.01", "local.local_steps=2", "local.batch=32",
)  # fmt: skip


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "mine.py").write_text(SOURCE)
    return f"{tmp_path}/mine.py"


def config_of(*changes):
    return load("digits", [*SMALL, *changes])


def lion(mine):
    return function("optimiser", f"{mine}:Lion")


class Stopped(Exception):
    pass


def stop_after(round):
    def watch(event):
        if getattr(event, "round", None) == round:
            raise Stopped

    return watch


def weights(result):
    return result.server.released


# ------------------------------------------------------------------ an optimiser


def test_an_optimiser_by_name_is_the_same_in_both_engines_and_from_python(mine):
    named = f'local.optimiser="{mine}:Lion"'
    fast = prifedsync.train(config_of(named))
    slow = prifedsync.train(config_of(named, "performance.engine=reference", "performance.dtype=float64"))
    given = prifedsync.train(config_of(), optimiser=lion(mine))
    value = prifedsync.train(config_of(), optimiser=lion(mine)())
    plain = prifedsync.train(config_of())
    torch.testing.assert_close(weights(fast), weights(slow), rtol=1e-7, atol=1e-9)
    assert torch.equal(weights(fast), weights(given))
    assert torch.equal(weights(fast), weights(value))
    assert (weights(fast) - weights(plain)).norm() > 1e-3
    assert given.record.config["local"]["optimiser"] == "python:optimiser"
    for client, other in zip(fast.record.clients, plain.record.clients, strict=True):
        assert client.noisy_queries == other.noisy_queries == 6
        assert client.planned == other.planned
        assert client.plan == other.plan


def test_one_client_may_have_it(mine):
    result = prifedsync.train(config_of(f'clients."client-01".optimiser="{mine}:Lion"'))
    assert result.engine.slots == ("own", "mean")
    assert [bool(result.engine.state(i)[1].any()) for i in range(3)] == [False, True, False]


def test_what_it_carries_is_checkpointed_and_the_run_goes_on(mine, tmp_path):
    config = config_of(f'local.optimiser="{mine}:Lion"')
    whole = prifedsync.train(config)
    with pytest.raises(Stopped):
        prifedsync.train(config, out=tmp_path / "run", watch=stop_after(2))
    resumed = prifedsync.resume(tmp_path / "run")
    assert torch.equal(weights(resumed), weights(whole))
    assert all(resumed.engine.state(i)[1].any() for i in range(3))


@pytest.mark.parametrize(("before", "after"), [("w - numbers", "w - 2 * numbers"), ("SLOPE = 20.0", "SLOPE = 200.0")])
def test_a_resumed_run_whose_optimiser_was_changed_is_refused(mine, tmp_path, before, after):
    """Its own code, and a number that its code reads."""
    config = config_of(f'local.optimiser="{mine}:Lion"')
    with pytest.raises(Stopped):
        prifedsync.train(config, out=tmp_path / "run", watch=stop_after(1))
    assert SOURCE.count(before) == 1
    (tmp_path / "mine.py").write_text(SOURCE.replace(before, after))
    with pytest.raises(BadValue, match="differs from the run that was begun: optimiser; undo the change"):
        prifedsync.resume(tmp_path / "run")


def test_secret_noise_is_bound_to_its_code(mine, tmp_path):
    """The same key and the same records: other code, other noise."""

    def noise():
        cohort = run.prepare(config_of(f'local.optimiser="{mine}:Lion"')).cohort(SystemDraws(bytes(32)))
        return cohort.clients[0].draws.normal(Key("client-00", 0, 0, "noise"), 4).tolist()

    first = noise()
    assert noise() == first
    (tmp_path / "mine.py").write_text(SOURCE.replace("SLOPE = 20.0", "SLOPE = 200.0"))
    assert noise() != first


def test_one_from_python_must_be_given_again(mine, tmp_path):
    kind = lion(mine)
    with pytest.raises(Stopped):
        prifedsync.train(config_of(), optimiser=kind, out=tmp_path / "run", watch=stop_after(1))
    with pytest.raises(BadValue, match=r"local\.optimiser = python:optimiser was given from Python when this run began"):
        prifedsync.resume(tmp_path / "run")
    resumed = prifedsync.resume(tmp_path / "run", optimiser=kind)
    assert torch.equal(weights(resumed), weights(prifedsync.train(config_of(), optimiser=kind)))


def test_one_that_the_config_does_not_ask_for_is_refused(mine):
    says = r'optimiser = Lion is given from Python, and the config says local\.optimiser = "sgd"'
    with pytest.raises(BadValue, match=says):
        run.prepare(config_of(), optimiser=lion(mine))


def test_comparisons_are_trained_with_it(mine):
    record = prifedsync.train(config_of('compare=["alone", "non-private"]'), optimiser=lion(mine)).record
    assert {"alone", "non-private"} <= record.scores.keys()


# ------------------------------------------------------------------ a metric


def test_a_metric_by_name_and_from_python(mine):
    accuracy = prifedsync.train(config_of()).record
    by_name = prifedsync.train(config_of(f'metrics="{mine}:right"')).record
    given = prifedsync.train(config_of(), metric=function("metrics", f"{mine}:right")).record
    mine_own, own = by_name.scores["released"].own, accuracy.scores["released"].own
    assert (mine_own.mean, mine_own.record_mean, mine_own.worst) == pytest.approx((own.mean, own.record_mean, own.worst))
    assert (mine_own.clients, mine_own.records, mine_own.interval) == (own.clients, own.records, None)
    assert by_name.scores == given.scores
    assert (by_name.metric, given.metric) == ("right", "right")
    assert given.config["metrics"] == ["python:metric"]


def test_a_declared_metric_of_which_less_is_better(mine):
    accuracy = prifedsync.train(config_of()).record.scores["personal"].own
    error = prifedsync.train(config_of(f'metrics="{mine}:ERROR"')).record
    assert error.metric == "error"
    assert error.scores["personal"].own.mean == pytest.approx(1 - accuracy.mean)
    assert error.scores["personal"].own.worst == pytest.approx(1 - accuracy.worst)


def test_a_metric_that_fails_is_refused_before_the_first_round(mine, tmp_path):
    rounds = []
    with pytest.raises(BadValue, match="metrics = broken raised IndexError: index 99 is out of bounds"):
        prifedsync.train(config_of(f'metrics="{mine}:broken"'), out=tmp_path / "run", watch=rounds.append)
    assert not any(hasattr(event, "round") for event in rounds)


def test_a_metric_for_another_task_is_refused():
    metric = Metric(name="mine", of=lambda outputs, y: 1.0, tasks=("regression",))
    with pytest.raises(BadValue, match=r"metrics = mine does not go with data\.task = classes"):
        prifedsync.train(config_of(), metric=metric)


def test_a_metric_from_python_must_be_given_again(mine, tmp_path):
    right = function("metrics", f"{mine}:right")
    with pytest.raises(Stopped):
        prifedsync.train(config_of(), metric=right, out=tmp_path / "run", watch=stop_after(1))
    with pytest.raises(BadValue, match="metrics = python:metric was given from Python when this run began; give it again"):
        prifedsync.resume(tmp_path / "run")
    with pytest.raises(BadValue, match="differs from the run that was begun: metric"):
        prifedsync.resume(tmp_path / "run", metric=lambda outputs, y: 0.5)
    prifedsync.resume(tmp_path / "run", metric=right)
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert list(record["by_metric"]) == ["right"]
