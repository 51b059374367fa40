"""What engine tests are made of: jobs, records, runs of Algorithm 1, and the two engines side by side under one tape."""

from contextlib import contextmanager
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import pytest
import torch

from prifedsync.accounting import Neighbours, NoisySteps, OutputPerturbation, PrivacyPlan, Sampling
from prifedsync.engines import Cohort, Performance, Reference, Vectorised
from prifedsync.local import CLIP_MARGIN, Job, Net, Optimiser, RecordedDraws, SeededDraws, UnnoisedSteps, losses
from prifedsync.rules import (
    APFL,
    Alone,
    Attentive,
    Ditto,
    FedAvg,
    FedProx,
    Interpolate,
    MeanRegularised,
    Mixture,
    PFedMe,
    Pulled,
    Rule,
    Server,
)
from prifedsync.server import Aggregator
from prifedsync.sync import Synchronisation, synchronise

from ..local.zoo import CASES

SIZES = (5, 9, 1, 7)  # unequal clients, one of them with a single record


def net_of(case, dtype=torch.float64, grad_method=None):
    return Net(case.module(), losses.BY_TASK[case.task], *case.records(5, seed=99), dtype, grad_method=grad_method)


def records_of(case, sizes=SIZES):
    return [case.records(size, seed=10 + i) for i, size in enumerate(sizes)]


def private(
    client, records, *, batch=3, local_steps=2, rounds=3, noise_multiplier=0.5, clip_norm=0.3, sampling=Sampling.POISSON,
    neighbours=Neighbours.REPLACE, participation=1.0, optimiser=None, clip_margin=CLIP_MARGIN, **job,
):  # fmt: skip
    """A job with noisy steps; a batch larger than the client has is cut."""
    mechanism = NoisySteps(
        noise_multiplier=noise_multiplier, records=records, batch=batch if batch == "full" else min(batch, records),
        local_steps=local_steps, sampling=sampling, clip_norm=clip_norm, clip_margin=clip_margin,
    )  # fmt: skip
    plan = PrivacyPlan(mechanism=mechanism, rounds=rounds, participation=participation, neighbours=neighbours)
    optimiser = optimiser or Optimiser(learning_rate=0.5)
    return Job(client=client, plan=plan, optimiser=optimiser, participation=participation, **job)


def unnoised(client, records, *, plan=None, batch=3, local_steps=2, optimiser=None, **job):
    """A job whose steps are open: without a plan, or with one about its output."""
    steps = UnnoisedSteps(records=records, batch=batch if batch == "full" else min(batch, records), local_steps=local_steps)
    return Job(client=client, plan=plan, optimiser=optimiser or Optimiser(learning_rate=0.5), unnoised_steps=steps, **job)


def perturbing(noise="gaussian", rounds=3, noise_multiplier=0.5, clip_norm=0.3):
    mechanism = OutputPerturbation(noise_multiplier=noise_multiplier, clip_norm=clip_norm, noise=noise)
    return PrivacyPlan(mechanism=mechanism, rounds=rounds)


def jobs_of(make=private, sizes=SIZES, **changed):
    return [make(f"client {i}", size, **changed) for i, size in enumerate(sizes)]


def jobs_under(rule, make=private, local_steps=2, sizes=SIZES, **changed):
    """Jobs with as many steps as the rule asks for, as the config would make them."""
    counted = rule.noisy_gradients(local_steps) or local_steps
    kept = {"kept_steps": local_steps if rule.kept else 0, "kept_counted": rule.publishes or not rule.uploads}
    return jobs_of(make, sizes, local_steps=counted, **kept, **changed)


class ThriceAsStrong(Pulled):
    def pull(self, weights, anchor, strength):
        return 3.0 * (weights - anchor)


class Proximal(Rule):
    """A rule that has everything: it starts half way, is pulled to the helper without data, and sends half of the way."""

    name = "proximal"

    @property
    def steps(self):
        return ThriceAsStrong()

    def start(self, own, helper):
        return (own + helper) / 2

    def finish(self, trained, anchor):
        return anchor + (trained - anchor) / 2


RULES = [
    FedAvg(), Interpolate(), FedProx(), MeanRegularised(), PFedMe(inner_steps=2), Mixture(), Attentive(), APFL(), Ditto(),
    APFL(publish=True), Ditto(publish=True), Alone(publish=True), Proximal(),
]  # fmt: skip


@dataclass
class Run:
    """Algorithm 1 from start to end on one engine."""

    engine: object
    draws: object
    servers: list
    uploads: list
    aggregator: object = None

    @property
    def weights(self):
        return self.servers[-1].weights

    def noise_keys(self, client=None):
        """The noisy queries on the tape."""
        keys = [key for _, key in self.draws.asked if key.purpose in ("noise", "output")]
        return [key for key in keys if client in (None, key.client)]


def run(
    kind, net, jobs, records, draws, *, rule=None, rounds=3, participation=1.0, delivery="pull", server_rate=1.0,
    averaging=0.0, augment="none", performance=None, folder=None, resume=None, **persons,
):  # fmt: skip
    """`resume` continues: a server, and what engine and aggregator of an earlier run have saved."""
    rule, performance = rule or FedAvg(), performance or Performance()
    jobs = [with_participation(job, participation) for job in jobs]
    engine = kind(net, jobs, records, rule, draws, augment=augment, performance=performance, folder=folder, **persons)
    aggregator = Aggregator(rule, jobs, engine.start, delivery=delivery, folder=folder)
    server = Server(engine.start)
    if resume:
        server = resume[0]
        engine.load(resume[1])
        aggregator.load(resume[2])
    plan = Synchronisation(rounds=rounds, server_rate=server_rate, averaging=averaging)
    steps = list(synchronise(plan, aggregator, engine, server))
    return Run(engine, draws, [server for server, _ in steps], [uploads for _, uploads in steps], aggregator)


def with_participation(job, participation):
    """The same job with another coin, in its plan too."""
    plan = replace(job.plan, participation=participation) if job.plan else None
    return replace(job, plan=plan, participation=participation)


SERVERS = WeakKeyDictionary()  # engine → the server that asks it


def served(engine, delivery="pull"):
    """The server's side of an engine that is asked round by round."""
    if engine not in SERVERS:
        SERVERS[engine] = Aggregator(engine.rule, engine.jobs, engine.start, delivery=delivery)
    return SERVERS[engine]


def with_server(engine, delivery="pull"):
    """Both sides, as a checkpoint takes them."""
    return engine, served(engine, delivery)


def ask(engine, round, chosen, weights):
    """A round of these clients, given by number, where the global model has these weights."""
    aggregator = served(engine)
    server = Server(weights.to(engine.start.device, engine.start.dtype))
    offered = replace(aggregator.helpers(server), names=tuple(engine.names[i] for i in chosen))
    uploads = engine.train(round, offered)
    aggregator.merge(server, uploads, 1.0)
    return uploads


@contextmanager
def heard_messages(heard):
    """While it is open, `heard` is called with client, round and noised sum of each message that a cohort makes."""
    right = Cohort._messages

    def messages(self, sums, round, group, helper):
        words = right(self, sums, round, group, helper)
        for client, row in zip(group, words, strict=True):
            heard(client, round, row.double().cpu() * sums.grid / sums.factors[client.name])
        return words

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cohort, "_messages", messages)
        yield


def answer(uploads, i):
    """What the i-th of those who were asked answered."""
    return list(uploads.answers.values())[i]


def rounds_taken(engine):
    return [client.taken for client in engine.clients]


def noisy_queries(engine):
    return [client.queries for client in engine.clients]


def twins(net, jobs, records, *, performance=None, seed=5, **options):
    """The same run on both engines, from one tape; each draws exactly what the other drew."""
    tape = RecordedDraws(SeededDraws(seed))
    fast = run(Vectorised, net, jobs, records, tape, performance=performance, **options)
    slow = run(Reference, net, jobs, records, tape.replay(), **options)
    assert set(fast.draws.asked) == set(slow.draws.asked)
    return fast, slow


def assert_same(one, other, tolerance=1e-9):
    """Global models of all rounds, uploads, what clients carry, and counts."""
    mine, theirs = one.engine.counters(), other.engine.counters()
    assert mine.pop("share") == pytest.approx(theirs.pop("share"), rel=tolerance, abs=tolerance)
    assert mine == theirs
    for mine, theirs in zip(one.servers, other.servers, strict=True):
        torch.testing.assert_close(mine.weights, theirs.weights, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(mine.released, theirs.released, rtol=tolerance, atol=tolerance)
    for mine, theirs in zip(one.uploads, other.uploads, strict=True):
        assert {name: type(given) for name, given in mine.answers.items()} == {
            name: type(given) for name, given in theirs.answers.items()
        }
        torch.testing.assert_close(mine.rows.value, theirs.rows.value, rtol=tolerance, atol=tolerance)
    for i in range(len(one.engine.jobs)):
        mine, theirs = one.engine.personal(i), other.engine.personal(i)
        assert type(mine) is type(theirs)
        torch.testing.assert_close(mine.value, theirs.value, rtol=tolerance, atol=tolerance)
    for i in range(len(one.engine.jobs)):
        torch.testing.assert_close(one.engine.state(i), other.engine.state(i), rtol=tolerance, atol=tolerance)


def sums(engine, round, step, clients, weights, part="upload"):
    """The sums over the batches of one step [C, P], before noise, of clients by number."""
    return engine.batch_sums(round, step, [engine.clients[i] for i in clients], weights, part)


def gradients(engine, round, step, clients, weights, part="upload"):
    """The noisy gradients of one step [C, P], of clients by number."""
    return engine.gradients(round, step, [engine.clients[i] for i in clients], weights, part)


MLP = CASES["mlp"]
