"""Each client by itself: nothing is sent and nothing received. What a federation has to beat.

A model that nobody else sees costs nothing. To publish it every step is noised and counted, of every round: there is no
coin that could have left the client out.
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

    def merge(self, server: Server, uploads: Noised[Tensor] | Unprotected[Tensor], rate: float) -> Server:
        raise TypeError("nothing is sent: there is nothing to merge")
