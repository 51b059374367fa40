"""Settings that nobody gave: they follow from public numbers alone, and a run that chose them can be repeated."""

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import prifedsync
from prifedsync.accounting import NoisySteps, PrivacyPlan, Target, calibrated
from prifedsync.config import AUTO, AUTOMATIC, from_mapping, load, value_of
from prifedsync.data import Description, Task
from prifedsync.events import Note
from prifedsync.planning import jobs_of, rule_of
from prifedsync.run import prepare, resume, settled, train
from prifedsync.settings import _noise
from prifedsync.values import BadValue

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "settings.py"
BINARY = Task("binary", 2)
FOUR = Description({"a": 250, "b": 250, "c": 250, "d": 250}, (12,), BINARY)
NORM = math.sqrt(12 / 3 + 1)  # twelve columns spread over [−1, 1], and the bias
ALL_AUTO = {"rounds": "auto", "local.learning_rate": "auto", "local.batch": "auto", "privacy.clip_norm": "auto"}


def config_of(mu=1.0, **changes):
    base = {
        "data": {"source": "python:clients", "task": "binary"},
        "model": {"name": "linear"},
        "privacy": {"target": {"mu": mu}, "randomness": "seeded"},
    }
    return from_mapping(base).changed(**changes)


def clients(seed=0, sizes=(40, 30, 50), inputs=6):
    draw = np.random.default_rng(seed)
    made = {}
    for i, size in enumerate(sizes):
        x = draw.uniform(-1, 1, (size, inputs)).astype(np.float32)
        made[f"c{i}"] = (x, (x[:, 0] > 0).astype(np.float32))
    return made


def test_own_data_is_auto_unless_given():
    assert {value_of(config_of(), name) for name in AUTOMATIC} == {AUTO}
    assert config_of(rounds=7).rounds == 7
    assert config_of(rounds=7).local.learning_rate == AUTO


def test_known_data_sets_and_presets_keep_their_numbers(tmp_path):
    known = from_mapping({"privacy": {"noise_multiplier": 1.0}})
    assert [value_of(known, name) for name in AUTOMATIC] == [30, 1.0, "full", 1.0]
    assert load("digits").local.learning_rate == 20.0
    file = tmp_path / "own.toml"
    file.write_text('preset = "digits"\n[data]\nsource = "csv"\npath = "tables"\n')
    assert load(file).local.learning_rate == 20.0  # given, by the preset


def test_the_rule_by_hand():
    """Four clients with 1,000 records: κ = 2·√4 / (μ·1000)."""
    found = settled(config_of(mu=0.5), FOUR).config
    noise = 2 * math.sqrt(4) / (0.5 * 1000)
    assert found.rounds == 100
    assert found.local.batch == "full"
    assert found.privacy.clip_norm == pytest.approx(0.1 * NORM, rel=0.01)
    time = 6 / noise / (found.privacy.clip_norm * NORM)  # an output's noise is 6 after it: τ·C·g·κ
    assert found.local.learning_rate == pytest.approx(time / 100, rel=0.01)
    assert found.chosen == AUTOMATIC


def test_many_inputs_are_allowed_less_noise():
    wide = settled(config_of(mu=0.5), replace(FOUR, shape=(400,))).config
    norm = math.sqrt(400 / 3 + 1)
    time = 30 / math.sqrt(401) / (2 * math.sqrt(4) / 500) / (0.1 * norm**2)
    assert wide.local.learning_rate == pytest.approx(time / 100, rel=0.02)


def test_a_path_ends_somewhere():
    large = settled(config_of(mu=10), Description({"a": 10**7}, (12,), BINARY)).config
    assert large.local.learning_rate == pytest.approx(3000 / 0.1 / 5 / 100, rel=0.01)


def test_one_of_a_group_of_categories_is_one():
    grouped = config_of(**{"data.categories": {"ward": ["a", "b", "c", "d", "e", "f"], "sex": ["f", "m"]}})
    found = settled(grouped, FOUR).config  # four inputs are numbers, and two of the other eight are ones
    assert found.privacy.clip_norm == pytest.approx(0.1 * math.sqrt(4 / 3 + 2 + 1), rel=0.01)


@pytest.mark.parametrize("target", [{"epsilon": 1.0}, {"advantage": 0.1}])
def test_other_targets_count_by_their_noise(target):
    kind, value = next(iter(target.items()))
    plan = PrivacyPlan(mechanism=NoisySteps(noise_multiplier=1, records=250, batch="full", local_steps=1), rounds=100)
    noise = calibrated(plan, Target(kind, value)).mechanism.noise_multiplier
    same = settled(config_of(mu=2 * math.sqrt(100) / noise), FOUR).config
    found = settled(config_of(**{"privacy.target": target}), FOUR).config
    assert found.local.learning_rate == pytest.approx(same.local.learning_rate, rel=0.01)


def test_noise_is_that_of_the_mean():
    """κ from the jobs of all clients, for batches of one size, coins, and both ways to weigh clients."""
    unequal = Description({"a": 100, "b": 400, "c": 500}, (12,), BINARY)
    for merge in ("records", "equal"):
        config = config_of(**{
            "merge": merge, "rounds": 40, "participation": 0.5, "local.batch": 50, "local.local_steps": 2,
            "local.learning_rate": 1.0, "privacy.clip_norm": 1.0, "privacy": {"noise_multiplier": 3.0},
        })  # fmt: skip
        jobs = jobs_of(config, unequal, lambda steps, neighbours: 0.0)
        share = [job.weight / sum(each.weight for each in jobs) for job in jobs]
        variance = sum((part * 3.0 / 50) ** 2 for part in share) / 0.5  # half of the clients are in a round's mean
        expected = math.sqrt(variance / (40 * 2))
        assert _noise(config, unequal, rule_of(config), None) == pytest.approx(expected, rel=1e-9)


def test_records_do_not_matter():
    """Other records, and one record replaced by a wild one, give the same settings and the same sentences."""
    one = clients(0)
    neighbour = {name: (x.copy(), y.copy()) for name, (x, y) in one.items()}
    neighbour["c1"][0][3] = 1e6
    neighbour["c1"][1][3] = 1 - neighbour["c1"][1][3]
    first, other, near = (prepare(config_of(), each) for each in (one, clients(1), neighbour))
    assert first.settings == other.settings == near.settings


def test_private_numbers_of_records_do_not_matter():
    nominal = {f"clients.{name}.records": 300 for name in FOUR.sizes}
    config = config_of(**{"privacy.neighbours": "add-remove", "data.test_fraction": 0.0}, **nominal)
    other = replace(FOUR, sizes={"a": 3, "b": 9000, "c": 1, "d": 77})
    assert settled(config, FOUR) == settled(config, other)
    fewer = config.changed(**{f"clients.{name}.records": 30 for name in FOUR.sizes})
    assert settled(fewer, FOUR).config.local.learning_rate < settled(config, FOUR).config.local.learning_rate
    without = config_of(**{"privacy.neighbours": "add-remove", "data.test_fraction": 0.0})
    with pytest.raises(BadValue, match="records must be set with add-remove"):
        settled(without, FOUR)


def test_where_no_number_of_records_is_public_none_is_read():
    config = config_of(**{
        "privacy.neighbours": "add-remove", "privacy.mechanism": "output-gaussian", "data.test_fraction": 0.0,
        "merge": "equal", "local.batch": 125,
    })  # fmt: skip
    other = replace(FOUR, sizes={"a": 300, "b": 9000, "c": 150, "d": 177})
    assert settled(config, FOUR) == settled(config, other)


def test_what_is_given_stays_and_the_rest_follows():
    free = settled(config_of(), FOUR).config
    given = settled(config_of(**{"local.learning_rate": free.local.learning_rate / 2}), FOUR).config
    assert given.rounds == pytest.approx(2 * free.rounds, abs=1)  # the same path at half the pace
    assert "local.learning_rate" not in given.chosen
    clipped = settled(config_of(**{"privacy.clip_norm": 2 * free.privacy.clip_norm}), FOUR).config
    assert clipped.local.learning_rate == pytest.approx(free.local.learning_rate / 2, rel=0.01)
    heavy = settled(config_of(**{"local.optimiser": "momentum", "local.momentum": 0.75}), FOUR).config
    assert heavy.local.learning_rate == pytest.approx(free.local.learning_rate / 4, rel=0.01)
    cosine = settled(config_of(**{"local.schedule": "cosine"}), FOUR).config
    assert cosine.local.learning_rate == pytest.approx(2 * free.local.learning_rate, rel=0.03)
    many = settled(config_of(**{"local.local_steps": 5}), FOUR).config
    assert many.rounds == free.rounds / 5
    assert many.local.learning_rate == pytest.approx(free.local.learning_rate, rel=0.01)


def test_a_clip_that_does_not_clip_leaves_a_stable_rate():
    found = settled(config_of(mu=10, **{"privacy.clip_norm": 2 * NORM}), Description({"a": 10**6}, (12,), BINARY)).config
    assert found.local.learning_rate * NORM**2 <= 4.01


def test_an_optimiser_that_normalises_is_refused():
    with pytest.raises(
        BadValue, match=r"^local.learning_rate = auto cannot be chosen for the optimiser adam, .*give a num"
    ):
        settled(config_of(**{"local.optimiser": "adam"}), FOUR)
    assert settled(config_of(**{"local.optimiser": "adam", "local.learning_rate": 0.05}), FOUR).config.rounds == 100


def test_little_but_noise_is_said_before_training():
    said = []
    data = clients(inputs=6)
    prepare(config_of(mu=0.01), data, watch=said.append)
    (warning,) = [event.text for event in said if isinstance(event, Note) and event.warning]
    noise = 2 * math.sqrt(3) / (0.01 * 96)  # 120 records, of which each client holds out a fifth
    assert f"is {noise * math.sqrt(7) * 2:.2g} times as large as the most that all records of one of 2 classes" in warning
    assert not settled(config_of(mu=1), FOUR).warnings
    edge = 2 * math.sqrt(4) / 1000 * math.sqrt(13) * 2  # μ at which noise and records are alike
    assert settled(config_of(mu=edge * 0.98), FOUR).warnings
    assert not settled(config_of(mu=edge * 1.02), FOUR).warnings


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"privacy.mechanism": "none"},
        {"privacy.mechanism": "output-gaussian", "local.local_steps": 3},
        {"privacy.mechanism": "output-laplace"},
        {"local.batch": 8},
        {"participation": 0.5},
        {"merge": "equal"},
        {"rule.name": "fedprox", "rule.strength": 0.5},
        {"rule.name": "alone"},
        {"rule.name": "alone", "rule.publish": True},
        {"rule.name": "ditto", "rule.publish": True},
        {"model.name": "mlp", "model.hidden": [8]},
        {"privacy.noise_multiplier": 20.0},
        {"data.task": "regression", "metrics": ["rmse"]},
    ],
    ids=str,
)
def test_chosen_settings_train(changes):
    result = train(config_of(evaluate_every=0, **changes), clients=clients(), progress=False)
    config = result.record.config
    assert all(math.isfinite(value) for value in (config["rounds"], config["local"]["learning_rate"]))
    assert len(result.record.settings) == 4 - ("local.batch" in changes)
    scores = result.record.scores["personal" if changes.get("rule.name") == "alone" else "released"]
    assert scores.pooled.mean is not None


def test_what_is_compared_is_stable_without_a_clip():
    """Without noise other settings are right: those of the private run would diverge where nothing is clipped."""
    result = train(config_of(mu=3, compare=["non-private"]), clients=clients(sizes=(200, 200)), progress=False)
    assert result.record.scores["non-private"].pooled.mean > 0.95


def test_a_run_folder_has_the_numbers_and_repeats_the_run(tmp_path):
    first = train(config_of(evaluate_every=0), clients=clients(), out=tmp_path / "one", progress=False)
    written = load(tmp_path / "one" / "config.toml")
    assert all(value_of(written, name) != AUTO for name in AUTOMATIC)
    assert written.chosen == AUTOMATIC
    again = train(written, clients=clients(), progress=False)
    assert again.record.repeatable() == first.record.repeatable()
    assert [text.split(" = ")[0] for text in first.record.settings] == list(AUTOMATIC)
    assert prifedsync.Config is type(written)


def test_a_number_that_was_changed_is_not_explained_by_the_rule():
    free = settled(config_of(), FOUR).config
    found = settled(free.changed(rounds=33), FOUR)
    assert found.config.rounds == 33
    assert not any(text.startswith("rounds") for text in found.reasons)


def test_a_resumed_run_keeps_its_numbers(tmp_path):
    whole = train(
        config_of(**{"performance.checkpoint_seconds": 0.0}), clients=clients(), out=tmp_path / "a", progress=False
    )

    def stop(event):
        if getattr(event, "round", 0) == 20:
            raise KeyboardInterrupt

    config = config_of(**{"performance.checkpoint_seconds": 0.0})
    with pytest.raises(KeyboardInterrupt):
        train(config, clients=clients(), out=tmp_path / "b", watch=stop, progress=False)
    resumed = resume(tmp_path / "b", clients=clients(), progress=False)
    assert resumed.record.repeatable() == whole.record.repeatable()


def test_nothing_is_planned_before_settings_are_chosen():
    with pytest.raises(BadValue, match=r"^rounds = auto is chosen where the data can be read"):
        jobs_of(config_of(), FOUR, lambda steps, neighbours: 0.0)


@pytest.fixture
def script(monkeypatch):
    """The benchmark as a module: it lies outside the package."""
    spec = importlib.util.spec_from_file_location("settings_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_the_simulator_does_what_the_engine_does(script):
    """Their difference is the engine's noise alone, and has the spread that the simulator would give it."""
    each = script.MADE["many features"].clients(0)
    config = from_mapping({
        "data": {"source": "python:clients", "classes": 2}, "rounds": 4, "averaging": 0.5, "evaluate_every": 0,
        "local": {"learning_rate": 0.5, "batch": "full"},
        "privacy": {"noise_multiplier": 5.0, "clip_norm": 0.5, "randomness": "seeded"},
    })  # fmt: skip
    result = train(config, clients=each, progress=False)
    state = dict(result.model.named_parameters())
    released = torch.cat([state["1.weight"].T, state["1.bias"][None]]).detach()  # [D, k]
    at = script.problem([each], bias=True)
    quiet = script.simulated(at, torch.tensor([0.5]), torch.tensor([0.5]), 0.0, 4)[0, :, :, 0]
    noisy = script.simulated(at, torch.tensor([0.5]), torch.tensor([0.5]), 5.0, 4, seed=3)[0, :, :, 0]
    assert float(quiet.norm()) > 5 * float((released - quiet).norm()) / math.sqrt(released.numel())
    spread = 0.5 * 5.0 * 0.5 * at.spread * math.sqrt(3.25)  # the mean of the third and the fourth sum of four draws
    for found in (released, noisy):
        assert 0.85 < float((found - quiet).std()) / spread < 1.15
