"""Rules as pure functions: numbers worked by hand."""

import pytest
import torch

from prifedsync.rules import RULES, Alone, FedAvg, Interpolate, LocalOnly, Noised, Numbers, Server, Unprotected

START = torch.tensor([1.0, 2.0])
ROWS = torch.tensor([[3.0, 0.0], [5.0, 4.0], [1.0, 8.0]])  # mean (3, 4)


def test_the_table_of_rules_has_their_names():
    assert list(RULES) == [rule.name for rule in RULES.values()]
    assert len(RULES) == 10


@pytest.mark.parametrize("rule", [FedAvg(), Interpolate()])
@pytest.mark.parametrize(("rate", "merged"), [(1.0, [3.0, 4.0]), (0.5, [2.0, 3.0]), (0.25, [1.5, 2.5])])
def test_the_server_moves_towards_the_mean_of_who_sent(rule, rate, merged):
    server = Server(START)
    after = rule.merge(server, Noised(ROWS), rate)
    assert after.weights.tolist() == merged
    assert server.weights is START
    assert server.weights.tolist() == [1.0, 2.0]
    assert rule.merge(server, Unprotected(ROWS[:1]), 1.0).weights.tolist() == [3.0, 0.0]


def test_the_mean_is_taken_in_double_precision():
    """One large and many small: in single precision the small ones would be lost."""
    rows = torch.full((1001, 1), 1e-4)
    rows[0] = 4096.0
    after = FedAvg().merge(Server(torch.zeros(1)), Noised(rows), 1.0)
    assert after.weights.dtype == torch.float32
    assert after.weights.item() == pytest.approx(4096.1 / 1001, rel=6e-8)


@pytest.mark.parametrize(("rate", "merged"), [(1.0, [2.25, 4.5]), (0.5, [1.625, 3.25])])
def test_uploads_count_by_their_weights(rate, merged):
    """(3·3 + 5 + 4·1)/8 and (0 + 4 + 4·8)/8."""
    after = FedAvg().merge(Server(START), Noised(ROWS), rate, torch.tensor([3.0, 1.0, 4.0]))
    assert after.weights.tolist() == merged


def test_a_weighted_mean_of_many_is_taken_in_double_precision():
    """More uploads than are copied at once; the weights are numbers of records, and need not sum to one."""
    rows = torch.full((1001, 1), 1e-4)
    rows[0] = 4096.0
    weights = torch.full((1001,), 5.0)
    weights[0] = 10.0
    after = FedAvg().merge(Server(torch.zeros(1)), Noised(rows), 1.0, weights)
    assert after.weights.dtype == torch.float32
    assert after.weights.item() == pytest.approx((2 * 4096 + 0.1) / 1002, rel=6e-8)


@pytest.mark.parametrize("rule", [FedAvg(), Interpolate()])
@pytest.mark.parametrize("upload", [LocalOnly(ROWS), ROWS], ids=["kept", "bare"])
def test_what_must_stay_is_not_merged(rule, upload):
    with pytest.raises(TypeError, match=f"an upload must be Noised, not {type(upload).__name__}"):
        rule.merge(Server(START), upload, 1.0)


def test_helpers():
    mixing = torch.tensor([[0.0], [1.0], [0.25]])
    numbers = Numbers(mixing, torch.zeros(3, 1), torch.ones(3, 1))
    assert torch.equal(FedAvg().helper(START, ROWS, numbers), START.expand(3, 2))
    assert Interpolate().helper(START, ROWS, numbers).tolist() == [[3.0, 0.0], [1.0, 2.0], [1.0, 6.5]]


def test_alone_nothing_is_merged():
    with pytest.raises(TypeError, match="nothing is sent"):
        Alone().merge(Server(START), Noised(ROWS), 1.0)


@pytest.mark.parametrize("rule", [FedAvg(), Interpolate()])
def test_what_a_rule_leaves_out_is_the_plain_way(rule):
    helper = START.expand(3, 2)
    assert rule.start(ROWS, helper) is helper
    assert rule.steps.pull(ROWS, helper, torch.ones(3, 1)) is None
    assert rule.steps.point(ROWS, helper, torch.ones(3, 1)) is ROWS
    assert rule.finish(2 * ROWS, helper).tolist() == (2 * ROWS).tolist()
    assert rule.noisy_gradients(7) == 7


def test_the_released_model_is_the_mean_of_the_last_rounds():
    server = Server(torch.tensor([1.0]))
    for value, average in ((5.0, False), (2.0, True), (4.0, True), (9.0, True)):
        server = server.merged(torch.tensor([[value]]), 1.0).next_round(average)
    assert (server.round, server.averaged, server.weights.item()) == (4, 3, 9.0)
    assert server.released.item() == 5.0
    assert server.released.dtype == torch.float32
    unaveraged = Server(torch.tensor([1.0])).next_round(False)
    assert unaveraged.released.item() == 1.0
