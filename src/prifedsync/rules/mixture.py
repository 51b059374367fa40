"""A mixture of local and global models (Hanzely, Richtárik 2020): min Σ_i f_i(w_i) + (λ_i/2)·‖w_i − w̄‖² by loopless local
gradient descent.

The paper uses a coin. With probability p all models move towards their mean, by α·λ/(n·p). Otherwise each takes a gradient
step of size α/(n·(1 − p)). The coin gives K = (1 − p)/p gradient steps on average. With rounds of K gradient steps of size
γ, α/n = γ·(1 − p), so the move towards the mean has the weight γ·K·λ_i: h_i = (1 − γKλ_i)·w̃_i + γKλ_i·w_glob.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .rule import Numbers, Rule


@dataclass(frozen=True)
class Mixture(Rule):
    name = "mixture"
    server_sends = "the mean of models, w_glob"
    client_does = "starts from (1 − γKλ_i)·w̃_i + γKλ_i·w_glob, γ its learning rate"
    numbers = ("strength",)

    def helper(self, weights: Tensor, own: Tensor, numbers: Numbers) -> Tensor:
        weight = numbers.reach * numbers.strength
        return (1 - weight) * own + weight * weights
