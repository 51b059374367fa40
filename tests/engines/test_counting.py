"""Counts: what was drawn, what the engine says it did, and what the plan accounts for are one number."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from prifedsync.accounting import Neighbours, Sampling
from prifedsync.engines import ENGINES, Vectorised
from prifedsync.local import Optimiser, RecordedDraws, SeededDraws
from prifedsync.rules import FedAvg
from prifedsync.sync import Refused, Sent
from prifedsync.values import BadValue

from ..local.laws import SIGMAS, uncorrelated
from ..local.zoo import CASES, Case
from .settings import (
    MLP,
    SIZES,
    answer,
    ask,
    jobs_of,
    net_of,
    noisy_queries,
    perturbing,
    private,
    records_of,
    rounds_taken,
    run,
    sums,
    unnoised,
)

ENGINE = pytest.mark.parametrize("kind", ENGINES.values(), ids=ENGINES)


def tape():
    return RecordedDraws(SeededDraws(9))


# ------------------------------------------------------------------ noisy queries


@ENGINE
@pytest.mark.parametrize("local_steps", [1, 2, 5])
@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_as_many_noisy_gradients_as_the_plan_has_steps(kind, local_steps, participation):
    """K for every round taken: on the tape, in the counters, and in every upload."""
    jobs = jobs_of(local_steps=local_steps, rounds=4)
    seen = run(kind, net_of(MLP), jobs, records_of(MLP), tape(), rounds=4, participation=participation)
    engine = seen.engine
    for i, job in enumerate(jobs):
        (count,) = [count for _, count in job.plan.one_round()]
        assert count == local_steps
        assert noisy_queries(engine)[i] == rounds_taken(engine)[i] * count
        keys = seen.noise_keys(job.client)
        assert len(keys) == len(set(keys)) == noisy_queries(engine)[i]
        rounds = [round for round, uploads in enumerate(seen.uploads) if job.client in uploads.senders]
        assert [(key.round, key.step) for key in keys] == [(r, s) for r in rounds for s in range(local_steps)]
        assert all(answer(seen.uploads[r], i).queries == count for r in rounds)
        assert len(rounds) == rounds_taken(engine)[i]


@ENGINE
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_one_query_a_round_for_output_perturbation(kind, noise):
    jobs = jobs_of(unnoised, plan=perturbing(noise), local_steps=4)
    seen = run(kind, net_of(MLP), jobs, records_of(MLP), tape())
    for i, job in enumerate(jobs):
        assert [count for _, count in job.plan.one_round()] == [1]
        assert [(key.round, key.purpose) for key in seen.noise_keys(job.client)] == [(r, "output") for r in range(3)]
        assert (rounds_taken(seen.engine)[i], noisy_queries(seen.engine)[i]) == (3, 3)


@ENGINE
def test_each_noise_covers_the_whole_vector(kind):
    """One value for each weight: none is sent bare, none twice."""
    seen = run(kind, net_of(MLP), jobs_of(), records_of(MLP), tape())
    assert {len(seen.draws.tape["normal", key]) for key in seen.noise_keys()} == {seen.engine.net.count}


@ENGINE
@pytest.mark.parametrize("sampling", Sampling)
def test_every_step_draws_its_own_batch(kind, sampling):
    """For each noisy gradient one batch, by its own key; a tape refuses a key drawn twice."""
    jobs = jobs_of(local_steps=3, sampling=sampling, batch=2)
    seen = run(kind, net_of(MLP), jobs, records_of(MLP), tape())
    batches = Counter(key[:3] for _, key in seen.draws.asked if key.purpose == "batch")
    queries = Counter(key[:3] for key in seen.noise_keys() if key.client != "client 2")  # its one record is always in
    assert batches == queries
    assert set(batches.values()) == {1}


@ENGINE
def test_dropout_is_drawn_for_each_record_of_each_step(kind):
    case = CASES["dropout"]
    seen = run(kind, net_of(case), jobs_of(batch="full"), records_of(case), tape())
    keys = [key for _, key in seen.draws.asked if key.purpose == "dropout 0"]
    assert Counter(key.client for key in keys) == {f"client {i}": 3 * 2 * size for i, size in enumerate(SIZES)}
    rows = [seen.draws.tape["uniform", key] for key in keys]
    assert len({tuple(row.tolist()) for row in rows}) == len(keys)


# ------------------------------------------------------------------ the end of a plan


@ENGINE
def test_beyond_its_plan_a_client_refuses_and_nothing_is_drawn(kind):
    jobs = [private("short", 5, rounds=1), private("long", 6, rounds=3)]
    seen = run(kind, net_of(MLP), jobs, records_of(MLP, (5, 6)), tape(), rounds=3)
    assert [type(answer(uploads, 0)) for uploads in seen.uploads] == [Sent, Refused, Refused]
    assert answer(seen.uploads[1], 0).reason == "all 1 rounds of the plan are taken"
    assert [len(uploads.rows.value) for uploads in seen.uploads] == [2, 1, 1]
    assert {key.round for _, key in seen.draws.asked if key.client == "short" and key.purpose != "coin"} == {0}
    counters = seen.engine.counters()
    assert {name: counters[name] for name in ("taken", "queries", "steps")} == {
        "taken": [1, 3], "queries": [2, 6], "steps": [2, 6],
    }  # fmt: skip
    assert torch.equal(seen.engine.own(0), answer(seen.uploads[0], 0).row)


@ENGINE
def test_when_all_plans_are_spent_the_model_stays(kind):
    seen = run(kind, net_of(MLP), jobs_of(rounds=2), records_of(MLP), tape(), rounds=4)
    assert torch.equal(seen.servers[1].weights, seen.servers[3].weights)
    assert seen.uploads[3].rows.value.shape == (0, seen.engine.net.count)
    assert rounds_taken(seen.engine) == [2] * len(SIZES)


@ENGINE
def test_a_round_is_committed_before_anything_is_sent(kind, monkeypatch):
    """A client that fails on the way has spent the round all the same."""
    engine = kind(net_of(MLP), jobs_of(rounds=1), records_of(MLP), FedAvg(), SeededDraws(1))

    def fails(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(engine, "take_steps", fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        ask(engine, 0, [0, 1], engine.start)
    monkeypatch.undo()
    assert rounds_taken(engine) == [1, 1, 0, 0]
    assert isinstance(answer(ask(engine, 1, [0], engine.start), 0), Refused)


@ENGINE
def test_counters_go_on_where_they_were(kind, tmp_path):
    """Two rounds, a new engine on the same files, one more: as three in a row, and the plan ends where it would have."""
    jobs = jobs_of(optimiser=Optimiser(name="adam", learning_rate=0.05))
    net, records = net_of(MLP), records_of(MLP)
    whole = run(kind, net, jobs, records, SeededDraws(3), delivery="push")
    first = run(kind, net, jobs, records, SeededDraws(3), delivery="push", rounds=2, folder=tmp_path)
    state = (first.servers[-1], first.engine.save(), first.aggregator.save())
    first.engine.saved()
    first.aggregator.saved()
    first.engine.store.close()
    second = run(kind, net, jobs, records, SeededDraws(3), delivery="push", folder=tmp_path, resume=state)
    assert torch.equal(second.weights, whole.weights)
    assert second.engine.counters() == whole.engine.counters()
    assert all(torch.equal(second.engine.state(i), whole.engine.state(i)) for i in range(len(SIZES)))
    assert all(
        isinstance(given, Refused) for given in ask(second.engine, 3, range(len(SIZES)), whole.weights).answers.values()
    )


# ------------------------------------------------------------------ whose numbers


@ENGINE
@pytest.mark.parametrize(
    ("jobs", "says"),
    [
        ([private("a", 5), private("a", 5)], "clients = 2 share a name; two clients of one name would share their noise"),
        ([private("a", 5), unnoised("b", 5)], "clients = 2 are private and not private in one run; train them apart"),
        ([private("a", 5), private("b", 6, batch=3)], "clients.b.records = 6 but the client has 5"),
        ([unnoised("a", 4)], "clients.a.records = 4 but the client has 5"),
    ],
)
def test_what_cannot_be_counted_is_refused(kind, jobs, says):
    with pytest.raises(BadValue) as refusal:
        kind(net_of(MLP), jobs, records_of(MLP, (5,) * len(jobs)), FedAvg(), tape())
    assert str(refusal.value).startswith(says)


@ENGINE
def test_under_add_remove_the_number_of_records_may_differ(kind):
    """Half or twice the nominal number: the same public divisor, so the same noise in what is sent."""
    job = private("a", 8, batch=4, local_steps=1, neighbours=Neighbours.ADD_REMOVE)
    for present in (4, 8, 16):
        seen = run(kind, net_of(MLP), [job], records_of(MLP, (present,)), tape(), rounds=1)
        start = seen.engine.start
        again = kind(net_of(MLP), [job], records_of(MLP, (present,)), FedAvg(), SeededDraws(9))
        clipped = sums(again, 0, 0, [0], start[None])
        (key,) = seen.noise_keys()
        expected = (clipped[0] + 0.5 * 0.3 * seen.draws.tape["normal", key]) / 4
        torch.testing.assert_close((start - seen.weights) / 0.5, expected, rtol=0, atol=0.15 * 2**-12 / 4)


# ------------------------------------------------------------------ batches, as the sums show them

WHO = Case(lambda: nn.Linear(20, 5, bias=False), (20,))


def membership(kind, sampling, steps):
    """[steps, records]: each record has an axis of its own, so the clipped sum shows who was in."""
    x, y = torch.eye(20, dtype=torch.float64), torch.zeros(20, dtype=torch.long)
    jobs = [private("a", 20, batch=6, sampling=sampling, local_steps=steps)]
    engine = kind(net_of(WHO), jobs, [(x, y)], FedAvg(), SeededDraws(2))
    start = engine.start.expand(1, -1)
    rows = [sums(engine, 0, step, [0], start).view(5, 20)[0] != 0 for step in range(steps)]
    return torch.stack(rows).double().numpy()


@ENGINE
def test_batches_of_an_engine_are_poisson(kind):
    rows, rate = membership(kind, Sampling.POISSON, 300), 6 / 20
    sizes, variance = rows.sum(1), 20 * rate * (1 - rate)
    assert abs(sizes.mean() - 6) < SIGMAS * np.sqrt(variance / len(rows))
    assert abs(sizes.var() / variance - 1) < SIGMAS * np.sqrt(2 / len(rows))
    assert np.all(np.abs(rows.mean(0) - rate) < SIGMAS * np.sqrt(rate * (1 - rate) / len(rows)))
    assert uncorrelated(np.stack([rows.ravel(), np.roll(rows, 1, axis=0).ravel()]))


@ENGINE
def test_or_of_a_fixed_size(kind):
    rows = membership(kind, Sampling.FIXED, 150)
    assert set(rows.sum(1)) == {6}
    assert len({tuple(row) for row in rows}) > 140


# ------------------------------------------------------------------ memory


def test_client_states_beyond_memory_change_nothing():
    """States that do not fit are written out and read back."""
    jobs = jobs_of(optimiser=Optimiser(name="adam", learning_rate=0.05))
    net, records = net_of(MLP), records_of(MLP)
    inside = run(Vectorised, net, jobs, records, SeededDraws(3), delivery="push")
    tight = replace(inside.engine.performance, memory=1.0)
    outside = run(Vectorised, net, jobs, records, SeededDraws(3), delivery="push", performance=tight)
    assert torch.equal(inside.weights, outside.weights)
    assert all(torch.equal(inside.engine.state(i), outside.engine.state(i)) for i in range(len(SIZES)))


def test_a_stack_is_as_large_as_memory_allows():
    sizes = (3,) * 40
    engine = Vectorised(net_of(MLP), jobs_of(sizes=sizes), records_of(MLP, sizes), FedAvg(), SeededDraws(1))
    assert [len(group) for group in engine.groups(engine.clients)] == [40]
    engine.net = SimpleNamespace(count=2**21, record_bytes=24 * 2**21, device=torch.device("cpu"), most_at_once=1024)
    assert engine.records_at_once() == 8
    assert max(len(group) for group in engine.groups(engine.clients)) == 1
