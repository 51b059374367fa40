"""APFL (Deng, Kamani, Mahdavi 2020): the upload is that of FedAvg. Each client also trains a model v_i at the blend
v̄_i = a_i·v_i + (1 − a_i)·w̃_i, which is its personal model, and adapts the weight a_i:

    v_i ← v_i − γ·a_i·∇f_i(v̄_i)        a_i ← a_i − γ_a·⟨v_i − w̃_i, ∇f_i(v̄_i)⟩, within [0, 1]

v_i and a_i are kept, so their steps need no noise. To publish v̄_i, both follow noisy gradients, which are counted and have
batches of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .fields import PUBLISH, field
from .rule import Kept, Rule


@dataclass(frozen=True)
class Blend(Kept):
    anchored = True

    share: float = 0.5
    share_rate: float = 0.1

    def anchor(self, upload: Tensor, helper: Tensor) -> Tensor:
        return upload

    def point(self, weights: Tensor, anchor: Tensor, share: Tensor) -> Tensor:
        return share * weights + (1 - share) * anchor

    def through(self, gradient: Tensor, share: Tensor) -> Tensor:
        return share * gradient

    def adapted(self, share: Tensor, gradient: Tensor, weights: Tensor, anchor: Tensor) -> Tensor:
        slope = ((weights - anchor) * gradient).sum(1, keepdim=True)
        return (share - self.share_rate * slope).clamp(0, 1)

    def model(self, weights: Tensor, upload: Tensor, share: Tensor) -> Tensor:
        return self.point(weights, upload, share)


@dataclass(frozen=True)
class APFL(Rule):
    name = "apfl"
    client_does = "trains w_i from it; then v_i at a_i·v_i + (1 − a_i)·w̃_i, a_i adapted"
    leaves = "w̃_i only"
    cost = "K (v_i and a_i are kept); to publish the blend: 2K, on separate batches"

    publish: bool = field(False, PUBLISH)
    share: float = field(0.5, "initial weight of the personal model in the blend", 0, 1)
    share_rate: float = field(0.1, "learning rate of that weight", 0)

    @property
    def kept(self) -> Kept:
        return Blend(self.share, self.share_rate)

    @property
    def publishes(self) -> bool:
        return self.publish
