"""Algorithm 1 with an engine made of numbers: who takes part, what is merged, what is sent when."""

from dataclasses import replace

import pytest
import torch

from prifedsync.local import Job, Optimiser, UnnoisedSteps
from prifedsync.local.client import Client
from prifedsync.rules import FedAvg, Interpolate, LocalOnly, Noised, Server
from prifedsync.server import Aggregator
from prifedsync.sync import Absent, Lost, Refused, Sent, Synchronisation, Uploads, synchronise
from prifedsync.values import BadValue

from .engines.settings import private


class Adding:
    """Client i sends what it starts from plus i + 1; clients in `spent` refuse; `there` says who takes part."""

    names = ("a", "b")

    def __init__(self, there, spent=()):
        self.there = there
        self.spent = spent
        self.log = []

    def train(self, round, helpers):
        present = [i for i, _ in enumerate(self.names) if self.there(i, round)]
        sent = [i for i in present if i not in self.spent]
        starts = helpers([self.names[i] for i in sent])
        self.log.append((round, dict(zip(sent, starts.flatten().tolist(), strict=True))))
        rows = starts + torch.tensor([[i + 1.0] for i in sent]).reshape(-1, 1)
        answers = dict.fromkeys(self.names, Absent()) | {self.names[i]: Refused("spent") for i in present}
        answers |= {self.names[i]: Sent(row, 1) for i, row in zip(sent, rows, strict=True)}
        return Uploads(answers, Noised(rows))


def job(name, **numbers):
    steps = UnnoisedSteps(records=1, batch="full", local_steps=1)
    return Job(client=name, plan=None, optimiser=Optimiser(), unnoised_steps=steps, **numbers)


def run(there, rule=None, spent=(), server=None, delivery="pull", **plan):
    engine = Adding(there, spent)
    jobs = [job(name, mixing=0.5) for name in engine.names]
    aggregator = Aggregator(rule or FedAvg(), jobs, torch.zeros(1), delivery=delivery)
    steps = list(synchronise(Synchronisation(**plan), aggregator, engine, server or Server(torch.zeros(1))))
    return engine, [server.weights.item() for server, _ in steps], steps


def always(client, round):
    return True


def test_pull_with_everybody():
    engine, weights, _ = run(always, rounds=3)
    assert weights == [1.5, 3.0, 4.5]
    assert engine.log == [(0, {0: 0.0, 1: 0.0}), (1, {0: 1.5, 1: 1.5}), (2, {0: 3.0, 1: 3.0})]


def test_the_servers_rate():
    assert run(always, rounds=2, server_rate=0.5)[1] == [0.75, 1.5]


def test_interpolation_by_hand():
    """Round 0 sends 1 and 2; then from ½·1 + ½·1.5 and ½·2 + ½·1.5: 2.25 and 3.75."""
    _, weights, steps = run(always, Interpolate(), rounds=2)
    assert weights == [1.5, 3.0]
    assert steps[-1][1].rows.value.flatten().tolist() == [2.25, 3.75]


def test_push_starts_from_the_last_helper():
    """Client 1 misses round 1: in round 2 it starts from what it was sent after round 0."""
    engine, weights, _ = run(lambda client, round: (client, round) != (1, 1), rounds=3, delivery="push")
    # round 0: 1, 2 → 1.5, pushed to both. round 1: client 0 sends 2.5 → 2.5, pushed to it. round 2: 3.5 and 1.5 + 2
    assert weights == [1.5, 2.5, 3.5]
    assert engine.log == [(0, {0: 0.0, 1: 0.0}), (1, {0: 1.5}), (2, {0: 2.5, 1: 1.5})]


def test_a_round_that_nobody_joins_passes():
    _, weights, steps = run(lambda client, round: round != 1, rounds=3, averaging=1)
    assert weights == [1.5, 1.5, 3.0]
    assert [len(uploads.senders) for _, uploads in steps] == [2, 0, 2]
    assert set(steps[1][1].answers.values()) == {Absent()}
    assert [server.round for server, _ in steps] == [1, 2, 3]
    assert steps[-1][0].released.item() == 2.0  # the round that passed has a global model too


def test_a_round_that_all_refuse_changes_nothing():
    _, weights, steps = run(always, rounds=2, spent=(0, 1))
    assert weights == [0.0, 0.0]
    assert steps[0][1].answers == {"a": Refused("spent"), "b": Refused("spent")}
    assert run(always, rounds=2, spent=(0,))[1] == [2.0, 4.0]


def test_who_is_lost_or_refuses_is_left_out():
    """What may have been spent stays with the client's own account; the server goes on with what arrived."""
    row = torch.tensor([[4.0]])
    answers = {"a": Lost("no answer in time"), "b": Sent(row[0], 1)}
    uploads = Uploads(answers, Noised(row))
    aggregator = Aggregator(FedAvg(), [job("a"), job("b")], torch.zeros(1))
    assert aggregator.merge(Server(torch.zeros(1)), uploads, 1.0).weights.item() == 4.0
    assert aggregator.rounds == [0, 1]
    assert uploads.trained == uploads.senders == ("b",)


def test_uploads_are_weighed_over_those_who_sent():
    """Weights 1, 3 and 4: a and c sent, so (1·2 + 4·7)/5."""
    jobs = [job(name, weight=weight) for name, weight in (("a", 1.0), ("b", 3.0), ("c", 4.0))]
    aggregator = Aggregator(FedAvg(), jobs, torch.zeros(1))
    rows = torch.tensor([[2.0], [7.0]])
    answers = {"a": Sent(rows[0], 1), "b": Absent(), "c": Sent(rows[1], 1)}
    assert aggregator.merge(Server(torch.zeros(1)), Uploads(answers, Noised(rows)), 1.0).weights.item() == 6.0


def test_equal_weights_give_the_bits_of_the_plain_mean():
    """Whatever they are: 3 records each is not another mean than 1 each."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 1000, generator=draw, dtype=torch.float64)
    answers = {name: Sent(row, 1) for name, row in zip("abc", rows, strict=True)}
    plain = Server(torch.zeros(1000, dtype=torch.float64)).merged(rows, 1.0)
    for weights in ((1.0, 1.0, 1.0), (3.0, 3.0, 3.0)):
        jobs = [job(name, weight=weight) for name, weight in zip("abc", weights, strict=True)]
        merged = Aggregator(FedAvg(), jobs, torch.zeros(1000, dtype=torch.float64)).merge(
            Server(torch.zeros(1000, dtype=torch.float64)), Uploads(answers, Noised(rows)), 1.0
        )
        assert torch.equal(merged.weights, plain.weights)
    jobs = [job(name, weight=weight) for name, weight in zip("abc", (1.0, 1.0, 2.0), strict=True)]
    merged = Aggregator(FedAvg(), jobs, torch.zeros(1000, dtype=torch.float64)).merge(
        Server(torch.zeros(1000, dtype=torch.float64)), Uploads(answers, Noised(rows)), 1.0
    )
    expected = (rows[0] + rows[1] + 2 * rows[2]) / 4
    torch.testing.assert_close(merged.weights, expected)


def test_it_goes_on_from_the_servers_round():
    engine, weights, _ = run(always, rounds=5, server=Server(torch.tensor([7.0]), 3))
    assert weights == [8.5, 10.0]
    assert [round for round, _ in engine.log] == [3, 4]


# ------------------------------------------------------------------ a client's own coin


class Tossed:
    """Draws whose coins are given."""

    def __init__(self, coin):
        self.coin = coin

    def uniform(self, key, count):
        assert (key.purpose, count) == ("coin", 1)
        return torch.tensor([self.coin], dtype=torch.float64)

    def bound(self, context):
        return self


@pytest.mark.parametrize(("coin", "there"), [(0.4999, True), (0.5, False), (0.9, False), (1e-9, True)])
def test_the_coin_decides_and_its_edge_is_out(coin, there):
    client = Client(job("a", participation=0.5), Tossed(coin), records=1)
    assert client.join(0, Tossed(coin)) == (None if there else Absent())
    assert client.taken == 0  # who stays away has spent nothing, and who takes part commits before it trains
    client.commit()
    assert client.taken == 1


# ------------------------------------------------------------------ uploads


def test_uploads_cannot_be_changed():
    answers = {"a": Sent(torch.zeros(1), 1), "b": Absent()}
    uploads = Uploads(answers, Noised(torch.zeros(1, 1)))
    with pytest.raises(TypeError):
        uploads.answers["c"] = Absent()
    with pytest.raises(AttributeError):
        uploads.rows = Noised(torch.ones(1, 1))
    answers["c"] = Absent()  # what they were made of is another dict
    assert list(uploads.answers) == ["a", "b"]
    assert uploads.senders == ("a",)


def test_uploads_take_nothing_that_must_stay_and_no_row_too_many():
    with pytest.raises(TypeError, match="must be Noised, not LocalOnly"):
        Uploads({"a": Sent(torch.zeros(1), 1)}, LocalOnly(torch.zeros(1, 1)))
    with pytest.raises(ValueError, match="1 clients sent 2 rows"):
        Uploads({"a": Sent(torch.zeros(1), 1), "b": Absent()}, Noised(torch.zeros(2, 1)))


# ------------------------------------------------------------------ public numbers


@pytest.mark.parametrize(
    ("averaging", "rounds", "averaged"), [(0.0, 5, []), (0.4, 5, [3, 4]), (0.5, 5, [3, 4]), (1.0, 3, [0, 1, 2])]
)
def test_which_rounds_are_averaged(averaging, rounds, averaged):
    plan = Synchronisation(rounds=rounds, averaging=averaging)
    assert [round for round in range(rounds) if plan.averages(round)] == averaged


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"rounds": 0}, "rounds = 0"),
        ({"server_rate": 1.5}, "server_rate = 1.5"),
        ({"averaging": -1.0}, "averaging = -1.0"),
    ],
)
def test_bad_numbers_are_refused(changed, says):
    with pytest.raises(BadValue) as refusal:
        Synchronisation(**{"rounds": 3, **changed})
    assert str(refusal.value).startswith(says)


def test_a_delivery_that_is_none_is_refused():
    with pytest.raises(BadValue, match="delivery = post must be pull or push"):
        Aggregator(FedAvg(), [job("a")], torch.zeros(1), delivery="post")


def test_a_coin_that_is_not_the_plans_is_refused():
    """What is accounted and what is tossed are one number."""
    with pytest.raises(BadValue, match=r"participation = 0\.5 is not that of the plan, 1"):
        replace(private("a", 5), participation=0.5)
