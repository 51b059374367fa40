"""Every client alone in an engine of its own, behind one server, against all of them stacked: the same to the last bit.

What a client does may not depend on who else is on its machine, and what it is sent may not depend on who asks. So the same
run on machines of the clients' own is the same run.
"""

from dataclasses import replace

import pytest
import torch

from prifedsync import data
from prifedsync import run as running
from prifedsync.config import load
from prifedsync.data import Description
from prifedsync.engines import Reference, Vectorised
from prifedsync.local import Optimiser, SeededDraws
from prifedsync.local.answers import Absent
from prifedsync.record import Guarantees
from prifedsync.rules import APFL, RULES, Alone, Attentive, Ditto, FedAvg, LocalOnly, Noised, Server, Unprotected
from prifedsync.run import prepare
from prifedsync.run.loop import rounds_of
from prifedsync.run.recording import record_of
from prifedsync.server import Aggregator
from prifedsync.sync import Sent, Summed, Synchronisation, Uploads, synchronise
from prifedsync.values import BadValue

from ..local.zoo import CASES
from .settings import jobs_under, net_of, perturbing, private, records_of, unnoised, with_participation
from .test_device import OnDevice

SIZES = (5, 9, 6, 7, 5)
ADAM = Optimiser(name="adam", learning_rate=0.05)


class Apart:
    """Machines with one client each, asked one after another as a network would ask them; no more than `sync.Engine`."""

    def __init__(self, engines):
        self.engines = engines
        self.names = tuple(engine.names[0] for engine in engines)

    def accounts(self):
        return {name: account for engine in self.engines for name, account in engine.accounts().items()}

    def models(self, released=None):
        return {name: model for engine in self.engines for name, model in engine.models(released).items()}

    def evaluate(self, released, own=()):
        return None  # scores stay with the clients

    def measure(self, released, own):
        return None

    def train(self, round, helpers):
        sent = [engine.train(round, replace(helpers, names=engine.names)) for engine in self.engines]
        answers = {name: answer for uploads in sent for name, answer in uploads.answers.items()}
        if isinstance(sent[0], Summed):
            return Summed(answers, Noised(sum(uploads.total.value for uploads in sent)))
        rows = [uploads.rows.value for uploads in sent]
        private = all(engine.jobs[0].plan for engine in self.engines)
        return Uploads(answers, (Noised if private else Unprotected)(torch.cat(rows)))


def run(engine, jobs, start, rule, delivery, rounds):
    aggregator = Aggregator(rule, jobs, start, delivery=delivery)
    plan = Synchronisation(rounds=rounds, server_rate=0.7, averaging=0.5)
    return list(synchronise(plan, aggregator, engine, Server(start)))


def both(kind, case, rule, jobs, *, delivery="pull", rounds=3, seed=5):
    """The rounds of a stacked cohort, and of machines of the clients' own; and the engines themselves."""
    net = net_of(case)
    records = records_of(case, SIZES)
    stacked = kind(net, jobs, records, rule, SeededDraws(seed))
    # each machine has a net of its own: nothing is shared but what is public
    alone = [
        kind(net_of(case), [job], [own], rule, SeededDraws(seed)) for job, own in zip(jobs, records, strict=True)
    ]  # fmt: skip
    rounds = [run(engine, jobs, stacked.start, rule, delivery, rounds) for engine in (stacked, Apart(alone))]
    return *rounds, stacked, alone


def assert_same_bits(together, apart, stacked, alone):
    for (one, mine), (other, theirs) in zip(together, apart, strict=True):
        assert torch.equal(one.weights, other.weights)
        assert torch.equal(one.released, other.released)
        assert list(mine.answers) == list(theirs.answers)
        assert [type(answer) for answer in mine.answers.values()] == [type(answer) for answer in theirs.answers.values()]
        assert torch.equal(mine.rows.value, theirs.rows.value)
    for engine in alone:
        (name,) = engine.names
        assert engine.accounts()[name] == stacked.accounts()[name]
        mine, theirs = stacked.models()[name], engine.models()[name]
        assert type(mine) is type(theirs)
        assert torch.equal(mine.value, theirs.value)
        assert torch.equal(stacked.state(stacked.place(name)), engine.state(0))


def jobs_for(rule, make=private, participation=1.0, **changed):
    given = {"optimiser": ADAM, "batch": 3, "rounds": 6} if make is private else {"optimiser": ADAM, "batch": 3}
    jobs = jobs_under(rule, make, sizes=SIZES, **given, **changed)
    numbers = [{"mixing": 0.2 * i, "strength": 0.3 * i} for i in range(len(jobs))]
    return [replace(with_participation(job, participation), **own) for job, own in zip(jobs, numbers, strict=True)]


def plain(rule):
    """How a client of this rule is planned: where nothing leaves there is nothing to noise."""
    return private if rule.noisy_gradients(1) else unnoised


ALL = [*(kind() for kind in RULES.values()), APFL(publish=True), Ditto(publish=True), Alone(publish=True)]


@pytest.mark.parametrize("rule", ALL, ids=str)
@pytest.mark.parametrize("delivery", ["pull", "push"])
@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_every_rule(rule, delivery, participation):
    jobs = jobs_for(rule, plain(rule), participation)
    together, apart, *engines = both(Vectorised, CASES["mlp"], rule, jobs, delivery=delivery, rounds=4)
    assert_same_bits(together, apart, *engines)
    absent = sum(isinstance(answer, Absent) for _, uploads in together for answer in uploads.answers.values())
    assert (absent > 0) == (participation < 1)
    if rule.uploads:
        assert not torch.equal(together[-1][0].weights, engines[0].start)


def test_all_ten_rules_are_there():
    assert len({rule.name for rule in ALL}) == len(RULES) == 10


@pytest.mark.parametrize("rule", [rule for rule in ALL if rule.kept], ids=str)
def test_what_is_kept_stays_apart(rule):
    """Models of the clients' own, of rules that keep some, with their shares."""
    jobs = jobs_for(rule, plain(rule))
    *_, stacked, alone = both(Vectorised, CASES["mlp"], rule, jobs)
    kept = [engine.models()[engine.names[0]] for engine in alone]
    assert all(isinstance(model, Noised if rule.publishes else LocalOnly) for model in kept)
    assert stacked.counters()["share"] == [engine.clients[0].share for engine in alone]


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("rule", [FedAvg(), Attentive(), Ditto()], ids=str)
def test_output_perturbation(noise, rule):
    jobs = jobs_for(rule, unnoised, plan=perturbing(noise, rounds=6))
    assert_same_bits(*both(Vectorised, CASES["mlp"], rule, jobs))


@pytest.mark.parametrize("name", ["dropout", "conv2d", "sequence", "group norm"])
@pytest.mark.parametrize("batch", [3, "full"])
def test_other_models(name, batch):
    rule = Attentive()
    jobs = jobs_under(rule, sizes=SIZES, batch=batch, mixing=0.4, strength=0.2)
    assert_same_bits(*both(Vectorised, CASES[name], rule, jobs))


@pytest.mark.parametrize("kind", [Reference, OnDevice])
@pytest.mark.parametrize("rule", [FedAvg(), Attentive(), APFL(publish=True)], ids=str)
def test_other_engines(kind, rule):
    assert_same_bits(*both(kind, CASES["mlp"], rule, jobs_for(rule, participation=0.7)))


def test_attention_in_several_blocks(monkeypatch):
    """More clients than a block has, and a helper is the same whoever asks, in whatever order."""
    monkeypatch.setattr("prifedsync.server.BLOCK", 2)
    rule = Attentive()
    jobs = jobs_for(rule)
    assert_same_bits(*both(Vectorised, CASES["mlp"], rule, jobs, delivery="push"))


def test_a_helper_does_not_depend_on_who_asks():
    rule, net = Attentive(), net_of(CASES["mlp"])
    jobs = jobs_for(rule)
    engine = Vectorised(net, jobs, records_of(CASES["mlp"], SIZES), rule, SeededDraws(5))
    aggregator = Aggregator(rule, jobs, engine.start)
    server = Server(engine.start)
    for round in range(2):
        server = aggregator.merge(server, engine.train(round, aggregator.helpers(server)), 1.0)
    helpers = aggregator.helpers(server)
    together = helpers(helpers.names)
    for place, name in reversed(list(enumerate(helpers.names))):
        assert torch.equal(aggregator.helpers(server)([name])[0], together[place])
    assert not torch.equal(together[0], together[1])


# ------------------------------------------------------------------ a server that holds no records


SMALL = ["data.clients=4", "rounds=3", "compare=[]", "performance.dtype=float64", "participation=0.7"]


@pytest.mark.parametrize("rule", ["fedavg", "attentive", "ditto"])
def test_a_server_without_records_serves_the_same_run(rule):
    """It knows names, sizes, shape and task, each client its own records: together they are the run of one process."""
    config = load("digits", [*SMALL, f"rule.name={rule}"])
    held = prepare(config)
    public = data.load(config.data, config.seed).description
    served = prepare(config, Description(public.sizes, public.shape, public.task))
    assert served.federation is None
    assert served.jobs == held.jobs
    assert torch.equal(served.start, held.start)
    machines = [
        type(held.cohort(SeededDraws(0)))(
            net_like(held), [job], [(client.train.x, client.train.y)], held.rule, SeededDraws(config.seed), sums=served.sums
        )
        for job, client in zip(held.jobs, held.held.clients, strict=True)
    ]
    plan = Synchronisation(rounds=config.rounds, server_rate=config.server_rate, averaging=config.averaging)
    apart = list(synchronise(plan, served.aggregator(), Apart(machines), Server(served.start)))
    engine = held.cohort(SeededDraws(config.seed))
    together = list(synchronise(plan, held.aggregator(), engine, Server(held.start)))
    for (one, _), (other, _) in zip(together, apart, strict=True):
        assert torch.equal(one.weights, other.weights)
    assert any(isinstance(answer, Sent) for _, uploads in apart for answer in uploads.answers.values())


def test_a_run_whose_server_holds_no_records_has_its_record():
    """The loop and the record ask for no more than the protocol: scores are unknown, counts and guarantee are there."""
    config = load("digits", SMALL)
    held = prepare(config)
    served = prepare(config, data.load(config.data, config.seed).description)
    machines = [
        Vectorised(
            net_like(held), [job], [(client.train.x, client.train.y)], held.rule, SeededDraws(config.seed), sums=served.sums
        )
        for job, client in zip(held.jobs, held.held.clients, strict=True)
    ]
    finished = rounds_of(served, None, lambda event: None, engine=Apart(machines))
    guarantees = Guarantees(config.privacy.delta, len(served.jobs))
    record = record_of(served, finished, guarantees, {}, (), lambda event: None)
    whole = running.train(config)
    assert torch.equal(finished.server.released, whole.server.released)
    assert record.guarantee == whole.record.guarantee
    assert [client.noisy_queries for client in record.clients] == [client.noisy_queries for client in whole.record.clients]
    assert all(client.personal is None for client in record.clients)


def net_like(held):
    """A client's own net, made of the config as the server's is."""
    return prepare(held.config).net


def test_a_description_with_features():
    """Fixed features change the shape of a record, which the server finds without one."""
    config = load("digits", [*SMALL, "model.features=hog"])
    held = prepare(config)
    pictures = data.load(config.data, config.seed).description
    served = prepare(config, pictures)
    assert served.description.shape == held.description.shape != pictures.shape
    assert served.jobs == held.jobs


def test_whoever_holds_no_records_cannot_train():
    config = load("digits", SMALL)
    served = prepare(config, data.load(config.data, config.seed).description)
    with pytest.raises(BadValue, match="hold no records to train on"):
        served.cohort(SeededDraws(0))


@pytest.mark.parametrize(
    ("changed", "says"),
    [({"sizes": {}}, "must hold at least one client"), ({"sizes": {"a": 0}}, "records = 0"), ({"copies": 0}, "copies = 0")],
)
def test_a_description_that_cannot_be(changed, says):
    known = prepare(load("digits", SMALL)).description
    with pytest.raises(BadValue, match=says):
        replace(known, **changed)
