"""Ditto (Li, Hu, Beirami, Smith 2021): the upload is that of FedAvg. Each client also trains a personal model v_i along
∇f_i(v_i) + λ_i·(v_i − h_i), with h_i = w_glob. v_i is kept, so its steps need no noise. To publish it, they are noised and
counted."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import PUBLISH, field
from .rule import Kept, Pulled, Rule


class Personal(Pulled, Kept):
    """The steps of v_i, with a pull towards the helper."""


@dataclass(frozen=True)
class Ditto(Rule):
    name = "ditto"
    client_does = "trains w_i from it; then v_i, with pull λ_i·(v_i − h_i)"
    leaves = "w̃_i only"
    cost = "K (v_i is kept); to publish v_i: 2K, on separate batches"
    numbers = ("strength",)

    publish: bool = field(False, PUBLISH)

    @property
    def kept(self) -> Kept:
        return Personal()

    @property
    def publishes(self) -> bool:
        return self.publish
