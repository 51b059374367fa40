"""A federation of owners against the same run in one process: double precision, recorded draws, the same bits."""

import pytest
import torch

from prifedsync.engines import Reference
from prifedsync.local import SeededDraws
from prifedsync.local.answers import Absent, Lost, Refused, Sent
from prifedsync.rules import RULES

from .federations import Run, config_of, records_of, tape_of

SENDING = [name for name in RULES if name != "alone"]


def assert_same(together, apart):
    assert len(together) == len(apart)
    for (one, mine), (other, theirs) in zip(together, apart, strict=True):
        assert torch.equal(one.weights, other.weights)
        assert torch.equal(one.released, other.released)
        assert list(mine.answers) == list(theirs.answers)
        assert [type(each) for each in mine.answers.values()] == [type(each) for each in theirs.answers.values()]
        if hasattr(mine, "total"):
            assert torch.equal(mine.total.value, theirs.total.value)
        else:
            assert torch.equal(mine.rows.value, theirs.rows.value)


def assert_parity(config, records=None):
    """Both ways to run it from one tape, which refuses to draw a key twice."""
    run = Run.of(config, records)
    tape = tape_of()
    together, engine = run.together(tape)
    replay = tape.replay()
    connections = run.direct(replay)
    owners = run.owners(connections)
    apart = run.apart(owners)
    assert_same(together, apart)
    assert set(tape.asked) - {one for one in tape.asked if one[1].purpose == "fingerprint"} == set(replay.asked) - {
        one for one in replay.asked if one[1].purpose == "fingerprint"
    }
    assert owners.accounts() == engine.accounts()
    for name, connection in connections.items():
        (mine,) = connection.trainer.engine.models().values()
        theirs = engine.models()[name]
        assert type(mine) is type(theirs)
        assert torch.equal(mine.value, theirs.value)
    moved = [not torch.equal(server.weights, run.held.start) for server, _ in together]
    assert moved[-1]
    return together, apart, run


@pytest.mark.parametrize("participation", [1.0, 0.6])
@pytest.mark.parametrize("delivery", ["pull", "push"])
@pytest.mark.parametrize("rule", SENDING)
def test_every_rule_that_sends(rule, delivery, participation):
    changed = {"rule__name": rule, "rule__delivery": delivery, "participation": participation, "rule__strength": 0.2}
    together, _, _ = assert_parity(config_of(**changed, local__optimiser="adam", rounds=4))
    absent = sum(isinstance(answer, Absent) for _, uploads in together for answer in uploads.answers.values())
    assert (absent > 0) == (participation < 1)


@pytest.mark.parametrize("rule", ["fedavg", "fedprox", "ditto", "apfl"])
@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_one_step_is_a_sum(rule, participation):
    _, _, run = assert_parity(config_of(rule__name=rule, local__local_steps=1, participation=participation))
    assert run.document.summed
    assert not run.document.masks


@pytest.mark.parametrize("rule", ["apfl", "ditto"])
def test_published_models(rule):
    assert_parity(config_of(rule__name=rule, rule__publish=True))


@pytest.mark.parametrize("mechanism", ["output-gaussian", "output-laplace"])
@pytest.mark.parametrize("rule", ["fedavg", "ditto", "attentive"])
def test_output_perturbation(mechanism, rule):
    assert_parity(config_of(rule__name=rule, privacy__mechanism=mechanism))


@pytest.mark.parametrize(
    "changed",
    [
        {"local__batch": "full"},
        {"local__sampling": "fixed"},
        {"local__averaging": 0.5},
        {"local__schedule": "cosine", "local__optimiser": "momentum"},
        {"model__name": "softmax", "privacy__neighbours": "add-remove",
         "clients": {name: {"records": 6} for name in ("a", "b", "c")}},
    ],
    ids=str,
)  # fmt: skip
def test_other_training(changed):
    assert_parity(config_of(**changed))


def test_features_are_computed_by_the_owner():
    pictures = records_of(shape=(1, 8, 8))
    _, _, run = assert_parity(config_of(model__features="hog", model__name="softmax", local__local_steps=1), pictures)
    assert run.document.shape == (1, 8, 8)
    assert run.served.description.shape != (1, 8, 8)


# ---------------------------------------------------------------------- masks


MASKS = {"privacy__masks": True, "local__local_steps": 1, "privacy__attempts": 2, "privacy__least_clients": 2}


def masked(run, draws, **each):
    keys = run.pinned()
    connections = run.direct(draws)
    for name, connection in connections.items():
        connection.identity = keys[name]
        for field, slots in each.items():
            getattr(connection, field).update(slots.get(name, ()))
    return connections


@pytest.mark.parametrize("rule", ["fedavg", "ditto"])
def test_masks_cancel_between_owners(rule):
    run = Run.of(config_of(**MASKS, rule__name=rule))
    tape = tape_of()
    together, engine = run.together(tape)
    connections = masked(run, tape.replay())
    owners = run.owners(connections)
    apart = run.apart(owners)
    assert_same(together, apart)
    assert owners.accounts() == engine.accounts()


def test_masked_owners_agree_with_the_reference_engine_and_its_bytes():
    run = Run.of(config_of(**MASKS))
    tape = tape_of()
    shared = {"sums": run.held.sums}
    records = [(client.train.x, client.train.y) for client in run.held.held.clients]
    slow = Reference(run.held.net, run.held.jobs, records, run.held.rule, tape, **shared)
    together, _ = run.together(tape, slow)
    apart = run.apart(run.owners(masked(run, tape.replay())))
    assert_same(together, apart)


def test_a_reply_that_is_lost_costs_an_attempt():
    run = Run.of(config_of(**MASKS))
    connections = masked(run, SeededDraws(3), lost={"b": {(1, 0)}})
    owners = run.owners(connections)
    rounds = run.apart(owners)
    answers = rounds[1][1].answers
    assert rounds[1][1].attempts == 2
    assert isinstance(answers["b"], Lost)
    assert isinstance(answers["a"], Sent)
    assert isinstance(answers["c"], Sent)
    assert connections["a"].asked == [(0, 0), (1, 0), (1, 1), (2, 0)]
    assert connections["b"].asked == [(0, 0), (1, 0), (2, 0)]
    accounts = owners.accounts()
    assert (accounts["a"].taken, accounts["a"].spare, accounts["a"].queries) == (4, 1, 4)
    assert (accounts["b"].taken, accounts["b"].spare) == (3, 0)  # what was lost may have been sent
    for name, connection in connections.items():
        assert connection.trainer.engine.accounts()[name] == accounts[name]
    sizes = [len(uploads.senders) for _, uploads in rounds]
    assert sizes == [3, 2, 3]
    exact = run.held.sums.change(rounds[1][1].total.value, rounds[1][1].senders, 1)
    assert exact.abs().max() < 100  # masks have cancelled: what is left of them would be 2^31 steps of the grid


def test_an_owner_that_was_restarted_meets_again():
    run = Run.of(config_of(**MASKS, rounds=4))
    connections = masked(run, SeededDraws(3), restarts={"b": {(1, 0)}})
    owners = run.owners(connections)
    rounds = run.apart(owners)
    answers = rounds[1][1].answers
    assert isinstance(answers["b"], Refused)
    assert [type(answers[name]) for name in "ac"] == [Sent, Sent]
    assert [len(uploads.senders) for _, uploads in rounds] == [3, 2, 3, 3]
    for _, uploads in rounds:
        assert run.held.sums.change(uploads.total.value, uploads.senders, 1).abs().max() < 100
    assert owners.accounts()["b"].taken == 3
    assert owners.accounts()["a"].taken == 5


def test_a_round_passes_where_no_attempt_is_left():
    run = Run.of(config_of(**MASKS | {"privacy__attempts": 0, "privacy__least_clients": 2}))
    connections = masked(run, SeededDraws(3), lost={"b": {(1, 0)}})
    rounds = run.apart(run.owners(connections))
    assert torch.equal(rounds[0][0].weights, rounds[1][0].weights)
    assert not torch.equal(rounds[1][0].weights, rounds[2][0].weights)
    assert rounds[1][1].senders == ()


def test_masks_without_enough_clients_are_refused():
    run = Run.of(config_of(**MASKS | {"privacy__attempts": 1, "privacy__least_clients": 3}))
    connections = masked(run, SeededDraws(3), lost={"b": {(1, 0)}})
    rounds = run.apart(run.owners(connections))
    assert connections["a"].asked == [(0, 0), (1, 0), (2, 0)]
    assert rounds[1][1].attempts == 1
    assert rounds[1][1].senders == ()
