"""FedProx (Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith 2020): training starts from h_i = w_glob. Every step adds
λ_i·(w − h_i) to the gradient, which is the gradient of the proximal term (λ_i/2)·‖w − h_i‖²."""

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
