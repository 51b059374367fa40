"""What is trained for comparison: each client alone has the noise of its own plan, and never the run's own."""

import math

import pytest
import torch
from torch import nn

import prifedsync
from prifedsync.config import from_mapping, load
from prifedsync.local import SeededDraws, SystemDraws
from prifedsync.rules import RULES
from prifedsync.run import baselines, prepare
from prifedsync.run.prepare import Prepared
from prifedsync.values import BadValue

RECORDS, FEATURES, CLIENTS = 40, 600, 5
NOISE, CLIP, RATE = 3.0, 0.5, 2.0
ONE_ROUND = {
    "rounds": 1,
    "averaging": 0.0,
    "compare": ["alone-private"],
    "data": {"classes": 2},
    "local": {"learning_rate": RATE},
    "privacy": {"noise_multiplier": NOISE, "clip_norm": CLIP, "randomness": "seeded"},
}


def silent_clients():
    """Records without a gradient: all inputs are 0, and the model has no bias. What a step moves is noise alone."""
    y = torch.arange(RECORDS + 20) % 2
    return {f"c{i}": (torch.zeros(RECORDS, FEATURES), y[:RECORDS], torch.zeros(20, FEATURES), y[:20])
            for i in range(CLIENTS)}  # fmt: skip


def silent_model():
    module = nn.Linear(FEATURES, 2, bias=False)
    nn.init.zeros_(module.weight)
    return module


@pytest.fixture
def kept(monkeypatch):
    """The servers of clients alone, as they were at the end."""
    made = []

    class Watched(baselines.Servers):
        def __post_init__(self):
            super().__post_init__()
            made.append(self)

    monkeypatch.setattr(baselines, "Servers", Watched)
    return made


def trained(kept, **changed):
    """The noise of the run and of clients alone, [C, P] each, in standard deviations of the plan."""
    result = prifedsync.train({**ONE_ROUND, **changed}, clients=silent_clients(), model=silent_model())
    unit = RATE * NOISE * CLIP / RECORDS
    run = torch.stack([result.personal(f"c{i}")["weight"].flatten() for i in range(CLIENTS)]).double()
    return run / unit, kept[-1].released.double() / unit, result


def test_a_client_alone_has_the_noise_of_its_plan(kept):
    """6,000 normals: the spread is within 5 %, five standard deviations; 2/3 and 3/2 of the noise are far outside."""
    _, alone, _ = trained(kept)
    assert alone.shape == (CLIENTS, 2 * FEATURES)
    assert float(alone.std()) == pytest.approx(1.0, rel=0.05)
    assert float(alone.mean()) == pytest.approx(0.0, abs=0.07)
    between = torch.corrcoef(alone) - torch.eye(CLIENTS)
    assert float(between.abs().max()) < 0.15  # clients share no noise either


@pytest.mark.parametrize("randomness", ["seeded", "system"])
def test_the_noise_of_the_run_is_not_used_again(kept, randomness):
    """The same noise would cancel in a difference; of two independent ones the difference has √2 of the spread."""
    privacy = {**ONE_ROUND["privacy"], "randomness": randomness}
    run, alone, _ = trained(kept, privacy=privacy, rule={"delivery": "push"})  # clients send models
    assert float((run - alone).std()) == pytest.approx(math.sqrt(2), rel=0.05)
    assert float((run + alone).std()) == pytest.approx(math.sqrt(2), rel=0.05)


@pytest.mark.parametrize("randomness", ["seeded", "system"])
def test_the_noise_of_a_sum_is_not_used_again(kept, randomness):
    """The released model has the mean of the clients' noise. Alone they have other noise: the difference has √2 of it."""
    privacy = {**ONE_ROUND["privacy"], "randomness": randomness}
    run, alone, result = trained(kept, privacy=privacy)
    assert result.prepared.sums is not None
    mean = alone.mean(0) * math.sqrt(CLIENTS)
    released = run[0] * math.sqrt(CLIENTS)
    spread = 5 / math.sqrt(2 * len(mean))  # five standard deviations of an estimated one
    assert float(released.std()) == pytest.approx(1.0, rel=spread)
    assert float((released - mean).std()) == pytest.approx(math.sqrt(2), rel=spread)
    assert float((released + mean).std()) == pytest.approx(math.sqrt(2), rel=spread)


def test_a_simulation_repeats_its_baselines_and_secret_draws_do_not(kept):
    first, again = (trained(kept)[1] for _ in range(2))
    assert torch.equal(first, again)
    secret = from_mapping({**ONE_ROUND, "privacy": {"noise_multiplier": NOISE}})
    one, other = (baselines.draws_alone(prepare(secret, silent_clients(), silent_model())) for _ in range(2))
    assert isinstance(one, SystemDraws)
    assert one.secret != other.secret
    seeded = baselines.draws_alone(prepare(from_mapping(ONE_ROUND), silent_clients(), silent_model()))
    assert isinstance(seeded, SeededDraws)
    assert seeded.seed != from_mapping(ONE_ROUND).seed


def test_the_model_alone_is_the_mean_of_the_last_ones(kept):
    """As it is for the released one: of four rounds the last two, whose noise is a walk of 3 and of 4 steps."""
    _, alone, result = trained(kept, rounds=4, averaging=0.5)
    (servers,) = kept
    assert servers.averaged == result.server.averaged == 2
    assert float(alone.std()) == pytest.approx(math.sqrt(1 + 1 + 1 + 0.5**2), rel=0.05)


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.uploads])
def test_a_client_alone_has_the_very_plan_of_the_run(name):
    config = load("digits", [f"rule.name={name}", "data.clients=3", "participation=0.6", "local.local_steps=2",
                             'clients."client-01".local_steps=3', "rule.strength=0.001"])  # fmt: skip
    prepared = prepare(config)
    assert prepared.under(baselines._as_counted(prepared)).plans == prepared.plans
    published = {"apfl", "ditto"}
    if name in published:
        prepared = prepare(config.changed(**{"rule.publish": True}))
        assert prepared.under(baselines._as_counted(prepared)).plans == prepared.plans


@pytest.mark.parametrize("factor", [2 / 3, 1.5])
def test_other_noise_than_the_plans_is_refused(monkeypatch, factor):
    honest = Prepared.under

    def other(self, config):
        noisy = config.privacy.mechanism != "none"
        changed = {"privacy.noise_multiplier": factor * NOISE} if noisy else {}
        return honest(self, config.changed(**changed) if changed else config)

    monkeypatch.setattr(Prepared, "under", other)
    with pytest.raises(RuntimeError, match="other plans than in this run"):
        prifedsync.train(ONE_ROUND, clients=silent_clients(), model=silent_model())


@pytest.mark.parametrize("mechanism", ["output-gaussian", "output-laplace"])
def test_output_perturbation_has_it_too(mechanism):
    privacy = {"mechanism": mechanism, "noise_multiplier": 5.0, "randomness": "seeded"}
    record = prifedsync.train({**ONE_ROUND, "privacy": privacy}, clients=silent_clients(), model=silent_model()).record
    assert record.scores["alone-private"].own.clients == CLIENTS


def test_without_noise_there_is_nothing_to_compare_at_the_same_privacy():
    few = ["data.clients=2", "rounds=1", "compare=alone-private"]
    for more in ("privacy.mechanism=none", "rule.name=alone"):
        record = prifedsync.train(load("digits", [*few, more])).record
        assert "alone-private" not in record.scores
        assert all(row.verdict == "not compared" for row in record.joining)


def test_scores_of_clients_alone_are_on_their_own_records():
    """Against the score of a one-client run with the same draws."""
    config = load("digits", ["data.clients=3", "rounds=2", "compare=alone-private"])
    result = prifedsync.train(config)
    prepared = result.prepared
    draws = baselines.draws_alone(prepared)
    name = prepared.held.clients[1].name
    records = prepared.held.clients[1]
    alone = {name: (records.train.x, records.train.y, records.test.x, records.test.y)}
    config = config.changed(**{"compare": [], "seed": draws.seed, "model.features": "none", "data.classes": 10})
    single = prifedsync.train(config, clients=alone, model=prepared.module).record
    assert single.clients[0].released == result.record.clients[1].scores["alone-private"]["accuracy"].value


def test_a_kind_that_is_not_there_is_refused():
    with pytest.raises(BadValue, match='compare = "private" must be "alone", "alone-private" or "non-private"'):
        load("digits", ["compare=private"])
