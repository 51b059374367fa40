"""Clients behind their owners' daemons: the engine of whoever asks. It holds no record, no draw and no kept model.

What an owner sends is checked like anything from outside: a wrong length, a number that is none or a message beyond all
bounds makes the client `Lost`, and nothing of it enters a merge. A ledger that goes back is noticed: an owner's head may
only grow.

An owner that declines the run is refused for good. One that cannot be reached when it is enrolled is lost to the round,
costs nothing, and is enrolled again before the next one that asks it.

Owners count what they have charged; whoever asks counts what they may have charged, and never less. After a restart it does
not know what was asked before. Until an owner says so itself, each round without an answer of it counts. The same holds
where an owner says that it was asked, and nobody here has asked it: the server is an older copy.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..asking.document import RunDocument
from ..asking.frames import BadFrame
from ..asking.questions import Accepted, Answered, Declined, Enrol, Introduction, Question, Reply
from ..asking.questions import Answer as Asks
from ..asking.refusals import Refusal
from ..asking.tensors import HELPER, packed, reply_of, unpacked
from ..local.answers import Absent, Answer, Lost, Refused, Sent
from ..local.job import Job
from ..local.sums import EXACT_BITS, Sums
from ..local.words import summed
from ..rules import Noised
from ..scores import Measurement
from ..sync import Account, Evaluation, Helpers, Model, Summed, Uploads
from ..values import BadValue
from .cohort import NO_SUM
from .known import Broken, Owner

SESSION_BYTES = 16
MOST_AT_ONCE = 64  # owners asked side by side
PAUSE = 0.2  # seconds between two attempts to reach an owner
AGAIN = 2.0  # seconds between two looks for enough clients for a masked sum; each look tries to enrol who is missing
BUSY = Declined(Refusal.BUSY)
RESTARTED = Refused(Refusal.SESSION.value)  # an owner that does not know the session
DISTRUSTS = Refused(Refusal.INTRODUCTION.value)  # and one that has pinned another key of somebody in it
PASSING = (Refusal.BUSY, Refusal.FAILED, Refusal.NAME)  # say nothing of the run: the same enrolment may be accepted later
MAY_HAVE_CHARGED = (  # a slot, although they decline to answer it
    Refusal.SLOT,  # its reply was lost on the way
    Refusal.BUSY,  # it may be in the middle of answering it
    Refusal.FAILED,  # it may have failed after it charged
    Refusal.RUN,  # it may have lost its ledger since
    Refusal.ANCHOR,  # or have gone back to an older one
    Refusal.VERSION,  # another version may be running by now, which says this before it looks into the ledger
    Refusal.MALFORMED,
    Refusal.CLOSED,  # it may have lost entries, and runs that were open then are closed
    Refusal.NAME,  # the owner itself may have been asked before the keys of two were exchanged
)
OVER = (  # an owner that declines a slot with one of these declines all later ones too
    Refusal.CLOSED, Refusal.RUN, Refusal.ANCHOR, Refusal.VERSION, Refusal.MALFORMED, Refusal.CLIENT, Refusal.MODEL,
    Refusal.RULE, Refusal.TRAINING, Refusal.RECORDS, Refusal.NOISE, Refusal.CLIP, Refusal.STEPS, Refusal.ROUNDS,
    Refusal.BUDGET, Refusal.PARTICIPANTS, Refusal.MASKS, Refusal.PEERS,
)  # fmt: skip
LARGEST = 2 ** (EXACT_BITS - 1)  # of an entry of a message that is not masked


class Asked(Protocol):
    """One owner, wherever it is. It may raise anything: the client is lost then."""

    def ask(self, question: Question) -> Answered: ...


@runtime_checkable
class Seen(Protocol):
    """A connection that sees whether its owner's machine is there. One that is away is not asked: in a masked round it
    would be in the list of the sum, and its message would be missing there."""

    @property
    def away(self) -> str:
        """Why nobody is there; empty where somebody may be."""

    @property
    def there(self) -> bool:
        """Whether somebody is seen there now."""


@dataclass(frozen=True)
class _Asking:
    """One slot, as all clients of an attempt are asked for it."""

    round: int
    attempt: int
    listed: tuple[str, ...]  # who is in the sum; empty where nothing is masked
    introductions: tuple[Introduction, ...]


class Owners:
    """The clients of a run behind their owners (`sync.Engine`)."""

    def __init__(
        self, document: RunDocument, connections: Mapping[str, Asked], start: Tensor, sums: Sums | None = None,
        patience: float = 0.0, gathering: float = 0.0,
    ) -> None:  # fmt: skip
        """start     w_0, whose length and type all vectors have
        sums      those of the document's jobs, where it is summed
        patience  seconds for which an owner that cannot be reached, or is busy, is asked again: a slot has one reply
        gathering seconds for which a round waits until there are enough clients for a masked sum
        """
        self.document = document
        self.names = document.names
        missing = [name for name in self.names if name not in connections]
        if missing:
            raise BadValue("connections", f"{len(connections)} owners", f"have none for client {missing[0]}")
        if (sums is not None) != document.summed:
            raise BadValue("sums", sums, "must be given exactly where the document is summed")
        self.sums = sums
        self.start = start
        self.patience = patience
        self.gathering = gathering
        self.attempts = 0  # spare ones that this run has used
        self._connections = dict(connections)
        self._jobs = {job.client: job for job in document.jobs}
        self._owners = dict.fromkeys(self.names, Owner())
        self._session = b""
        self._introductions: tuple[Introduction, ...] = ()
        self._is_enrolled = False
        self._away: dict[str, str] = {}  # in this round
        self._in_doubt: set[str] = set()  # who may have been asked more than is known, before a restart
        self._known: set[str] = set()  # who was asked for a slot since then
        self.is_older = False  # an owner was asked before that nobody here has asked
        self._round_now = 0
        self._scores: dict[str, dict[str, float | None]] = {}

    @property
    def jobs(self) -> tuple[Job, ...]:
        return self.document.jobs

    # ------------------------------------------------------------------ enrolment

    def enrol(self) -> None:
        """All owners but those that declined are given the document, in a new session where messages are masked."""
        self._session = self._new_session()
        self._introductions = self._enrol(self._willing(self.names), self._session, self.patience)
        self._is_enrolled = True

    def _enrol_missed(self, asked: Sequence[str]) -> None:
        """Enrol whoever is asked and could not be reached before.

        Each is tried once, and the others wait as long as a connection does. In a masked run all must meet in one
        session: the others go over to a new one only where somebody new is in it.
        """
        missed = [name for name in self._willing(asked) if self._owners[name].missed and name not in self._away]
        if not missed:
            return
        session = self._new_session()
        joined = self._enrol(missed, session)
        if not self.document.masks or not joined:
            return
        others = [name for name in self._willing(self.names) if name not in missed]
        self._introductions = joined + self._enrol(others, session, self.patience)
        self._session = session

    def _new_session(self) -> bytes:
        return os.urandom(SESSION_BYTES) if self.document.masks else b""

    def _willing(self, names: Sequence[str]) -> list[str]:
        """Those that did not decline the run."""
        return [name for name in names if name in self._owners and not self._owners[name].refused]

    def _enrol(self, names: Sequence[str], session: bytes, patience: float = 0.0) -> tuple[Introduction, ...]:
        """Give these owners the document; the introductions of those that accept, where messages are masked."""
        questions = {name: Enrol(name, self.document.mapping, session) for name in names}
        answers = self._ask(questions, patience)
        return tuple(each for each in (self._enrolled(name, answer) for name, answer in answers.items()) if each)

    def _enrolled(self, name: str, answer: Answered | Broken) -> Introduction | None:
        """Note whether the owner takes the run; its introduction."""
        owner = self._owners[name]
        passing = isinstance(answer, Declined) and answer.refusal in PASSING
        if passing or isinstance(answer, Broken):
            self._note_missed(name, answer.refusal.value if isinstance(answer, Declined) else str(answer))
            return None
        try:
            if isinstance(answer, Accepted):
                self._check_introduction(name, answer.introduction)
                self._owners[name] = owner.enrolled(answer.head)
                self._note_asked(name, answer.first_round)
                return answer.introduction
            raise Broken(answer.refusal.value if isinstance(answer, Declined) else str(answer))
        except Broken as broken:
            self._owners[name] = replace(owner, refused=f"the owner does not take the run: {broken}", missed="")
        return None

    def _note_asked(self, name: str, first_round: int) -> None:
        """What an owner says of the rounds that it was asked for.

        One that was asked for this one, and not by this engine, was asked by a server of which this is an older copy. All
        its rounds may be charged, and those of owners that have not said so themselves.
        """
        if first_round <= self._round_now:
            self._in_doubt.discard(name)
            return
        if name in self._in_doubt or name in self._known:
            return
        self.is_older = True
        for _ in range(self._round_now):
            self._owners[name] = self._owners[name].spent(self._jobs[name], 0)
        silent = {other for other in self.names if self._owners[other].accepted is None}
        self._in_doubt |= silent | {name}

    def _check_introduction(self, name: str, introduction: Introduction | None) -> None:
        """Whether the others can meet it; the signature is for them to check."""
        if self.document.masks and (introduction is None or introduction.name != name):
            raise Broken("it did not introduce itself")

    # ------------------------------------------------------------------ the protocol of sync.py

    def train(self, round: int, helpers: Helpers) -> Uploads | Summed:
        """Everybody who is asked answers, all of them side by side."""
        self._round_now = round
        before = {name: owner.taken for name, owner in self._owners.items()}
        uploads = self._round(round, helpers)
        self._count_doubtful(uploads.answers, before)
        return uploads

    def _count_doubtful(self, answers: Mapping[str, Answer], before: Mapping[str, int]) -> None:
        """A round may have been asked before a restart. Whoever gives no answer now may have charged it then."""
        for name in self._in_doubt & set(answers):
            owner = self._owners[name]
            if not isinstance(answers[name], Absent) and owner.taken == before[name]:
                self._owners[name] = owner.spent(self._jobs[name], 0)

    def _round(self, round: int, helpers: Helpers) -> Uploads | Summed:
        self._away = self._some_there(helpers.names)
        if self._is_enrolled:
            self._enrol_missed(helpers.names)
        else:
            self.enrol()
        self._gather(helpers.names)
        self._scores = {}
        answers = {name: self._before_asking(name) for name in helpers.names}
        present = self._there(name for name in self.names if name in answers)
        rows = helpers(present) if present else self.start.new_zeros(0, len(self.start))
        bodies = dict(zip(present, self._bodies(rows), strict=True))
        if self.document.masks:
            return self._masked(round, answers, bodies)
        got = self._slot(_Asking(round, 0, (), ()), answers, bodies)
        if self.sums is not None:
            return Summed(answers, Noised(_total(got, len(self.start))), public=True)
        sent = [got[name] for name in self.names if name in got]
        stacked = torch.stack(sent) if sent else self.start.new_zeros(0, len(self.start))
        ordered = {name: answers[name] for name in helpers.names}
        return Uploads(ordered, Noised(stacked), public=True)

    def _before_asking(self, name: str) -> Answer:
        """Why an owner is not asked in this round; `Absent` where it is, until its reply is there."""
        owner = self._owners.get(name)
        if owner is None:
            return Refused("is not a client of this engine")
        if owner.refused:
            return Refused(owner.refused)
        missing = owner.missed or self._away.get(name)
        return Lost(missing) if missing else Absent()

    def _some_there(self, asked: Sequence[str]) -> dict[str, str]:
        """Who is not there at the beginning of a round, and why: found once, so that all of the round agrees.

        While nobody is there, as in a network cut, this waits: rounds that nobody can answer would only use the run up. It
        does not wait for those who are asked while others are there: one that has left for good would hold up the run.
        """
        willing = self._willing(asked)
        others = [name for name in self._willing(self.names) if name not in willing]
        away = self._away_now()
        while willing and all(name in away for name in willing) and not self._is_any_there(others):
            time.sleep(PAUSE)
            away = self._away_now()
        return away

    def _gather(self, asked: Sequence[str]) -> None:
        """Wait a while for enough clients for a masked sum: rounds with fewer pass at once, and would use the run up."""
        end = time.monotonic() + self.gathering
        while self._is_short(asked) and time.monotonic() < end:
            time.sleep(AGAIN)
            self._away = self._some_there(asked)
            self._enrol_missed(asked)

    def _is_short(self, asked: Sequence[str]) -> bool:
        """Whether fewer are there than a sum needs, and enough may come."""
        least = self.document.least if self.document.masks else 0
        return len(self._there(asked)) < least <= len(self._willing(asked))

    def _is_any_there(self, names: Iterable[str]) -> bool:
        """Whether any of these is seen."""
        connections = [self._connections[name] for name in names]
        return any(isinstance(each, Seen) and each.there for each in connections)

    def _away_now(self) -> dict[str, str]:
        seen = {name: each.away for name, each in self._connections.items() if isinstance(each, Seen)}
        return {name: why for name, why in seen.items() if why}

    def _bodies(self, rows: Tensor) -> list[bytes]:
        """What each is sent; once where it is the same for all."""
        cut = rows.detach().to("cpu", self.start.dtype)
        if len(cut) and cut.stride(0) == 0:
            return [packed(HELPER, cut[0])] * len(cut)
        return [packed(HELPER, row) for row in cut]

    def _masked(self, round: int, answers: dict[str, Answer], bodies: Mapping[str, bytes]) -> Summed:
        """The sum of masked messages. One that lacks a message is taken again without those who sent none.

        All meet in a new session where an owner was restarted in between, or where this run goes on from an older one.
        """
        assert self.sums is not None
        listed = list(bodies)
        before = self.attempts
        total = torch.zeros(len(self.start), dtype=torch.int64)
        attempt = 0
        has_met = False
        while listed:
            if len(listed) < self.sums.least:
                short = f"{len(listed)} clients are left for a sum, and {self.sums.least} must be in it"
                answers |= {name: Lost(short, arrived=True) if attempt else Refused(short) for name in listed}
                break
            slot = _Asking(round, attempt, tuple(sorted(listed)), self._introductions)
            got = self._slot(slot, answers, {name: bodies[name] for name in listed})
            if len(got) == len(listed):
                total = torch.from_numpy(summed([row.numpy().tobytes() for row in got.values()]))
                break
            if len(got) >= self.sums.least:  # else it may be all who distrust the same one, and their owners can mend that
                self._note_distrust(name for name in listed if answers[name] == DISTRUSTS)
            restarted = [name for name in listed if answers[name] == RESTARTED]
            if restarted:
                self.enrol()
            if restarted and not got and not has_met:  # nobody has answered this slot, so it can be asked again
                listed = self._there(restarted)
                has_met = True
                continue
            answers |= {name: Lost(NO_SUM, arrived=True) for name in got}
            listed = self._there(got) if self.attempts < self.sums.attempts else []
            attempt += 1
            self.attempts += bool(listed) and len(listed) >= self.sums.least
        return Summed(answers, Noised(total), 1 + self.attempts - before, public=True)

    def _there(self, names: Iterable[str]) -> list[str]:
        """Those of these that are in the present session."""
        return [name for name in names if isinstance(self._before_asking(name), Absent)]

    def _slot(self, slot: _Asking, answers: dict[str, Answer], bodies: Mapping[str, bytes]) -> dict[str, Tensor]:
        """What those send who send something for this slot; `answers` say what became of each."""
        questions = {
            name: Asks(
                name, self.document.run, slot.round, slot.attempt, body, slot.listed, self._session, slot.introductions,
                self._owners[name].head,
            )
            for name, body in bodies.items()
        }  # fmt: skip
        self._known.update(questions)
        got = {}
        for name, answer in self._ask(questions, self.patience).items():
            answers[name], row = self._read(name, slot, answer)
            if row is not None:
                got[name] = row
        return got

    def _read(self, name: str, slot: _Asking, answer: Answered | Broken) -> tuple[Answer, Tensor | None]:
        """What an owner's answer means, and what it sent. A slot that may have been charged counts as spent."""
        owner = self._owners[name]
        job = self._jobs[name]
        if isinstance(answer, Declined):
            if answer.refusal in MAY_HAVE_CHARGED:
                self._owners[name] = owner.spent(job, slot.attempt)
            if answer.refusal is Refusal.NAME:
                self._note_missed(name, answer.refusal.value)
            self._note_over(name, answer.refusal)
            return Refused(answer.refusal.value), None
        try:
            if isinstance(answer, Broken):
                raise answer
            if not isinstance(answer, Reply):
                raise Broken(str(answer))
            self._owners[name] = owner.answered(answer.head, (slot.round, slot.attempt))
            row = self._row(job, answer)
        except Broken as broken:
            self._owners[name] = self._owners[name].spent(job, slot.attempt)
            if answer is broken:
                self._note_silent(name, broken)
            return Lost(f"the owner's answer cannot be used: {broken}"), None
        self._note_scores(name, answer)
        if row is None:
            return Absent(), None
        self._owners[name] = self._owners[name].spent(job, slot.attempt)
        return Sent(None if self.document.summed else row, answer.queries), row

    def _note_over(self, name: str, refusal: Refusal) -> None:
        """Ask no more of an owner that is out of the run. In a list of a sum it would cost a spare attempt every round.

        Without masks it holds up nobody. So it is asked again, unless its run is closed: what else it declines with, its
        owner may change.
        """
        if refusal is Refusal.CLOSED or (self.document.masks and refusal in OVER):
            self._leave_out(name, refusal)

    def _note_distrust(self, names: Iterable[str]) -> None:
        """Ask no more of owners that distrust somebody whom the others trust: they would decline all later sums too."""
        for name in names:
            self._leave_out(name, Refusal.INTRODUCTION)

    def _leave_out(self, name: str, refusal: Refusal) -> None:
        why = f"the owner does not take the run any more: {refusal.value}"
        self._owners[name] = replace(self._owners[name], refused=why)

    def _note_silent(self, name: str, why: Broken) -> None:
        """Enrol an owner that gave no answer before it is asked again: in a list of a sum it would cost as much."""
        if self.document.masks:
            self._note_missed(name, str(why))

    def _note_missed(self, name: str, why: str) -> None:
        self._owners[name] = replace(self._owners[name], missed=f"was not reached: {why}")

    def _row(self, job: Job, reply: Reply) -> Tensor | None:
        """The vector of a reply; None where the client is absent."""
        absent = reply.status == "absent"
        planned = 0 if absent else job.upload_queries
        if absent and job.participation >= 1:
            raise Broken("it says absent, and its plan takes part in every round")
        if reply.queries != planned:
            raise Broken(f"it counts {reply.queries} noisy queries, and its plan {planned}")
        name, dtype = reply_of(self.document)
        try:
            row = unpacked(reply.body, name, dtype, len(self.start))
        except BadFrame as error:
            raise Broken(str(error)) from None
        if row.is_floating_point() and not bool(row.isfinite().all()):
            raise Broken("it has entries that are not numbers")
        if dtype == torch.int64 and bool(((row > LARGEST) | (row < -LARGEST)).any()):
            raise Broken("it has entries beyond any message")
        return None if absent else row

    def _note_scores(self, name: str, reply: Reply) -> None:
        if reply.scores:
            self._scores[name] = {metric: reply.scores.get(metric) for metric in self.document.metrics}

    def _ask(self, questions: Mapping[str, Question], patience: float) -> dict[str, Answered | Broken]:
        """What each owner answers, in the order of the questions."""
        if not questions:
            return {}

        def one(name: str) -> Answered | Broken:
            until = time.monotonic() + patience
            answer = self._asked_once(name, questions[name])
            while (isinstance(answer, Broken) or answer == BUSY) and time.monotonic() < until:
                time.sleep(PAUSE)
                answer = self._asked_once(name, questions[name])
            return answer

        with ThreadPoolExecutor(min(MOST_AT_ONCE, len(questions)), thread_name_prefix="owners") as threads:
            return dict(zip(questions, threads.map(one, questions), strict=True))

    def _asked_once(self, name: str, question: Question) -> Answered | Broken:
        try:
            return self._connections[name].ask(question)
        except Exception as error:  # whatever is wrong with a connection, its client is lost
            return Broken(f"{type(error).__name__}: {error}")

    # ------------------------------------------------------------------ what is known of the clients

    def accounts(self) -> Mapping[str, Account]:
        """What each has spent as it says itself; a slot whose reply never came counts as taken."""
        return {name: Account(owner.taken, owner.queries, owner.spare) for name, owner in self._owners.items()}

    @property
    def missed(self) -> Mapping[str, str]:
        """Why owners are not enrolled that did not decline; they are tried again."""
        return {name: owner.missed for name, owner in self._owners.items() if owner.missed}

    def models(self, released: Tensor) -> Mapping[str, Model]:
        """The released model for everybody: a client's own model stays with its owner."""
        return dict.fromkeys(self.names, Noised(released))

    def evaluate(self, released: Tensor | None, own: Sequence[str] = ()) -> Evaluation | None:
        """None: scores stay with the owners. Those that some let leave are of what was sent to them, in `scores`."""
        return None

    def measure(self, released: Tensor | None, own: bool) -> Mapping[str, tuple[Measurement, ...]] | None:
        return None

    @property
    def scores(self) -> Mapping[str, Mapping[str, float | None]]:
        """Of what clients were sent in the last round, by name and metric, as their owners say; empty where none leave."""
        return self._scores

    # ------------------------------------------------------------------ state

    def save(self) -> dict[str, Any]:
        return {
            "document": self.document.digest.hex(),
            "attempts": self.attempts,
            "session": self._session.hex(),
            "introductions": [[each.name, each.key.hex(), each.signature.hex()] for each in self._introductions],
            "enrolled": self._is_enrolled,
            "owners": {name: owner.as_json() for name, owner in self._owners.items()},
        }

    def saved(self) -> None:
        """Nothing is kept elsewhere."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on in the same session: a reply of another one would not cancel in a sum with it.

        Without masks all are enrolled again, so that they say which rounds they were asked for.
        """
        if state.get("document") != self.document.digest.hex():
            raise BadValue("resume", state.get("document"), "is another run", "go on with the document it was begun with")
        self.attempts = state["attempts"]
        self._session = bytes.fromhex(state["session"])
        self._introductions = tuple(
            Introduction(name, bytes.fromhex(key), bytes.fromhex(signature))
            for name, key, signature in state["introductions"]
        )
        self._is_enrolled = state["enrolled"] and self.document.masks
        self._owners = {name: Owner.from_json(state["owners"][name]) for name in self.names}
        self._in_doubt = set(self._willing(self.names))


def _total(got: Mapping[str, Tensor], count: int) -> Tensor:
    total = torch.zeros(count, dtype=torch.int64)
    for row in got.values():
        total += row
    return total
