"""What client i learns of client j's record: exactly, by enumeration, and by runs of Algorithm 1.

Runs are seeded, hence deterministic; with a fresh seed one round's comparison would fail about once in 150 000 runs.
"""

import itertools
import math

import pytest
import torch

from prifedsync.experiments.leak import LEAKING, WATCHING, Marking, exact, learns, measured, promised, transcript
from prifedsync.sync import Absent, Helpers
from prifedsync.values import BadValue

STANDARD_ERRORS = 4.5


def patterns(clients, rounds):
    """Who takes part: for each round a set of clients, in all ways there are."""
    sets = [
        frozenset(i for i, takes in enumerate(bits) if takes) for bits in itertools.product((False, True), repeat=clients)
    ]
    return itertools.product(sets, repeat=rounds)


def probability(pattern, clients, share):
    taken = sum(map(len, pattern))
    return share**taken * (1 - share) ** (clients * len(pattern) - taken)


def learns_by_hand(pattern):
    """With sets instead of models: who holds a helper that has client j's record in it."""
    holding = set()
    for round, taking in enumerate(pattern):
        if LEAKING in taking or holding & taking:
            holding |= taking
        if WATCHING in holding:
            return round
    return None


@pytest.mark.parametrize(("clients", "rounds"), [(2, 3), (3, 1), (3, 2), (3, 3), (4, 2)])
def test_exact_leak_is_what_all_patterns_add_up_to(clients, rounds):
    for share in (0.05, 0.4, 1.0):
        found = [0.0] * rounds
        for pattern in patterns(clients, rounds):
            learnt = learns_by_hand(pattern)
            for round in range(rounds if learnt is None else learnt, rounds):
                found[round] += probability(pattern, clients, share)
        assert exact(clients, share, rounds) == pytest.approx(found, rel=1e-12)


@pytest.mark.parametrize(("clients", "rounds"), [(3, 3), (4, 2)])
def test_algorithm_1_tells_client_i_exactly_then(clients, rounds):
    answers = set()
    for pattern in patterns(clients, rounds):
        learnt = learns([[client in taking for client in range(clients)] for taking in pattern])
        assert learnt == learns_by_hand(pattern), pattern
        answers.add(learnt)
    assert answers == {None, *range(rounds)}


@pytest.mark.parametrize(
    ("clients", "share", "rounds", "runs"), [(100, 0.05, 40, 500), (5, 0.3, 6, 1500), (2, 0.5, 3, 1000)]
)
def test_measured_leak_agrees_with_the_exact_one(clients, share, rounds, runs):
    truth, found = exact(clients, share, rounds), measured(clients, share, rounds, runs, seed=20240611)
    assert len(found) == rounds
    assert [estimate.share for estimate in found] == sorted(estimate.share for estimate in found)
    for p, estimate in zip(truth, found, strict=True):
        assert abs(estimate.share - p) < STANDARD_ERRORS * math.sqrt(p * (1 - p) / runs)
        assert estimate.standard_error == pytest.approx(math.sqrt(estimate.share * (1 - estimate.share) / runs), rel=1e-12)


def test_measured_leak_is_larger_than_promised():
    last = measured(100, 0.05, 40, 500, seed=7)[-1]
    assert last.share - STANDARD_ERRORS * last.standard_error > 3 * promised(0.05, 40)[-1]


def test_a_seed_repeats_a_measurement():
    first, again, other = (measured(4, 0.4, 3, 60, seed) for seed in (1, 1, 2))
    assert first == again != other


def test_forty_rounds_of_a_hundred_clients():
    assert exact(100, 0.05, 40)[-1] == pytest.approx(0.4938, abs=5e-4)
    assert promised(0.05, 40)[-1] == pytest.approx(0.0953, abs=5e-5)
    assert transcript(0.05, 40)[-1] == pytest.approx(0.8715, abs=5e-5)


def test_promise_holds_for_one_round_and_for_no_more():
    truth, claim = exact(100, 0.05, 40), promised(0.05, 40)
    assert truth[0] == pytest.approx(claim[0], rel=1e-12) == pytest.approx(0.05**2, rel=1e-12)  # Lemma 5
    assert (truth[1:] > claim[1:]).all()
    assert (truth < transcript(0.05, 40)).all()


def test_two_clients_leave_nobody_to_carry_the_record():
    assert exact(2, 0.05, 40) == pytest.approx(promised(0.05, 40), rel=1e-9)


def test_only_the_leaking_client_marks_a_model_and_others_pass_the_mark_on():
    engine = Marking([[False, True, False, True], [True, False, False, True], [False, True, True, True]])
    clean, marked = (Helpers(engine.names, lambda names, mark=mark: mark[: len(names)]) for mark in torch.tensor(MARKS))
    assert engine.train(0, clean).rows.value.flatten().tolist() == [0.0, 0.0]
    assert engine.train(1, clean).rows.value.flatten().tolist() == [1.0, 0.0]
    uploads = engine.train(2, marked)
    assert uploads.rows.value.flatten().tolist() == [0.0, 1.0, 0.0]
    assert uploads.senders == ("1", "2", "3")
    assert uploads.answers["0"] == Absent()


MARKS = [[[0.0]] * 4, [[0.0], [0.5], [0.0], [0.0]]]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: exact(1, 0.5, 3), "clients = 1"),
        (lambda: exact(3, 0.0, 3), "participation = 0.0"),
        (lambda: exact(3, 0.5, 0), "rounds = 0"),
        (lambda: promised(1.5, 3), "participation = 1.5"),
        (lambda: transcript(0.5, 0), "rounds = 0"),
        (lambda: measured(1, 0.5, 3, 5, 0), "clients = 1"),
        (lambda: measured(3, 0.5, 3, 0, 0), "runs = 0"),
    ],
)
def test_bad_numbers_are_refused(call, says):
    with pytest.raises(BadValue, match=says):
        call()
