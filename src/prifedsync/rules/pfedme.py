"""pFedMe (Dinh, Tran, Nguyen 2020): clients minimise Moreau envelopes, F_i(w) = min_θ f_i(θ) + (λ_i/2)·‖θ − w‖².

In a round w_i starts at w_glob. `inner_steps` noisy steps on θ, with the pull λ_i·(θ − w_i), approach the inner minimum.
Then w_i ← w_i − s·(w_i − θ), where s is the paper's η·λ. This is repeated K times. w_i is sent, and θ_i is the personal
model. If local models are averaged, this averages θ_i, and w_i is sent as it is.
Published code uses one batch for all inner steps. Here every gradient has its own batch and is counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..limits import MOST_STEPS
from .fields import field
from .rule import Pulled, Rule, Steps


@dataclass(frozen=True)
class Envelope(Pulled):
    every: int = 1
    outer_step: float = 0.5

    def moved(self, anchor: Tensor, weights: Tensor) -> Tensor:
        return anchor - self.outer_step * (anchor - weights)


@dataclass(frozen=True)
class PFedMe(Rule):
    name = "pfedme"
    client_does = "L noisy steps on θ_i with pull λ_i·(θ_i − w_i), then w_i moves to θ_i; K times"
    leaves = "w̃_i (θ_i may be published too)"
    cost = "K·L, each on its own batch"
    numbers = ("strength",)
    outer = True

    inner_steps: int = field(3, "noisy gradients before each move of the local model (L)", 1, MOST_STEPS)
    outer_step: float = field(0.5, "how far that move goes: 1 moves the local model all the way", 0, 1, "(]")

    @property
    def steps(self) -> Steps:
        return Envelope(self.inner_steps, self.outer_step)

    def finish(self, trained: Tensor, anchor: Tensor) -> Tensor:
        return anchor

    def upload_steps(self, local_steps: int) -> int:
        return local_steps * self.inner_steps
