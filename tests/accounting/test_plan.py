"""Plans: what is composed how often, with whose coin, under which neighbours."""

from dataclasses import replace

import numpy as np
import pytest

from prifedsync.accounting import (
    Neighbours,
    NoisySteps,
    OutputPerturbation,
    PrivacyPlan,
    Sampling,
    paper,
    strong,
    weak,
)
from prifedsync.fdp import Answer, compose, fixed_size, gaussian, laplace, participating, poisson_gaussian
from prifedsync.values import BadValue


def steps(**changed):
    return NoisySteps(**{"noise_multiplier": 2.0, "records": 600, "batch": 16, "local_steps": 38, **changed})


def plan(rounds=20, participation=1.0, neighbours=Neighbours.REPLACE, **changed):
    return PrivacyPlan(mechanism=steps(**changed), rounds=rounds, participation=participation, neighbours=neighbours)


RATE = 16 / 600


def test_the_noise_multiplier_is_twice_the_papers_sigma():
    assert steps(sampling=Sampling.FIXED).one_step(Neighbours.REPLACE) == fixed_size(gaussian(1.0), RATE)
    assert steps().one_step(Neighbours.REPLACE) == poisson_gaussian(2.0, RATE, Neighbours.REPLACE)
    assert steps(batch="full").one_step(Neighbours.REPLACE) == gaussian(1.0)
    assert steps(batch="full").one_step(Neighbours.ADD_REMOVE) == gaussian(0.5)
    assert steps(batch=600).one_step(Neighbours.REPLACE) == gaussian(1.0)


def test_full_batch_is_an_exact_gaussian():
    exact = plan(rounds=30, batch="full", local_steps=1, noise_multiplier=11.0).guarantee()
    assert exact.mu().upper == pytest.approx(2 * np.sqrt(30) / 11, rel=1e-14)


@pytest.mark.parametrize("wrong", [2 / 3, 1.5])
def test_the_wrong_noise_gives_another_number(wrong):
    """ε from ⅔ or 1½ of the noise is far outside the bracket of the right one."""
    right = plan().guarantee().epsilon(1e-5)
    other = plan(noise_multiplier=2.0 * wrong).guarantee().epsilon(1e-5)
    assert other.upper < right.lower if wrong > 1 else other.lower > right.upper


@pytest.mark.parametrize("field", ["rounds", "local_steps"])
def test_counts_are_not_off_by_one(field):
    base = plan(rounds=3, local_steps=4)
    more = base.changed(**{field: (3 if field == "rounds" else 4) + 1})
    for one, count in ((base, 12), (more, 16 if field == "rounds" else 15)):
        reference = compose((steps().one_step(Neighbours.REPLACE), count)).epsilon(1e-5)
        found = one.guarantee().epsilon(1e-5)
        assert found.lower <= reference.upper
        assert reference.lower <= found.upper
    assert more.guarantee().epsilon(1e-5).lower > base.guarantee().epsilon(1e-5).upper


def test_participation_is_drawn_once_a_round_not_once_a_step():
    one = plan(rounds=10, participation=0.3, local_steps=5)
    step = steps().one_step(Neighbours.REPLACE)
    right = compose((participating(compose((step, 5)), 0.3), 10)).epsilon(1e-5)
    assert one.guarantee().epsilon(1e-5) == pytest.approx(right, rel=1e-3)
    per_step = compose((participating(step, 0.3), 50)).epsilon(1e-5)
    assert per_step.upper < right.lower  # the wrong count looks better, so the test above can fail


def test_who_chooses_and_what_was_taken():
    one = plan(rounds=20, participation=0.5)
    honest, chosen = one.guarantee(), one.guarantee("adversarial")
    all_taken, some_taken = one.guarantee(taken=20), one.guarantee(taken=10)
    assert chosen.epsilon(1e-5) == pytest.approx(all_taken.epsilon(1e-5), rel=1e-9)
    assert some_taken.epsilon(1e-5).upper < honest.epsilon(1e-5).lower < chosen.epsilon(1e-5).lower
    assert one.guarantee(taken=0).epsilon(1e-5).upper == 0
    with pytest.raises(BadValue, match="taken = 21 must be a whole number"):
        one.guarantee(taken=21)
    with pytest.raises(BadValue, match="k is then a release"):
        one.guarantee("adversarial", taken=3)
    with pytest.raises(BadValue, match="participation = sometimes"):
        one.guarantee("sometimes")


def test_guarantees_hold_in_both_orders():
    g = plan(neighbours=Neighbours.ADD_REMOVE, rounds=4, noise_multiplier=1.0, batch=100).guarantee()
    grid = np.linspace(0.01, 0.99, 31)
    assert g.symmetric
    step = poisson_gaussian(1.0, 1 / 6, Neighbours.ADD_REMOVE)
    forward = compose((step, 152))
    assert np.all(g(grid) <= np.minimum(forward.upper(grid), forward.inverse().upper(grid)))


def test_a_clip_margin_costs():
    loose = plan(clip_margin=0.01).guarantee().epsilon(1e-5)
    assert loose.lower > plan().guarantee().epsilon(1e-5).upper
    assert loose == plan(noise_multiplier=2.0 / 1.01).guarantee().epsilon(1e-5)


def test_output_perturbation_accounts_twice_the_clip():
    once = PrivacyPlan(mechanism=OutputPerturbation(noise_multiplier=4.0), rounds=9)
    assert once.guarantee().mu().upper == pytest.approx(3 * 0.5)
    for neighbours in Neighbours:
        mechanism = OutputPerturbation(noise_multiplier=4.0, noise="laplace")
        assert mechanism.one_round(neighbours) == ((laplace(2.0), 1),)


def test_weak_and_strong_are_the_same_bound_and_take_the_worst_client():
    small, large = plan(records=200), plan(records=600)
    worst = weak([small, large])
    assert worst.epsilon(1e-5).upper == pytest.approx(small.guarantee().epsilon(1e-5).upper, rel=1e-3)
    assert strong([small, large]).epsilon(1e-5) == worst.epsilon(1e-5)
    assert large.guarantee().at_least(small.guarantee()) is Answer.YES


def test_nobody_has_no_guarantee():
    with pytest.raises(BadValue, match="at least one client"):
        weak([])


def test_the_papers_values_are_kept_apart():
    row = plan(rounds=93, sampling=Sampling.FIXED)
    assert paper.mu_weak([row, plan(records=6000, rounds=93)]) == pytest.approx(2.711029845704943)
    assert paper.mu_strong([row], 100) == pytest.approx(np.sqrt(99) * 2.711029845704943)
    with pytest.raises(BadValue, match="clients = 1"):
        paper.mu_strong([row], 1)


def test_theorem_1_is_computed_and_called_unsound():
    one = plan(rounds=1, participation=0.5, sampling=Sampling.FIXED, local_steps=3)
    assert paper.theorem_1(one).sound
    many = one.changed(rounds=30)
    printed = paper.theorem_1(many)
    assert not printed.sound
    assert "false" in printed.why
    true = many.guarantee().epsilon(1e-5).lower
    assert np.isfinite(printed.curve.epsilon(1e-5).upper)
    assert printed.curve.epsilon(1e-5).upper != pytest.approx(true, rel=1e-3)
    # the function it claims is never below f_j^⊗R, and never better than one leak of p² a round
    assert printed.curve.total_variation().upper <= 1 - (1 - 0.25) ** 30 + 1e-6
    assert printed.curve.total_variation().lower <= many.guarantee("adversarial").total_variation().upper


REFUSED = [
    ({"sampling": "fixed"}, "sampling = 'fixed' must be one of Sampling.POISSON, Sampling.FIXED"),
    ({"neighbours": "replace"}, "neighbours = 'replace' must be one of"),
    ({"records": 10**33}, "records = 1000000"),
    ({"rounds": 10**8}, "rounds = 100000000 must be a whole number of at least 1 and at most 26315789"),
    ({"noise_multiplier": 0.0}, "noise_multiplier = 0.0"),
    ({"noise_multiplier": -1.0}, "noise_multiplier = -1.0"),
    ({"noise_multiplier": float("nan")}, "noise_multiplier = nan"),
    ({"records": 0}, "records = 0"),
    ({"records": 10}, "batch = 16 is larger than records = 10"),
    ({"batch": 0}, "batch = 0"),
    ({"batch": 1.5}, "batch = 1.5"),
    ({"local_steps": 0}, "local_steps = 0"),
    ({"clip_norm": 0.0}, "clip_norm = 0.0"),
    ({"clip_margin": -0.1}, "clip_margin = -0.1"),
    ({"rounds": 0}, "rounds = 0"),
    ({"participation": 0.0}, "participation = 0.0"),
    ({"participation": 1.1}, "participation = 1.1"),
    ({"sampling": Sampling.FIXED, "neighbours": Neighbours.ADD_REMOVE}, "neighbours = add-remove"),
]


@pytest.mark.parametrize(("changed", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_bad_plans_are_refused_when_made(changed, says):
    with pytest.raises(BadValue) as refusal:
        plan(**changed)
    assert str(refusal.value).startswith(says)


# Spare attempts


def test_three_spare_attempts_of_thirty_rounds_cost_five_percent():
    """√(33/30) = 1.0488: an attempt that is not charged, or charged twice, gives 1 or 1.0954."""
    one = plan(rounds=30, batch="full", local_steps=1, noise_multiplier=11.0)
    spare = one.changed(attempts=3)
    assert spare.slots == 33
    ratio = spare.guarantee().mu().upper / one.guarantee().mu().upper
    assert ratio == pytest.approx(np.sqrt(1.1), rel=1e-12)
    assert 1.048 < ratio < 1.049


def test_no_coin_is_tossed_for_a_spare_attempt():
    """mix_p(f)^⊗R ⊗ f^⊗a: a coin for each attempt would look better, so this can fail."""
    one = plan(rounds=10, participation=0.3, local_steps=2).changed(attempts=4)
    f = compose((steps().one_step(Neighbours.REPLACE), 2))
    right = compose((participating(f, 0.3), 10), (f, 4)).epsilon(1e-5)
    assert one.guarantee().epsilon(1e-5) == pytest.approx(right, rel=1e-3)
    tossed = compose((participating(f, 0.3), 14)).epsilon(1e-5)
    assert tossed.upper < right.lower
    chosen = one.guarantee("adversarial").epsilon(1e-5)
    assert chosen == pytest.approx(compose((f, 14)).epsilon(1e-5), rel=1e-3)


def test_what_was_taken_counts_slots():
    one = plan(rounds=5, local_steps=1).changed(attempts=2)
    assert one.guarantee(taken=7).epsilon(1e-5) == pytest.approx(one.guarantee().epsilon(1e-5), rel=1e-9)
    with pytest.raises(BadValue, match="taken = 8 must be a whole number of at least 0 and at most 7"):
        one.guarantee(taken=8)


def test_spare_attempts_are_copied_and_limited_as_rounds_are():
    one = plan(rounds=5, batch="full", local_steps=1)
    shared = replace(one, copies=3, attempts=2).guarantee().mu().upper
    assert shared == pytest.approx(one.changed(rounds=21).guarantee().mu().upper, rel=1e-12)
    assert replace(one, attempts=2).accounted.attempts == 2
    assert paper.mu_weak([replace(one, attempts=2)]) == paper.mu_weak([one.changed(rounds=7)])
    with pytest.raises(BadValue, match=r"rounds = 5 must be a whole number of at least 1 and at most 4\b"):
        replace(one, attempts=10**9 - 4)
    with pytest.raises(BadValue, match="attempts = -1"):
        replace(one, attempts=-1)
