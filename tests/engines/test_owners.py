"""The engine of whoever asks: what owners send is checked, ledgers that go back are noticed, and a run can be resumed."""

import json
from dataclasses import replace

import pytest
import torch

from prifedsync.asking.questions import Accepted, Declined, Enrol, Head, Reply
from prifedsync.asking.refusals import Refusal
from prifedsync.asking.tensors import packed
from prifedsync.engines import owners as owners_module
from prifedsync.engines.owners import MAY_HAVE_CHARGED, Owners
from prifedsync.local import SeededDraws
from prifedsync.local.answers import Absent, Lost, Refused, Sent
from prifedsync.record import Guarantees
from prifedsync.rules import Noised, Server
from prifedsync.run.loop import rounds_of
from prifedsync.run.recording import record_of, write_models
from prifedsync.sync import Helpers
from prifedsync.values import BadValue

from ..owner.federations import Run, Storing, config_of


class Between:
    """A connection that changes what one owner says."""

    def __init__(self, connection, change):
        self.connection = connection
        self.change = change

    def ask(self, question):
        return self.change(question, self.connection.ask(question))


class Broken:
    def ask(self, question):
        raise OSError("no such socket")


class Gate:
    """A connection that may be closed: it says this then, or that nobody is there."""

    def __init__(self, connection, open=True, says=None):
        self.connection = connection
        self.open = open
        self.says = says

    def ask(self, question):
        if self.open:
            return self.connection.ask(question)
        if self.says is None:
            raise OSError("no such socket")
        return self.says


@pytest.fixture
def run():
    return Run.of(config_of(rounds=3))


@pytest.fixture
def summed():
    return Run.of(config_of(rounds=3, local__local_steps=1))


def everywhere(run):
    return Helpers(run.document.names, lambda names: run.served.start.expand(len(names), -1))


def asked(run, change, rounds=1):
    """The answers of the last round where owner b's words are changed on their way, and the engine."""
    connections = run.direct(SeededDraws(5))
    owners = run.owners(connections | {"b": Between(connections["b"], change)})
    for round in range(rounds):
        found = owners.train(round, everywhere(run))
    return found, owners


def in_replies(**changed):
    def change(question, answer):
        return answer if isinstance(question, Enrol) else replace(answer, **changed)

    return change


def float_body(run, value, at=3):
    row = torch.zeros(len(run.served.start), dtype=torch.float64)
    row[at] = value
    return packed("upload", row)


# ---------------------------------------------------------------------- what owners send


@pytest.mark.parametrize(
    "body",
    [
        lambda run: b"",
        lambda run: b"\x80\x04K\x01.",
        lambda run: packed("upload", torch.zeros(3, dtype=torch.float64)),
        lambda run: packed("upload", torch.zeros(len(run.served.start))),
        lambda run: packed("message", torch.zeros(len(run.served.start), dtype=torch.float64)),
        lambda run: float_body(run, float("nan")),
        lambda run: float_body(run, float("inf")),
    ],
    ids=["nothing", "a pickle", "another length", "another type", "another name", "NaN", "infinity"],
)
def test_a_reply_that_is_none_never_enters_a_merge(run, body):
    found, owners = asked(run, in_replies(body=body(run)))
    assert isinstance(found.answers["b"], Lost)
    assert [type(found.answers[name]) for name in "ac"] == [Sent, Sent]
    assert found.rows.value.shape[0] == 2
    assert found.rows.value.isfinite().all()
    assert owners.accounts()["b"].taken == 1  # its owner has charged it, as far as anybody knows


@pytest.mark.parametrize("value", [2**53, -(2**62)])
def test_a_message_beyond_all_bounds_never_enters_a_sum(summed, value):
    row = torch.zeros(len(summed.served.start), dtype=torch.int64)
    row[0] = value
    found, _ = asked(summed, in_replies(body=packed("message", row)))
    assert isinstance(found.answers["b"], Lost)
    assert found.total.value.abs().max() < 2**40
    assert found.senders == ("a", "c")


def test_counts_must_be_those_of_the_plan(run):
    for queries in (0, 1, 3, -2):
        found, owners = asked(run, in_replies(queries=queries))
        assert isinstance(found.answers["b"], Lost)
        assert owners.accounts()["b"].queries == 2
    found, _ = asked(run, in_replies(status="absent", queries=0))
    assert isinstance(found.answers["b"], Lost)  # its plan has no coin


def test_an_owner_that_cannot_be_reached_is_lost_and_the_round_goes_on(run):
    connections = run.direct(SeededDraws(5))
    enrolled = run.owners(connections)
    enrolled.enrol()
    enrolled._connections["b"] = Broken()
    found = enrolled.train(0, everywhere(run))
    assert isinstance(found.answers["b"], Lost)
    assert "no such socket" in found.answers["b"].reason
    assert found.senders == ("a", "c")


def test_an_owner_is_asked_again_with_the_same_question(run):
    connections = run.direct(SeededDraws(5))
    questions = []

    class Slow:
        def ask(self, question):
            questions.append(question)
            if len(questions) in (2, 3):
                raise OSError("not yet")
            return Declined(Refusal.BUSY) if len(questions) == 4 else connections["b"].ask(question)

    owners = Owners(run.document, connections | {"b": Slow()}, run.served.start, run.served.sums, patience=30.0)
    found = owners.train(0, everywhere(run))
    assert found.senders == ("a", "b", "c")
    assert len(questions) == 5
    assert len({question.digest for question in questions[1:]}) == 1


@pytest.mark.parametrize("refusal", list(Refusal))
def test_a_refusal_is_a_refusal(run, refusal):
    def change(question, answer):
        return answer if isinstance(question, Enrol) else Declined(refusal)

    found, owners = asked(run, change)
    assert found.answers["b"] == Refused(refusal.value)
    assert owners.accounts()["b"].taken == (refusal in MAY_HAVE_CHARGED)


def test_which_refusals_cannot_hide_a_charge():
    """Each of these is said of a slot that was looked for in the whole ledger of the run, and is not in it."""
    assert set(Refusal) - set(MAY_HAVE_CHARGED) == {
        Refusal.CHANGED, Refusal.CLIENT, Refusal.MODEL, Refusal.RULE,
        Refusal.TRAINING, Refusal.RECORDS, Refusal.NOISE, Refusal.CLIP, Refusal.STEPS, Refusal.ROUNDS, Refusal.BUDGET,
        Refusal.PARTICIPANTS, Refusal.MASKS, Refusal.PEERS, Refusal.SESSION, Refusal.INTRODUCTION, Refusal.ORDER,
        Refusal.BEYOND, Refusal.LIST, Refusal.HELPER,
    }  # fmt: skip


def test_whoever_does_not_take_the_run_is_not_asked(run):
    questions = []

    def change(question, answer):
        questions.append(question)
        return Declined(Refusal.BUDGET) if isinstance(question, Enrol) else answer

    found, _ = asked(run, change, rounds=2)
    assert isinstance(found.answers["b"], Refused)
    assert Refusal.BUDGET.value in found.answers["b"].reason
    assert len(questions) == 1
    assert found.senders == ("a", "c")


def test_an_answer_of_another_kind(run):
    found, _ = asked(run, lambda question, answer: Reply("sent", Head(1, b""), 2, b""))
    assert isinstance(found.answers["b"], Refused)

    def change(question, answer):
        return answer if isinstance(question, Enrol) else Accepted(Head(9, b""), 0, 0.0)

    found, _ = asked(run, change)
    assert isinstance(found.answers["b"], Lost)


def test_the_engine_needs_all_connections_and_the_sums(run, summed):
    with pytest.raises(BadValue, match="have none for client c"):
        Owners(run.document, {"a": Broken(), "b": Broken()}, run.served.start)
    with pytest.raises(BadValue, match="exactly where the document is summed"):
        Owners(summed.document, {name: Broken() for name in "abc"}, summed.served.start)


def test_scores_that_leave_are_shown_apart(run):
    def change(question, answer):
        return answer if isinstance(question, Enrol) else replace(answer, scores={"accuracy": 0.5, "more": 1.0})

    _, owners = asked(run, change)
    assert owners.scores == {"b": {"accuracy": 0.5}}
    assert owners.evaluate(run.served.start, "b") is None


# ---------------------------------------------------------------------- owners that come late, or leave


class Away:
    """An owner that cannot be reached in these calls, counted from 0."""

    def __init__(self, connection, calls):
        self.connection = connection
        self.calls = calls
        self.asked = []

    def ask(self, question):
        self.asked.append(type(question).__name__)
        if len(self.asked) - 1 in self.calls:
            raise OSError("no such socket")
        return self.connection.ask(question)


def with_away(run, connections, calls):
    """Owner b cannot be reached in these calls."""
    away = Away(connections["b"], calls)
    return run.owners(connections | {"b": away}), away


def kinds(found):
    return [type(answer) for answer in found.answers.values()]


def test_an_owner_that_comes_late_is_enrolled_then(run):
    connections = run.direct(SeededDraws(5))
    owners, away = with_away(run, connections, {0, 1})
    rounds = [owners.train(round, everywhere(run)) for round in range(3)]
    assert [kinds(found) for found in rounds] == [[Sent, Lost, Sent], [Sent, Lost, Sent], [Sent] * 3]
    assert rounds[0].answers["b"].reason == "was not reached: OSError: no such socket"
    assert away.asked == ["Enrol", "Enrol", "Enrol", "Answer"]
    accounts = owners.accounts()
    assert [(accounts[name].taken, accounts[name].queries) for name in "abc"] == [(3, 6), (1, 2), (3, 6)]
    for name in "ac":
        assert connections[name].asked == [(0, 0), (1, 0), (2, 0)]


def test_an_owner_that_never_comes_has_spent_nothing(run):
    owners, away = with_away(run, run.direct(SeededDraws(5)), range(9))
    for round in range(3):
        found = owners.train(round, everywhere(run))
    assert found.senders == ("a", "c")
    assert away.asked == ["Enrol"] * 3
    assert vars(owners.accounts()["b"]) == {"taken": 0, "queries": 0, "spare": 0}


def test_every_slot_of_an_owner_that_leaves_for_good_counts(run):
    """It was enrolled, and nobody else knows whether it has charged what it was asked."""
    owners, away = with_away(run, run.direct(SeededDraws(5)), range(2, 9))
    rounds = [owners.train(round, everywhere(run)) for round in range(3)]
    assert [type(found.answers["b"]) for found in rounds] == [Sent, Lost, Lost]
    assert away.asked == ["Enrol", "Answer", "Answer", "Answer"]
    assert vars(owners.accounts()["b"]) == {"taken": 3, "queries": 6, "spare": 0}


@pytest.mark.parametrize("refusal", list(Refusal))
def test_an_owner_that_declines_stays_refused_and_one_that_cannot_now_is_asked_again(run, refusal):
    connections = run.direct(SeededDraws(5))
    asked = []

    def change(question, answer):
        asked.append(type(question).__name__)
        return Declined(refusal) if len(asked) == 1 else answer

    owners = run.owners(connections | {"b": Between(connections["b"], change)})
    answers = [owners.train(round, everywhere(run)).answers["b"] for round in range(2)]
    if refusal in (Refusal.BUSY, Refusal.FAILED, Refusal.NAME):
        assert asked == ["Enrol", "Enrol", "Answer"]
        assert answers[0] == Lost(f"was not reached: {refusal.value}")
        assert isinstance(answers[1], Sent)
    else:
        assert asked == ["Enrol"]
        assert answers == [Refused(f"the owner does not take the run: {refusal.value}")] * 2


def test_an_owner_that_is_asked_by_another_name_is_enrolled_before_it_is_asked_again(run):
    """The slot in which the keys of two were exchanged may have been asked of the right one before. Later ones were not."""
    connections = run.direct(SeededDraws(5))
    asked = []

    def change(question, answer):
        asked.append(type(question).__name__)
        return Declined(Refusal.NAME) if 2 <= len(asked) <= 3 else answer

    owners = run.owners(connections | {"b": Between(connections["b"], change)})
    rounds = [owners.train(round, everywhere(run)).answers["b"] for round in range(3)]
    assert asked == ["Enrol", "Answer", "Enrol", "Enrol", "Answer"]
    reason = "this is the owner of another client"
    assert rounds[:2] == [Refused(reason), Lost(f"was not reached: {reason}")]
    assert isinstance(rounds[2], Sent)
    assert owners.accounts()["b"].taken == 2


def test_only_whoever_is_asked_is_enrolled_late(run):
    owners, away = with_away(run, run.direct(SeededDraws(5)), {0})
    owners.train(0, everywhere(run))
    owners.train(1, Helpers(("a", "c"), lambda names: run.served.start.expand(len(names), -1)))
    assert away.asked == ["Enrol"]
    assert kinds(owners.train(2, everywhere(run))) == [Sent] * 3


def test_who_was_missed_is_known_after_a_restart(run):
    connections = run.direct(SeededDraws(5))
    owners, away = with_away(run, connections, {0, 1})
    owners.train(0, everywhere(run))
    fresh = run.owners(connections | {"b": away})
    fresh.load(json.loads(json.dumps(owners.save())))
    assert fresh.accounts() == owners.accounts()
    assert kinds(fresh.train(1, everywhere(run))) == [Sent, Lost, Sent]
    assert kinds(fresh.train(2, everywhere(run))) == [Sent] * 3
    assert away.asked == ["Enrol", "Enrol", "Enrol", "Answer"]
    assert connections["a"].asked == [(0, 0), (1, 0), (2, 0)]


def masked(rounds, attempts=0):
    run = Run.of(
        config_of(
            rounds=rounds, privacy__masks=True, local__local_steps=1, privacy__attempts=attempts, privacy__least_clients=2
        )
    )
    keys = run.pinned()
    connections = run.direct(SeededDraws(5))
    for name, connection in connections.items():
        connection.identity = keys[name]
    return run, connections


def sessions(connection, seen):
    """A connection that notes the session of every question."""

    def change(question, answer):
        seen.append((type(question).__name__, question.session))
        return answer

    return Between(connection, change)


def test_all_meet_anew_where_somebody_joins_a_masked_run_late():
    run, connections = masked(rounds=4)
    seen = []
    away = Away(connections["b"], {0, 1})
    owners = run.owners(connections | {"a": sessions(connections["a"], seen), "b": away})
    rounds = run.apart(owners)
    assert [len(uploads.senders) for _, uploads in rounds] == [2, 2, 3, 3]
    assert [uploads.attempts for _, uploads in rounds] == [1] * 4
    for round, (_, uploads) in enumerate(rounds):  # masks that did not cancel would be 2^31 steps of the grid
        assert run.held.sums.change(uploads.total.value, uploads.senders, round).abs().max() < 100
    assert [kind for kind, _ in seen] == ["Enrol", "Answer", "Answer", "Enrol", "Answer", "Answer"]
    first, second = dict.fromkeys(session for _, session in seen)
    assert [session for _, session in seen] == [first] * 3 + [second] * 3  # none where nobody joined
    accounts = owners.accounts()
    assert [(accounts[name].taken, accounts[name].spare) for name in "abc"] == [(4, 0), (2, 0), (4, 0)]
    for name, connection in connections.items():
        assert connection.trainer.engine.accounts()[name] == accounts[name]


def test_who_cannot_be_reached_in_the_new_session_is_lost_and_costs_nothing():
    run, connections = masked(rounds=4)
    late = Away(connections["b"], {0})
    gone = Away(connections["c"], {2})  # it was asked for round 0, and is away while the others meet again
    owners = run.owners(connections | {"b": late, "c": gone})
    rounds = run.apart(owners)
    assert [uploads.senders for _, uploads in rounds] == [("a", "c"), ("a", "b"), ("a", "b", "c"), ("a", "b", "c")]
    assert rounds[1][1].answers["c"].reason.startswith("was not reached: ")
    accounts = owners.accounts()
    assert [accounts[name].taken for name in "abc"] == [4, 3, 3]
    for name, connection in connections.items():
        assert connection.trainer.engine.accounts()[name] == accounts[name]


def test_who_is_not_there_after_a_new_meeting_is_not_listed_again():
    run, connections = masked(rounds=2, attempts=1)
    connections["b"].restarts = {(1, 0)}  # all meet again in round 1
    gone = Away(connections["c"], {3})  # Enrol, two answers, and away when they meet
    owners = run.owners(connections | {"c": gone})
    rounds = run.apart(owners)
    assert rounds[1][1].senders == ()
    assert connections["a"].asked == [(0, 0), (1, 0)]  # one is left, and a sum needs two
    assert owners.attempts == 0


class Leaving:
    """A connection to an owner whose machine goes away after so many questions, and may come back."""

    def __init__(self, connection, after):
        self.connection = connection
        self.left = after
        self.asked = 0

    @property
    def away(self):
        return "" if self.left else "its machine is not there"

    @property
    def there(self):
        return bool(self.left)

    def ask(self, question):
        self.asked += 1
        if not self.left:
            raise OSError("no such socket")
        self.left -= 1
        return self.connection.ask(question)


def test_a_masked_run_goes_on_without_whoever_has_left_for_good():
    run, connections = masked(rounds=5)
    leaving = Leaving(connections["b"], after=2)
    owners = run.owners(connections | {"b": leaving})
    rounds = run.apart(owners)
    assert [uploads.senders for _, uploads in rounds] == [("a", "b", "c"), *[("a", "c")] * 4]
    assert {str(uploads.answers["b"]) for _, uploads in rounds[1:]} == {str(Lost("its machine is not there"))}
    assert leaving.asked == 2
    assert owners.attempts == 0
    accounts = owners.accounts()
    assert [accounts[name].taken for name in "abc"] == [5, 1, 5]
    for name, connection in connections.items():
        assert connection.trainer.engine.accounts()[name] == accounts[name]
    for round, (_, uploads) in enumerate(rounds):
        assert run.held.sums.change(uploads.total.value, uploads.senders, round).abs().max() < 100


def declining(connection, refusal, after):
    """An owner that declines everything with this after so many questions."""
    asked = []

    def change(question, answer):
        asked.append(question)
        return Declined(refusal) if len(asked) > after else answer

    return Between(connection, change)


OVER = [Refusal.CLOSED, Refusal.NOISE, Refusal.BUDGET, Refusal.RUN, Refusal.ANCHOR, Refusal.VERSION]


@pytest.mark.parametrize("refusal", OVER)
def test_a_masked_run_goes_on_without_whoever_ends_it_for_itself(refusal):
    """It costs one spare attempt, as a client that leaves for good does, and not one in every round."""
    run, connections = masked(rounds=5, attempts=1)
    owners = run.owners(connections | {"b": declining(connections["b"], refusal, after=2)})
    rounds = run.apart(owners)
    assert [uploads.senders for _, uploads in rounds] == [("a", "b", "c"), *[("a", "c")] * 4]
    assert [uploads.attempts for _, uploads in rounds] == [1, 2, 1, 1, 1]
    assert {type(uploads.answers["b"]) for _, uploads in rounds[1:]} == {Refused}
    assert refusal.value in rounds[-1][1].answers["b"].reason
    assert owners.accounts()["b"].taken == 1 + (refusal in MAY_HAVE_CHARGED)


def test_a_masked_run_goes_on_without_an_owner_that_distrusts_another():
    """It has pinned an older key of a: that would cost a spare attempt in every round, and then every round."""
    run, connections = masked(rounds=5, attempts=1)
    owners = run.owners(connections | {"b": declining(connections["b"], Refusal.INTRODUCTION, after=1)})
    rounds = run.apart(owners)
    assert [uploads.senders for _, uploads in rounds] == [("a", "c")] * 5
    assert [uploads.attempts for _, uploads in rounds] == [2, 1, 1, 1, 1]
    assert owners.accounts()["b"].taken == 0


def test_nobody_is_left_out_where_all_distrust_the_same_one():
    """Its key is a new one. Once their owners have pinned it, the run goes on."""
    run, connections = masked(rounds=3)
    distrust = {name: declining(connections[name], Refusal.INTRODUCTION, after=1) for name in "bc"}
    owners = run.owners(connections | distrust)
    assert owners.train(0, everywhere(run)).senders == ()
    assert all(not owner.refused for owner in owners._owners.values())


def test_a_masked_run_goes_on_without_an_owner_whose_machine_is_there_and_whose_daemon_is_not():
    """It costs one spare attempt, and when it is back it is in the sum again."""
    run, connections = masked(rounds=6, attempts=1)
    away = Away(connections["b"], range(2, 6))
    owners = run.owners(connections | {"b": away})
    rounds = run.apart(owners)
    apart = ("a", "c")
    together = ("a", "b", "c")
    assert [uploads.senders for _, uploads in rounds] == [together, apart, apart, apart, apart, together]
    assert [uploads.attempts for _, uploads in rounds] == [1, 2, 1, 1, 1, 1]
    assert away.asked == ["Enrol", "Answer", "Answer", "Enrol", "Enrol", "Enrol", "Enrol", "Answer"]
    accounts = owners.accounts()
    assert [accounts[name].taken for name in "abc"] == [7, 3, 7]  # the slot in which it left counts
    for name, connection in connections.items():
        assert connection.trainer.engine.accounts()[name].taken <= accounts[name].taken
    for round, (_, uploads) in enumerate(rounds):
        assert run.held.sums.change(uploads.total.value, uploads.senders, round).abs().max() < 100


def test_a_closed_run_is_not_asked_for_again_and_its_slot_counts_once(run):
    """It may be closed because its owner has lost entries, and that slot may be among them."""
    connections = run.direct(SeededDraws(5))
    closed = declining(connections["b"], Refusal.CLOSED, after=2)
    owners = run.owners(connections | {"b": closed})
    found = [owners.train(round, everywhere(run)).answers["b"] for round in range(3)]
    assert [type(answer) for answer in found] == [Sent, Refused, Refused]
    assert owners.accounts()["b"].taken == 2


def test_whoever_was_away_is_in_the_sum_again_when_it_is_back():
    run, connections = masked(rounds=4)
    leaving = Leaving(connections["b"], after=2)
    owners = run.owners(connections | {"b": leaving})
    found = []
    for round in range(4):
        if round == 2:
            leaving.left = 9
        found.append(owners.train(round, everywhere(run)).senders)
    assert found == [("a", "b", "c"), ("a", "c"), ("a", "b", "c"), ("a", "b", "c")]
    assert owners.accounts()["b"].taken == 3


def test_a_run_that_goes_on_from_an_older_session_loses_no_round():
    """Its server ended after all had met anew, and before that was saved. What nobody has answered is asked again."""
    run, connections = masked(rounds=3)
    owners = run.owners(connections | {"b": Away(connections["b"], {0})})
    first = owners.train(0, everywhere(run))
    assert first.senders == ("a", "c")
    saved = json.loads(json.dumps(owners.save()))
    owners._enrol_missed(run.document.names)  # b comes, and all meet
    again = run.owners(connections)
    again.load(saved)
    second = again.train(1, everywhere(run))
    assert second.senders == ("a", "b", "c")
    assert second.attempts == 1
    assert run.held.sums.change(second.total.value, second.senders, 1).abs().max() < 100
    assert [again.accounts()[name].taken for name in "abc"] == [2, 1, 2]
    for name, connection in connections.items():
        assert connection.trainer.engine.accounts()[name] == again.accounts()[name]


def test_owners_that_forget_every_session_are_asked_twice_and_no_more():
    run, connections = masked(rounds=1, attempts=1)
    asked = []

    def change(question, answer):
        asked.append(type(question).__name__)
        return answer if isinstance(question, Enrol) else Declined(Refusal.SESSION)

    owners = run.owners({name: Between(own, change) for name, own in connections.items()})
    found = owners.train(0, everywhere(run))
    assert set(found.answers.values()) == {Refused(Refusal.SESSION.value)}
    assert asked.count("Answer") == 6
    assert all(account.taken == 0 for account in owners.accounts().values())


@pytest.mark.parametrize("changed", [{"introduction": None}, {"name": "a"}])
def test_whoever_does_not_introduce_itself_is_refused(changed):
    run, connections = masked(rounds=1)

    def change(question, answer):
        if not isinstance(question, Enrol):
            return answer
        shown = None if "introduction" in changed else replace(answer.introduction, **changed)
        return replace(answer, introduction=shown)

    found = run.owners(connections | {"b": Between(connections["b"], change)}).train(0, everywhere(run))
    assert "did not introduce itself" in found.answers["b"].reason
    assert found.senders == ("a", "c")


# ---------------------------------------------------------------------- ledgers that go back


def heads(*said):
    """Replies come with these heads, in turn."""
    waiting = iter(said)

    def change(question, answer):
        return answer if isinstance(question, Enrol) else replace(answer, head=next(waiting))

    return change


@pytest.mark.parametrize(
    ("said", "extends"),
    [
        ([Head(5, b"x"), Head(6, b"y")], True),
        ([Head(5, b"x"), Head(60, b"y")], True),  # other runs have charged in between
        ([Head(5, b"x"), Head(5, b"x")], False),  # the reply of the round before
        ([Head(5, b"x"), Head(5, b"y")], False),
        ([Head(5, b"x"), Head(4, b"y")], False),
    ],
)
def test_a_head_may_only_grow(run, said, extends):
    found, owners = asked(run, heads(*said), rounds=2)
    assert isinstance(found.answers["b"], Sent if extends else Lost)
    if not extends:
        assert "went back" in found.answers["b"].reason or "another slot" in found.answers["b"].reason
        assert owners._owners["b"].replied == said[0]


def test_a_reply_that_is_sent_again_is_no_answer_to_a_later_round(run):
    """Whoever has the network side of b gives its first reply to every round."""
    first = []

    def change(question, answer):
        if isinstance(question, Enrol):
            return answer
        first.append(answer)
        return first[0]

    found, owners = asked(run, change, rounds=3)
    assert "another slot" in found.answers["b"].reason
    assert owners.accounts()["b"].taken == 3  # its owner was asked each time


def test_a_stored_reply_to_the_same_slot_is_good(run):
    connections = run.direct(SeededDraws(5))
    stored = Storing(connections["b"])
    owners = run.owners(connections | {"b": stored})
    first = owners.train(0, everywhere(run))
    assert isinstance(owners.train(0, everywhere(run)).answers["b"], Sent)
    assert isinstance(first.answers["b"], Sent)


def test_heads_are_echoed(run):
    questions = []

    def change(question, answer):
        questions.append(question)
        return answer

    asked(run, change, rounds=3)
    _, *slots = questions
    assert [slot.head.number for slot in slots] == [0, 1, 2]


def test_an_enrolment_that_goes_back_is_refused(run):
    connections = run.direct(SeededDraws(5))
    owners = run.owners(connections)
    for round in range(2):
        owners.train(round, everywhere(run))
    connections["b"].entries = 1  # an older copy of the ledger
    owners.enrol()
    assert "went back" in owners._owners["b"].refused
    assert isinstance(owners.train(2, everywhere(run)).answers["b"], Refused)


# ---------------------------------------------------------------------- runs


def test_a_run_with_a_folder_and_a_record(tmp_path):
    run = Run.of(config_of(rounds=3, participation=0.7, rule__name="ditto"))
    owners = run.owners(run.direct(SeededDraws(5)))
    finished = rounds_of(run.served, tmp_path, lambda event: None, engine=owners)
    together, engine = run.together(SeededDraws(5))
    assert torch.equal(finished.server.released, together[-1][0].released)
    guarantees = Guarantees(run.served.config.privacy.delta, 3)
    record = record_of(run.served, finished, guarantees, {}, (), lambda event: None)
    write_models(tmp_path / "models", run.served, finished)
    assert [client.noisy_queries for client in record.clients] == [each.queries for each in engine.accounts().values()]
    assert all(client.personal is None for client in record.clients)
    assert (tmp_path / "models" / "global.safetensors").is_file()
    for model in owners.models(finished.server.released).values():
        assert isinstance(model, Noised)


def test_a_run_is_resumed_where_it_was(tmp_path):
    """Owners go on as they are; whoever asks begins anew from a checkpoint."""
    run = Run.of(config_of(rounds=4, participation=0.7, performance__checkpoint_seconds=0.0))
    together, _ = run.together(SeededDraws(5))
    connections = run.direct(SeededDraws(5))
    owners = run.owners(connections)
    rounds_of(run.served, tmp_path, lambda event: None, lambda done: done.round == 2, engine=owners)
    saved = json.loads(json.dumps(owners.save()))
    fresh = run.owners(connections)
    fresh.load(saved)
    assert fresh.accounts() == owners.accounts()
    assert fresh.save() == owners.save() | {"enrolled": False}  # they say again which rounds they were asked for
    server = Server(together[1][0].weights, round=2)
    for round in (2, 3):
        found = fresh.train(round, Helpers(run.document.names, lambda names, at=server: at.weights.expand(len(names), -1)))
        assert [type(answer) for answer in found.answers.values()] == [
            type(answer) for answer in together[round][1].answers.values()
        ]
        server = together[round][0]
    assert any(isinstance(answer, Absent) for _, uploads in together for answer in uploads.answers.values())
    other = Run.of(config_of(rounds=5))
    with pytest.raises(BadValue, match="is another run"):
        other.owners(other.direct(SeededDraws(5))).load(saved)


# ---------------------------------------------------------------------- counts after a server was killed


def killed_after_asking(run, connections, round):
    """An engine as its server saved it before a round, in which all owners were asked all the same."""
    owners = run.owners(connections)
    for before in range(round):
        owners.train(before, everywhere(run))
    saved = json.loads(json.dumps(owners.save()))
    owners.train(round, everywhere(run))
    return saved


def resumed(run, saved, connections, **changed):
    again = run.owners(connections | changed)
    again.load(saved)
    return again


def test_whoever_is_away_after_a_restart_may_have_charged_each_round(run):
    """The state may be an older copy: only the owner knows which rounds it was asked for."""
    connections = run.direct(SeededDraws(5))
    again = resumed(run, killed_after_asking(run, connections, 1), connections, b=Broken())
    found = again.train(1, everywhere(run))
    assert isinstance(found.answers["b"], Lost)
    assert [again.accounts()[name].taken for name in "abc"] == [2, 2, 2]
    assert connections["b"].trainer.engine.accounts()["b"].taken == 2
    again.train(2, everywhere(run))
    assert [again.accounts()[name].taken for name in "abc"] == [3, 3, 3]


def test_an_owner_that_is_back_says_what_it_was_asked_for(run):
    connections = run.direct(SeededDraws(5))
    saved = killed_after_asking(run, connections, 0)
    away = Gate(connections["b"])
    again = resumed(run, saved, connections, b=away)
    away.open = False
    again.train(0, everywhere(run))
    assert again.accounts()["b"].taken == 1
    away.open = True
    again.train(1, everywhere(run))
    assert again.accounts()["b"].taken == 2
    away.open = False
    again.train(2, everywhere(run))  # asked, and lost: it may have come
    assert again.accounts()["b"].taken == 3


def test_a_refused_slot_costs_nothing_once_its_owner_has_said_so(run):
    """It was enrolled after the restart, and knows no later round."""
    connections = run.direct(SeededDraws(5))
    owners = run.owners(connections)
    owners.train(0, everywhere(run))
    saved = json.loads(json.dumps(owners.save()))
    refusing = Between(
        connections["b"], lambda question, answer: answer if isinstance(question, Enrol) else Declined(Refusal.HELPER)
    )
    again = resumed(run, saved, connections, b=refusing)
    again.train(1, everywhere(run))
    assert again.accounts()["b"].taken == 1


def test_a_restored_copy_of_the_server_counts_what_owners_may_have_charged(run):
    """The copy knows round 0; rounds 1 and 2 were asked before the server was lost."""
    connections = run.direct(SeededDraws(5))
    owners = run.owners(connections)
    owners.train(0, everywhere(run))
    saved = json.loads(json.dumps(owners.save()))
    for round in (1, 2):
        owners.train(round, everywhere(run))
    again = resumed(run, saved, connections, b=Broken())
    for round in (1, 2):
        again.train(round, everywhere(run))
    assert again.accounts()["b"].taken == connections["b"].trainer.engine.accounts()["b"].taken == 3


def test_a_restored_copy_counts_rounds_that_an_owner_does_not_answer_again(run):
    """b is back, and has been asked for round 2 already: its refusal of that one is no proof that it charged nothing."""
    connections = run.direct(SeededDraws(5))
    owners = run.owners(connections)
    for round in (0, 1, 2):
        owners.train(round, everywhere(run))
    fresh = run.owners(connections)
    saved = json.loads(json.dumps(fresh.save()))
    declines = Between(
        connections["b"],
        lambda question, answer: Accepted(answer.head, 3, 1.0) if isinstance(question, Enrol) else Declined(Refusal.ORDER),
    )
    again = resumed(run, saved, connections, b=declines)
    for round in (0, 1, 2):
        again.train(round, everywhere(run))
    assert again.accounts()["b"].taken == 3


@pytest.mark.parametrize("enrolled_in", [0, 1, 2, 3])
def test_a_copy_from_before_the_first_round_counts_what_owners_were_asked_for(run, enrolled_in):
    """It has no checkpoint, and the others say that they were asked. b comes late, or never."""
    connections = {name: Saying(connection) for name, connection in run.direct(SeededDraws(5)).items()}
    before = run.owners(connections)
    for round in range(2):
        before.train(round, everywhere(run))
    late = Away(connections["b"], range(1 + enrolled_in))
    copy = run.owners(connections | {"b": late})
    copy.enrol()
    for round in range(3):
        copy.train(round, everywhere(run))
    assert copy.is_older
    assert [copy.accounts()[name].taken for name in "abc"] == [3, 3, 3]


def test_a_copy_counts_the_rounds_before_its_first_owner_came(run):
    connections = {name: Saying(connection) for name, connection in run.direct(SeededDraws(5)).items()}
    before = run.owners(connections)
    for round in range(3):
        before.train(round, Helpers(("b",), lambda names: run.served.start.expand(len(names), -1)))
    copy = run.owners(connections | {"b": Away(connections["b"], {0, 1})})
    for round in range(3):
        copy.train(round, everywhere(run))
    assert [copy.accounts()[name].taken for name in "abc"] == [3, 3, 3]


def test_whoever_comes_late_to_a_run_that_is_no_copy_has_spent_nothing(run):
    connections = {name: Saying(connection) for name, connection in run.direct(SeededDraws(5)).items()}
    owners, _ = with_away(run, connections, {0, 1})
    for round in range(3):
        owners.train(round, everywhere(run))
    assert not owners.is_older
    assert owners.accounts()["b"].taken == 1


class Saying(Storing):
    """An owner that stores its answers, and says which rounds it was asked for."""

    def ask(self, question):
        answered = super().ask(question)
        return replace(answered, first_round=self.connection.first_round) if isinstance(question, Enrol) else answered


@pytest.mark.parametrize("after", [Declined(Refusal.BUDGET), None])
def test_a_late_joiner_whose_round_was_asked_is_counted_after_a_restart(run, after):
    """b comes in round 1, charges it, and is away or declines once the server is back."""
    connections = run.direct(SeededDraws(5))
    gate = Gate(connections["b"], open=False)
    owners = run.owners(connections | {"b": gate})
    owners.train(0, everywhere(run))
    saved = json.loads(json.dumps(owners.save()))
    gate.open = True
    owners.train(1, everywhere(run))
    assert connections["b"].trainer.engine.accounts()["b"].taken == 1
    again = resumed(run, saved, connections, b=Gate(connections["b"], open=False, says=after))
    again.train(1, everywhere(run))
    assert again.accounts()["b"].taken == 1


def test_after_a_restart_whoever_answers_is_counted_once(run):
    connections = run.direct(SeededDraws(5))
    owners = run.owners(connections)
    owners.train(0, everywhere(run))
    again = run.owners(connections)
    again.load(json.loads(json.dumps(owners.save())))
    again.train(1, everywhere(run))
    assert [again.accounts()[name].taken for name in "abc"] == [2, 2, 2]


def test_who_declined_the_run_is_not_counted_after_a_restart(run):
    connections = run.direct(SeededDraws(5))
    gate = Gate(connections["b"], open=False, says=Declined(Refusal.BUDGET))
    owners = run.owners(connections | {"b": gate})
    owners.train(0, everywhere(run))
    again = resumed(run, json.loads(json.dumps(owners.save())), connections, b=gate)
    again.train(1, everywhere(run))
    assert again.accounts()["b"].taken == 0


# ---------------------------------------------------------------------- a network cut


class Watched:
    """A connection that sees whether its owner is there; it comes back after so many looks."""

    def __init__(self, connection, looks):
        self.connection = connection
        self.looks = looks

    @property
    def away(self):
        self.looks -= 1
        return "" if self.there else "it is not there"

    @property
    def there(self):
        return self.looks < 0

    def ask(self, question):
        return self.connection.ask(question)


def test_a_round_waits_while_nobody_is_there(run, monkeypatch):
    monkeypatch.setattr(owners_module, "PAUSE", 0.01)
    connections = run.direct(SeededDraws(5))
    looks = {"a": 8, "b": 5, "c": 11}
    owners = run.owners({name: Watched(connections[name], looks[name]) for name in "abc"})
    found = owners.train(0, everywhere(run))
    assert found.senders == ("b",)
    assert isinstance(found.answers["a"], Lost)
    assert owners.accounts()["a"].taken == 0


def test_a_round_does_not_wait_for_those_who_are_asked_while_others_are_there(run):
    """Where the server chooses, one that has left for good would hold up the run for ever."""
    connections = run.direct(SeededDraws(5))
    owners = run.owners({name: Watched(connections[name], 10**9 * (name == "b")) for name in "abc"})
    found = owners.train(0, replace(everywhere(run), names=("b",)))
    assert found.answers == {"b": Lost("it is not there")}
    assert owners.accounts()["b"].taken == 0


def test_a_round_does_not_wait_where_all_have_declined(run):
    declines = {name: Gate(None, open=False, says=Declined(Refusal.BUDGET)) for name in "abc"}
    owners = run.owners(declines)
    found = owners.train(0, everywhere(run))
    assert all(isinstance(answer, Refused) for answer in found.answers.values())


def test_a_masked_round_waits_while_too_few_are_there(monkeypatch):
    """A cut that leaves one of three would use all rounds up in a moment."""
    monkeypatch.setattr(owners_module, "PAUSE", 0.01)
    monkeypatch.setattr(owners_module, "AGAIN", 0.01)
    run, connections = masked(rounds=3)
    watched = {"b": Watched(connections["b"], 5), "c": Watched(connections["c"], 10**9)}
    owners = Owners(run.document, connections | watched, run.served.start, run.served.sums, gathering=30.0)
    assert [uploads.senders for _, uploads in run.apart(owners)] == [("a", "b")] * 3
    assert owners.accounts()["c"].taken == 0


def test_a_masked_round_waits_for_a_daemon_that_is_not_there(monkeypatch):
    monkeypatch.setattr(owners_module, "PAUSE", 0.01)
    monkeypatch.setattr(owners_module, "AGAIN", 0.01)
    run, connections = masked(rounds=2)
    late = {name: Away(connections[name], range(4)) for name in "bc"}
    owners = Owners(run.document, connections | late, run.served.start, run.served.sums, gathering=30.0)
    assert [len(uploads.senders) for _, uploads in run.apart(owners)] == [3, 3]


def test_a_masked_round_waits_no_longer_than_it_may_nor_for_those_who_declined(monkeypatch):
    monkeypatch.setattr(owners_module, "PAUSE", 0.01)
    monkeypatch.setattr(owners_module, "AGAIN", 0.01)
    run, connections = masked(rounds=1)
    gone = {name: Watched(connections[name], 10**9) for name in "bc"}
    owners = Owners(run.document, connections | gone, run.served.start, run.served.sums, gathering=0.1)
    assert owners.train(0, everywhere(run)).senders == ()
    declines = {name: Gate(None, open=False, says=Declined(Refusal.BUDGET)) for name in "bc"}
    refused = Owners(run.document, connections | declines, run.served.start, run.served.sums, gathering=1e9)
    assert refused.train(0, everywhere(run)).senders == ()
