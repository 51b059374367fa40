"""Algorithms 1 and 2 written down a second time, in plain loops over copies of the module, against both engines.

Both engines share the cohort's code; this shares nothing with either but the draws, which it looks up by their keys.
"""

from dataclasses import replace

import pytest
import torch

from prifedsync.accounting import Neighbours, Sampling
from prifedsync.engines import ENGINES
from prifedsync.local import Key, Optimiser, RecordedDraws, SeededDraws
from prifedsync.rules import FedAvg, Interpolate

from ..local.zoo import CASES, clipped_sum, with_weights
from .settings import MLP, Proximal, jobs_of, net_of, perturbing, private, records_of, run, unnoised

GRID = 2.0**-13  # half a cell of the noise's grid, in units of its scale
SIZES = (6, 4, 5)
DROPOUT = {CASES["dropout"]: (0.4, (6,)), CASES["dropout of channels"]: (0.5, (4, 1, 1))}  # rate, shape of a record's mask
nearest = round  # below, a round is one of Algorithm 1


def algorithm_2(case, job, records, start, round, draws, pull=lambda weights: 0.0):
    """K noisy steps of plain gradient descent; the mean of the last iterates."""
    (x, y), steps = records, job.plan.mechanism
    weights, iterates = start, []
    rate = job.optimiser.learning_rate
    for step in range(steps.local_steps):
        chosen = torch.ones(len(x), dtype=torch.bool)
        if steps.batch != "full" and steps.batch < steps.records:
            lots = draws.uniform(Key(job.client, round, step, "batch"), len(x))
            chosen = lots < steps.batch / steps.records
            if steps.sampling is Sampling.FIXED:
                chosen = lots <= lots.sort().values[steps.batch - 1]
        masks = None
        if case in DROPOUT:
            masks = [
                dropout(case, job.client, round, step, record, draws) for record in chosen.nonzero().flatten().tolist()
            ]
        module = with_weights(case.module(), weights)
        total = clipped_sum(module, case.task, x[chosen], y[chosen], steps.clip_norm, masks)
        noise = draws.normal(Key(job.client, round, step, "noise"), len(total))
        total = total + steps.noise_multiplier * steps.clip_norm * noise
        expected = steps.records if steps.batch == "full" else steps.batch
        weights = weights - rate * (total / expected + job.optimiser.weight_decay * weights + pull(weights))
        iterates.append(weights)
    last = max(1, nearest(job.averaging * steps.local_steps))
    return sum(iterates[-last:]) / last


def dropout(case, client, round, step, record, draws):
    """One record's masks: what is kept is scaled up by the chance of being kept."""
    rate, shape = DROPOUT[case]
    key = Key(client, round, step, "dropout 0", record)
    return [(draws.uniform(key, torch.Size(shape).numel()) >= rate).double().view(shape) / (1 - rate)]


def algorithm_1(case, jobs, records, rule, draws, *, start, rounds, participation, server_rate, delivery):
    """The global model after each round. `rule` is its name: h_i = w_glob, or (1 − α_i)·w̃_i + α_i·w_glob."""
    weights, own, helpers, seen = start, [start] * len(jobs), [start] * len(jobs), []

    def helper(i):
        mixing = 1.0 if rule == "fedavg" else jobs[i].mixing
        return (1 - mixing) * own[i] + mixing * weights

    for round in range(rounds):
        joined = list(range(len(jobs)))
        if participation < 1:  # else no coin is tossed
            coins = [float(draws.uniform(Key(job.client, round, 0, "coin"), 1)) for job in jobs]
            joined = [i for i, coin in enumerate(coins) if coin < participation]
        for i in joined:
            begin = helper(i) if delivery == "pull" else helpers[i]
            own[i] = algorithm_2(case, jobs[i], records[i], begin, round, draws)
        if joined:
            weights = (1 - server_rate) * weights + server_rate * sum(own[i] for i in joined) / len(joined)
        for i in joined:
            helpers[i] = helper(i)
        seen.append(weights)
    return seen


def tolerance(jobs, rounds):
    """What rounding to the grid may amount to."""
    return sum(
        rounds * job.plan.mechanism.local_steps * job.optimiser.learning_rate * job.plan.mechanism.clip_norm * GRID * 4
        for job in jobs
    )


def check(kind, case, jobs, records, rule, **options):
    tape = RecordedDraws(SeededDraws(12))
    found = run(kind, net_of(case), jobs, records, tape, rule=rule, **options)
    start = found.engine.start
    truth = algorithm_1(case, jobs, records, rule.name, tape.replay(), start=start, **options)
    assert len(truth) == len(found.servers) == options["rounds"]
    for server, weights in zip(found.servers, truth, strict=True):
        torch.testing.assert_close(server.weights, weights, rtol=0, atol=tolerance(jobs, options["rounds"]))
    assert (truth[-1] - start).norm() > 100 * tolerance(jobs, options["rounds"])


ENGINE = pytest.mark.parametrize("kind", ENGINES.values(), ids=ENGINES)
EVERYBODY = {"rounds": 2, "participation": 1.0, "server_rate": 1.0, "delivery": "pull"}


@ENGINE
@pytest.mark.parametrize("delivery", ["pull", "push"])
@pytest.mark.parametrize("rule", [FedAvg(), Interpolate()], ids=lambda rule: rule.name)
def test_algorithm_1(kind, rule, delivery):
    equal = jobs_of(sizes=SIZES, rounds=4)
    jobs = [replace(job, mixing=mixing) for job, mixing in zip(equal, (0.2, 0.9, 0.5), strict=True)]
    options = {"rounds": 4, "participation": 0.6, "server_rate": 0.7, "delivery": delivery}
    check(kind, MLP, jobs, records_of(MLP, SIZES), rule, **options)


@ENGINE
@pytest.mark.parametrize("sampling", Sampling)
@pytest.mark.parametrize("batch", [2, 3, "full"])
def test_algorithm_2(kind, batch, sampling):
    jobs = jobs_of(sizes=SIZES, batch=batch, sampling=sampling, local_steps=3)
    check(kind, CASES["linear"], jobs, records_of(CASES["linear"], SIZES), FedAvg(), **EVERYBODY)


@ENGINE
def test_clients_with_numbers_of_their_own(kind):
    jobs = [
        private("a", 6, batch=2, local_steps=3, clip_norm=0.1, noise_multiplier=1.0, averaging=0.7),
        private("b", 4, batch="full", local_steps=1, clip_norm=2.0, noise_multiplier=0.1),
        private("c", 5, batch=3, local_steps=3, clip_norm=0.4, optimiser=Optimiser(learning_rate=0.2, weight_decay=0.3)),
    ]
    check(kind, CASES["group norm"], jobs, records_of(CASES["group norm"], SIZES), FedAvg(), **EVERYBODY)


@ENGINE
@pytest.mark.parametrize("name", ["dropout", "dropout of channels"])
def test_dropout(kind, name):
    check(kind, CASES[name], jobs_of(sizes=SIZES, batch=3), records_of(CASES[name], SIZES), FedAvg(), **EVERYBODY)


@ENGINE
def test_what_a_rule_does_at_the_client(kind):
    """Start, pull and finish, each in its place; the pull is added after clipping and noise, whatever its size."""
    job, records, draws = private("a", 5, batch="full"), records_of(MLP, (5,)), SeededDraws(12)
    found = run(kind, net_of(MLP), [job], records, draws, rule=Proximal(), rounds=2, server_rate=0.5)
    own = weights = found.engine.start
    for round in range(2):
        helper, begin = weights, (own + weights) / 2
        trained = algorithm_2(MLP, job, records[0], begin, round, draws, pull=lambda w, helper=helper: 3 * (w - helper))
        own = helper + (trained - helper) / 2
        weights = weights / 2 + own / 2
        torch.testing.assert_close(found.servers[round].weights, weights, rtol=0, atol=tolerance([job], 2))


@ENGINE
@pytest.mark.parametrize("batch", [2, "full"])
@pytest.mark.parametrize("present", [3, 6, 11])
def test_the_divisor_is_nominal_under_add_remove(kind, present, batch):
    """The plan says six records. Rate, divisor and noise come from six, however many there are."""
    jobs = [private("a", 6, batch=batch, neighbours=Neighbours.ADD_REMOVE)]
    check(kind, CASES["linear"], jobs, records_of(CASES["linear"], (present,)), FedAvg(), **EVERYBODY)


@ENGINE
def test_training_without_privacy_is_plain_gradient_descent(kind):
    """Nothing is clipped, nothing added; a batch is still divided by its expected size."""
    case, (x, y) = CASES["mlp"], CASES["mlp"].records(6, seed=10)
    job = unnoised("a", 6, batch=4, local_steps=3)
    draws = SeededDraws(3)
    found = run(kind, net_of(case), [job], [(x, y)], draws, rounds=1)
    weights = found.engine.start
    for step in range(3):
        chosen = draws.uniform(Key("a", 0, step, "batch"), 6) < 4 / 6
        total = clipped_sum(with_weights(case.module(), weights), case.task, x[chosen], y[chosen], 1e9)
        weights = weights - 0.5 * total / 4
    torch.testing.assert_close(found.weights, weights)


@ENGINE
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_output_perturbation_releases_one_clipped_and_noised_change(kind, noise):
    """From the helper, which is nowhere near zero; clipped in L2, or in L1 for Laplace noise."""
    case, records = CASES["mlp"], [CASES["mlp"].records(6, seed=10)]
    tape, options = RecordedDraws(SeededDraws(3)), {"batch": "full", "local_steps": 3}
    unnoised_steps = run(kind, net_of(case), [unnoised("a", 6, **options)], records, SeededDraws(3), rounds=1)
    private_steps = run(kind, net_of(case), [unnoised("a", 6, plan=perturbing(noise), **options)], records, tape, rounds=1)
    start = unnoised_steps.engine.start
    change = unnoised_steps.weights - start
    length = change.abs().sum() if noise == "laplace" else change.norm()
    assert length > 0.3
    key = Key("a", 0, 0, "output")
    drawn = SeededDraws(3).normal(key, len(change))
    if noise == "laplace":
        lots = SeededDraws(3).uniform(key, len(change)) - 0.5
        drawn = -lots.sign() * torch.log1p(-2 * lots.abs())
    truth = start + change * 0.3 / length + 0.5 * 0.3 * drawn
    torch.testing.assert_close(private_steps.weights, truth, rtol=0, atol=0.15 * GRID * 2)
    assert private_steps.noise_keys() == [key]
