"""Each client trains by itself: it sends nothing and receives nothing. This is the baseline that a federation has to beat.

A model that nobody else sees costs no privacy. To publish it, every step of every round is noised and counted: no coin
decides whether the client takes part.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .fields import PUBLISH, field
from .rule import Kept, Noised, Rule, Server, Unprotected


@dataclass(frozen=True)
class Alone(Rule):
    name = "alone"
    server_sends = "nothing"
    client_does = "trains by itself, every round"
    leaves = "nothing"
    cost = "0 (kept); to publish: K in every round, without credit for participation"
    uploads = False

    publish: bool = field(False, PUBLISH)

    @property
    def kept(self) -> Kept:
        return Kept()

    @property
    def publishes(self) -> bool:
        return self.publish

    def merge(
        self, server: Server, uploads: Noised[Tensor] | Unprotected[Tensor], rate: float, weights: Tensor | None = None
    ) -> Server:
        raise TypeError("nothing is sent, so there is nothing to merge")
