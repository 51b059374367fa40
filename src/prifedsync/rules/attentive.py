"""FedAMP (Huang, Chu, Zhou, Wang, Liu, Pei, Zhang 2021): each client is sent u_i = Σ_j ξ_ij·w̃_j, in which similar models
have larger weights, and every step pulls the client's model towards u_i.

In the paper ξ_ij = α·A'(‖w_i − w_j‖²) for j ≠ i with A(x) = 1 − e^(−x/σ), and the client's own model has the remaining
weight. Here α/σ is α_i/(m − 1), so that the other models together have at most weight α_i. And σ is `bandwidth` times the
mean squared distance to the others, because distances between noised models grow with the noise. All of it is
post-processing of what was sent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .fields import field
from .rule import Numbers, Pulled, Rule, Steps


@dataclass(frozen=True)
class Attentive(Rule):
    name = "attentive"
    server_sends = "u_i = Σ_j ξ_ij·w̃_j, ξ from distances between noised models"
    client_does = "starts from it; pull λ_i·(w − u_i) at every step"
    cost = "K (the weights ξ are post-processing)"
    numbers = ("mixing", "strength")
    attends = True

    bandwidth: float = field(1.0, "width of the attention, in mean squared distances to the other clients", 0, ends="(]")

    @property
    def steps(self) -> Steps:
        return Pulled()

    def attention(self, squared: Tensor, mine: Tensor, numbers: Numbers) -> Tensor:
        others = ~mine & torch.isfinite(squared)
        count = others.sum(1, keepdim=True).clamp(min=1)
        squared = torch.where(others, squared, 0.0)
        scale = self.bandwidth * squared.sum(1, keepdim=True) / count
        near = torch.where(scale > 0, torch.exp(-squared / scale), 1.0)
        near = torch.where(others, near, 0.0) * numbers.mixing.to(squared.dtype) / count
        return torch.where(mine, 1 - near.sum(1, keepdim=True), near)
