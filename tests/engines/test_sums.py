"""Runs whose clients' noised vectors enter the global model through their sum alone, masked or not.

Every parity test compares to the last bit: messages are integers, and both engines draw the same numbers.
"""

from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import pytest
import torch
from scipy import stats

from prifedsync.accounting import Sampling
from prifedsync.audit.subject import messages
from prifedsync.engines import ENGINES, Performance, Reference, Vectorised
from prifedsync.engines.outages import Outages
from prifedsync.local import Optimiser, RecordedDraws, Schedule, SeededDraws, SystemDraws, noise
from prifedsync.local.answers import Absent, Lost, Refused, Sent
from prifedsync.local.sums import sums_of, why_not
from prifedsync.rules import APFL, Ditto, FedAvg, FedProx, LocalOnly, Noised, Server, Unprotected
from prifedsync.server import Aggregator
from prifedsync.sync import Helpers, Summed, Synchronisation, Uploads, synchronise

from ..local.laws import follows
from .settings import MLP, SIZES, jobs_under, net_of, perturbing, private, records_of, unnoised, with_participation
from .test_device import OnDevice
from .test_noise_law import WIDE, WRONG, wide

RULES = [FedAvg(), FedProx(), Ditto(), APFL()]
ROUNDS = 3
net = cache(lambda: net_of(MLP))


@dataclass
class Run:
    engine: object
    servers: list
    summed: list

    @property
    def totals(self):
        return [each.total.value for each in self.summed]


def jobs_for(rule=None, make=private, attempts=0, sizes=SIZES, **changed):
    """Jobs of one noisy vector a round, with weights and rates of their own: their factors differ."""
    jobs = jobs_under(rule or FedAvg(), make, local_steps=1, sizes=sizes, **changed)
    jobs = [replace(job, weight=1.0 + i, strength=0.3) for i, job in enumerate(jobs)]
    return [replace(job, plan=replace(job.plan, attempts=attempts)) for job in jobs]


def outputs(client, records, *, local_steps, batch=3, **job):
    """Output perturbation after three open steps, with state that is carried."""
    optimiser = Optimiser(name="momentum", learning_rate=0.3)
    return unnoised(client, records, plan=perturbing(), batch=batch, local_steps=3, optimiser=optimiser, **job)


def engine_of(kind, jobs, draws, *, rule=None, lost=0.0, seed=3, folder=None, start=None, records=None, **shared):
    rule = rule or FedAvg()
    assert not why_not(rule, jobs)
    sums = sums_of(jobs, attempts=jobs[0].plan.attempts, **shared)
    records = records or records_of(MLP, SIZES[: len(jobs)])
    return kind(net(), jobs, records, rule, draws, sums=sums, outages=Outages(lost, seed), folder=folder, start=start)


def train(engine, rounds=ROUNDS, server=None):
    aggregator = Aggregator(engine.rule, engine.jobs, engine.start, sums=engine.sums)
    steps = list(synchronise(Synchronisation(rounds=rounds), aggregator, engine, server or Server(engine.start)))
    return Run(engine, [server for server, _ in steps], [summed for _, summed in steps])


def twins(jobs, **options):
    """The same run on both engines from one tape, which refuses to draw a key twice."""
    tape = RecordedDraws(SeededDraws(5))
    fast = train(engine_of(Vectorised, jobs, tape, **options))
    replay = tape.replay()
    slow = train(engine_of(Reference, jobs, replay, **options))
    assert set(tape.asked) == set(replay.asked)
    return fast, slow


def assert_same(one, other):
    for mine, theirs in zip(one.summed, other.summed, strict=True):
        assert mine.answers == theirs.answers
        assert torch.equal(mine.total.value, theirs.total.value)
    for mine, theirs in zip(one.servers, other.servers, strict=True):
        assert torch.equal(mine.weights, theirs.weights)
    mine, theirs = one.engine.counters(), other.engine.counters()
    assert mine.pop("share") == pytest.approx(theirs.pop("share"), rel=1e-9)
    assert mine == theirs
    assert one.engine.attempts == other.engine.attempts


def everywhere(engine, weights=None):
    row = engine.start if weights is None else weights
    return Helpers(engine.names, lambda names: row.expand(len(names), -1))


# ---------------------------------------------------------------------- both engines


@pytest.mark.parametrize("masked", [False, True], ids=["bare", "masked"])
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize(("batch", "sampling"), [("full", Sampling.POISSON), (3, Sampling.POISSON), (3, Sampling.FIXED)])
def test_totals_are_those_of_the_reference_to_the_last_bit(rule, batch, sampling, masked):
    fast, slow = twins(jobs_for(rule, batch=batch, sampling=sampling), rule=rule, masked=masked, least=2)
    assert_same(fast, slow)
    assert not torch.equal(fast.servers[0].weights, fast.servers[-1].weights)


@pytest.mark.parametrize("masked", [False, True], ids=["bare", "masked"])
@pytest.mark.parametrize("rule", [FedAvg(), APFL()], ids=str)
def test_output_perturbation_adds_up_too(rule, masked):
    assert_same(*twins(jobs_for(rule, outputs), rule=rule, masked=masked, least=2))


@pytest.mark.parametrize("masked", [False, True], ids=["bare", "masked"])
@pytest.mark.parametrize("make", [private, outputs])
def test_losses_and_attempts_are_those_of_the_reference(make, masked):
    """No key is drawn twice: an attempt has noise and batches of its own, and so have kept steps."""
    fast, slow = twins(jobs_for(APFL(), make, attempts=2, batch=3), rule=APFL(), masked=masked, least=2, lost=0.2)
    assert_same(fast, slow)
    assert any(isinstance(answer, Lost) for summed in fast.summed for answer in summed.answers.values())
    assert (fast.engine.attempts > 0) == masked


@pytest.mark.parametrize("kind", [*ENGINES.values(), OnDevice])
def test_stacking_changes_no_message(kind):
    jobs = jobs_for(batch=3)
    alone = train(engine_of(kind, jobs, SeededDraws(5)))
    engine = engine_of(kind, jobs, SeededDraws(5))
    engine.performance = Performance(chunk=3)
    assert_same(alone, train(engine))


# ---------------------------------------------------------------------- what is added up


@pytest.mark.parametrize("kind", ENGINES.values(), ids=ENGINES)
def test_a_total_by_hand(kind):
    """Σ round(c·(S + scale·z)/g), and w − F·g·total/Σ weight, from the clipped sums and the tape."""
    jobs = jobs_for(batch="full")
    tape = RecordedDraws(SeededDraws(8))
    engine = engine_of(kind, jobs, tape)
    shadow = engine_of(kind, jobs, SeededDraws(8))
    run = train(engine, rounds=1)
    expected = torch.zeros(engine.net.count, dtype=torch.int64)
    step = torch.zeros(engine.net.count, dtype=torch.float64)
    for client in shadow.clients:
        (clipped,) = shadow.batch_sums(0, 0, [client], engine.start[None])
        (drawn,) = [z for (law, key), z in tape.tape.items() if law == "normal" and key.client == client.name]
        noised = clipped + client.job.noisy.noise_scale * drawn
        expected += torch.round(engine.sums.factors[client.name] * noised / engine.sums.grid).long()
        step -= client.job.weight * client.job.optimiser.learning_rate * noised / client.records
    assert torch.equal(run.totals[0], expected)
    mean = engine.start + step / sum(job.weight for job in jobs)
    cell = -engine.sums.step * engine.sums.grid / sum(job.weight for job in jobs)
    assert float((run.servers[0].weights - mean).abs().max()) <= cell * len(jobs) / 2 * (1 + 1e-9)
    assert float((run.servers[0].weights - mean).abs().max()) > 0  # it was rounded


def test_the_rate_falls_with_the_rounds():
    schedule = Schedule(kind="step", every=1, factor=0.25)
    jobs = jobs_for(batch="full", optimiser=Optimiser(learning_rate=0.5, schedule=schedule))
    run = train(engine_of(Vectorised, jobs, SeededDraws(1)))
    weights = [run.engine.start, *(server.weights for server in run.servers)]
    for round, total in enumerate(run.totals):
        moved = weights[round + 1] - weights[round]
        expected = 0.25**round * run.engine.sums.step * run.engine.sums.grid * total.double() / 10
        torch.testing.assert_close(moved, expected, rtol=1e-9, atol=1e-15)


# ---------------------------------------------------------------------- the law of the noise


def message_noise(kind, make, draws, factor=1.0):
    """The noise of one client's message of 102,656 entries, whose factor in the sum is ½."""
    if make == "steps":
        first = private("a", 4, batch="full", local_steps=1, noise_multiplier=2.0 * factor, clip_norm=0.3)
    else:
        first = unnoised("a", 4, plan=perturbing(noise_multiplier=2.0 * factor), batch="full", local_steps=1)
    jobs = [first, replace(first, client="b", weight=2.0)]
    given = records_of(WIDE, (4, 4))
    engine = kind(wide(), jobs, given, FedAvg(), draws, sums=sums_of(jobs))
    words, _ = messages(engine, 0, engine.start)
    assert engine.sums.factors["a"] == 0.5
    value = words["a"].double() * engine.sums.grid / 0.5
    if make == "steps":
        shadow = kind(wide(), jobs, given, FedAvg(), SeededDraws(1))
        return value - shadow.batch_sums(0, 0, shadow.clients[:1], engine.start[None])[0]
    free = kind(wide(), [replace(job, plan=None) for job in jobs], given, FedAvg(), SeededDraws(1))
    (change, _) = free.train(0, everywhere(free)).rows.value - free.start
    return value - change * 0.3 / change.norm()


@pytest.mark.parametrize("kind", [*ENGINES.values(), OnDevice])
@pytest.mark.parametrize("make", ["steps", "output"])
@pytest.mark.parametrize("draws", [lambda: SeededDraws(17), SystemDraws], ids=["seeded", "secret"])
def test_the_noise_of_a_message_is_that_of_the_plan(kind, make, draws):
    assert follows(message_noise(kind, make, draws()), stats.norm, 0.6)
    for factor in WRONG:
        assert not follows(message_noise(kind, make, draws(), factor), stats.norm, 0.6)


@pytest.mark.parametrize("kind", [*ENGINES.values(), OnDevice])
def test_noise_is_counted_where_it_is_added(kind, monkeypatch):
    run = train(engine_of(kind, jobs_for(), SeededDraws(2)))
    assert run.engine.counters()["queries"] == [ROUNDS] * 4
    added = noise.integers
    monkeypatch.setattr(noise, "integers", lambda *given: added(*given)._replace(queries=2))
    if kind is not OnDevice:
        assert train(engine_of(kind, jobs_for(), SeededDraws(2))).engine.counters()["queries"] == [2 * ROUNDS] * 4


# ---------------------------------------------------------------------- the server has the sum alone


class Exchanged(Vectorised):
    """Moves some of one client's message into another's: the sum stays."""

    def messages(self, round, listed, sums):
        adding = super().messages(round, listed, sums)
        add, moved = adding.add, torch.arange(self.net.count) * 1000 - 12345
        by = {self.names[0]: moved, self.names[2]: -moved}
        still = torch.zeros_like(moved)
        adding.add = lambda names, words: add(names, words + torch.stack([by.get(name, still) for name in names]))
        return adding


class Moved(Exchanged):
    """One client's message is greater by one in one entry."""

    def messages(self, round, listed, sums):
        adding = Vectorised.messages(self, round, listed, sums)
        add = adding.add

        def moved(names, words):
            words[names.index(self.names[1]), 7] += 1
            add(names, words)

        adding.add = moved
        return adding


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_released_model_is_a_function_of_the_sum_alone(rule):
    """Other messages with the same sum lead to the same bits; one cell more does not."""
    right, exchanged, moved = (
        train(engine_of(kind, jobs_for(rule), SeededDraws(5), rule=rule)) for kind in (Vectorised, Exchanged, Moved)
    )
    assert_same(right, exchanged)
    assert not torch.equal(right.servers[0].weights, moved.servers[0].weights)
    assert int((right.totals[0] - moved.totals[0]).abs().sum()) == 1


@pytest.mark.parametrize("kind", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("masked", [False, True], ids=["bare", "masked"])
def test_nothing_of_a_single_message_is_beside_the_sum(kind, masked):
    run = train(engine_of(kind, jobs_for(), SeededDraws(5), masked=masked, least=2))
    for summed in run.summed:
        assert set(summed.answers.values()) == {Sent(None, 1)}
        assert vars(summed).keys() == {"answers", "total", "attempts", "public"}
        assert not summed.public  # clients of one process
        assert summed.attempts == 1  # a number that the server knows: it asked for each attempt


def test_a_sum_holds_integers_that_were_noised_and_nothing_else():
    integers = torch.zeros(3, dtype=torch.int64)
    Summed({"a": Sent(None, 1)}, Noised(integers))
    for wrong in (LocalOnly(integers), Unprotected(integers), Noised(integers.double()), Noised(integers[None])):
        with pytest.raises(TypeError):
            Summed({}, wrong)
    with pytest.raises(TypeError, match="single messages"):
        Summed({"a": Sent(integers, 1)}, Noised(integers))
    summed = Summed({"a": Sent(None, 1)}, Noised(integers))
    with pytest.raises(TypeError):
        summed.answers["b"] = Sent(None, 1)


def test_a_summed_run_merges_sums_and_no_other_run_does():
    jobs = jobs_for()
    start = torch.zeros(3, dtype=torch.float64)
    summed = Summed({"client 0": Sent(None, 1)}, Noised(torch.ones(3, dtype=torch.int64)))
    models = Uploads({"client 0": Sent(start, 1)}, Noised(start[None]))
    with pytest.raises(TypeError, match="Uploads cannot be merged"):
        Aggregator(FedAvg(), jobs, start, sums=sums_of(jobs)).merge(Server(start), models, 1.0)
    with pytest.raises(TypeError, match="Summed cannot be merged"):
        Aggregator(FedAvg(), jobs, start).merge(Server(start), summed, 1.0)


@pytest.mark.parametrize("kind", [Vectorised, Reference])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_nothing_that_a_client_keeps_leads_to_a_message(kind, rule):
    """Neither kept models, nor the model it would have sent by itself: they are made of its own noise."""
    jobs = jobs_for(rule)
    right = train(engine_of(kind, jobs, SeededDraws(5), rule=rule))
    engine = engine_of(kind, jobs, SeededDraws(5), rule=rule)
    train_one = engine.train

    def spoiled(round, helpers):
        for store in filter(None, (engine.store, engine.kept)):
            rows = engine.start.new_full((len(jobs), engine.net.count), 1e3)
            store.fill([i for i in range(len(jobs)) if store.read(i) is None], rows[:1])
            store.scatter(range(len(jobs)), [rows] * store.gather([0]).shape[0])
        return train_one(round, helpers)

    engine.train = spoiled
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(right.totals, train(engine).totals, strict=True))


def test_clients_without_a_model_of_their_own_use_the_released_one():
    run = train(engine_of(Vectorised, jobs_for(), SeededDraws(5)))
    released = run.servers[-1].released
    models = run.engine.models(released)
    assert all(torch.equal(models[name].value, released) and type(models[name]) is Noised for name in run.engine.names)
    kept = train(engine_of(Vectorised, jobs_for(Ditto()), SeededDraws(5), rule=Ditto()))
    own = kept.engine.models(kept.servers[-1].released)
    assert all(type(own[name]) is LocalOnly and not torch.equal(own[name].value, released) for name in kept.engine.names)


def test_noise_is_bound_to_the_numbers_of_the_sum():
    """The same key under another grid, other factors or other weights draws other noise: none can be subtracted."""
    jobs = jobs_for()
    draws = SystemDraws()
    engine = engine_of(Vectorised, jobs, draws)
    contexts = {engine.context, Vectorised(net(), jobs, records_of(MLP), FedAvg(), draws).context}
    for changes in ({"grid": engine.sums.grid / 2}, {"factors": dict.fromkeys(engine.names, 1.0)}, {"least": 3}):
        other = engine_of(Vectorised, jobs, draws)
        other.sums = replace(engine.sums, **changes)
        contexts.add(other.context)
    assert len(contexts) == 5
    assert engine_of(Vectorised, jobs, draws).context == engine.context


# ---------------------------------------------------------------------- who is in a sum


def test_fewer_than_the_least_number_are_not_merged():
    jobs = [with_participation(job, 0.5) for job in jobs_for(rounds=30)]
    sums, engines = [], []
    for least in (1, 3):
        engine = engine_of(Vectorised, jobs, SeededDraws(5), least=least)
        run = train(engine, rounds=30)
        weights = [engine.start, *(server.weights for server in run.servers)]
        merged = [not torch.equal(one, other) for one, other in pairwise(weights)]
        assert merged == [len(summed.senders) >= least for summed in run.summed]
        assert {Sent, Absent} == {type(answer) for summed in run.summed for answer in summed.answers.values()}
        sums.append(merged)
        engines.append(engine)
    assert sums[0].count(True) > sums[1].count(True) > 0


def test_who_is_lost_is_left_out_and_has_spent_the_round():
    """Half of all uploads are lost: the mean is over those that arrive, by their weights."""
    run = train(engine_of(Vectorised, jobs_for(), SeededDraws(5), lost=0.5))
    whole = train(engine_of(Vectorised, jobs_for(), SeededDraws(5)))
    lost = [{name for name, answer in summed.answers.items() if isinstance(answer, Lost)} for summed in run.summed]
    assert lost[0]
    assert len(lost[0]) < 4
    assert run.engine.counters() == whole.engine.counters() | {"chain": run.engine.counters()["chain"]}
    assert not torch.equal(run.totals[0], whole.totals[0])
    words, total = messages(engine_of(Vectorised, jobs_for(), SeededDraws(5)), 0, run.engine.start)
    here = [name for name in words if name not in lost[0]]
    assert torch.equal(run.totals[0], torch.stack([words[name] for name in here]).sum(0))
    assert torch.equal(total, whole.totals[0])
    weight = sum(job.weight for job in run.engine.jobs if job.client in here)
    expected = run.engine.start + run.engine.sums.step * run.engine.sums.grid / weight * run.totals[0]
    torch.testing.assert_close(run.servers[0].weights, expected, rtol=1e-14, atol=0)


def test_losses_follow_the_seed_and_no_private_draw():
    losses = [
        [summed.senders for summed in train(engine_of(Vectorised, jobs_for(), draws, lost=0.4, seed=seed)).summed]
        for draws, seed in ((SeededDraws(5), 3), (SystemDraws(), 3), (SeededDraws(5), 4))
    ]
    assert losses[0] == losses[1] != losses[2]


def test_the_share_of_what_is_lost():
    outages = Outages(0.2, 9)
    count = sum(outages.lost(f"client {i}", round, attempt) for i in range(50) for round in range(50) for attempt in (0, 1))
    assert 900 < count < 1100
    assert any(outages.lost("a", round) != outages.lost("a", round, 1) for round in range(50))
    assert not any(Outages(0.0, 9).lost("a", round) for round in range(100))


@pytest.mark.parametrize("kind", ENGINES.values(), ids=ENGINES)
def test_models_are_lost_too(kind):
    """In a run that is not summed the row is left out."""
    jobs = jobs_under(FedAvg())
    engine = kind(net(), jobs, records_of(MLP), FedAvg(), SeededDraws(5), outages=Outages(0.5, 3))
    whole = kind(net(), jobs, records_of(MLP), FedAvg(), SeededDraws(5))
    mine, theirs = engine.train(0, everywhere(engine)), whole.train(0, everywhere(whole))
    here = [engine.place(name) for name in mine.senders]
    assert 0 < len(here) < 4
    assert torch.equal(mine.rows.value, theirs.rows.value[here])
    assert set(mine.lost) == set(engine.names) - set(mine.senders)
    assert engine.accounts() == whole.accounts()


# ---------------------------------------------------------------------- attempts at a masked sum


class Losing(Outages):
    """Those that are named are lost: (client, round, attempt)."""

    def __init__(self, *lost):
        super().__init__(0.0, 0)
        object.__setattr__(self, "named", set(lost))

    def lost(self, client, round, attempt=0):
        return (client, round, attempt) in self.named


def masked_run(kind, lost, attempts=2, least=2, rounds=2, rule=None, draws=None):
    jobs = jobs_for(rule, attempts=attempts, batch=3, rounds=rounds)
    engine = engine_of(kind, jobs, draws or RecordedDraws(SeededDraws(5)), masked=True, least=least, rule=rule)
    engine.outages = Losing(*lost)
    return train(engine, rounds)


@pytest.mark.parametrize("kind", ENGINES.values(), ids=ENGINES)
def test_an_attempt_is_a_slot_of_its_own(kind):
    """Client 1 is lost in round 0: the others send again, with other noise, and another slot is spent."""
    run = masked_run(kind, [("client 1", 0, 0)])
    assert run.summed[0].senders == ("client 0", "client 2", "client 3")
    assert isinstance(run.summed[0].answers["client 1"], Lost)
    assert run.summed[1].senders == run.engine.names
    assert run.engine.counters()["taken"] == [3, 2, 3, 3]
    assert run.engine.counters()["spare"] == [1, 0, 1, 1]
    assert run.engine.counters()["queries"] == [3, 2, 3, 3]
    assert run.engine.attempts == 1
    asked = [key for law, key in run.engine.draws.asked if key.client == "client 0" and key.round == 0]
    assert sorted((key.step, key.purpose) for key in asked) == [(0, "batch"), (0, "noise"), (1, "batch"), (1, "noise")]
    first = masked_run(kind, [("client 1", 0, 0)], draws=SeededDraws(5))
    again = masked_run(kind, [("client 1", 0, 0)], draws=SeededDraws(6))
    assert not torch.equal(first.totals[0], again.totals[0])


@pytest.mark.parametrize("kind", ENGINES.values(), ids=ENGINES)
def test_attempts_are_a_budget_of_the_run(kind):
    """Two spare attempts: the third loss passes the round, and nothing is merged."""
    lost = [("client 1", 0, 0), ("client 2", 0, 1), ("client 0", 1, 0)]
    run = masked_run(kind, lost)
    assert run.summed[0].senders == ("client 0", "client 3")
    assert run.summed[1].senders == ()
    assert run.engine.attempts == 2
    assert {type(answer) for answer in run.summed[1].answers.values()} == {Lost}
    assert torch.equal(run.servers[0].weights, run.servers[1].weights)
    assert not run.totals[1].any()
    assert run.engine.counters()["taken"] == [4, 2, 3, 4]  # never more than 2 rounds + 2 attempts
    assert run.engine.counters()["queries"] == [4, 2, 3, 4]


@pytest.mark.parametrize("kind", ENGINES.values(), ids=ENGINES)
def test_a_list_that_is_too_short_is_not_answered(kind):
    """With at least three in a list, two lost clients end the round; no slot, no noise and no attempt is spent on it."""
    run = masked_run(kind, [("client 1", 0, 0), ("client 2", 0, 0)], least=3)
    assert run.summed[0].senders == ()
    assert run.engine.counters()["taken"] == run.engine.counters()["queries"] == [2, 2, 2, 2]
    assert run.engine.attempts == 0
    jobs = [with_participation(job, 0.4) for job in jobs_for(rounds=30)]
    few = train(engine_of(kind, jobs, SeededDraws(5), masked=True, least=3), rounds=30)
    refused = [summed for summed in few.summed if any(isinstance(a, Refused) for a in summed.answers.values())]
    assert refused
    assert all(len(summed.senders) in (0, 3, 4) for summed in few.summed)
    assert few.engine.counters()["taken"] == few.engine.counters()["queries"]


def test_a_client_refuses_attempts_beyond_its_plan():
    jobs = jobs_for(attempts=1)
    engine = engine_of(Vectorised, jobs, SeededDraws(5), masked=True, least=2)
    client = engine.clients[0]
    client.join(0, engine.coins)
    client.commit()
    assert client.join_again() is None
    client.commit()
    assert (client.taken, client.spare, client.rounds) == (2, 1, 1)
    assert client.join_again() == Refused("all 1 spare attempts of the plan are taken")
    assert client.phase("upload").first == 1
    greedy = replace(engine.sums, attempts=5)
    engine.sums = greedy
    engine.outages = Losing(("client 1", 1, 0), ("client 3", 1, 1))
    summed = engine.train(1, everywhere(engine))
    assert isinstance(summed.answers["client 0"], Refused)
    assert all(client.spare <= 1 for client in engine.clients)


def test_attempts_on_a_device_have_streams_of_their_own():
    """The same round twice: noise and batches of the second attempt are not those of the first."""
    seen = []
    for lost in ([], [("client 1", 0, 0)]):
        engine = engine_of(OnDevice, jobs_for(attempts=1, batch=3), SeededDraws(5), masked=True, least=2)
        engine.outages = Losing(*lost)
        words, _ = messages(engine, 0, engine.start)
        seen.append(words["client 0"])
    assert not torch.equal(*seen)
    assert float((seen[0] != seen[1]).double().mean()) > 0.99


@pytest.mark.parametrize("kind", [*ENGINES.values(), OnDevice])
def test_a_resumed_run_goes_on_to_the_bit(kind, tmp_path):
    """Between two attempts' rounds: counts, spare attempts and models are those of a run that was not stopped."""
    lost = [("client 1", 0, 0), ("client 2", 1, 0), ("client 3", 2, 0)]
    whole = masked_run(kind, lost, rounds=3, rule=APFL(), draws=SeededDraws(5))
    begun = masked_run(kind, lost, rounds=3, rule=APFL(), draws=SeededDraws(5))
    jobs = jobs_for(APFL(), attempts=2, batch=3, rounds=3)
    options = {"masked": True, "least": 2, "rule": APFL()}
    first = engine_of(kind, jobs, SeededDraws(5), folder=tmp_path, **options)
    first.outages = Losing(*lost)
    half = train(first, rounds=1)
    state = first.save()
    first.saved()
    again = engine_of(kind, jobs, SeededDraws(5), folder=tmp_path, **options)
    again.outages = Losing(*lost)
    again.load(state)
    assert again.attempts == 1
    rest = train(again, rounds=3, server=half.servers[-1])
    assert_same(whole, begun)
    assert torch.equal(rest.servers[-1].weights, whole.servers[-1].weights)
    assert rest.engine.counters() == whole.engine.counters()
    assert (rest.engine.attempts, rest.summed[-1].senders) == (2, ())  # the third loss had no attempt left
