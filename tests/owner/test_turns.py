"""When an answer leaves: a function of the question's moment and of the policy, whatever the answer says."""

from types import SimpleNamespace

import pytest

from prifedsync.asking.questions import Declined, Head, Reply
from prifedsync.asking.refusals import Refusal
from prifedsync.owner import turns
from prifedsync.owner.turns import Asked, Turns

SECONDS = 60.0
HEAD = Head(3, b"h" * 32)
ANSWERS = {
    "sent": Reply("sent", HEAD, 2, b"a body"),
    "absent": Reply("absent", HEAD, 0, b"a body"),
    "declined": Declined(Refusal.SLOT),
}


def desk_of(answer):
    """A desk that says this to every question."""
    return SimpleNamespace(
        decide=lambda question, by: answer, policy=SimpleNamespace(replies=SimpleNamespace(seconds=SECONDS))
    )


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_leaves_at_the_same_moment_whatever_it_says(answer, monkeypatch):
    """Also that of a client whose coin said no, which is ready at once."""
    monkeypatch.setattr(turns, "chance", lambda: 0.0)
    monkeypatch.setattr(Turns, "_sleep_until", lambda self, moment: None)
    found = Turns(desk_of(answer), log=None)
    first = Asked(question=None, by="net")
    second = Asked(question=None, by="net")
    for asked in (first, second):
        found.put(asked)
        assert found.serve_one()
    assert first.answer.get().at == pytest.approx(first.at + SECONDS)
    assert second.answer.get().at == pytest.approx(first.at + 2 * SECONDS)  # its turn begins when the first one has left
