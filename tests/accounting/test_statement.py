"""Printed numbers: never on the unsafe side, whatever the float."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prifedsync.accounting import Neighbours, NoisySteps, PrivacyPlan
from prifedsync.accounting.statement import Statement, down, percent_up, up
from prifedsync.values import BadValue


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
        with pytest.raises(BadValue, match="one delta and one kind of neighbours"):
            Statement.worst(pair)
