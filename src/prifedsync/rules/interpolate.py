"""Interpolation (Zheng, Chen, Long, Su 2021): h_i = (1 − α_i)·w̃_i + α_i·w_glob. The paper's experiments use this rule."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .rule import Numbers, Rule


@dataclass(frozen=True)
class Interpolate(Rule):
    name = "interpolate"
    server_sends = "(1 − α_i)·w̃_i + α_i·w_glob"
    client_does = "starts from it"
    numbers = ("mixing",)

    def helper(self, weights: Tensor, own: Tensor, numbers: Numbers) -> Tensor:
        return (1 - numbers.mixing) * own + numbers.mixing * weights
