"""A mixture of local and global models: min Σ_i f_i(w_i) + (λ_i/2)·‖w_i − w̄‖² by loopless local gradient descent (Hanzely,
Richtárik 2020).

Theirs is a coin: with chance p all models step to their mean, by α·λ/(n·p), else each takes a gradient step of
α/(n·(1 − p)). In rounds of K gradient steps of size γ the coin's mean is K = (1 − p)/p and α/n = γ·(1 − p), so the step to
the mean has the weight γ·K·λ_i: h_i = (1 − γKλ_i)·w̃_i + γKλ_i·w_glob.
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
