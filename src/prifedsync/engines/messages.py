"""The messages of one attempt at a round, added up as they come: as they are, or as the masked bytes that would be sent."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ..local.masks import Peer, Slot, new_identity, public_identity
from ..local.sums import WORD_BITS, Sums
from ..local.words import summed

HALF = 2 ** (WORD_BITS - 1)
RUN_BYTES = 16


class Messages(Protocol):
    """What the server has of one attempt."""

    def add(self, clients: Sequence[str], words: Tensor) -> None:
        """The messages of these clients arrive, int64 [C, P]."""

    def total(self) -> Tensor:
        """The sum of all of them, int64 [P]."""


class Bare:
    """Messages as they are: integers, whose sum does not depend on their order. Masks cancel, so they can be left out."""

    def __init__(self, sums: Sums, count: int, device: torch.device) -> None:
        self._masked = sums.masked
        self._total = torch.zeros(count, dtype=torch.int64, device=device)

    def add(self, clients: Sequence[str], words: Tensor) -> None:
        self._total += words.sum(0)

    def total(self) -> Tensor:
        return (self._total + HALF) % (2 * HALF) - HALF if self._masked else self._total


class Masked:
    """Messages as bytes, each masked by its own client; the sum is made of the bytes alone."""

    def __init__(self, peers: Peers, slot: Slot, device: torch.device) -> None:
        self._peers = peers
        self._slot = slot
        self._device = device
        self._sent: list[bytes] = []

    def add(self, clients: Sequence[str], words: Tensor) -> None:
        for client, row in zip(clients, words.cpu().numpy(), strict=True):
            self._sent.append(self._peers[client].masked(self._slot, row))

    def total(self) -> Tensor:
        return torch.from_numpy(summed(self._sent)).to(self._device)


class Peers(dict[str, Peer]):
    """All clients of one process as peers of each other, under keys that are new: whoever runs the process has them all."""

    def __init__(self, names: Sequence[str], least: int) -> None:
        secrets = {name: new_identity() for name in names}
        public = {name: public_identity(secret) for name, secret in secrets.items()}
        run = os.urandom(RUN_BYTES)
        super().__init__({name: Peer(name, secret, run, public, least) for name, secret in secrets.items()})
        introductions = [peer.introduction for peer in self.values()]
        for peer in self.values():
            peer.meet(introductions)
