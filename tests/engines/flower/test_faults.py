"""Whole runs in which something goes wrong: they go on, nobody's budget is under-counted, and nothing is answered twice."""

import pytest
import torch

from prifedsync.asking.refusals import Refusal
from prifedsync.asking.tensors import packed
from prifedsync.engines.flower import exchange as exchanges
from prifedsync.engines.flower.exchange import Exchange, Patience
from prifedsync.local import SeededDraws
from prifedsync.local.answers import Absent, Refused
from prifedsync.run.loop import rounds_of

from ...owner.federations import Run, config_of
from ...owner.sites import until
from .faking import faster, identity
from .owners import (
    Federation,
    comes_from,
    honest,
    is_killed,
    is_lost_on_its_way,
    kinds,
    leaves,
    refuses,
    reply_is_lost,
    sends_body,
    straggles,
    superlink_is_lost,
)

ALL = "Sent Sent Sent"
BRIEF = Patience(whole=3.0, first=0.2, offline=0.3)  # with whoever is given up
AGAIN = Patience(whole=60.0, first=0.1, offline=30.0)  # with whoever is asked again soon


@pytest.fixture(autouse=True)
def _faster(monkeypatch):
    identity()
    faster(monkeypatch)
    monkeypatch.setattr(exchanges, "SHORT", 0.05)


@pytest.fixture(scope="module")
def run():
    return Run.of(config_of(rounds=4))


@pytest.fixture(scope="module")
def summed():
    return Run.of(config_of(rounds=4, local__local_steps=1))


@pytest.fixture(params=["means", "sums"])
def either(request, run, summed):
    return run if request.param == "means" else summed


def federation(run):
    return Federation(run, SeededDraws(5))


def undisturbed(run, **lost):
    """The same run without a network. `lost`: slots whose replies never arrive, by client."""
    connections = run.direct(SeededDraws(5))
    for name, slots in lost.items():
        connections[name].lost = slots
    return run.apart(run.owners(connections))


def assert_same_models(rounds, others):
    assert len(rounds) == len(others)
    for (server, _), (other, _) in zip(rounds, others, strict=True):
        assert torch.equal(server.weights, other.weights)
        assert torch.equal(server.released, other.released)


def assert_nothing_was_lost(federation, **patience):
    """The run is the one that nothing happened to; the engine."""
    rounds, owners = federation.trained(**patience)
    assert kinds(rounds) == [ALL] * 4
    assert_same_models(rounds, undisturbed(federation.run))
    assert {name: account.taken for name, account in owners.accounts().items()} == dict.fromkeys("abc", 4)
    return owners


def test_a_run_that_nothing_happens_to(either):
    made = federation(either)
    assert_nothing_was_lost(made)
    assert made.link.submitted == 1
    assert len(made.link.pushed) == 3 * (1 + 4)


# ---------------------------------------------------------------------- clients


@pytest.mark.parametrize(("refusal", "taken"), [(Refusal.BUDGET, 3), (Refusal.FAILED, 4)])
def test_a_client_that_refuses(either, refusal, taken):
    """One that failed may have charged the slot before."""
    made = federation(either)
    made.sites["b"].faults[1] = [refuses(refusal)]
    rounds, owners = made.trained()
    assert kinds(rounds) == [ALL, "Sent Refused Sent", ALL, ALL]
    assert rounds[1][1].answers["b"] == Refused(refusal.value)
    assert owners.accounts()["b"].taken == taken
    assert_same_models(rounds[:2], undisturbed(either, b={(1, 0)})[:2])


def test_a_client_that_is_busy_for_a_while(either):
    made = federation(either)
    made.sites["b"].faults[1] = [refuses(Refusal.BUSY)] * 3
    assert_nothing_was_lost(made)


def test_a_client_that_straggles(either):
    made = federation(either)
    made.sites["b"].faults[1] = [straggles(0.3)]
    assert_nothing_was_lost(made)


def test_a_client_that_straggles_until_it_is_asked_again(either):
    made = federation(either)
    made.sites["b"].faults[1] = [straggles(0.35), honest, honest]
    made.sites["c"].faults[2] = [is_lost_on_its_way, is_lost_on_its_way]
    made.sites["a"].faults[3] = [reply_is_lost]
    assert_nothing_was_lost(made, a=AGAIN, b=AGAIN, c=AGAIN)


def test_a_client_that_misses_a_round(either):
    made = federation(either)
    made.sites["b"].faults[1] = [reply_is_lost] * 100
    rounds, owners = made.trained(b=BRIEF)
    assert kinds(rounds) == [ALL, "Sent Lost Sent", ALL, ALL]
    assert owners.accounts()["b"].taken == 4
    assert_same_models(rounds, undisturbed(either, b={(1, 0)}))


@pytest.mark.parametrize("after", [False, True], ids=["before it trained", "after it trained"])
def test_a_client_that_is_killed_and_comes_back_in_the_round(either, after):
    made = federation(either)
    made.sites["b"].faults[1] = [is_killed(0.15, after)]
    assert_nothing_was_lost(made, b=AGAIN)
    assert made.sites["b"].direct.asked == [(round, 0) for round in range(4)]


def test_a_client_that_is_killed_and_comes_back_too_late(either):
    made = federation(either)
    made.sites["b"].faults[1] = [is_killed(3600.0)]
    node = made.link.nodes["b"]
    made.sites["c"].faults[3] = [_comes_back("b", node)]
    rounds, owners = made.trained(b=BRIEF)
    assert kinds(rounds)[:3] == [ALL, "Sent Lost Sent", "Sent Lost Sent"]
    assert 2 <= owners.accounts()["b"].taken <= 4  # whether it was asked while it was away is for the engine to say
    assert_same_models(rounds[:2], undisturbed(either, b={(1, 0)})[:2])


def _comes_back(name, node):
    def fault(site, link, question, asked):
        link.nodes[name] = node
        honest(site, link, question, asked)

    return fault


@pytest.mark.parametrize("what", ["NaN", "another shape", "a pickle"])
def test_a_client_that_sends_what_is_no_model(run, what):
    count = len(run.served.start)
    bodies = {
        "NaN": packed("upload", torch.full((count,), float("nan"), dtype=torch.float64)),
        "another shape": packed("upload", torch.zeros(count + 1, dtype=torch.float64)),
        "a pickle": b"\x80\x04K\x01.",
    }
    made = federation(run)
    made.sites["b"].faults[1] = [sends_body(bodies[what])]
    rounds, owners = made.trained()
    assert kinds(rounds) == [ALL, "Sent Lost Sent", ALL, ALL]
    assert "cannot be used" in rounds[1][1].answers["b"].reason
    assert owners.accounts()["b"].taken == 4  # as far as anybody knows it has charged
    assert_same_models(rounds, undisturbed(run, b={(1, 0)}))


def test_an_answer_under_another_name_once(either):
    made = federation(either)
    made.sites["b"].faults[1] = [comes_from("c"), comes_from("a")]
    assert_nothing_was_lost(made)


def test_a_client_that_always_answers_under_another_name(either):
    made = federation(either)
    made.sites["b"].faults[1] = [comes_from("c")] * 1000
    rounds, owners = made.trained(b=BRIEF)
    assert kinds(rounds) == [ALL, "Sent Lost Sent", ALL, ALL]
    assert "another SuperNode" in rounds[1][1].answers["b"].reason
    assert owners.accounts()["b"].taken == 4
    assert_same_models(rounds, undisturbed(either, b={(1, 0)}))


def test_a_client_that_leaves_for_good(either):
    made = federation(either)
    made.sites["b"].faults[1] = [leaves]
    rounds, owners = made.trained(b=BRIEF)
    assert kinds(rounds) == [ALL, *["Sent Lost Sent"] * 3]
    assert [len(site.trained) for site in made.sites.values()] == [4, 1, 4]
    assert all("its SuperNode is not there" in uploads.answers["b"].reason for _, uploads in rounds[1:])
    assert (
        owners.accounts()["b"].taken == 2
    )  # the slot in which it was lost may have been charged, later ones were not asked
    assert_same_models(rounds, undisturbed(either, b={(1, 0), (2, 0), (3, 0)}))


def test_who_has_left_for_good_is_not_waited_for_again(either):
    made = federation(either)
    made.sites["b"].faults[1] = [leaves]
    with Exchange(made.link) as exchange:
        connections = made.connections(exchange, b=BRIEF)
        assert connections["b"].away == ""
        owners = made.run.owners(connections)
        made.run.apart(owners)
        assert connections["b"].away == exchanges.NOT_THERE
        made.link.nodes["b"] = 99
        until(lambda: connections["b"].away == "")


def test_who_did_not_come_in_time_is_not_waited_for_again(either):
    made = federation(either)
    del made.link.nodes["b"]
    with Exchange(made.link) as exchange:
        exchange.give_up(["b"])
        rounds = made.run.apart(made.run.owners(made.connections(exchange, b=AGAIN)))  # who would wait for half a minute
    assert kinds(rounds) == ["Sent Lost Sent"] * 4


# ---------------------------------------------------------------------- an empty round


def test_a_round_that_nobody_joins_by_their_own_coins():
    run = Run.of(config_of(rounds=8, participation=0.3))
    made = federation(run)
    rounds, owners = made.trained()
    assert_same_models(rounds, undisturbed(run))
    empty = [at for at, (_, uploads) in enumerate(rounds) if set(map(type, uploads.answers.values())) == {Absent}]
    assert empty
    for at in empty:
        before = run.served.start if at == 0 else rounds[at - 1][0].weights
        assert torch.equal(rounds[at][0].weights, before)
    sent = {name: len(site.trained) for name, site in made.sites.items()}
    assert {name: account.taken for name, account in owners.accounts().items()} == sent


def test_a_round_in_which_everybody_is_gone(either, monkeypatch):
    monkeypatch.setattr(exchanges, "SHORT", 20.0)  # they are back within a look
    made = federation(either)
    nodes = dict(made.link.nodes)
    for name in "abc":
        made.sites[name].faults[1] = [leaves]
    with Exchange(made.link) as exchange:
        owners = either.owners(made.connections(exchange, a=BRIEF, b=BRIEF, c=BRIEF))
        real = owners.train

        def train(round, helpers):
            made.link.nodes |= nodes if round == 2 else {}
            return real(round, helpers)

        owners.train = train
        rounds = either.apart(owners)
    made.check(owners)
    assert kinds(rounds)[:2] == [ALL, "Lost Lost Lost"]
    assert torch.equal(rounds[1][0].weights, rounds[0][0].weights)
    assert len(rounds) == 4


# ---------------------------------------------------------------------- the SuperLink and the server


@pytest.mark.parametrize("fault", [is_lost_on_its_way, reply_is_lost, honest], ids=lambda fault: fault.__name__)
def test_a_superlink_that_is_lost_in_the_middle_of_a_round(either, fault):
    made = federation(either)
    made.sites["b"].faults[1] = [superlink_is_lost(fault)]
    assert_nothing_was_lost(made)
    assert made.link.submitted == 2


def test_a_superlink_that_is_lost_in_every_round(either):
    made = federation(either)
    for round in range(4):
        made.sites["abc"[round % 3]].faults[round] = [superlink_is_lost(reply_is_lost)]
    assert_nothing_was_lost(made)
    assert made.link.submitted == 5


class Killed(BaseException):
    """The server ends here."""


class Kills:
    """The connection at which the server is killed, in the middle of a round."""

    def __init__(self, connection, round):
        self._connection = connection
        self._round = round

    def ask(self, question):
        if getattr(question, "round", None) == self._round:
            raise Killed
        return self._connection.ask(question)


def killed_in(round, made, folder):
    with Exchange(made.link) as exchange:
        connections = made.connections(exchange)
        owners = made.run.owners(connections | {"c": Kills(connections["c"], round)})
        owners.enrol()
        rounds_of(made.run.served, folder, lambda event: None, engine=owners)


@pytest.mark.parametrize("round", range(3))
@pytest.mark.parametrize("sums", [False, True], ids=["means", "sums"])
def test_a_server_that_is_killed_in_the_middle_of_a_round_and_goes_on(tmp_path, round, sums):
    changed = {"rounds": 3, "participation": 0.8, "performance__checkpoint_seconds": 0.0}
    run = Run.of(config_of(**changed, **({"local__local_steps": 1} if sums else {})))
    made = federation(run)
    with pytest.raises(Killed):
        killed_in(round, made, tmp_path)
    asked = {name: list(site.direct.asked) for name, site in made.sites.items()}
    assert [len(each) for each in asked.values()] == [round + 1, round + 1, round]
    made.begin()
    done = []
    with Exchange(made.link) as exchange:
        again = run.owners(made.connections(exchange))
        finished = rounds_of(run.served, tmp_path, done.append, engine=again)
    made.check(again)
    expected = undisturbed(run)
    assert [each.round for each in done if hasattr(each, "participants")] == list(range(round + 1, 4))
    assert torch.equal(finished.server.released, expected[-1][0].released)
    assert torch.equal(finished.server.weights, expected[-1][0].weights)
    assert [len(site.direct.asked) for site in made.sites.values()] == [3, 3, 3]
    sent = {name: len(site.trained) for name, site in made.sites.items()}
    assert {name: account.taken for name, account in again.accounts().items()} == sent


def test_everything_at_once(either):
    """A killed client, a straggler, a forged answer and two lost SuperLinks; nothing is lost in the end."""
    made = federation(either)
    made.sites["a"].faults = {0: [comes_from("b")], 1: [is_killed(0.15)], 2: [superlink_is_lost(honest)]}
    made.sites["b"].faults = {0: [reply_is_lost], 1: [straggles(0.15)], 3: [is_lost_on_its_way]}
    made.sites["c"].faults = {0: [superlink_is_lost(reply_is_lost)], 2: [is_killed(0.1, False)], 3: [straggles(0.05)]}
    assert_nothing_was_lost(made, a=AGAIN, b=AGAIN, c=AGAIN)


def test_the_counts_are_checked(run):
    """An owner that has answered more than the server knows would be seen."""
    made = federation(run)
    _, owners = made.trained()
    owners._owners["b"] = type(owners._owners["b"])(taken=3, queries=6)
    with pytest.raises(AssertionError):
        made.check(owners)
