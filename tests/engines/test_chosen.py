"""The server chooses: the same clients whenever a run is resumed, and only those who are asked spend anything."""

import json
from collections import Counter

import pytest
import torch

from prifedsync.engines.chosen import Chosen
from prifedsync.local import SeededDraws
from prifedsync.local.answers import Absent, Refused, Sent
from prifedsync.rules import Server
from prifedsync.sync import Helpers, synchronise
from prifedsync.values import BadValue

from ..owner.federations import Run, config_of, records_of

FIVE = dict.fromkeys(("e", "a", "d", "b", "c"), 4)  # the roster is in no order of its names


@pytest.fixture(scope="module")
def five():
    return Run.of(config_of(rounds=6), records_of(sizes=FIVE))


def chosen(run, share, seed=3, connections=None):
    connections = connections or run.direct(SeededDraws(5))
    return Chosen(run.owners(connections), share, seed), connections


def everywhere(run):
    return Helpers(run.document.names, lambda names: run.served.start.expand(len(names), -1))


@pytest.mark.parametrize(("share", "count"), [(0.01, 1), (0.3, 2), (0.4, 2), (0.7, 4), (0.79, 4), (1.0, 5)])
def test_a_share_of_the_roster_is_asked(five, share, count):
    engine, _ = chosen(five, share)
    names = five.document.names
    for round in range(20):
        asked = engine.asked(round, names)
        assert len(asked) == count
        assert list(asked) == [name for name in names if name in asked]


def test_every_client_is_as_likely_as_any_other(five):
    """2,000 rounds of 2 in 5: each is asked 800 times, give or take 110 (5 standard deviations)."""
    engine, _ = chosen(five, 0.4)
    rounds = [engine.asked(round, five.document.names) for round in range(2_000)]
    counts = Counter(name for asked in rounds for name in asked)
    assert all(abs(counts[name] - 800) < 110 for name in FIVE)
    pairs = Counter(rounds)
    assert len(pairs) == 10
    assert all(abs(count - 200) < 68 for count in pairs.values())


def test_the_choice_follows_from_seed_and_round_alone(five):
    names = five.document.names
    one, other = chosen(five, 0.4)[0], chosen(five, 0.4)[0]
    assert [one.asked(round, names) for round in range(9)] == [other.asked(round, names) for round in range(9)]
    assert one.asked(0, names) == ("b", "c")  # and so in every version: a run may be resumed by a later one
    others = chosen(five, 0.4, seed=4)[0]
    assert [one.asked(round, names) for round in range(9)] != [others.asked(round, names) for round in range(9)]


def test_only_those_who_are_asked_spend(five):
    engine, connections = chosen(five, 0.4)
    names = five.document.names
    rounds = [engine.train(round, everywhere(five)) for round in range(6)]
    counts = Counter()
    for round, found in enumerate(rounds):
        asked = engine.asked(round, names)
        assert tuple(found.answers) == found.senders == asked
        assert len(found.rows.value) == 2
        counts.update(asked)
    assert {name: account.taken for name, account in engine.accounts().items()} == {name: counts[name] for name in names}
    for name in names:
        assert len(connections[name].asked) == counts[name]
        assert engine.accounts()[name].queries == 2 * counts[name]


def test_a_share_of_1_asks_everybody():
    run = Run.of(config_of(rounds=2))
    engine, _ = chosen(run, 1.0)
    plain = run.owners(run.direct(SeededDraws(5)))
    for round in range(2):
        mine, theirs = engine.train(round, everywhere(run)), plain.train(round, everywhere(run))
        assert torch.equal(mine.rows.value, theirs.rows.value)
        assert list(mine.answers) == list(theirs.answers)
    assert engine.accounts() == plain.accounts()


def test_it_wraps_an_engine_in_one_process_too():
    run = Run.of(config_of(rounds=3))
    engine = Chosen(run.held.cohort(SeededDraws(5)), 0.3, 3)
    rounds = list(synchronise(run.held.synchronisation, run.held.aggregator(), engine, Server(run.held.start)))
    assert [len(uploads.answers) for _, uploads in rounds] == [1] * 3
    assert all(isinstance(answer, Sent) for _, uploads in rounds for answer in uploads.answers.values())
    assert sum(account.taken for account in engine.accounts().values()) == 3
    released = rounds[-1][0].released
    assert set(engine.models(released)) == set(engine.names)


def test_a_resumed_run_asks_the_same(five):
    engine, connections = chosen(five, 0.4)
    straight = [engine.train(round, everywhere(five)) for round in range(4)]
    engine, connections = chosen(five, 0.4)
    for round in range(2):
        engine.train(round, everywhere(five))
    saved = json.loads(json.dumps(engine.save()))
    again, _ = chosen(five, 0.4, connections=connections)
    again.load(saved)
    resumed = [again.train(round, everywhere(five)) for round in (2, 3)]
    assert [list(found.answers) for found in resumed] == [list(found.answers) for found in straight[2:]]
    for mine, theirs in zip(resumed, straight[2:], strict=True):
        assert torch.equal(mine.rows.value, theirs.rows.value)


@pytest.mark.parametrize(("share", "seed", "name"), [(0.6, 3, "share"), (0.4, 4, "seed")])
def test_another_choice_does_not_go_on(five, share, seed, name):
    saved = chosen(five, 0.4)[0].save()
    with pytest.raises(BadValue, match=rf"participation {name} = .* is not that of the run"):
        chosen(five, share, seed)[0].load(saved)


def test_a_run_goes_on_under_the_same_side_of_the_choice(five):
    engine = chosen(five, 0.4)[0]
    with pytest.raises(BadValue, match="is not that of the run, None"):
        engine.load(engine.engine.save())
    with pytest.raises(BadValue, match="is another run"):
        engine.engine.load(engine.save())


def test_a_coin_is_refused_where_somebody_else_chooses():
    run = Run.of(config_of(participation=0.7))
    with pytest.raises(BadValue, match=r"participation = 0\.7 must be 1 for client a where the server chooses"):
        chosen(run, 0.5)


@pytest.mark.parametrize("share", [0, -1, 1.01, float("nan"), "much"])
def test_a_share_is_above_0_and_at_most_1(five, share):
    with pytest.raises(BadValue, match=r"participation\.share"):
        chosen(five, share)


@pytest.mark.parametrize(("share", "fits"), [(0.4, False), (0.6, True)])
def test_as_many_are_asked_as_a_sum_needs(share, fits):
    run = Run.of(config_of(local__local_steps=1, privacy__masks=True, privacy__least_clients=3), records_of(sizes=FIVE))
    keys = run.pinned()
    connections = run.direct(SeededDraws(5))
    for name, connection in connections.items():
        connection.identity = keys[name]
    if not fits:
        with pytest.raises(BadValue, match=r"share = 0\.4 asks 2 clients in a round, and 3 must be in a sum"):
            chosen(run, share, connections=connections)
        return
    engine, _ = chosen(run, share, connections=connections)
    for round in range(3):
        found = engine.train(round, everywhere(run))
        assert found.senders == engine.asked(round, run.document.names)
        assert run.held.sums.change(found.total.value, found.senders, round).abs().max() < 100


def test_nobody_answers_absent_or_refuses_because_of_it(five):
    engine, _ = chosen(five, 0.4)
    found = engine.train(0, everywhere(five))
    assert not any(isinstance(answer, (Absent, Refused)) for answer in found.answers.values())
