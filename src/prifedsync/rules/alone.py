"""Each client by itself: nothing is sent and nothing received. What a federation has to beat."""

from __future__ import annotations

from torch import Tensor

from .rule import Noised, Rule, Server, Unprotected


class Alone(Rule):
    name = "alone"

    def merge(self, server: Server, uploads: Noised[Tensor] | Unprotected[Tensor], rate: float) -> Server:
        return server

    def helper(self, weights: Tensor, own: Tensor, mixing: Tensor) -> Tensor:
        return own
