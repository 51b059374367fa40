"""Calibration: never over the target, noise within 0.1 %, integers as large as they can be."""

import pytest

from prifedsync.accounting import CannotMeet, Neighbours, Sampling, Target, calibrated
from prifedsync.values import BadValue

from .plans import plan_of


def plan(**changed):
    return plan_of({"noise_multiplier": 3.0, "records": 500, "batch": 20, "local_steps": 5, "rounds": 20}, changed)


TARGETS = [
    Target("epsilon", 0.1),
    Target("epsilon", 2.0),
    Target("epsilon", 8.0, delta=1e-7),
    Target("mu", 0.5),
    Target("advantage", 0.1),
]
PLANS = {
    "poisson": plan(),
    "fixed": plan(sampling=Sampling.FIXED),
    "add-remove": plan(neighbours=Neighbours.ADD_REMOVE),
    "participation": plan(participation=0.3),
    "full": plan(batch="full"),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_noise_is_safe_and_within_a_thousandth(name, target):
    found = calibrated(PLANS[name], target)
    spent = target.spent(found.guarantee())
    assert spent <= target.value
    assert spent >= target.value * (1 - 1e-3)
    assert found.rounds == PLANS[name].rounds


@pytest.mark.parametrize("solve", ["rounds", "batch"])
def test_integers_are_the_largest_that_fit(solve):
    target = Target("epsilon", 1.0)
    found = calibrated(plan(), target, solve)
    assert target.spent(found.guarantee()) <= 1.0
    value = found.rounds if solve == "rounds" else found.mechanism.batch
    assert target.spent(found.changed(**{solve: value + 1}).guarantee()) > 1.0


def test_adversarial_participation_needs_more_noise():
    one = plan(participation=0.2)
    target = Target("epsilon", 1.0)
    honest, chosen = calibrated(one, target), calibrated(one, target, participation="adversarial")
    assert chosen.mechanism.noise_multiplier > honest.mechanism.noise_multiplier
    assert target.spent(chosen.guarantee("adversarial")) <= 1.0


def test_what_cannot_be_met_is_an_answer():
    with pytest.raises(CannotMeet, match="batch = 1 already exceeds it"):
        calibrated(plan(records=30, batch=16, noise_multiplier=1.0, rounds=100), Target("epsilon", 1.0), "batch")
    with pytest.raises(CannotMeet, match="rounds = 1 already exceeds it"):
        calibrated(plan(records=30, batch=16, noise_multiplier=1.0), Target("epsilon", 0.01), "rounds")
    with pytest.raises(CannotMeet, match="noise multiplier above"):
        calibrated(plan(batch="full", rounds=10_000, local_steps=100), Target("mu", 1e-3))


def test_a_generous_target_keeps_the_least_noise():
    found = calibrated(plan(rounds=1, local_steps=1), Target("epsilon", 900.0))
    assert found.mechanism.noise_multiplier < 0.06


@pytest.mark.parametrize(
    "bad", [("epsilon", 0.0), ("epsilon", -1.0), ("mu", float("nan")), ("advantage", 1.0), ("rho", 1.0)]
)
def test_bad_targets(bad):
    with pytest.raises(BadValue):
        Target(*bad)


def test_bad_solve():
    with pytest.raises(BadValue, match="solve = clients"):
        calibrated(plan(), Target("mu", 1.0), "clients")
