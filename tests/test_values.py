"""Refusals are whole sentences."""

from prifedsync.values import NOT_GIVEN, BadValue


def test_a_refusal_names_field_value_rule_and_remedy():
    assert str(BadValue("rounds", 0, "must be at least 1", "give more")) == "rounds = 0 must be at least 1; give more"
    assert str(BadValue("rounds", None, "must be a number")) == "rounds = None must be a number"


def test_a_field_that_was_not_given_has_no_value():
    refused = BadValue("rounds", NOT_GIVEN, "must be given", "add --rounds")
    assert str(refused) == "rounds must be given; add --rounds"
    assert refused.value is NOT_GIVEN
