"""What whoever asks knows of one owner: what it may have charged, and how far its ledger is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..asking.questions import Head
from ..local.job import Job

HEADS = ("accepted", "replied")


class Broken(Exception):
    """An answer that cannot be used."""


@dataclass(frozen=True)
class Owner:
    """What whoever asks knows of one owner."""

    taken: int = 0
    queries: int = 0
    spare: int = 0
    accepted: Head | None = None  # the last head that came with an enrolment
    replied: Head | None = None  # and with a reply
    answers: tuple[int, int] | None = None  # the round and attempt of that reply
    refused: str = ""  # why it does not take the run, for good
    missed: str = ""  # why it could not be enrolled when it was tried last; it is tried again

    @property
    def head(self) -> Head | None:
        """The furthest one that it sent, to be echoed."""
        known = [head for head in self._heads.values() if head is not None]
        return max(known, key=lambda head: head.number) if known else None

    def enrolled(self, head: Head) -> Owner:
        """After an enrolment, whose head is the end of its ledger. Refused if that is behind what it sent before."""
        for before in self._heads.values():
            _check_extends(before, head)
        return replace(self, accepted=head, missed="")

    def answered(self, head: Head, slot: tuple[int, int]) -> Owner:
        """After a reply. One that was stored has the head of its time, which may be before that of an enrolment."""
        _check_extends(self.replied, head)
        if self.replied == head and self.answers != slot:
            raise Broken("it is the answer to another slot")
        if self.accepted is not None and head.number == self.accepted.number:
            _check_extends(self.accepted, head)
        return replace(self, replied=head, answers=slot)

    def spent(self, job: Job, attempt: int) -> Owner:
        """After a slot that was taken, or may have been."""
        assert job.plan is not None
        queries = job.plan.mechanism.queries_per_round
        return replace(
            self, taken=self.taken + 1, queries=self.queries + queries, spare=self.spare + (attempt > 0)
        )  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        heads = {name: head and [head.number, head.hash.hex()] for name, head in self._heads.items()}
        return vars(self) | heads | {"answers": self.answers and list(self.answers)}

    @staticmethod
    def from_json(said: Mapping[str, Any]) -> Owner:
        """What `as_json` made."""
        heads = {name: said[name] and Head(said[name][0], bytes.fromhex(said[name][1])) for name in HEADS}
        answers = said["answers"] and tuple(said["answers"])
        return Owner(**{**said, **heads, "answers": answers})

    @property
    def _heads(self) -> dict[str, Head | None]:
        return {name: getattr(self, name) for name in HEADS}


def _check_extends(before: Head | None, head: Head) -> None:
    """Refuse a head that goes back, or another one in the place of one that was sent."""
    if before is None or head.number > before.number or head == before:
        return
    raise Broken(f"its ledger went back from entry {before.number} to {head.number}, or was changed")
