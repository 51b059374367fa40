"""How numbers, names and scores are written."""

import pytest

from prifedsync.report.wording import between, many, mean_between, named, score
from prifedsync.scores import Interval

LETTERS = tuple("abcdefgh")


def test_things_that_are_not_named_have_their_own_noun():
    assert named(LETTERS[:5]) == "a, b, c, d, e"
    assert named(LETTERS[:6]) == "a, b, c, d, e and 1 more client"
    assert named(LETTERS, "column") == "a, b, c, d, e and 3 more columns"


@pytest.mark.parametrize(("count", "text"), [(0, "0 rounds"), (1, "1 round"), (1000, "1,000 rounds")])
def test_counts_have_separators(count, text):
    assert many(count, "round") == text


def test_scores_have_three_digits_and_their_ends():
    assert (score(None), score(0.12345)) == ("–", "0.123")
    assert between(Interval(0.1, 0.25)) == "0.100–0.250"
    assert mean_between(0.2, Interval(0.1, 0.25)) == "0.200 (0.100–0.250)"
    assert mean_between(0.2, None) == "0.200"
