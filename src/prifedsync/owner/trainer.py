"""What an owner trains for one run: its own client, its own records, and one slot at a time.

The net is made of the document and inspected with made-up records. Whether a run can be trained, how long a reply is and
why a slot is refused are functions of the document, the slots before and the question alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from .. import models
from ..asking.document import RunDocument
from ..asking.frames import BadFrame
from ..asking.refusals import Refusal
from ..asking.tensors import DTYPES, HELPER, packed, packed_bytes, reply_of, unpacked
from ..data import Records
from ..engines.scoring import Scorer
from ..engines.single import Carried, Single
from ..local import Draws, Job, Net, losses
from ..local.answers import Absent, Refused
from ..local.client import bounded
from ..local.job import LARGEST_HELPER
from ..local.masks import Peer, Slot
from ..local.net import invariance
from ..local.sums import Sums, sums_of, why_never, why_not
from ..metrics import METRICS
from ..named import function
from ..rules import RULES, Rule
from ..rules.fields import with_fields
from ..rules.outside import checked_class, made
from ..values import BadValue
from .absence import filler

INSPECTED = 4  # made-up records that a model is inspected with
AT_ONCE = 1024  # records whose features are computed together
MOST_PARAMETERS = 10**9
COUNT_BYTES = 8  # of the length of the numbers in a state
DENORMAL = 1e-42  # below the smallest normal number of single precision
Log = Callable[[str], None]


class Unanswerable(Exception):
    """A question that is not answered. Nothing was drawn, and nothing is spent."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.value)
        self.refusal = refusal


@dataclass(frozen=True)
class Outcome:
    """What may leave for one slot, once it is charged."""

    status: Literal["sent", "absent"]
    queries: int
    body: bytes = field(repr=False)  # as long and as random for whoever is absent
    scores: Mapping[str, float | None] = field(default_factory=dict)


class Trainer:
    """One owner's client in one run.

    Whoever makes one has compared the names of model and rule with the policy: code that they name is loaded here.
    tests: test records whose scores may leave; None: none do. peer: this client's side of the masks, and of the session.
    A document that cannot be trained here is a `BadValue`, for reasons that are public.
    """

    def __init__(
        self, document: RunDocument, client: str, records: Records, *, draws: Draws, tests: Records | None = None,
        peer: Peer | None = None, log: Log = lambda text: None,
    ) -> None:  # fmt: skip
        job = document.job(client)
        if job is None:
            raise BadValue("client", client, "is not in the roster of the run")
        self.document = document
        self.peer = peer
        self.log = log
        _check_alike(document, records)
        self.rule = rule_of(document)
        self.sums = _sums(document, self.rule)
        self.net = net_of(document)
        self.engine = self._engine(job, records, draws)
        self.scorer = self._scorer(tests)

    def _engine(self, job: Job, records: Records, draws: Draws) -> Single:
        document = self.document
        kind = _featured(document, records)
        engine = Single(
            self.net, [job], [(kind.x, kind.y)], self.rule, draws, augment=document.augment, sums=self.sums,
            persons=None if kind.persons is None else [kind.persons], rows_per_person=_rows_per_person(job, kind),
            config={"document": document.digest.hex()},
        )  # fmt: skip
        engine.failed = self.log
        return engine

    def _scorer(self, tests: Records | None) -> Scorer | None:
        if tests is None or not self.document.metrics:
            return None
        kind = _featured(self.document, tests)
        return Scorer(self.net, [(kind.x, kind.y)], [METRICS[name] for name in self.document.metrics])

    # ------------------------------------------------------------------ public numbers

    @property
    def count(self) -> int:
        """Weights of the model (P)."""
        return self.net.count

    @property
    def helper_bytes(self) -> int:
        """Of what the server sends."""
        return packed_bytes(HELPER, self.net.dtype, self.count)

    @property
    def reply_bytes(self) -> int:
        """Of every reply's body."""
        name, dtype = reply_of(self.document)
        return packed_bytes(name, dtype, self.count)

    def probe(self) -> bool:
        """Whether no record's gradient depends on another record, also where the helper is at its bounds."""
        client = self.engine.client
        if not client.job.upload.noisy:  # one clipped change, whatever it is made of
            return True
        program = self.engine.program_of(client)
        if program.grad_method == "loop" or program.width == 1:
            return True
        probe = invariance.made_up(self.net, 1)
        rows = min(len(probe.x), program.width)
        probe = probe._replace(x=probe.x[:rows], y=probe.y[:rows])
        return all(
            invariance.same_in_all_rows(self.net, program, probe._replace(weights=weights[None])) is not None
            for weights in extreme_helpers(self.net)
        )

    # ------------------------------------------------------------------ one slot

    def answer(self, round: int, attempt: int, clients: Sequence[str], helper: bytes) -> Outcome:
        """What leaves for this slot. A bad helper, list or slot is `Unanswerable`, before anything is drawn."""
        weights = self._helper(helper)
        listed = self._listed(clients)
        self._check_order(round, attempt)
        slot = self._slot(round, attempt, listed)
        before = self.engine.client.queries
        found = self.engine.slot(round, attempt, weights, listed)
        if isinstance(found, Refused):
            raise Unanswerable(Refusal.ORDER)
        body = self._body(found, slot, weights)
        assert len(body) == self.reply_bytes, "a reply has one length"
        status: Literal["sent", "absent"] = "absent" if isinstance(found, Absent) else "sent"
        return Outcome(status, self.engine.client.queries - before, body, self._scores(weights))

    def keep(self, round: int) -> None:
        """Train the model that stays with the owner, once in a round; the reply of the round has been charged."""
        try:
            self.engine.keep(round)
        except Exception as error:  # nothing that stays may show outside
            self.log(f"round {round}: the kept model was not trained: {type(error).__name__}: {error}")

    def _helper(self, helper: bytes) -> Tensor:
        try:
            return unpacked(helper, HELPER, self.net.dtype, self.count)
        except BadFrame:
            raise Unanswerable(Refusal.HELPER) from None

    def _listed(self, clients: Sequence[str]) -> tuple[str, ...]:
        """Who is in the sum; this client alone where nothing is masked."""
        name = self.engine.client.name
        listed = tuple(clients)
        if not self.document.masks:
            if listed:
                raise Unanswerable(Refusal.LIST)
            return (name,)
        known = set(self.document.names)
        if list(listed) != sorted(set(listed)) or name not in listed or not set(listed) <= known:
            raise Unanswerable(Refusal.LIST)
        if len(listed) < self.document.least:
            raise Unanswerable(Refusal.LIST)
        return listed

    def _check_order(self, round: int, attempt: int) -> None:
        client = self.engine.client
        plan = client.job.plan
        assert plan is not None
        if attempt and not self.document.masks:
            raise Unanswerable(Refusal.BEYOND)
        if attempt and (round, attempt) != (client.asked - 1, client.attempt + 1):
            raise Unanswerable(Refusal.ORDER)
        if not attempt and round < client.asked:
            raise Unanswerable(Refusal.ORDER)
        if round >= plan.rounds or (attempt and client.spare >= plan.attempts):
            raise Unanswerable(Refusal.BEYOND)

    def _slot(self, round: int, attempt: int, listed: tuple[str, ...]) -> Slot | None:
        """The slot of a masked message, if the peer may answer it."""
        if not self.document.masks:
            return None
        if self.peer is None:
            raise Unanswerable(Refusal.SESSION)
        slot = Slot(self.document.digest, round, attempt, listed)
        try:
            self.peer.answered(slot)
        except BadValue:
            raise Unanswerable(Refusal.LIST) from None
        return slot

    def _body(self, found: Tensor | Absent, slot: Slot | None, helper: Tensor) -> bytes:
        name, _ = reply_of(self.document)
        if isinstance(found, Absent):  # never where messages are masked
            return packed(name, filler(self.engine.client.job, bounded(helper), self.sums))
        if slot is None:
            return packed(name, found)
        assert self.peer is not None  # _slot
        words = self.peer.masked(slot, found.numpy())
        return packed(name, torch.frombuffer(bytearray(words), dtype=torch.uint32))

    def _scores(self, weights: Tensor) -> dict[str, float | None]:
        """Of what the server sent, on the test records whose scores may leave."""
        if self.scorer is None:
            return {}
        try:
            (values,) = self.scorer.each(bounded(weights))
        except Exception as error:
            self.log(f"no scores: {type(error).__name__}: {error}")
            values = (None,) * len(self.document.metrics)
        said = [value if value is not None and math.isfinite(value) else None for value in values]
        return dict(zip(self.document.metrics, said, strict=True))

    # ------------------------------------------------------------------ what is carried

    def state(self) -> bytes:
        """All that is carried to the next slot: numbers as JSON behind their length, then vectors as safetensors."""
        carried = self.engine.carried()
        numbers = json.dumps(carried.numbers).encode()
        return len(numbers).to_bytes(COUNT_BYTES, "little") + numbers + save(carried.vectors)

    def restore(self, state: bytes) -> None:
        """Go on from a state. What it has counted decides what may be asked."""
        length = int.from_bytes(state[:COUNT_BYTES], "little")
        numbers = json.loads(state[COUNT_BYTES : COUNT_BYTES + length])
        self.engine.carry(Carried(numbers, load(state[COUNT_BYTES + length :])))


# ---------------------------------------------------------------------- what a document names


def rule_of(document: RunDocument) -> Rule:
    """The rule, with its own fields checked."""
    name = document.rule_name
    if name in RULES:
        return with_fields(RULES[name], document.rule_fields)
    kind = checked_class(function("rule.name", name), "rule.name", name, RULES)
    return made(kind, document.rule_fields, "rule.name", name)


def net_of(document: RunDocument) -> Net:
    """The model, inspected with made-up records: the same wherever the run is prepared without records."""
    described = document.description
    transform = models.features(document.model.features, document.shape)
    if transform is not None:
        described = replace(described, shape=tuple(transform(described.made_up(1).x).shape[1:]))
    few = described.made_up(INSPECTED)
    if document.tokens and ":" not in document.model.name:
        raise BadValue("model.name", document.model.name, "takes numbers, and these records are tokens")
    _check_size(document, described.shape)
    module = models.build(document.model, described.shape, document.task.outputs, document.seed)
    return Net(
        module, losses.BY_TASK[document.task.kind], few.x, few.y, DTYPES[document.arithmetic],
        arithmetic=document.arithmetic,
    )  # fmt: skip


def _check_size(document: RunDocument, shape: Sequence[int]) -> None:
    """Refuse a built-in model that would not fit, before it takes any memory."""
    if ":" in document.model.name:
        return
    with torch.device("meta"):
        module: nn.Module = models.build(document.model, shape, document.task.outputs, document.seed)
    count = sum(math.prod(each.shape) for each in module.parameters())
    if count > MOST_PARAMETERS:
        raise BadValue("model", f"{count} weights", f"must have at most {MOST_PARAMETERS}", "make its layers narrower")


def _sums(document: RunDocument, rule: Rule) -> Sums | None:
    """The numbers of the sums of this run, refused where its vectors cannot be added up."""
    if not rule.uploads:
        raise BadValue("rule.name", document.rule_name, "sends nothing", "train it where the records are")
    if not document.summed:
        return None
    jobs = document.jobs
    why = why_never(rule, jobs) if document.masks else why_not(rule, jobs)
    if why:
        raise BadValue("document.summed", "true", f"is not possible: {why}", "send models")
    if document.masks and any(job.participation < 1 for job in jobs):
        rule_text = "is not possible between machines where clients may be absent"
        raise BadValue("document.masks", "true", rule_text, "set participation = 1")
    return sums_of(jobs, masked=document.masks, attempts=document.attempts, least=document.least)


def _check_alike(document: RunDocument, records: Records) -> None:
    """Refuse a document about records of another shape or type. Both are public."""
    shape = tuple(records.x.shape[1:])
    if shape != document.shape:
        raise BadValue("document.shape", document.shape, f"is not that of these records, {shape}")
    if bool(document.tokens) == records.x.is_floating_point():
        kind = "numbers" if records.x.is_floating_point() else "tokens"
        raise BadValue("document.tokens", document.tokens, f"does not go with these records, which are {kind}")


def _featured(document: RunDocument, records: Records) -> Records:
    """The records with the model's fixed features, which are computed from each record by itself."""
    transform = models.features(document.model.features, document.shape)
    if transform is None:
        return records
    pieces = [transform(piece) for piece in records.x.split(AT_ONCE)] if len(records) else [records.x[:0]]
    return replace(records, x=torch.cat(pieces))


def _rows_per_person(job: Job, records: Records) -> int:
    """The plan's bound; where only a whole change is clipped, none enters anything that leaves."""
    if job.noisy:
        return job.noisy.rows_per_unit
    return 1 if records.persons is None or not len(records) else int(torch.bincount(records.persons).max())


def extreme_helpers(net: Net) -> list[Tensor]:
    """Weights at the ends of what a helper may be after it was bounded, [P] each: none are the client's."""
    ones = torch.ones(net.count, dtype=net.dtype)
    signs = torch.where(torch.rand(net.count, generator=torch.Generator().manual_seed(0)) < 0.5, -1.0, 1.0).to(net.dtype)
    few = torch.where(torch.arange(net.count) % 7 == 0, LARGEST_HELPER, DENORMAL).to(net.dtype)
    scales = 10.0 ** torch.linspace(-40, math.log10(LARGEST_HELPER), net.count).to(net.dtype)
    edges = [LARGEST_HELPER * ones, -LARGEST_HELPER * ones, 0 * ones, DENORMAL * ones]
    return [*edges, LARGEST_HELPER * signs, few * signs, scales * signs, DENORMAL * signs]


__all__ = ["Outcome", "Trainer", "Unanswerable", "extreme_helpers", "net_of", "rule_of"]
