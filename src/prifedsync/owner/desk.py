"""Where an owner's questions are decided: no sockets and no clock, and one question at a time.

The order inside one answer: the run is found, a slot that was answered gets its stored bytes, the checks follow, then the
training, then one transaction with the charge and the reply. Nothing is returned before that. If anything fails after the
training began, what is in memory of the run is dropped: the ledger has all that counts, and slots that were not charged
get fresh noise.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from ..asking.document import RunDocument, parsed
from ..asking.document import read as read_document
from ..asking.questions import Accepted, Answer, Answered, Declined, Enrol, Introduction, Question, Reply
from ..asking.refusals import Refusal
from ..local import Job, masks
from ..local.draws import Draws, SystemDraws
from ..values import BadValue
from . import admission
from .keys import pinned, read_identity
from .ledger import Ledger, Run, Stored
from .log import OwnerLog
from .policy import Policy
from .records import OwnRecords
from .trainer import Trainer, Unanswerable

MOST_IN_MEMORY = 8  # runs whose nets and carried states are held at once; others come back from the ledger
SIZE_BYTES = 8  # before a run's state: how long a helper of the run is


class _Refused(Exception):
    """A refusal on its way out."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.name)
        self.refusal = refusal


@dataclass(frozen=True)
class _Held:
    """What is in memory of a run."""

    document: RunDocument
    trainer: Trainer


@dataclass
class _Meeting:
    """The session of a masked run, this owner's side of its masks, and whom it has met."""

    session: bytes
    peer: masks.Peer
    met: tuple[Introduction, ...] = ()

    def meet(self, introductions: tuple[Introduction, ...]) -> None:
        """Meet the others once. The first slot may be asked again with the same introductions."""
        if not introductions and not self.met:
            raise _Refused(Refusal.SESSION)
        if introductions in ((), self.met):
            return
        try:
            self.peer.meet(
                [masks.Introduction(each.name, self.peer.run, each.key, each.signature) for each in introductions]
            )
        except BadValue:
            raise _Refused(Refusal.INTRODUCTION) from None
        self.met = introductions


class Desk:
    """Answers questions for one owner. It is used by one thread."""

    def __init__(
        self,
        policy: Policy,
        ledger: Ledger,
        records: OwnRecords,
        log: OwnerLog,
        draws: Callable[[], Draws] = SystemDraws,
    ) -> None:
        self.policy = policy
        self.ledger = ledger
        self._records = records
        self._log = log
        self._draws = draws
        self._held: OrderedDict[str, _Held] = OrderedDict()  # the run that was asked last is last
        self._meetings: dict[str, _Meeting] = {}
        self.helper_bytes: dict[str, int] = {}  # by run: how long the body of a question may be
        for run in ledger.runs():
            state = ledger.state(run.run) if run.open else None
            if state:
                self.helper_bytes[run.run] = int.from_bytes(state[:SIZE_BYTES], "little")

    def decide(self, question: Question, by: str) -> Answered:
        """The answer to a question. Whatever goes wrong inside is one constant outside, and a line in the owner's log."""
        if question.client != self.policy.client:
            self._log.info("a question is for the owner of another client")
            return Declined(Refusal.NAME)
        try:
            return self.enrol(question, by) if isinstance(question, Enrol) else self.answer(question)
        except Exception:
            self._log.exception("a question could not be answered")
            return Declined(Refusal.FAILED)

    def changed(self, policy: Policy) -> None:
        """Go on with another policy. What it does not allow any more is declined from now on."""
        self.policy = policy
        self._held.clear()
        self._meetings.clear()  # a peer's key may be another one, and the old one must not be trusted any longer

    def note_late(self, run: str) -> None:
        """An answer of this run left late. A ledger that cannot note it, on a full disk, must not end the daemon."""
        try:
            if self.ledger.run(run):
                self.ledger.note_late(run)
        except Exception:
            self._log.exception("a late answer could not be noted")

    # ------------------------------------------------------------------ enrolling

    def enrol(self, question: Enrol, by: str) -> Accepted | Declined:
        """Reserve a run, or say why not."""
        self._close_old()
        try:
            document = read_document(question.document)
        except BadValue as error:
            self._log.info(f"a document is malformed: {error}")
            return Declined(Refusal.MALFORMED)
        try:
            introduction = self._reserved(document, question.session, by)
        except _Refused as refused:
            self._log.info(f"run {document.run} of {by} is refused: {refused.refusal.value}")
            return Declined(refused.refusal)
        run = self.ledger.run(document.run)
        assert run is not None  # reserved above
        return Accepted(self.ledger.head, run.first_round, self.policy.replies.seconds, introduction)

    def _close_old(self) -> None:
        for closed in self.ledger.close_old(self.policy.limits.days):
            self._forget(closed)

    def _reserved(self, document: RunDocument, session: bytes, by: str) -> Introduction | None:
        known = self.ledger.run(document.run)
        if known is not None and known.document != document.digest:
            raise _Refused(Refusal.CHANGED)
        if known is not None and not known.open:
            raise _Refused(Refusal.CLOSED)
        self._check_admission(document)
        meeting = self._meeting(document, session) if document.masks else None
        peer = meeting.peer if meeting else None
        held = self._held.get(document.run)
        trainer = held.trainer if held and held.trainer.peer is peer else self._built(document, meeting)
        job = self._job(document)
        assert job.plan is not None  # admission
        if not self.ledger.reserve(
            document.run, document=document.digest, text=document.text, plan=job.plan, by=by, queries=job.upload_queries
        ):
            raise _Refused(Refusal.BUDGET)
        self.helper_bytes[document.run] = trainer.helper_bytes
        if self.ledger.state(document.run) is None:
            self.ledger.keep(document.run, _sized(trainer))
        self._hold(_Held(document, trainer))
        if meeting is None:
            return None
        self._meetings[document.run] = meeting
        own = meeting.peer.introduction
        return Introduction(own.name, own.key, own.signature)

    def _job(self, document: RunDocument) -> Job:
        job = document.job(self.policy.client)
        assert job is not None  # admission
        return job

    def _meeting(self, document: RunDocument, session: bytes) -> _Meeting:
        """That of this session. Where the enrolment is sent again it is the same: the others may have either answer."""
        known = self._meetings.get(document.run)
        return known if known and known.session == session else self._new_meeting(document, session)

    def _new_meeting(self, document: RunDocument, session: bytes) -> _Meeting:
        """This owner's side of a new session."""
        known = pinned(self.policy)
        roster = {name: known[name] for name in document.names}
        run = hashlib.blake2b(bytes.fromhex(document.run) + session, digest_size=32).digest()
        least = max(document.least, self.policy.limits.participants)
        return _Meeting(session, masks.Peer(self.policy.client, read_identity(self.policy), run, roster, least))

    def _check_admission(self, document: RunDocument) -> None:
        refusal = admission.refusal(self.policy, document)
        if refusal is not None:
            raise _Refused(refusal)

    def _built(self, document: RunDocument, meeting: _Meeting | None) -> Trainer:
        """A trainer for the run, carried on as the ledger has it; refused where the net is not one for private steps."""
        try:
            trainer = Trainer(
                document,
                self.policy.client,
                self._records.train,
                draws=self._draws(),
                tests=self._records.test if self.policy.replies.metrics else None,
                peer=None if meeting is None else meeting.peer,
                log=self._log.warning,
            )
        except BadValue as error:
            self._log.info(f"run {document.run} cannot be trained: {error}")
            raise _Refused(Refusal.TRAINING) from None
        if trainer.count > self.policy.limits.parameters:
            raise _Refused(Refusal.MODEL)
        state = self.ledger.state(document.run)
        if state is not None:
            trainer.restore(state[SIZE_BYTES:])
        elif not trainer.probe():
            self._log.info(f"run {document.run} cannot be trained: one record changes the gradient of another")
            raise _Refused(Refusal.TRAINING)
        return trainer

    def _hold(self, held: _Held) -> None:
        self._held[held.document.run] = held
        self._held.move_to_end(held.document.run)
        while len(self._held) > MOST_IN_MEMORY:
            self._held.popitem(last=False)

    def _forget(self, run: str) -> None:
        """Drop what is in memory of a run. A masked run needs a new session then: its peer may have masked a message."""
        self._held.pop(run, None)
        self._meetings.pop(run, None)

    # ------------------------------------------------------------------ answering

    def answer(self, question: Answer) -> Reply | Declined:
        """The reply of one slot, charged and stored, or why there is none."""
        self._close_old()
        try:
            run = self.ledger.run(question.run)
            if run is None or (run.open and run.run not in self.helper_bytes):  # killed in the middle of its enrolment
                raise _Refused(Refusal.RUN)
            stored = self.ledger.stored(question.run, question.round, question.attempt)
            if stored is not None:
                return _again(stored, question)
            return self._answered(run, question)
        except _Refused as refused:
            self._log.info(f"run {question.run} round {question.round} is refused: {refused.refusal.value}")
            return Declined(refused.refusal)

    def _answered(self, run: Run, question: Answer) -> Reply:
        refusal = run.refusal(question.round, question.attempt)
        if refusal is not None:
            raise _Refused(refusal)
        if question.head is not None and not self.ledger.knows(question.head):
            raise _Refused(Refusal.ANCHOR)
        if not self.ledger.covers_next(run.run, question.attempt):  # the owner has lowered the budget
            raise _Refused(Refusal.BUDGET)
        held = self._held.get(run.run) or self._recalled(run)
        if held.document.masks:
            self._met(run, question)
        self._hold(held)
        try:
            return self._charged(held, question)
        except Unanswerable as error:
            raise _Refused(error.refusal) from None
        except BaseException:
            self._forget(run.run)
            raise

    def _recalled(self, run: Run) -> _Held:
        """A run that is not in memory: after a restart, a failure, another policy, or many other runs."""
        document = parsed(self.ledger.document(run.run))
        self._check_admission(document)
        meeting = self._meetings.get(run.run)
        if document.masks and meeting is None:
            raise _Refused(Refusal.SESSION)
        return _Held(document, self._built(document, meeting))

    def _met(self, run: Run, question: Answer) -> None:
        meeting = self._meetings.get(run.run)
        if meeting is None or meeting.session != question.session:
            raise _Refused(Refusal.SESSION)
        meeting.meet(question.introductions)

    def _charged(self, held: _Held, question: Answer) -> Reply:
        """Train, then charge and store the reply in one transaction."""
        trainer = held.trainer
        outcome = trainer.answer(question.round, question.attempt, question.clients, question.helper)
        head = self.ledger.charge(
            question.run,
            question.round,
            question.attempt,
            question=question.digest,
            status=outcome.status,
            queries=outcome.queries,
            body=outcome.body,
            scores=outcome.scores,
            state=_sized(trainer),
        )
        if self._job(held.document).kept_steps:
            self._keep(held, question.round)
        return Reply(outcome.status, head, outcome.queries, outcome.body, outcome.scores)

    def _keep(self, held: _Held, round: int) -> None:
        """Train what stays. The reply is charged, so a failure here must not show outside."""
        run = held.document.run
        try:
            held.trainer.keep(round)
            self.ledger.keep(run, _sized(held.trainer))
        except Exception:
            self._log.exception(f"the model that stays was not trained: run {run} round {round}")
            self._held.pop(run, None)


def _again(stored: Stored, question: Answer) -> Reply:
    """The bytes of a slot that was answered, for the same question alone, until its run is closed."""
    if stored.body is None or stored.question != question.digest:
        raise _Refused(Refusal.SLOT)
    return Reply(stored.status, stored.head, stored.queries, stored.body, stored.scores)


def _sized(trainer: Trainer) -> bytes:
    """The state of a run as the ledger has it: after a restart, the length of a helper must be known before its net is."""
    return trainer.helper_bytes.to_bytes(SIZE_BYTES, "little") + trainer.state()
