"""The server's side: everybody's last uploads, what each client is sent, and the merge. It never sees a record.

All of it is post-processing of what clients sent, and a function of that alone: neither who asks, nor in what order, nor
how many at once can change a helper, so clients behind one engine and clients on machines of their own are sent the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from .config import ServerConfig
from .local import Job
from .local.job import numbers_of
from .local.sums import Sums
from .rules import Numbers, Rule, Server
from .rules.rule import mean_of
from .store import Store, noted, places_of, room
from .sync import Helpers, Summed, Uploads
from .values import BadValue

SGD = ServerConfig()
BLOCK = 64  # clients whose distances to others are computed together

Delivery = Literal["pull", "push"]  # a client starts from the current w_glob, or from its last helper (as printed)


class Aggregator:
    """What the server remembers, and Algorithm 1's two lines about it."""

    def __init__(
        self, rule: Rule, jobs: Sequence[Job], start: Tensor, *, delivery: Delivery = "pull", memory: float = 2.0**31,
        folder: Path | None = None, sums: Sums | None = None, optimiser: ServerConfig = SGD,
    ) -> None:  # fmt: skip
        """sums: where clients send messages that are added up; None: they send models."""
        if delivery not in ("pull", "push"):
            raise BadValue("delivery", delivery, "must be pull or push")
        check_optimiser(optimiser, rule)
        self.rule = rule
        self.sums = sums
        self.optimiser = optimiser
        self.jobs = tuple(jobs)
        self.names = tuple(job.client for job in jobs)
        self.start = start  # what stands for the upload of a client that has sent none
        self.rounds = [0] * len(jobs)  # uploads that came from each client
        self._place = {name: place for place, name in enumerate(self.names)}
        keeps = {"uploads": rule.reads_uploads, "helpers": delivery == "push" and rule.uploads}
        self._stores = {
            name: room(len(jobs), 1, start, memory, folder / f"{name}.safetensors" if folder else None)
            for name, kept in keeps.items()
            if kept
        }

    # ------------------------------------------------------------------ Algorithm 1

    def helpers(self, server: Server) -> Helpers:
        """What each client is sent: of the current global model, or what was made for it after its last round."""
        pushed = self._stores.get("helpers")
        if pushed:
            return Helpers(self.names, lambda names: self._read(pushed, self._places(names)))
        made = _Made(self, server.weights)
        return Helpers(self.names, lambda names: made(self._places(names), self.rounds))

    def merge(self, server: Server, uploads: Uploads | Summed, rate: float) -> Server:
        """w_glob of these uploads, which are remembered where the rule needs them; or of the sum of messages alone."""
        if isinstance(uploads, Summed) != (self.sums is not None):
            raise TypeError(f"{type(uploads).__name__} cannot be merged: a summed run has sums, and no other run has")
        return self._merge_sum(server, uploads, rate) if isinstance(uploads, Summed) else self._merge(server, uploads, rate)

    def _merge_sum(self, server: Server, summed: Summed, rate: float) -> Server:
        assert self.sums is not None
        if len(summed.senders) < max(1, self.sums.least):
            return server
        for place in self._places(summed.senders):
            self.rounds[place] += 1
        change = self.sums.change(summed.total.value, summed.senders, server.round)
        return stepped(self.optimiser, server, change.to(server.weights.device), rate)

    def _merge(self, server: Server, uploads: Uploads, rate: float) -> Server:
        places = self._places(uploads.senders)
        if not places:
            return server
        if places != sorted(places):
            raise ValueError("uploads must come in the order of the clients: sums would depend on who came first")
        for place in places:
            self.rounds[place] += 1
        last = self._stores.get("uploads")
        if last:
            last.fill([place for place in places if last.read(place) is None], self.start[None])
            last.scatter(places, [uploads.rows.value])
        weights = self._weights(places)
        if self.optimiser.optimiser == "sgd":
            weighed = {} if weights is None else {"weights": weights}
            server = self.rule.merge(server, uploads.rows, rate, **weighed)
        else:
            change = mean_of(uploads.rows.value, weights) - server.weights.double()
            server = stepped(self.optimiser, server, change, rate)
        pushed = self._stores.get("helpers")
        if pushed:
            pushed.fill([place for place in places if pushed.read(place) is None], self.start[None])
            pushed.scatter(places, [_Made(self, server.weights)(places, [rounds - 1 for rounds in self.rounds])])
        return server

    # ------------------------------------------------------------------ state

    def save(self) -> dict[str, Any]:
        """Writes what changed; all that is needed to go on, as JSON."""
        return {"rounds": list(self.rounds), **{name: noted(store.flush()) for name, store in self._stores.items()}}

    def saved(self) -> None:
        for store in self._stores.values():
            store.commit()

    def load(self, state: Mapping[str, Any]) -> None:
        self.rounds = list(state["rounds"])
        for name, store in self._stores.items():
            store.restore(places_of(state[name]))

    # ------------------------------------------------------------------ what helpers are made of

    def last_uploads(self, places: Sequence[int]) -> Tensor:
        """w̃_i of these clients [C, P]."""
        return self._read(self._stores["uploads"], places)

    def numbers(self, places: Sequence[int], rounds: Sequence[int]) -> Numbers:
        return numbers_of([self.jobs[place] for place in places], [rounds[place] for place in places], self.start)

    def heard(self) -> set[int]:
        """Who has ever sent something."""
        return {place for place, rounds in enumerate(self.rounds) if rounds}

    def _weights(self, places: Sequence[int]) -> Tensor | None:
        """The weights of these clients in the mean, public numbers of their jobs; None where all are equal."""
        weights = [self.jobs[place].weight for place in places]
        if len(set(weights)) == 1:
            return None
        return torch.tensor(weights, dtype=torch.float64, device=self.start.device)

    def _places(self, names: Sequence[str]) -> list[int]:
        return [self._place[name] for name in names]

    def _read(self, store: Store, places: Sequence[int]) -> Tensor:
        store.fill([place for place in places if store.read(place) is None], self.start[None])
        return store.rows(places, 0).to(self.start.device)


# ---------------------------------------------------------------------- the server's optimiser


def check_optimiser(optimiser: ServerConfig, rule: Rule) -> None:
    """Refuse an optimiser where the global model is not made by the default merge."""
    if optimiser.optimiser != "sgd" and rule.uploads and type(rule).merge is not Rule.merge:
        broken = f"cannot be combined with rule {rule.name}, which does not merge uploads by their mean"
        raise BadValue("server.optimiser", optimiser.optimiser, broken, 'use "sgd"')


def stepped(optimiser: ServerConfig, server: Server, change: Tensor, rate: float) -> Server:
    """The global model after a step along the mean change of a round [P], which stands for a negative gradient.

    Reddi et al. 2021 (FedOpt). What is kept is made of changes that clients have sent, in double precision.
    """
    kind = optimiser.optimiser
    merges = server.merges + 1
    momentum, square, step = server.momentum, server.square, rate * change
    if kind == "momentum":
        momentum = change if momentum is None else optimiser.momentum * momentum + change
        step = rate * momentum
    elif kind == "adam":
        one, two = optimiser.betas
        momentum = (1 - one) * change + (0 if momentum is None else one * momentum)
        square = (1 - two) * change.square() + (0 if square is None else two * square)
        spread = (square / (1 - two**merges)).sqrt() + optimiser.stability
        step = optimiser.learning_rate * (momentum / (1 - one**merges)) / spread
    weights = (server.weights.double() + step).to(server.weights.dtype)
    return replace(server, weights=weights, momentum=momentum, square=square, merges=merges)


class _Made:
    """The helpers of one round, from a global model and the uploads there are. Blocks of attention are made once."""

    def __init__(self, aggregator: Aggregator, weights: Tensor) -> None:
        self.aggregator = aggregator
        self.weights = weights.to(aggregator.start.device)
        self.blocks: dict[int, Tensor] = {}

    def __call__(self, places: Sequence[int], rounds: Sequence[int]) -> Tensor:
        """h_i of these clients [C, P], each after so many rounds of its own."""
        rule = self.aggregator.rule
        if rule.attends:
            return torch.stack([self._block(place // BLOCK, rounds)[place % BLOCK] for place in places])
        everywhere = self.weights.expand(len(places), -1)
        own = self.aggregator.last_uploads(places) if rule.reads_uploads else everywhere
        return rule.helper(self.weights, own, self.aggregator.numbers(places, rounds))

    def _block(self, at: int, rounds: Sequence[int]) -> Tensor:
        """Σ_j ξ_ij·w̃_j for a block of clients, over all who ever sent something, and the client itself.

        Blocks are fixed, so that a client's helper has the same bits whoever else asks."""
        if at not in self.blocks:
            aggregator = self.aggregator
            block = list(range(at * BLOCK, min((at + 1) * BLOCK, len(aggregator.names))))
            heard = aggregator.heard()
            others = sorted(heard.union(block))
            pieces = [others[low : low + BLOCK] for low in range(0, len(others), BLOCK)]
            own = aggregator.last_uploads(block).double()
            centre = self.weights.double()  # distances are those of small differences
            squared = torch.cat([_squared(own - centre, self._uploads(piece) - centre) for piece in pieces], 1)
            silent = torch.tensor([other not in heard for other in others], device=squared.device)
            mine = torch.tensor(others).unsqueeze(0) == torch.tensor(block).unsqueeze(1)
            squared = torch.where(silent, torch.inf, squared)
            attention = aggregator.rule.attention(squared, mine.to(squared.device), aggregator.numbers(block, rounds))
            parts = zip(attention.split(BLOCK, 1), pieces, strict=True)
            total = sum((part @ self._uploads(piece) for part, piece in parts), torch.zeros_like(own))
            self.blocks[at] = total.to(self.weights.dtype)
        return self.blocks[at]

    def _uploads(self, places: Sequence[int]) -> Tensor:
        return self.aggregator.last_uploads(places).double()


def _squared(one: Tensor, other: Tensor) -> Tensor:
    """Squared distances [C, D] of rows [C, P] and [D, P]."""
    found = one.square().sum(1, keepdim=True) + other.square().sum(1) - 2 * one @ other.T
    return found.clamp(min=0)
