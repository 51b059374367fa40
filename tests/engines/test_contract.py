"""The contract of engines: given the same draws, vectorised and reference do the same, whatever the model and clients."""

from dataclasses import dataclass, replace
from itertools import product

import pytest
import torch

from prifedsync.accounting import Neighbours, Sampling
from prifedsync.engines import ENGINES, Performance, Reference, Vectorised
from prifedsync.local import Draws, Optimiser, RecordedDraws, Schedule, SeededDraws
from prifedsync.local.optimisers import OPTIMISERS
from prifedsync.rules import FedAvg, Interpolate, Noised, Unprotected

from ..local.zoo import CASES
from .settings import (
    MLP,
    RULES,
    SIZES,
    answer,
    ask,
    assert_same,
    jobs_of,
    jobs_under,
    net_of,
    noisy_queries,
    perturbing,
    private,
    records_of,
    rounds_taken,
    run,
    sums,
    twins,
    unnoised,
)  # fmt: skip

NAMES = tuple(OPTIMISERS)


def test_there_are_two_engines():
    assert dict(ENGINES) == {"vectorised": Vectorised, "reference": Reference}


# ------------------------------------------------------------------ models


@pytest.mark.parametrize("name", CASES)
def test_every_model(name):
    case = CASES[name]
    fast, slow = twins(net_of(case), jobs_of(), records_of(case))
    assert_same(fast, slow)
    assert (fast.weights - fast.engine.start).norm() > 0.01


@pytest.mark.parametrize("name", ["mlp", "group norm", "sequence", "tied", "recurrent", "regression"])
def test_clipped_sums_in_single_precision(name):
    case = CASES[name]
    net, jobs, records = net_of(case, torch.float32), jobs_of(batch="full"), records_of(case)
    clients, weights = range(len(SIZES)), net.initial().expand(len(SIZES), -1)
    engines = [kind(net, jobs, records, FedAvg(), SeededDraws(1)) for kind in (Vectorised, Reference)]
    fast, slow = (sums(engine, 0, 0, clients, weights) for engine in engines)
    assert torch.all((fast - slow).norm(dim=1) <= 1e-5 * slow.norm(dim=1))


@pytest.mark.parametrize("optimiser", NAMES)
def test_every_optimiser_in_single_precision(optimiser):
    """Three rounds apart by rounding only; those that divide by a root amplify it where a gradient is nearly zero."""
    jobs = jobs_of(optimiser=Optimiser(name=optimiser, learning_rate=0.05, stability=1e-3))
    fast, slow = twins(net_of(MLP, torch.float32), jobs, records_of(MLP))
    torch.testing.assert_close(fast.weights, slow.weights, rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------ batches


@pytest.mark.parametrize("batch", [1, 3, "full"])
@pytest.mark.parametrize("sampling", Sampling)
def test_every_sampling(batch, sampling):
    assert_same(*twins(net_of(MLP), jobs_of(batch=batch, sampling=sampling), records_of(MLP)))


@pytest.mark.parametrize("batch", [5, "full"])
@pytest.mark.parametrize("name", ["dropout", "sequence", "called twice", "recurrent"])
def test_pieces_of_a_batch_change_nothing(batch, name):
    """Bounded memory: the same draws, and the same result, whether records are looked at together or two by two."""
    case, sizes = CASES[name], (9, 6)
    net, records = net_of(case), records_of(case, sizes)
    whole = run(Vectorised, net, jobs_of(sizes=sizes, batch=batch), records, RecordedDraws(SeededDraws(2)))
    for at_once in (1, 2, 4, 100):
        tape = whole.draws.replay()
        few = Performance(records_at_once=at_once)
        pieces = run(Vectorised, net, jobs_of(sizes=sizes, batch=batch), records, tape, performance=few)
        assert_same(pieces, whole)
        assert set(tape.asked) == set(whole.draws.asked)


def test_only_so_many_records_are_looked_at_together(monkeypatch):
    net, widths = net_of(MLP), []
    seen = net.clipped_sums
    monkeypatch.setattr(net, "clipped_sums", lambda w, x, *rest: widths.append(x.shape[1]) or seen(w, x, *rest))
    jobs, few = jobs_of(sizes=(9, 6), batch="full"), Performance(records_at_once=4)
    run(Vectorised, net, jobs, records_of(MLP, (9, 6)), SeededDraws(2), performance=few, rounds=1)
    assert widths == [4, 4, 4] * 2  # two local steps; the last piece is as wide as the others


@dataclass
class Missing:
    """Draws whose lots miss every record of these clients."""

    source: Draws
    clients: tuple

    def uniform(self, key, count):
        if key.purpose == "batch" and key.client in self.clients:
            return torch.full((count,), 0.999, dtype=torch.float64)
        return self.source.uniform(key, count)

    def normal(self, key, count):
        return self.source.normal(key, count)

    def bound(self, context):
        return Missing(self.source.bound(context), self.clients)


@pytest.mark.parametrize("kind", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("missed", [("client 0", "client 3"), ("client 0", "client 1", "client 3")], ids=["some", "all"])
def test_an_empty_batch_is_a_step_of_noise_only(kind, missed):
    """Nothing but noise moves the weights, and it is drawn and counted as always."""
    sizes = (5, 9, 4, 7) if len(missed) == 2 else (5, 9, 0, 7)
    jobs = jobs_of(sizes=(5, 9, 4, 7), batch=1, local_steps=1, neighbours=Neighbours.ADD_REMOVE)
    tape = RecordedDraws(Missing(SeededDraws(3), missed))
    seen = run(kind, net_of(MLP), jobs, records_of(MLP, sizes), tape, rounds=1)
    for client in missed:
        (key,) = seen.noise_keys(client)
        moved = (seen.engine.start - answer(seen.uploads[0], int(client[-1])).row) / 0.5
        torch.testing.assert_close(moved, 0.5 * 0.3 * tape.tape["normal", key], rtol=0, atol=0.15 * 2**-12)
    assert noisy_queries(seen.engine) == [1, 1, 1, 1]


@pytest.mark.parametrize("kind", ENGINES.values(), ids=ENGINES)
def test_an_empty_batch_without_noise_moves_nothing(kind):
    jobs, draws = jobs_of(unnoised, batch=1, local_steps=1), Missing(SeededDraws(4), ("client 0", "client 3"))
    seen = run(kind, net_of(MLP), jobs, records_of(MLP), draws, rounds=1)
    moved = [not torch.equal(answer(seen.uploads[0], i).row, seen.engine.start) for i in range(len(SIZES))]
    assert moved == [False, True, True, False]


# ------------------------------------------------------------------ clients


@pytest.mark.parametrize("sizes", [(1,), (6,), (1, 1), (4, 4, 4)])
def test_few_clients_and_few_records(sizes):
    assert_same(*twins(net_of(MLP), jobs_of(sizes=sizes), records_of(MLP, sizes)))


def unequal():
    """Everything differs from client to client."""
    return [
        private("a", 5, batch=2, local_steps=3, clip_norm=0.1, noise_multiplier=2.0, mixing=0.2, averaging=0.5,
                optimiser=Optimiser(name="adam", learning_rate=0.05)),
        private("b", 9, batch="full", local_steps=1, clip_norm=5.0, noise_multiplier=0.1, mixing=0.9,
                optimiser=Optimiser(name="momentum", learning_rate=0.3, carried=False)),
        private("c", 1, batch=1, local_steps=2, sampling=Sampling.FIXED, mixing=0.0),
        private("d", 7, batch=4, local_steps=2, sampling=Sampling.FIXED, clip_norm=0.7, mixing=1.0,
                optimiser=Optimiser(learning_rate=0.1, weight_decay=0.2)),
        private("e", 7, batch=3, local_steps=2, noise_multiplier=3.0,
                optimiser=Optimiser(learning_rate=0.9, schedule=Schedule(kind="step", every=1, factor=0.5))),
        unnoised("f", 6, plan=perturbing(), batch=2, local_steps=2),
        unnoised("g", 4, plan=perturbing("laplace"), batch="full", local_steps=3,
                 optimiser=Optimiser(name="adam", learning_rate=0.1)),
    ]  # fmt: skip


UNEQUAL_SIZES = tuple(job.steps.records for job in unequal())


@pytest.mark.parametrize("rule", [FedAvg(), Interpolate()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("delivery", ["pull", "push"])
def test_clients_that_differ_in_everything(rule, delivery):
    case = CASES["dropout"]
    options = {"rule": rule, "delivery": delivery, "participation": 0.7}
    assert_same(*twins(net_of(case), unequal(), records_of(case, UNEQUAL_SIZES), **options))


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_chunks_change_nothing(chunk):
    case = CASES["dropout"]
    net, records = net_of(case), records_of(case, UNEQUAL_SIZES)
    performance = Performance(chunk=chunk)
    one = run(Vectorised, net, unequal(), records, SeededDraws(8), performance=performance)
    assert_same(one, run(Vectorised, net, unequal(), records, SeededDraws(8)), tolerance=1e-12)
    assert all(len(group) <= chunk for group in one.engine.groups(one.engine.clients))


def test_only_clients_alike_are_stacked():
    """In a stack with noisy steps nobody's gradients may go unclipped."""
    engine = Vectorised(net_of(MLP), unequal(), records_of(MLP, UNEQUAL_SIZES), FedAvg(), SeededDraws(1))
    groups = [[client.index for client in group] for group in engine.groups(engine.clients)]
    assert sorted(i for group in groups for i in group) == list(range(len(UNEQUAL_SIZES)))
    assert [2, 3, 4] in groups
    for group in groups:
        assert len({engine.jobs[i].noisy is None for i in group}) == 1


@pytest.mark.parametrize("first", ["noisy steps", "output perturbation"])
def test_noisy_steps_beside_output_perturbation(first):
    """Stacked with the other, noisy steps would go unclipped, or open steps be clipped."""
    jobs = [private("a", 5, batch=3, clip_norm=1e-3), unnoised("b", 5, batch=3, plan=perturbing(clip_norm=10.0))]
    jobs = jobs if first == "noisy steps" else jobs[::-1]
    assert_same(*twins(net_of(MLP), jobs, records_of(MLP, (5, 5))))


def test_a_client_without_records_trains_on_noise():
    """Under add/remove a data set may be empty, and nobody can tell."""
    sizes = (6, 0)
    jobs = [private(name, 6, neighbours=Neighbours.ADD_REMOVE) for name in "ab"]
    fast, slow = twins(net_of(MLP), jobs, records_of(MLP, sizes))
    assert_same(fast, slow)
    assert noisy_queries(fast.engine) == [6, 6]


# ------------------------------------------------------------------ optimisers


@pytest.mark.parametrize(("name", "carried", "decay"), [*product(NAMES, [True, False], [0.0, 0.1])])
def test_every_optimiser(name, carried, decay):
    schedule = Schedule(kind="inverse-sqrt")
    optimiser = Optimiser(name=name, learning_rate=0.1, carried=carried, weight_decay=decay, schedule=schedule)
    fast, slow = twins(net_of(MLP), jobs_of(optimiser=optimiser), records_of(MLP), participation=0.8)
    assert_same(fast, slow)
    seen = [taken * 2 if carried else min(taken, 1) * 2 for taken in rounds_taken(fast.engine)]
    assert [client.steps for client in fast.engine.clients] == seen


@pytest.mark.parametrize("kind", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("name", [name for name in NAMES if OPTIMISERS[name].slots])
def test_carrying_state_makes_a_difference_and_so_does_not(kind, name):
    """State carried: other weights from the second round on. Not carried: the second round is as a first one."""
    net, records = net_of(MLP), records_of(MLP)
    optimiser = Optimiser(name=name, learning_rate=0.1)
    both = [jobs_of(optimiser=replace(optimiser, carried=carried)) for carried in (True, False)]
    carried, reset = (run(kind, net, jobs, records, SeededDraws(4), rounds=2) for jobs in both)
    assert torch.equal(carried.servers[0].weights, reset.servers[0].weights)
    assert (carried.weights - reset.weights).norm() > 1e-3
    fresh = kind(net, jobs_of(optimiser=optimiser), records, FedAvg(), SeededDraws(4))
    as_first = ask(fresh, 1, range(len(SIZES)), reset.servers[0].weights)
    torch.testing.assert_close(as_first.rows.value, reset.uploads[1].rows.value)


@pytest.mark.parametrize("kind", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("schedule", [Schedule(kind="step", every=1, factor=0.5), Schedule(kind="cosine", rounds=4)])
def test_a_schedule_follows_the_clients_own_rounds(kind, schedule):
    """A client that joins for the first time in round 2 takes the first rate."""
    net = net_of(MLP)
    jobs = jobs_of(optimiser=Optimiser(learning_rate=0.5, schedule=schedule), local_steps=1)
    engine = kind(net, jobs, records_of(MLP), FedAvg(), SeededDraws(6))
    ask(engine, 0, [0], engine.start)
    ask(engine, 1, [0], engine.start)
    rows = ask(engine, 2, [0, 1], engine.start)
    plain = ask(kind(net, jobs_of(local_steps=1), records_of(MLP), FedAvg(), SeededDraws(6)), 2, [0, 1], engine.start)
    for i, taken in ((0, 2), (1, 0)):
        moved, unscaled = answer(rows, i).row - engine.start, answer(plain, i).row - engine.start
        torch.testing.assert_close(moved, schedule.at(taken) * unscaled)


@pytest.mark.parametrize("averaging", [0.3, 0.5, 1.0])
def test_averaging_of_iterates(averaging):
    jobs = jobs_of(local_steps=4, averaging=averaging)
    fast, slow = twins(net_of(MLP), jobs, records_of(MLP))
    assert_same(fast, slow)
    plain, _ = twins(net_of(MLP), jobs_of(local_steps=4), records_of(MLP))
    assert ((fast.weights - plain.weights).norm() > 1e-3) == (averaging > 0.3)  # 0.3 of four is one: the last


# ------------------------------------------------------------------ rules, delivery, participation


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize(("delivery", "participation", "averaging"), [("pull", 1.0, 0.5), ("push", 0.5, 0.0)])
def test_every_rule_and_delivery(rule, delivery, participation, averaging):
    jobs = [replace(job, mixing=0.2 * i, strength=0.3 * i) for i, job in enumerate(jobs_under(rule))]
    options = {"delivery": delivery, "participation": participation, "averaging": averaging, "server_rate": 0.7}
    assert_same(*twins(net_of(MLP), jobs, records_of(MLP), rule=rule, **options))


def test_rounds_that_some_or_all_miss():
    fast, slow = twins(net_of(MLP), jobs_of(rounds=12), records_of(MLP), participation=0.2, rounds=12)
    assert_same(fast, slow)
    joined = [len(uploads.senders) for uploads in fast.uploads]
    assert 0 in joined
    assert max(joined) > 0
    assert rounds_taken(fast.engine) == [sum(name in u.senders for u in fast.uploads) for name in fast.engine.names]
    for before, after, count in zip(fast.servers, fast.servers[1:], joined[1:], strict=False):
        assert torch.equal(before.weights, after.weights) == (count == 0)


# ------------------------------------------------------------------ other mechanisms


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_output_perturbation(noise, optimiser):
    jobs = jobs_of(unnoised, plan=perturbing(noise), optimiser=Optimiser(name=optimiser, learning_rate=0.2))
    fast, slow = twins(net_of(CASES["dropout"]), jobs, records_of(CASES["dropout"]))
    assert_same(fast, slow)
    assert noisy_queries(fast.engine) == [3] * len(SIZES)
    assert isinstance(fast.uploads[0].rows, Noised)


@pytest.mark.parametrize("batch", [2, "full"])
@pytest.mark.parametrize("name", ["dropout", "sequence", "bare parameter", "recurrent"])
def test_training_without_privacy(name, batch):
    case = CASES[name]
    fast, slow = twins(net_of(case), jobs_of(unnoised, batch=batch), records_of(case))
    assert_same(fast, slow)
    assert noisy_queries(fast.engine) == [0] * len(SIZES)
    assert fast.noise_keys() == []
    assert isinstance(fast.uploads[0].rows, Unprotected)
