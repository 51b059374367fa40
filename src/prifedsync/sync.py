"""Algorithm 1 (PriFedSync), and the protocol an engine obeys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from .rules import Noised, Rule, Server, Unprotected
from .values import BadValue, number, whole


@dataclass(frozen=True)
class Sent:
    """A client's upload: its row, and how many noisy queries it is made of."""

    row: Tensor
    queries: int


@dataclass(frozen=True)
class Stayed:
    """The client trained a model that stays with it, and sent nothing."""


@dataclass(frozen=True)
class Refused:
    """The client did not train; the reason is a function of public numbers."""

    reason: str


@dataclass(frozen=True)
class Lost:
    """The client may have trained, and nothing arrived: what it spent stays spent."""

    reason: str


@dataclass(frozen=True)
class Uploads:
    """What came back from one round, client by client."""

    of: dict[int, Sent | Stayed | Refused | Lost]
    rows: Noised[Tensor] | Unprotected[Tensor]  # [C, P], the rows of those who sent

    def __post_init__(self) -> None:
        if not isinstance(self.rows, (Noised, Unprotected)):
            raise TypeError(f"an upload must be Noised, not {type(self.rows).__name__}")


class Engine(Protocol):
    """How clients are executed. The only stateful object: client models live with the clients."""

    def train(self, round: int, chosen: Sequence[int], weights: Tensor | None) -> Uploads:
        """Local training of the chosen clients, from F_i of these weights; None: from what was last pushed."""

    def push(self, chosen: Sequence[int], weights: Tensor) -> None:
        """The chosen clients receive F_i of these weights, and start from it whenever they take part again."""


class Coin(Protocol):
    """Who takes part: a fair coin for each client and round, which sees neither data nor past releases."""

    def __call__(self, client: int, round: int) -> float: ...  # uniform in (0, 1)


@dataclass(frozen=True, kw_only=True)
class Synchronisation:
    """The public numbers of Algorithm 1."""

    clients: int
    rounds: int
    participation: float = 1.0
    server_rate: float = 1.0
    delivery: Literal["pull", "push"] = "pull"
    averaging: float = 0.0  # share of the last rounds whose global models are averaged into the released one

    def __post_init__(self) -> None:
        whole("clients", self.clients, 1)
        whole("rounds", self.rounds, 1)
        number("participation", self.participation, 0, 1, ends="(]")
        number("server_rate", self.server_rate, 0, 1, ends="(]")
        number("averaging", self.averaging, 0, 1)
        if self.delivery not in ("pull", "push"):
            raise BadValue("delivery", self.delivery, "must be pull or push")

    def averages(self, round: int) -> bool:
        return round >= self.rounds - self.averaging * self.rounds


def synchronise(
    plan: Synchronisation, rule: Rule, engine: Engine, coin: Coin, server: Server
) -> Iterator[tuple[Server, Uploads | None]]:
    """Algorithm 1 from the server's round on; yields after every round. A round that nobody joins passes."""
    pull = plan.delivery == "pull"
    for round in range(server.round, plan.rounds):
        chosen = [i for i in range(plan.clients) if coin(i, round) < plan.participation]  # Ω
        uploads = None
        if chosen:
            uploads = engine.train(round, chosen, server.weights if pull else None)  # w̃_i
            if len(uploads.rows.value):
                server = rule.merge(server, uploads.rows, plan.server_rate)  # w_glob
            if not pull:
                engine.push(chosen, server.weights)  # h_i
        server = server.next_round(plan.averages(round))
        yield server, uploads
