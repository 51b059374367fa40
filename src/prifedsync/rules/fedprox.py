"""FedProx: training starts from h_i = w_glob, and every step adds λ_i·(w − h_i) to the gradient, which is what the proximal
term (λ_i/2)·‖w − h_i‖² has for one (Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith 2020)."""

from __future__ import annotations

from dataclasses import dataclass

from .rule import Pulled, Rule, Steps


@dataclass(frozen=True)
class FedProx(Rule):
    name = "fedprox"
    client_does = "starts from it; pull λ_i·(w − h_i) at every step"
    numbers = ("strength",)

    @property
    def steps(self) -> Steps:
        return Pulled()
