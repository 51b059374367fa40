"""The two questions that an owner answers, and its answers, as plain values. `frames.py` has them as bytes.

    Enrol    a run, as one public document that is the same for all owners → Accepted or Declined
    Answer   one slot of an enrolled run, with the helper → Reply or Declined

A slot is (run, round, attempt). It is answered once: asked again, the same question gets the stored bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from .refusals import Refusal

VERSION = 2
TURNS = 3  # times `Accepted.seconds`, after which an answer has left: one that is late leaves a turn later


class Head(NamedTuple):
    """The end of an owner's ledger: how many entries there are, and the hash of the last one."""

    number: int
    hash: bytes


@dataclass(frozen=True)
class Introduction:
    """A client's key for one session, signed by its identity, as bytes; `local.masks` gives them their meaning."""

    name: str
    key: bytes
    signature: bytes


@dataclass(frozen=True)
class Enrol:
    """A run that wants to be answered.

    session: names one meeting of the peers of a masked run. Whenever one of them was restarted, all enrol again under a new
    one. To the ledger it is the same run.
    """

    client: str  # who is asked: an owner of another client declines, also where the keys of two were confused
    document: Mapping[str, Any]  # `asking.document` makes and reads it
    session: bytes = b""


@dataclass(frozen=True)
class Answer:
    """One slot of a run."""

    client: str  # who is asked
    run: str
    round: int
    attempt: int
    helper: bytes = field(repr=False)  # safetensors: what the server sends to this client
    clients: tuple[str, ...] = ()  # who is in the sum; empty where nothing is masked
    session: bytes = b""
    introductions: tuple[Introduction, ...] = ()  # of all clients, in the first slot of a session
    head: Head | None = None  # the last one that this owner sent, echoed

    @property
    def digest(self) -> bytes:
        """Of all that an answer depends on. Two questions with this digest are the same question.

        The session is part of it: a message that was masked in another session cancels in no sum of this one.
        """
        public = json.dumps([self.run, self.round, self.attempt, list(self.clients), self.session.hex()]).encode()
        return hashlib.blake2b(public + b"\0" + self.helper, digest_size=32).digest()


@dataclass(frozen=True)
class Accepted:
    """The run is enrolled, and all of it is reserved."""

    head: Head
    first_round: int  # that may still be asked
    seconds: float  # after a question until its reply leaves
    introduction: Introduction | None = None


@dataclass(frozen=True)
class Reply:
    """What leaves for one slot. Its length depends on the model alone, also where the client's coin said no.

    The body is noise then (`owner.absence`), so that the bytes of both kinds look alike on their way.
    """

    status: Literal["sent", "absent"]
    head: Head
    queries: int
    body: bytes = field(repr=False)  # safetensors: a model, or a message of a sum; noise alone where absent
    scores: Mapping[str, float | None] = field(default_factory=dict)  # of the helper, where the policy lets them leave


@dataclass(frozen=True)
class Declined:
    """Nothing was trained, and nothing is spent."""

    refusal: Refusal


Question = Enrol | Answer
Answered = Accepted | Reply | Declined
