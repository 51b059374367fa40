"""Two processes answer as one does: every target is met, closely, and the answers can be repeated."""

import pytest

from prifedsync.accounting import Sampling, Target, side_by_side
from prifedsync.accounting.calibrate import CLOSE, CannotMeet
from prifedsync.accounting.planning import Answers
from prifedsync.accounting.side_by_side import ahead
from prifedsync.accounting.statement import Numbers

from .plans import plan_of

SIZES = (60, 700, 90, 3000, 61)
TARGET = Target("epsilon", 2.0)


def plan(records, batch=16):
    numbers = {"noise_multiplier": 1.0, "records": records, "batch": batch, "local_steps": 2, "rounds": 5}
    return plan_of(numbers | {"sampling": Sampling.POISSON}, {})


def answered(plans, target=TARGET, solve="noise"):
    with ahead(plans, target, solve) as working:
        assert set(working) == set(plans)
        answers = Answers(target, solve, working)
        return [answers("c", 1, lambda asked=asked: asked) for asked in plans]


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(side_by_side, "MANY", 2)


def test_few_plans_and_plans_that_leak_alike_start_no_process(monkeypatch):
    monkeypatch.setattr(side_by_side, "ProcessPoolExecutor", None)
    with ahead([plan(records) for records in SIZES], TARGET, "noise") as working:
        assert working == {}
    with ahead([plan(records, "full") for records in range(1, 500)], TARGET, "noise") as working:
        assert working == {}


def test_every_answer_meets_the_target_closely_and_comes_again(few):
    plans = [plan(records) for records in SIZES]
    found = answered(plans)
    for asked, answer in zip(plans, found, strict=True):
        assert answer.plan.mechanism.records == asked.mechanism.records
        assert answer.numbers == Numbers.of(answer.plan.guarantee(), TARGET.delta)
        assert TARGET.value * (1 - CLOSE) <= answer.numbers.epsilon.upper <= TARGET.value
    assert answered(plans) == found


def test_a_target_that_cannot_be_met_is_an_answer_too(few):
    target = Target("mu", 1e-6)
    found = answered([plan(60), plan(61)], target)
    with pytest.raises(CannotMeet) as reason:
        Answers(target)._least_noise(plan(60))
    assert [answer.plan for answer in found] == [None, None]
    assert str(reason.value) in found[0].reason
