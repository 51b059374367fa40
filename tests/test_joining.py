"""Is joining worth it? Sentences on numbers worked by hand, and which clients are shown."""

import pytest

from prifedsync.joining import FEWEST_RECORDS, joining, shown
from prifedsync.record import ClientRecord
from prifedsync.scores import Interval, Measured

MORE, LESS, EITHER = Interval(0.031, 0.11), Interval(-0.11, -0.031), Interval(-0.01, 0.11)


def client(name="north", records=412, tested=100, epsilon=2.0, metric="auc", apart=MORE, **scores):
    """Scores by model; underscores stand for dashes. `apart`: the interval of their difference."""
    given = {model.replace("_", "-"): {metric: Measured(value)} for model, value in scores.items()}
    planned = None if epsilon is None else {"epsilon": {"lower": 0.0, "upper": epsilon}}
    return ClientRecord(
        name=name, records=records, plan=None, rounds_taken=1, slots_taken=1, noisy_queries=1, planned=planned, taken=None,
        test_records=tested, scores=given, difference=apart,
    )  # fmt: skip


def row(of, in_use="released", lower_is_better=False, metric="auc", unit="record"):
    (found,) = joining([of], metric, in_use, lower_is_better, unit)
    return found


GOOD, BAD = 0.91, 0.84


def test_a_client_gains_where_the_interval_of_the_difference_is_above_0():
    found = row(client(released=GOOD, alone_private=BAD, alone=0.99))
    assert found.verdict == "gains"
    assert found.sentence == (
        "north (412 records) gains: auc 0.910 with the others against 0.840 alone at the same privacy "
        "(the 95% interval of the difference, +0.031 to +0.110, excludes 0)."
    )
    assert (found.client, found.records, found.epsilon) == ("north", 412, 2.0)
    assert list(found.scores) == ["alone", "alone-private", "released"]


def test_a_client_loses_and_of_errors_less_is_better():
    assert row(client(released=BAD, alone_private=GOOD, apart=LESS)).verdict == "loses"
    assert row(client(released=BAD, alone_private=GOOD, apart=LESS), lower_is_better=True).verdict == "gains"
    assert row(client(released=GOOD, alone_private=BAD), lower_is_better=True).verdict == "loses"


@pytest.mark.parametrize("apart", [EITHER, Interval(0.0, 0.11), Interval(-0.11, 0.0), Interval(0.0, 0.0)])
def test_a_difference_that_may_be_0_decides_nothing(apart):
    found = row(client(released=GOOD, alone_private=BAD, apart=apart))
    assert found.verdict == "cannot be told"
    assert found.sentence == (
        "north (412 records): it cannot be told whether joining helps: auc 0.910 with the others against 0.840 "
        "alone at the same privacy "
        f"(the 95% interval of the difference, {apart.low:+.3f} to {apart.high:+.3f}, includes 0)."
    )


def test_without_the_same_privacy_it_is_said():
    found = row(client(released=GOOD, alone=BAD))
    assert "0.840 alone without privacy" in found.sentence
    assert found.verdict == "gains"


def test_nothing_was_trained_alone():
    found = row(client(released=GOOD, personal=BAD))
    assert found.verdict == "not compared"
    assert found.sentence == (
        "north (412 records) has auc 0.910 with the others; what it would have alone was not trained."
    )


def test_few_records_undefined_scores_and_metrics_without_intervals_decide_nothing():
    few = row(client(tested=FEWEST_RECORDS - 1, released=GOOD, alone_private=BAD))
    assert few.verdict == "cannot be told"
    assert few.sentence.endswith("(19 test records are too few).")
    assert row(client(tested=FEWEST_RECORDS, released=GOOD, alone_private=BAD)).verdict == "gains"
    persons = row(client(tested=3, released=GOOD, alone_private=BAD), unit="person")
    assert persons.sentence.startswith("north (412 persons): ")
    assert persons.sentence.endswith("(3 test persons are too few).")
    bare = row(client(released=0.9, alone_private=0.1, apart=None))
    assert bare.verdict == "cannot be told"
    assert bare.sentence.endswith("(the difference has no interval).")
    undefined = client(released=GOOD, alone_private=BAD)
    undefined.scores["released"]["auc"] = Measured(None, None, "one class only")
    assert row(undefined).verdict == "cannot be told"
    assert row(undefined).sentence.endswith(
        "auc – with the others against 0.840 alone at the same privacy (undefined: one class only)."
    )


def test_the_model_that_the_client_uses_is_compared():
    both = client(released=BAD, personal=GOOD, alone_private=BAD)
    assert "auc 0.840 with the others" in row(both).sentence
    assert "auc 0.910 with the others" in row(both, in_use="personal").sentence


def test_a_number_of_records_that_is_not_public_is_not_said():
    found = row(client(records=None, tested=None, epsilon=None, released=GOOD, alone_private=BAD))
    assert found.sentence.startswith("north gains: ")
    assert (found.records, found.epsilon) == (None, None)


def test_all_of_twenty_clients_are_shown_and_four_of_more():
    sizes = [7, 3, 9, 1, 5, 8, 2, 6, 4, 10, 17, 13, 19, 11, 15, 18, 12, 16, 14, 20, 21]
    scores = [0.5 + size / 100 for size in sizes]
    scores[4] = 0.2
    clients = [client(f"c{i}", size, released=score) for i, (size, score) in enumerate(zip(sizes, scores, strict=True))]
    assert shown(clients[:20], "auc", "released", False) == tuple(range(20))
    found = shown(clients, "auc", "released", False)
    assert [clients[place].records for place in found] == [1, 11, 21, 5]  # smallest, median, largest, worst
    assert [clients[place].records for place in shown(clients, "auc", "released", True)] == [1, 11, 21]  # 21 is the worst
