"""Calibration: never over the target, noise within 0.1 %, integers as large as they can be."""

import pytest

from prifedsync.accounting import Calibrator, CannotMeet, Neighbours, Sampling, Target, calibrated
from prifedsync.accounting.calibrate import LeastNoise, Start
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


# ------------------------------------------------------------------ many plans


class Counting(Target):
    """A target that counts how often a guarantee is evaluated."""

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "evaluated", [])

    def spent(self, f):
        self.evaluated.append(f)
        return super().spent(f)


SIZES = [round(60 * 60 ** ((11 * i % 30) / 30)) for i in range(30)]  # 60 … 3,100, in no order


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [("poisson", "epsilon", 2.0), ("poisson", "mu", 0.5), ("fixed", "epsilon", 2.0), ("add-remove", "advantage", 0.1),
     ("participation", "advantage", 0.1)],
)  # fmt: skip
def test_neighbours_answers_save_evaluations_and_are_verified_all_the_same(name, kind, value):
    target = Counting(kind, value)
    calibrator = Calibrator(target)
    asked = [PLANS[name].changed(records=size) for size in SIZES]
    found = [calibrator(each) for each in asked[:-10]]
    before = len(target.evaluated)
    found += [calibrator(each) for each in asked[-10:]]
    assert len(target.evaluated) - before <= 14  # of ten; cold, each takes four to seven
    for each, plan in list(zip(asked, found, strict=True))[::5]:
        assert plan.changed(noise_multiplier=3.0) == each  # nothing else was changed
        spent = target.spent(plan.guarantee())
        assert target.value * (1 - 1e-3) <= spent <= target.value
    cold = calibrated(asked[-1], target).mechanism.noise_multiplier
    assert found[-1].mechanism.noise_multiplier == pytest.approx(cold, rel=1e-3)


@pytest.mark.parametrize("factor", [0.01, 0.5, 0.97, 1.03, 2.0, 100.0])
@pytest.mark.parametrize("slope", [0.1, 1.5, 20.0])
def test_a_wrong_start_costs_evaluations_and_nothing_else(factor, slope):
    """A start is a guess: whatever it says, the answer was evaluated and meets the target."""
    target = Target("mu", 0.5)

    def spent(noise):
        return target.spent(PLANS["full"].changed(noise_multiplier=noise).guarantee())

    right = LeastNoise(spent, 0.5).found()
    start = Start(max(0.06, right * factor), slope)
    noise = LeastNoise(spent, 0.5).found(start)
    assert 0.5 * (1 - 1e-3) <= spent(noise) <= 0.5


def test_full_batches_of_any_size_need_one_calibration():
    target = Counting("epsilon", 2.0)
    calibrator = Calibrator(target)
    found = [calibrator(PLANS["full"].changed(records=size)) for size in (10, 500, 70_000)]
    first = len(target.evaluated)
    assert len({plan.mechanism.noise_multiplier for plan in found}) == 1
    assert [plan.mechanism.records for plan in found] == [10, 500, 70_000]
    calibrator(PLANS["full"].changed(records=11))
    assert len(target.evaluated) == first
    calibrator(PLANS["full"].changed(records=11, rounds=21))
    assert len(target.evaluated) > first


def test_what_does_not_enter_a_guarantee_is_only_the_number_of_records_of_full_batches():
    full, sampled = PLANS["full"], PLANS["poisson"]
    assert full.changed(records=7).accounted == full.accounted
    assert full.accounted.guarantee() == full.guarantee()
    assert sampled.accounted == sampled
    for change in ({"rounds": 21}, {"noise_multiplier": 4.0}, {"participation": 0.5}, {"clip_margin": 0.1}, {"copies": 2},
                   {"neighbours": Neighbours.ADD_REMOVE}, {"local_steps": 6}):  # fmt: skip
        assert full.changed(**change).accounted != full.accounted


def test_who_cannot_meet_a_target_does_not_stop_the_others():
    calibrator = Calibrator(Target("mu", 1e-2))
    for _ in range(2):  # the second answer comes from memory
        with pytest.raises(CannotMeet, match="noise multiplier above"):
            calibrator(plan(batch="full", rounds=10_000, local_steps=100))
    assert calibrator(plan(batch="full")).mechanism.noise_multiplier < 10_000
