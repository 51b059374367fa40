"""The law of what leaves an engine: noise of the scale that is accounted, fresh for every client, round and step.

Each test takes the noise out of what was sent and asks whether it follows the law of the plan; it must say yes to the
plan's own scale and no to ⅔ and 1½ of it. Seeded tests are deterministic; those on secret draws fail by accident with a
chance below 10⁻⁹ (`laws.py`).
"""

from functools import cache

import pytest
import torch
from scipy import stats
from torch import nn

from prifedsync.engines import ENGINES
from prifedsync.local import Optimiser, SeededDraws, SystemDraws
from prifedsync.rules import FedAvg

from ..local.laws import ENOUGH, follows, uncorrelated
from ..local.zoo import Case
from .settings import ask, gradients, net_of, perturbing, private, records_of, sums, unnoised

WIDE = Case(lambda: nn.Linear(400, 256), (400,))  # 102 656 weights: as many values from one upload
wide = cache(lambda dtype=torch.float64: net_of(WIDE, dtype))
RECORDS, RATE = 4, 0.5
ENGINE = pytest.mark.parametrize("kind", ENGINES.values(), ids=ENGINES)
DRAWS = pytest.mark.parametrize("draws", [lambda: SeededDraws(17), SystemDraws], ids=["seeded", "secret"])
WRONG = (2 / 3, 1.5)


def engine_of(kind, jobs, draws, dtype=torch.float64):
    return kind(wide(dtype), jobs, records_of(WIDE, (RECORDS,) * len(jobs)), FedAvg(), draws)


def job(name="a", noise_multiplier=2.0, clip_norm=0.3, **changed):
    changed = {"batch": "full", "local_steps": 1, "optimiser": Optimiser(learning_rate=RATE), **changed}
    return private(name, RECORDS, noise_multiplier=noise_multiplier, clip_norm=clip_norm, **changed)


def sent_noise(engine):
    """[C, P]: what each client's upload has beyond the clipped sum; one step of plain gradient descent."""
    clients = range(len(engine.jobs))
    start = engine.start.expand(len(clients), -1)
    clipped = sums(engine, 0, 0, clients, start)
    uploads = ask(engine, 0, clients, engine.start).rows.value
    return (start - uploads).double() * RECORDS / RATE - clipped


def test_one_upload_has_enough_values():
    assert wide().count >= ENOUGH


@ENGINE
@DRAWS
def test_the_noise_of_a_step_is_that_of_the_plan(kind, draws):
    claimed = job().noisy
    scale = claimed.noise_multiplier * claimed.clip_norm
    assert follows(sent_noise(engine_of(kind, [job()], draws())), stats.norm, scale)
    for factor in WRONG:
        faulty = engine_of(kind, [job(noise_multiplier=factor * claimed.noise_multiplier)], draws())
        assert not follows(sent_noise(faulty), stats.norm, scale)


@ENGINE
def test_single_precision_changes_nothing_about_the_law(kind):
    """At a learning rate at which the noise is not lost in the rounding of the weights."""
    found = sent_noise(engine_of(kind, [job()], SeededDraws(17), torch.float32))
    assert follows(found, stats.norm, 0.6)
    assert not any(follows(found, stats.norm, 0.6 * factor) for factor in WRONG)


@ENGINE
def test_stacked_clients_each_have_their_own_scale(kind):
    numbers = [(2.0, 0.3), (1.0, 0.3), (2.0, 3.0), (1.0, 3.0)]
    jobs = [job(f"client {i}", *own) for i, own in enumerate(numbers)]
    scales = [multiplier * clip for multiplier, clip in numbers]
    for row, own in zip(sent_noise(engine_of(kind, jobs, SeededDraws(2))), scales, strict=True):
        assert [follows(row, stats.norm, scale) for scale in scales] == [scale == own for scale in scales]


@ENGINE
def test_the_noise_does_not_shrink_with_the_batch(kind):
    """A client whose batches are small gets the noise of the plan too, and divides it by fewer records."""
    engine = engine_of(kind, [job(batch=2)], SeededDraws(5))
    start = engine.start.expand(1, -1)
    noise = gradients(engine, 0, 0, [0], start) * 2 - sums(engine, 0, 0, [0], start)
    assert follows(noise, stats.norm, 0.6)


def output_noise(kind, law, factor, draws):
    """Upload minus start minus the clipped change of the same training without noise."""
    options = {"batch": "full", "local_steps": 1}
    plan = perturbing(law, noise_multiplier=factor * 2.0)
    engine = engine_of(kind, [unnoised("a", RECORDS, plan=plan, **options)], draws)
    free = engine_of(kind, [unnoised("a", RECORDS, **options)], draws)
    change = ask(free, 0, [0], free.start).rows.value[0] - free.start
    length = change.norm() if law == "gaussian" else change.abs().sum()
    assert length > plan.mechanism.clip_norm
    return ask(engine, 0, [0], engine.start).rows.value[0] - engine.start - change * plan.mechanism.clip_norm / length


@ENGINE
@DRAWS
@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_the_noise_of_output_perturbation_is_that_of_the_plan(kind, law, draws):
    expected = stats.norm if law == "gaussian" else stats.laplace
    assert follows(output_noise(kind, law, 1.0, draws()), expected, 0.6)
    for factor in WRONG:
        assert not follows(output_noise(kind, law, factor, draws()), expected, 0.6)


# ------------------------------------------------------------------ fresh noise


@ENGINE
@DRAWS
def test_no_two_clients_rounds_or_steps_share_noise(kind, draws):
    """One shared stream lets a colluder subtract its own noise from another's upload."""
    engine = engine_of(kind, [job("a"), job("b")], draws())
    start = engine.start.expand(2, -1)
    rows = [
        gradients(engine, round, step, [0, 1], start) * RECORDS - sums(engine, round, step, [0, 1], start)
        for round in range(2)
        for step in range(2)
    ]
    assert uncorrelated(torch.cat(rows))


@ENGINE
@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_nor_do_perturbed_outputs(kind, law):
    jobs = [unnoised(name, RECORDS, plan=perturbing(law, noise_multiplier=2.0), batch="full") for name in "ab"]
    engine = engine_of(kind, jobs, SystemDraws())
    rounds = [ask(engine, round, [0, 1], engine.start).rows.value - engine.start for round in range(2)]
    assert uncorrelated(torch.cat(rounds))


@ENGINE
def test_another_secret_is_other_noise_and_the_same_secret_the_same(kind):
    secret = SystemDraws()
    sources = (secret, SystemDraws(secret.secret), SystemDraws(), SystemDraws())
    noise = [sent_noise(engine_of(kind, [job()], draws))[0] for draws in sources]
    assert torch.equal(noise[0], noise[1])
    assert uncorrelated(torch.stack(noise[1:]))


# ------------------------------------------------------------------ the grid


@ENGINE
@pytest.mark.parametrize(("noise_multiplier", "clip_norm", "grid"), [(2.0, 0.3, 2.0**-13), (1.0, 4.0, 2.0**-10)])
def test_what_is_sent_lies_on_a_grid_of_public_numbers(kind, noise_multiplier, clip_norm, grid):
    """Four records, so that dividing by their number is exact; other records, the same grid."""
    for seed in (10, 20):
        jobs, records = [job(noise_multiplier=noise_multiplier, clip_norm=clip_norm)], [WIDE.records(RECORDS, seed)]
        engine = kind(wide(), jobs, records, FedAvg(), SeededDraws(1))
        released = gradients(engine, 0, 0, [0], engine.start.expand(1, -1)) * RECORDS / grid
        assert torch.equal(released, released.round())
        assert bool((released % 2 == 1).any())
