"""Algorithm 1 (PriFedSync), and what its two sides must do: the server's and the engine's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor

from .local.answers import Absent, Answer, Lost, Refused, Sent, Stayed
from .rules import LocalOnly, Noised, Server, Unprotected
from .scores import Measurement, Values
from .values import number, whole

__all__ = [
    "Absent",
    "Account",
    "Aggregation",
    "Answer",
    "Answers",
    "Clients",
    "Engine",
    "Evaluation",
    "Helpers",
    "Lost",
    "Model",
    "Refused",
    "Sent",
    "Stayed",
    "Summed",
    "Synchronisation",
    "Uploads",
    "synchronise",
]

Model = Noised[Tensor] | Unprotected[Tensor] | LocalOnly[Tensor]  # weights [P], and whether they may leave


@dataclass(frozen=True)
class Helpers:
    """What the server offers in a round: who is asked, and h_i of whoever takes part, made when it is asked for."""

    names: tuple[str, ...]
    make: Callable[[Sequence[str]], Tensor]  # names → [C, P], which may be one row expanded

    def __call__(self, names: Sequence[str]) -> Tensor:
        return self.make(names)


@dataclass(frozen=True)
class Answers:
    """What came back from one round. It cannot be changed, and it accepts nothing that must stay with a client.

    public: who answered what may be written down. Between machines the server knows it anyway, since it gets the answers
            one by one. In one process nobody else knows a client's coin, and it stays so.
    """

    answers: Mapping[str, Answer]  # of everybody who was asked
    public: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "answers", MappingProxyType(dict(self.answers)))

    @property
    def senders(self) -> tuple[str, ...]:
        return tuple(name for name, answer in self.answers.items() if isinstance(answer, Sent))

    @property
    def trained(self) -> tuple[str, ...]:
        """Those whose own model is another one now."""
        return tuple(name for name, answer in self.answers.items() if isinstance(answer, (Sent, Stayed)))

    @property
    def lost(self) -> tuple[str, ...]:
        """Those whose own model may be another one, although nothing of theirs was of use."""
        return tuple(name for name, answer in self.answers.items() if isinstance(answer, Lost))

    @property
    def missing(self) -> tuple[str, ...]:
        """Those of the lost whose upload never arrived."""
        return tuple(name for name, answer in self.answers.items() if isinstance(answer, Lost) and not answer.arrived)


@dataclass(frozen=True)
class Uploads(Answers):
    """A round of clients that sent models."""

    rows: Noised[Tensor] | Unprotected[Tensor]  # [C, P], of those who sent, in the order of the answers

    def __post_init__(self) -> None:
        if not isinstance(self.rows, (Noised, Unprotected)):
            raise TypeError(f"an upload must be Noised, not {type(self.rows).__name__}")
        super().__post_init__()
        if len(self.senders) != len(self.rows.value):
            raise ValueError(f"{len(self.senders)} clients sent {len(self.rows.value)} rows")


@dataclass(frozen=True)
class Summed(Answers):
    """A round of clients that sent messages to be added up: the exact sum of those who sent, and no single message."""

    total: Noised[Tensor]  # int64 [P]
    attempts: int = 1  # how many were made at the round

    def __post_init__(self) -> None:
        if not isinstance(self.total, Noised):
            raise TypeError(f"a sum must be Noised, not {type(self.total).__name__}")
        if self.total.value.dtype != torch.int64 or self.total.value.dim() != 1:
            raise TypeError(f"a sum must be one vector of integers, not {self.total.value.dtype} {self.total.value.shape}")
        super().__post_init__()
        if any(answer.row is not None for answer in self.answers.values() if isinstance(answer, Sent)):
            raise TypeError("a sum must not have single messages beside it")


@dataclass(frozen=True)
class Account:
    """What a client has spent, as it says itself."""

    taken: int  # slots committed to: a round, or a further attempt at one
    queries: int  # noisy queries, counted where noise was added
    spare: int = 0  # of the slots: further attempts

    @property
    def rounds(self) -> int:
        """Rounds that it took part in."""
        return self.taken - self.spare


@dataclass(frozen=True)
class Evaluation:
    """Scores on test records by the client's name, one for each metric; None where a score is undefined."""

    personal: Mapping[str, Values]  # clients' own models on their own test records
    released: Mapping[str, Values]  # the released model on each client's test records; empty where there is none


class Clients(Protocol):
    """All that Algorithm 1 asks of the clients' side."""

    def train(self, round: int, helpers: Helpers) -> Uploads | Summed:
        """Every client that is asked answers: by its own coin and budget it takes part, and trains from its helper."""


class Engine(Clients, Protocol):
    """How clients are executed: together in one process, or each somewhere else. Clients have names, never numbers.

    Models and counts live with the clients; all of what callers know about them is here."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def accounts(self) -> Mapping[str, Account]:
        """What each client has spent."""

    def models(self, released: Tensor) -> Mapping[str, Model]:
        """The model each client uses; each is made when it is looked up. One without a model of its own uses the released
        one."""

    def evaluate(self, released: Tensor | None, own: Sequence[str] = ()) -> Evaluation | None:
        """Scores of the released model, and of these clients' own; None where clients do not show their scores."""

    def measure(self, released: Tensor | None, own: bool) -> Mapping[str, tuple[Measurement, ...]] | None:
        """The same at the end of a run, with intervals and on everybody's test records too.

        "released" (where there is such a model) and "personal" (if `own`) → one measurement for each metric."""

    def save(self) -> dict[str, Any]:
        """Writes what changed, over nothing that the last `save` named; all that is needed to go on, as JSON."""

    def saved(self) -> None:
        """What `save` returned is safe on the disk."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what `save` returned; refuses what was begun as something else, and what is damaged."""


class Aggregation(Protocol):
    """The server's side of a round: it never sees a record."""

    def helpers(self, server: Server) -> Helpers:
        """h_i = F_i of the global model and of what clients sent before."""

    def merge(self, server: Server, uploads: Uploads | Summed, rate: float) -> Server:
        """The global model after these uploads."""


@dataclass(frozen=True, kw_only=True)
class Synchronisation:
    """The public numbers of Algorithm 1 that the server reads."""

    rounds: int
    server_rate: float = 1.0
    averaging: float = 0.0  # share of the last rounds whose global models are averaged into the released one

    def __post_init__(self) -> None:
        whole("rounds", self.rounds, 1)
        number("server_rate", self.server_rate, 0, 1, ends="(]")
        number("averaging", self.averaging, 0, 1)

    def averages(self, round: int) -> bool:
        return round >= self.rounds - self.averaging * self.rounds


def synchronise(
    plan: Synchronisation, aggregation: Aggregation, clients: Clients, server: Server
) -> Iterator[tuple[Server, Uploads | Summed]]:
    """Algorithm 1 from the server's round on; yields after every round. A round that nobody joins passes."""
    for round in range(server.round, plan.rounds):
        uploads = clients.train(round, aggregation.helpers(server))  # h_i → w̃_i, of those whose coin says so: Ω
        server = aggregation.merge(server, uploads, plan.server_rate)  # w_glob
        server = server.next_round(plan.averages(round))
        yield server, uploads
