"""Clients that come when the run has begun: nothing counts as spent before, and they take part from the next round on."""

import pytest
import torch

from prifedsync.asking.questions import Enrol
from prifedsync.asking.refusals import Refusal
from prifedsync.engines.flower import exchange as exchanges
from prifedsync.engines.flower import letters
from prifedsync.engines.flower.exchange import Exchange, Patience
from prifedsync.local import SeededDraws
from prifedsync.local.answers import Lost, Refused

from ...owner.federations import Run, config_of
from .faking import faster, identity
from .owners import Federation, kinds, read, refuses

BRIEF = Patience(whole=60.0, first=30.0, offline=0.05)


@pytest.fixture(autouse=True)
def _faster(monkeypatch):
    identity()
    faster(monkeypatch)
    monkeypatch.setattr(exchanges, "SHORT", 0.05)


@pytest.fixture(scope="module", params=[{}, {"local__local_steps": 1}], ids=["means", "sums"])
def run(request):
    return Run.of(config_of(rounds=4, **request.param))


@pytest.fixture
def made(run):
    return Federation(run, SeededDraws(5))


def trained(made, before_round, **patience):
    """All rounds; `before_round` is told which one begins."""
    with Exchange(made.link) as exchange:
        owners = made.run.owners(made.connections(exchange, **patience))
        real = owners.train

        def train(round, helpers):
            before_round(round, exchange)
            return real(round, helpers)

        owners.train = train
        rounds = made.run.apart(owners)
    made.check(owners)
    return rounds, owners


def comes(made, name, at):
    """Its SuperNode is there from the beginning of this round on."""
    node = made.link.nodes.pop(name)

    def before_round(round, exchange):
        if round == at:
            made.link.nodes[name] = node
            while name not in exchange.online:
                exchange.pause(0.002)

    return before_round


def without(run, name, rounds):
    """The same run, in which these rounds have no answer of one client."""
    connections = run.direct(SeededDraws(5))
    real = connections[name].ask

    class Gone:
        def ask(self, question):
            if getattr(question, "round", None) in rounds:
                raise OSError("not yet")
            return real(question)

    return run.apart(run.owners(connections | {name: Gone()}))


def assert_same_models(rounds, others):
    for (server, _), (other, _) in zip(rounds, others, strict=True):
        assert torch.equal(server.weights, other.weights)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_client_that_joins_late(made, at):
    rounds, owners = trained(made, comes(made, "b", at), b=BRIEF)
    assert kinds(rounds) == ["Sent Lost Sent"] * at + ["Sent Sent Sent"] * (4 - at)
    assert all(isinstance(uploads.answers["b"], Lost) for _, uploads in rounds[:at])
    assert {name: account.taken for name, account in owners.accounts().items()} == {"a": 4, "b": 4 - at, "c": 4}
    assert {name: account.queries for name, account in owners.accounts().items()} == {
        name: site.queries for name, site in made.sites.items()
    }
    assert made.sites["b"].direct.asked == [(round, 0) for round in range(at, 4)]
    assert_same_models(rounds, without(made.run, "b", set(range(at))))


def test_a_client_that_never_comes_spends_nothing(made):
    rounds, owners = trained(made, comes(made, "b", at=99), b=BRIEF)
    assert kinds(rounds) == ["Sent Lost Sent"] * 4
    assert owners.accounts()["b"].taken == 0
    assert made.sites["b"].direct.asked == []


def test_a_run_in_which_nobody_was_there_at_first(made):
    late = [comes(made, name, at=1) for name in "abc"]
    rounds, owners = trained(
        made, lambda round, exchange: [each(round, exchange) for each in late], a=BRIEF, b=BRIEF, c=BRIEF
    )
    assert kinds(rounds) == ["Lost Lost Lost"] + ["Sent Sent Sent"] * 3
    assert torch.equal(rounds[0][0].weights, made.run.served.start)
    assert {account.taken for account in owners.accounts().values()} == {3}


def test_an_owner_that_joins_late_and_declines_is_refused_and_not_asked_again(made):
    site = made.sites["b"]
    enrolled = []

    def declines(link, question):
        asked = read(letters.frame_of(question))
        assert isinstance(asked, Enrol), "it is asked for a round of a run that it does not take"
        enrolled.append(asked)
        refuses(Refusal.BUDGET)(site, link, question, asked)

    made.link.site("b", declines)
    rounds, owners = trained(made, comes(made, "b", at=1), b=BRIEF)
    assert kinds(rounds) == ["Sent Lost Sent"] + ["Sent Refused Sent"] * 3
    assert Refusal.BUDGET.value in rounds[1][1].answers["b"].reason
    assert isinstance(rounds[3][1].answers["b"], Refused)
    assert len(enrolled) == 1
    assert owners.accounts()["b"].taken == 0


def test_a_client_that_joins_late_and_leaves_again_is_lost_as_any_other(made):
    come = comes(made, "b", at=1)

    def before_round(round, exchange):
        come(round, exchange)
        if round == 3:
            del made.link.nodes["b"]
            while "b" in exchange.online:
                exchange.pause(0.002)

    rounds, owners = trained(made, before_round, b=BRIEF)
    assert kinds(rounds) == ["Sent Lost Sent", "Sent Sent Sent", "Sent Sent Sent", "Sent Lost Sent"]
    assert owners.accounts()["b"].taken == 3  # the last round may have been answered, as far as anybody knows
