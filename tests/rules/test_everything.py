"""Any rule with any optimiser, batch, delivery and engine, and any rule from its name in a config."""

from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import torch
from torch import nn

from prifedsync import run as running
from prifedsync.accounting import Sampling
from prifedsync.config import load
from prifedsync.engines import Performance
from prifedsync.local import Optimiser
from prifedsync.local.optimisers import OPTIMISERS
from prifedsync.rules import APFL, RULES, Alone, Ditto, PFedMe

from ..engines import test_device as on_device
from ..engines.settings import assert_same, jobs_under, net_of, private, records_of, twins, unnoised
from ..local.zoo import CASES, Case

SIZES = (5, 9, 1, 7)
CASE = CASES["linear without bias"]
net = cache(lambda: net_of(CASE))
EVERY = [PFedMe(inner_steps=2) if name == "pfedme" else kind() for name, kind in RULES.items()]
EVERY += [RULES[name](publish=True) for name in ("apfl", "ditto", "alone")]
BATCHES = {"poisson": (3, Sampling.POISSON), "fixed": (3, Sampling.FIXED), "full": ("full", Sampling.POISSON)}
DELIVERIES = ["pull", "push"]


CHOSEN = [  # every rule with every optimiser; batches and deliveries in turn
    (rule, optimiser, list(BATCHES)[(r + o) % 3], DELIVERIES[(r + o // 2) % 2])
    for (r, rule), (o, optimiser) in product(enumerate(EVERY), enumerate(OPTIMISERS))
]
COMBINATION = pytest.mark.parametrize(("rule", "optimiser", "batches", "delivery"), CHOSEN, ids=str)


def test_each_choice_meets_every_rule():
    for rule in EVERY:
        mine = [rest for each, *rest in CHOSEN if each == rule]
        assert {optimiser for optimiser, _, _ in mine} == set(OPTIMISERS)
        assert {batches for _, batches, _ in mine} == set(BATCHES)
        assert {delivery for _, _, delivery in mine} == set(DELIVERIES)


def setting(rule, optimiser, batches, delivery):
    """Clients with strengths, mixing and rates of their own; half of them in a round where they are pushed to."""
    batch, sampling = BATCHES[batches]
    how = Optimiser(name=optimiser, learning_rate=0.02, stability=0.03, weight_decay=0.1, carried=optimiser != "adagrad")
    chance = 0.6 if delivery == "push" and rule.uploads else 1.0
    if rule == Alone():
        jobs = jobs_under(rule, unnoised, sizes=SIZES, batch=batch)
        jobs = [replace(job, unnoised_steps=replace(job.unnoised_steps, sampling=sampling)) for job in jobs]
    else:
        options = {"batch": batch, "sampling": sampling, "participation": chance, "averaging": 0.5}
        jobs = jobs_under(rule, private, sizes=SIZES, **options)
    own = [replace(how, learning_rate=0.02 * (i + 1)) for i in range(len(SIZES))]
    jobs = [replace(job, mixing=0.3 * i, strength=0.9 * i, optimiser=own[i]) for i, job in enumerate(jobs)]
    return jobs, {"rule": rule, "delivery": delivery, "participation": chance, "server_rate": 0.7}


@COMBINATION
def test_both_engines_agree(rule, optimiser, batches, delivery):
    jobs, options = setting(rule, optimiser, batches, delivery)
    assert_same(*twins(net(), jobs, records_of(CASE, SIZES), **options))


@COMBINATION
def test_the_engine_on_a_device_agrees(rule, optimiser, batches, delivery):
    jobs, options = setting(rule, optimiser, batches, delivery)
    assert_same(*on_device.twins(net(), jobs, records_of(CASE, SIZES), **options), tolerance=on_device.CELL)


@pytest.mark.parametrize("rule", [Ditto(), Ditto(publish=True)], ids=str)
def test_clients_who_take_different_numbers_of_steps(rule):
    """They are stacked apart, and each is anchored where it began."""
    jobs = [job for steps in (1, 3) for job in jobs_under(rule, local_steps=steps, sizes=SIZES, strength=0.5)]
    jobs = [replace(job, client=f"client {i}") for i, job in enumerate(jobs)]
    records = records_of(CASE, SIZES) * 2
    assert_same(*twins(net(), jobs, records, rule=rule))
    assert_same(*on_device.twins(net(), jobs, records, rule=rule), tolerance=on_device.CELL)


@pytest.mark.parametrize("rule", [PFedMe(inner_steps=2), APFL(), Ditto(publish=True)], ids=str)
@pytest.mark.parametrize("pair", [twins, on_device.twins], ids=["host", "device"])
def test_dropout_chunks_and_pieces(rule, pair):
    """Masks belong to a step of a round too, and the pieces of a batch to one step."""
    case = Case(lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.4), nn.Linear(16, 5, bias=False)))
    jobs, sizes = jobs_under(rule, sizes=(4, 3), strength=0.5), (4, 3)
    options = {"rounds": 2, "rule": rule, "performance": Performance(chunk=1, records_at_once=2)}
    assert_same(*pair(net_of(case), jobs, records_of(case, sizes), **options), tolerance=on_device.CELL)


# ------------------------------------------------------------------ by name

SMALL = ("data.clients=3", "compare=[]", "local.local_steps=2", "averaging=0", "privacy.noise_multiplier=20")
PULLING = ("fedprox", "mean-regularised", "pfedme", "mixture", "attentive", "ditto")


def trained(name, rounds, *more):
    result = running.train(load("digits", [*SMALL, f"rounds={rounds}", f"rule.name={name}", *more]))
    return torch.stack([result.engine.personal(i).value for i in range(3)]), result


@pytest.mark.parametrize("name", RULES)
def test_every_rule_trains_from_a_config(name):
    models, result = trained(name, 2)
    assert torch.isfinite(models).all()
    assert result.record.config["rule"]["name"] == name
    assert result.record.scores["personal"].own.clients == 3
    again, _ = trained(name, 2)
    assert torch.equal(models, again)


@pytest.mark.parametrize("name", RULES)
def test_a_strength_of_its_own_moves_one_client_where_the_rule_pulls(name):
    """In the first round; under mixture, whose clients all start from the same, in the second."""
    rounds = 2 if name == "mixture" else 1
    models, _ = trained(name, rounds)
    own, result = trained(name, rounds, 'clients."client-01".strength=0.02')
    assert [job.strength for job in result.engine.jobs] == [0.01, 0.02, 0.01]
    assert [torch.equal(*each) for each in zip(models, own, strict=True)] == [True, name not in PULLING, True]


@pytest.mark.parametrize(("name", "mixes"), [("interpolate", True), ("attentive", True), ("fedprox", False)])
def test_so_does_mixing_of_its_own(name, mixes):
    models, _ = trained(name, 2)
    own, result = trained(name, 2, 'clients."client-01".mixing=0.7')
    assert [job.mixing for job in result.engine.jobs] == [0.1, 0.7, 0.1]
    assert [torch.equal(*each) for each in zip(models, own, strict=True)] == [True, not mixes, True]
