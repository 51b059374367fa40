"""Interpolation: h_i = (1 − α_i)·w̃_i + α_i·w_glob, the rule of the paper's experiments (Zheng, Chen, Long, Su 2021)."""

from __future__ import annotations

from torch import Tensor

from .rule import Rule


class Interpolate(Rule):
    name = "interpolate"

    def helper(self, weights: Tensor, own: Tensor, mixing: Tensor) -> Tensor:
        return (1 - mixing) * own + mixing * weights
