"""The weights of clients in the server's mean: public numbers of records, from the config to the released model."""

from dataclasses import dataclass

import pytest
import torch

import prifedsync
from prifedsync.config import from_mapping
from prifedsync.data import Description, Task
from prifedsync.planning import jobs_of
from prifedsync.rules import Rule
from prifedsync.run import prepare
from prifedsync.values import BadValue

SIZES = {"a": 12, "b": 40, "c": 3}
BASE = {"rounds": 2, "averaging": 0.0, "data": {"classes": 3, "test_fraction": 0.0}, "privacy": {"noise_multiplier": 2.0}}
SEEDED = BASE | {"privacy": {"noise_multiplier": 2.0, "randomness": "seeded"}, "performance": {"dtype": "float64"}}


def weights_of(config, sizes=SIZES):
    described = Description(sizes, (4,), Task("classes", 3))
    return {job.client: job.weight for job in jobs_of(from_mapping(config), described, lambda steps, neighbours: 0.0)}


def records(sizes):
    draw = torch.Generator().manual_seed(7)
    return {
        name: (torch.randn(size, 4, generator=draw), torch.randint(0, 3, (size,), generator=draw))
        for name, size in sizes.items()
    }


def test_a_client_weighs_its_records_unless_all_are_to_weigh_alike():
    assert weights_of(BASE) == {"a": 12.0, "b": 40.0, "c": 3.0}
    assert weights_of(BASE | {"merge": "equal"}) == {"a": 1.0, "b": 1.0, "c": 1.0}


@pytest.mark.parametrize("mechanism", ["noisy-steps", "output-gaussian", "output-laplace"])
def test_where_the_number_of_records_is_private_the_nominal_one_weighs(mechanism):
    """One record more or less must not move the global model by way of the weights."""
    nominal = {"a": 10, "b": 50, "c": 5}
    private = {"noise_multiplier": 2.0, "neighbours": "add-remove", "mechanism": mechanism}
    config = BASE | {"privacy": private, "clients": {name: {"records": n} for name, n in nominal.items()}}
    assert weights_of(config) == weights_of(config, SIZES | {"c": 4}) == {"a": 10.0, "b": 50.0, "c": 5.0}
    with pytest.raises(BadValue, match="client c: records must be set with add-remove adjacency"):
        weights_of(config | {"clients": {"a": {"records": 10}, "b": {"records": 50}}})


@pytest.mark.parametrize("engine", ["vectorised", "reference"])
def test_the_released_model_is_the_weighted_mean_of_the_clients_models(engine):
    """FedAvg with rate 1: w_glob = Σ n_j·w̃_j / Σ n_j of what the clients sent last, where they send models."""
    config = from_mapping(SEEDED).changed(**{"performance.engine": engine, "rule.delivery": "push"})
    for merge, weights in (("records", [12.0, 40.0, 3.0]), ("equal", [1.0, 1.0, 1.0])):
        result = prifedsync.train(config.changed(merge=merge), clients=records(SIZES))
        models = result.engine.models()
        sent = torch.stack([models[name].value for name in SIZES]).double()
        expected = (torch.tensor(weights, dtype=torch.float64) @ sent) / sum(weights)
        torch.testing.assert_close(result.server.weights.double(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("engine", ["vectorised", "reference"])
@pytest.mark.parametrize("merge", ["records", "equal"])
def test_the_sum_of_messages_leads_where_the_mean_of_models_does(engine, merge):
    """Up to half a cell of the grid for each client: the same clipped sums, noise and weights by two ways."""
    config = from_mapping(SEEDED).changed(**{"performance.engine": engine, "merge": merge, "rounds": 1})
    summed = prifedsync.train(config, clients=records(SIZES))
    models = prifedsync.train(config.changed(**{"rule.delivery": "push"}), clients=records(SIZES))
    sums = summed.prepared.sums
    assert models.prepared.sums is None
    cell = abs(sums.step) * sums.grid / sum(sums.weights.values())
    apart = float((summed.server.weights - models.server.weights).abs().max())
    assert 0 < apart <= len(SIZES) / 2 * cell * 1.1  # models are rounded too, to a finer grid


def test_clients_of_one_size_are_merged_as_before():
    """To the last bit: weights that are all alike are no weights."""
    config = from_mapping(SEEDED)
    same = records(dict.fromkeys("abc", 20))
    by_records, alike = (prifedsync.train(config.changed(merge=merge), clients=same) for merge in ("records", "equal"))
    assert torch.equal(by_records.server.weights, alike.server.weights)


@dataclass(frozen=True)
class Median(Rule):
    """A rule from before there were weights."""

    name = "median"

    def merge(self, server, uploads, rate):
        return server.merged(uploads.value.median(0, keepdim=True).values, rate)


@dataclass(frozen=True)
class Heaviest(Rule):
    """A rule that takes weights, and passes on the heaviest upload."""

    name = "heaviest"

    def merge(self, server, uploads, rate, weights=None):
        place = 0 if weights is None else int(weights.argmax())
        return server.merged(uploads.value[place : place + 1], rate)


def test_a_rule_whose_merge_takes_no_weights_is_refused_where_they_matter():
    config = from_mapping(SEEDED)
    with pytest.raises(BadValue, match="cannot be combined with rule median, whose merge takes no weights"):
        prepare(config, records(SIZES), rule=Median)
    prifedsync.train(config, clients=records(dict.fromkeys("abc", 20)), rule=Median)
    prifedsync.train(config.changed(merge="equal"), clients=records(SIZES), rule=Median)


def test_a_rule_that_takes_weights_is_given_them():
    result = prifedsync.train(from_mapping(SEEDED), clients=records(SIZES), rule=Heaviest)
    assert torch.equal(result.server.weights, result.engine.models()["b"].value)
