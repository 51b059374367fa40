"""Printed numbers: the safe end of each bracket, rounded to the safe side."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prifedsync.accounting import Neighbours, NoisySteps, PrivacyPlan, Target
from prifedsync.accounting.progress import QUICK, WorstEpsilon
from prifedsync.accounting.statement import CURVE_LEVELS, Numbers, Statement, down, percent_up, up
from prifedsync.values import BadValue

from .wide import HONEST, WORST_CASE, Wide, as_json, guarantee


@given(st.floats(1e-310, 1e300), st.integers(1, 8))
def test_up_is_never_below_and_down_never_above(value, digits):
    assert Decimal(up(value, digits)) >= Decimal(value) >= Decimal(down(value, digits))
    assert Decimal(up(value, digits)) <= Decimal(value) * (1 + Decimal(10) ** (1 - digits))


@given(st.floats(0.0, 1.0))
def test_percentages_are_rounded_up(share):
    printed = Decimal(percent_up(share).removesuffix("%"))
    assert Decimal(share) * 100 <= printed <= Decimal(share) * 100 + Decimal("0.1")


@pytest.mark.parametrize(
    ("value", "printed"),
    [(13.877258, "13.88"), (7.0600000000000005, "7.061"), (0.0, "0"), (float("inf"), "∞"), (1e-5, "0.00001001")],
)
def test_known_roundings(value, printed):
    assert up(value) == printed


def test_the_statement_holds_both_ways_to_take_part_and_warns():
    plan = PrivacyPlan(
        mechanism=NoisySteps(noise_multiplier=2.0, records=50, batch=5, local_steps=2), rounds=10, participation=0.5
    )
    said = Statement.of(plan, delta=0.05)
    assert said.honest.epsilon.upper < said.worst_case.epsilon.lower
    assert len(said.warnings) == 1
    assert said.honest.hits(0.01) == pytest.approx(1 - float(plan.guarantee()(0.01)))
    assert said.as_json()["paper"]["mu_strong"] is None


def test_statements_about_different_questions_have_no_worst():
    plan = PrivacyPlan(mechanism=NoisySteps(noise_multiplier=2.0, records=50, batch=5, local_steps=2), rounds=10)
    other = plan.changed(neighbours=Neighbours.ADD_REMOVE)
    for pair in ((Statement.of(plan, 1e-5), Statement.of(plan, 1e-6)), (Statement.of(plan), Statement.of(other)), ()):
        with pytest.raises(BadValue, match="one delta, one adjacency relation and one unit"):
            Statement.worst(pair)


# ---------------------------------------------------------------------- which end of a bracket is said


def wide_statement(neighbours=Neighbours.REPLACE, copies=1):
    honest = Numbers.of(HONEST, 1e-5)
    worst_case = Numbers.of(WORST_CASE, 1e-5)
    return Statement(1e-5, neighbours, honest, worst_case, 0.5, None, copies=copies, warnings=("careful",))


def test_the_sentence_is_made_of_the_upper_ends_of_the_honest_guarantee():
    said = wide_statement().sentence()
    assert "knows every other record, sees everything that its client sends" in said
    assert "guesses which of two values the record has correctly at most 62.5% of the time" in said  # 0.5 + 0.25 / 2
    # 1 − (1 − 0.01) · (1 − 0.25); from the other end of the curve it would be 13.4 %
    assert "At a false positive rate of 1%, the attacker's true positive rate is at most 25.8%." in said


def test_the_sentence_is_about_the_adjacency_and_the_holders():
    assert "guesses whether the record is in the data correctly" in wide_statement(Neighbours.ADD_REMOVE).sentence()
    assert "everything that the 3 clients that hold it send" in wide_statement(copies=3).sentence()


def test_numbers_keep_both_ends_and_the_certified_curve():
    numbers = Numbers.of(HONEST, 1e-5)
    assert numbers.as_json() == as_json(HONEST)
    assert numbers.epsilon == HONEST.epsilon(1e-5)
    assert [alpha for alpha, _ in numbers.curve] == list(CURVE_LEVELS)
    assert [beta for _, beta in numbers.curve] == [HONEST(alpha) for alpha in CURVE_LEVELS]
    assert numbers.hits(0.001) == 1 - HONEST(0.001)


def test_numbers_of_a_real_curve_are_its_certified_ends():
    """The two ends of a real bracket are so close that rounding hides an exchange: here they are compared exactly."""
    f = PrivacyPlan(
        mechanism=NoisySteps(noise_multiplier=0.8, records=50, batch=5, local_steps=2), rounds=40
    ).guarantee(tolerance=0.3)  # fmt: skip
    numbers = Numbers.of(f, 1e-5)
    assert numbers.epsilon.lower < numbers.epsilon.upper
    assert (numbers.epsilon, numbers.mu, numbers.advantage) == (f.epsilon(1e-5), f.mu(1e-5), f.advantage())
    assert all(beta == float(f(alpha)) for alpha, beta in numbers.curve)
    assert any(beta < float(f.upper(alpha)) for alpha, beta in numbers.curve)


def test_the_statement_as_json_is_honest_first_and_the_worst_case_by_its_name():
    said = wide_statement().as_json()
    assert {name: said[name] for name in ("epsilon", "mu", "advantage")} == as_json(HONEST)
    assert said["worst_case_participation"] == as_json(WORST_CASE)
    assert said["curve"] == [[alpha, HONEST(alpha)] for alpha in CURVE_LEVELS]
    assert said["warnings"] == ["careful"]
    assert said["sentence"] == wide_statement().sentence()


def test_a_statement_asks_for_both_guarantees(monkeypatch):
    monkeypatch.setattr(PrivacyPlan, "guarantee", guarantee)
    steps = NoisySteps(noise_multiplier=2.0, records=50, batch=5, local_steps=2)
    said = Statement.of(PrivacyPlan(mechanism=steps, rounds=10, participation=0.5))
    assert said.honest == Numbers.of(HONEST, 1e-5)
    assert said.worst_case == Numbers.of(WORST_CASE, 1e-5)
    always = Statement.of(PrivacyPlan(mechanism=steps, rounds=10))
    assert always.worst_case == always.honest == Numbers.of(HONEST, 1e-5)


def test_the_worst_of_several_statements_keeps_every_warning_once():
    one = wide_statement()
    other = replace(one, honest=Numbers.of(Wide(0.375), 1e-5), warnings=("careful", "watch out"))
    worst = Statement.worst([one, other])
    assert worst.warnings == ("careful", "watch out")
    assert worst.honest == Numbers.of(Wide(0.375), 1e-5)
    assert worst.worst_case == Numbers.of(WORST_CASE, 1e-5)


def test_a_target_is_met_by_the_upper_end():
    spent = {kind: Target(kind, 0.5).spent(HONEST) for kind in ("epsilon", "mu", "advantage")}
    assert spent == {"epsilon": HONEST.epsilon(None).upper, "mu": HONEST.mu(None).upper, "advantage": 0.25}


def test_progress_is_an_upper_end(monkeypatch):
    monkeypatch.setattr(PrivacyPlan, "guarantee", guarantee)
    plan = PrivacyPlan(mechanism=NoisySteps(noise_multiplier=2.0, records=50, batch=5, local_steps=2), rounds=10)
    assert WorstEpsilon([plan], 1e-5).after(3) == HONEST.epsilon(None).upper


def test_progress_never_exceeds_the_headline():
    """Quick bounds are wide: after 199 of 200 rounds they would be above the certified bound after 200."""
    plan = PrivacyPlan(mechanism=NoisySteps(noise_multiplier=2.0, records=500, batch=5, local_steps=2), rounds=200)
    spending = WorstEpsilon([plan], 1e-5)
    headline = Statement.of(plan).epsilon.upper
    assert plan.changed(rounds=199).guarantee(tolerance=QUICK).epsilon(1e-5).upper > headline
    assert spending.after(199) == headline
    assert spending.after(200) == headline
    assert plan.changed(rounds=150).guarantee().epsilon(1e-5).lower <= spending.after(150) < headline
