"""Algorithm 1 with an engine made of numbers: who takes part, what is merged, what is sent when."""

import pytest
import torch

from prifedsync.rules import FedAvg, Interpolate, Noised, Numbers, Server
from prifedsync.sync import Refused, Sent, Synchronisation, Uploads, synchronise
from prifedsync.values import BadValue


class Adding:
    """Client i sends what it starts from plus i + 1; clients in `spent` refuse."""

    def __init__(self, clients, rule, spent=()):
        self.own, self.helpers, self.rule, self.spent = torch.zeros(clients, 1), torch.zeros(clients, 1), rule, spent
        self.log = []

    def train(self, round, chosen, weights):
        self.log.append(("train", round, list(chosen), None if weights is None else weights.item()))
        sent = [i for i in chosen if i not in self.spent]
        for i in sent:
            start = (
                self.helpers[i] if weights is None else self.rule.helper(weights, self.own[i : i + 1], self.numbers())[0]
            )
            self.own[i] = start + i + 1
        of = {i: Sent(self.own[i].clone(), 1) if i in sent else Refused("spent") for i in chosen}
        return Uploads(of, Noised(self.own[sent].clone()))

    def push(self, chosen, weights):
        self.log.append(("push", list(chosen), weights.item()))
        for i in chosen:
            self.helpers[i] = self.rule.helper(weights, self.own[i : i + 1], self.numbers())[0]

    def numbers(self):
        return Numbers(*torch.tensor([[[0.5]], [[0.0]], [[1.0]]]))


def run(coin, rule=None, spent=(), server=None, **plan):
    rule = rule or FedAvg()
    engine = Adding(2, rule, spent)
    steps = list(synchronise(Synchronisation(clients=2, **plan), rule, engine, coin, server or Server(torch.zeros(1))))
    return engine, [server.weights.item() for server, _ in steps], steps


def always(client, round):
    return 0.3


def test_pull_with_everybody():
    engine, weights, _ = run(always, rounds=3)
    assert weights == [1.5, 3.0, 4.5]
    assert engine.log == [("train", 0, [0, 1], 0.0), ("train", 1, [0, 1], 1.5), ("train", 2, [0, 1], 3.0)]


def test_the_servers_rate():
    assert run(always, rounds=2, server_rate=0.5)[1] == [0.75, 1.5]


def test_interpolation_by_hand():
    """Round 0 sends 1 and 2; then from ½·1 + ½·1.5 and ½·2 + ½·1.5: 2.25 and 3.75."""
    engine, weights, _ = run(always, Interpolate(), rounds=2)
    assert weights == [1.5, 3.0]
    assert engine.own.flatten().tolist() == [2.25, 3.75]


def test_push_starts_from_the_last_helper():
    """Client 1 misses round 1: in round 2 it starts from what it was sent after round 0."""

    def coin(client, round):
        return 0.9 if (client, round) == (1, 1) else 0.1

    engine, weights, _ = run(coin, rounds=3, participation=0.5, delivery="push")
    # round 0: 1, 2 → 1.5, pushed to both. round 1: client 0 sends 2.5 → 2.5, pushed to it. round 2: 3.5 and 1.5 + 2
    assert weights == [1.5, 2.5, 3.5]
    pushes = [entry for entry in engine.log if entry[0] == "push"]
    assert pushes == [("push", [0, 1], 1.5), ("push", [0], 2.5), ("push", [0, 1], 3.5)]
    assert all(entry[3] is None for entry in engine.log if entry[0] == "train")


def test_a_round_that_nobody_joins_passes():
    coins = [0.5, 0.6, 0.5]
    engine, weights, steps = run(lambda client, round: coins[round], rounds=3, participation=0.55, averaging=1)
    assert weights == [1.5, 1.5, 3.0]
    assert [uploads is None for _, uploads in steps] == [False, True, False]
    assert [entry[1] for entry in engine.log] == [0, 2]
    assert [server.round for server, _ in steps] == [1, 2, 3]
    assert steps[-1][0].released.item() == 2.0  # the round that passed has a global model too


def test_the_coin_decides_and_its_edge_is_out():
    engine, _, _ = run(lambda client, round: [0.5, 0.4999][client], rounds=1, participation=0.5)
    assert engine.log == [("train", 0, [1], 0.0)]


def test_a_round_that_all_refuse_changes_nothing():
    _, weights, steps = run(always, rounds=2, spent=(0, 1))
    assert weights == [0.0, 0.0]
    assert steps[0][1].of == {0: Refused("spent"), 1: Refused("spent")}
    assert run(always, rounds=2, spent=(0,))[1] == [2.0, 4.0]


def test_it_goes_on_from_the_servers_round():
    engine, weights, _ = run(always, rounds=5, server=Server(torch.tensor([7.0]), 3))
    assert weights == [8.5, 10.0]
    assert [entry[1] for entry in engine.log] == [3, 4]


@pytest.mark.parametrize(
    ("averaging", "rounds", "averaged"), [(0.0, 5, []), (0.4, 5, [3, 4]), (0.5, 5, [3, 4]), (1.0, 3, [0, 1, 2])]
)
def test_which_rounds_are_averaged(averaging, rounds, averaged):
    plan = Synchronisation(clients=1, rounds=rounds, averaging=averaging)
    assert [round for round in range(rounds) if plan.averages(round)] == averaged


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"clients": 0}, "clients = 0"),
        ({"rounds": 0}, "rounds = 0"),
        ({"participation": 0.0}, "participation = 0.0"),
        ({"server_rate": 1.5}, "server_rate = 1.5"),
        ({"averaging": -1.0}, "averaging = -1.0"),
        ({"delivery": "post"}, "delivery = post must be pull or push"),
    ],
)
def test_bad_numbers_are_refused(changed, says):
    with pytest.raises(BadValue) as refusal:
        Synchronisation(**{"clients": 2, "rounds": 3, **changed})
    assert str(refusal.value).startswith(says)
