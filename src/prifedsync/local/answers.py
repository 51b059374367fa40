"""What a client answers when it is asked to take part in a round."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Sent:
    """The client's upload, and how many noisy queries it is made of. Of a sum no single row is known."""

    row: Tensor | None
    queries: int


@dataclass(frozen=True)
class Stayed:
    """The client trained a model that stays with it, and sent nothing."""


@dataclass(frozen=True)
class Absent:
    """Not this time: the client's own coin said so. Nothing was trained, and nothing is spent."""


@dataclass(frozen=True)
class Refused:
    """The client did not train; the reason is a function of public numbers."""

    reason: str


@dataclass(frozen=True)
class Lost:
    """The client may have trained, and nothing of it is in a sum or a mean: what it spent stays spent."""

    reason: str
    arrived: bool = False  # its message arrived, and was of no use without those of others


Answer = Sent | Stayed | Absent | Refused | Lost
