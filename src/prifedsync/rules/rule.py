"""What a rule is: pure functions on weights. What it does not override is FedAvg's way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class Noised(Generic[T]):
    """Made of public inputs and counted noisy queries only: may leave the client."""

    value: T


@dataclass(frozen=True)
class Unprotected(Generic[T]):
    """Trained without privacy. May leave the client in a run that says "no guarantee", and in no other."""

    value: T


@dataclass(frozen=True)
class OnlyHere(Generic[T]):
    """Kept: never leaves the client, and nothing that leaves may depend on it."""

    value: T


@dataclass(frozen=True)
class Server:
    """All the server knows: w_glob after so many rounds, and the mean of its last values."""

    weights: Tensor  # [P]
    round: int = 0
    mean: Tensor | None = None  # double
    averaged: int = 0

    @property
    def released(self) -> Tensor:
        """The global model that is published."""
        return self.weights if self.mean is None else self.mean.to(self.weights.dtype)

    def merged(self, uploads: Tensor, rate: float) -> Server:
        """w_glob ← (1 − η)·w_glob + η·mean(uploads), summed in double precision."""
        mean = uploads.sum(0, dtype=self.weights.double().dtype) / len(uploads)
        return replace(self, weights=((1 - rate) * self.weights.double() + rate * mean).to(self.weights.dtype))

    def next_round(self, average: bool) -> Server:
        """The round is over; its global model joins the average if it is one of the last."""
        if not average:
            return replace(self, round=self.round + 1)
        before = self.weights.double() * 0 if self.mean is None else self.mean
        mean = before + (self.weights.double() - before) / (self.averaged + 1)
        return replace(self, round=self.round + 1, mean=mean, averaged=self.averaged + 1)


class Rule:
    """F_i and what the client does with it. [C, P] are stacked clients; `mixing` is [C, 1]."""

    name = ""

    def merge(self, server: Server, uploads: Noised[Tensor] | Unprotected[Tensor], rate: float) -> Server:
        if not isinstance(uploads, (Noised, Unprotected)):
            raise TypeError(f"an upload must be Noised, not {type(uploads).__name__}")
        return server.merged(uploads.value, rate)

    def helper(self, weights: Tensor, own: Tensor, mixing: Tensor) -> Tensor:
        """h_i = F_i(w_glob), with the client's own last upload in view."""
        return weights.expand_as(own)

    def start(self, own: Tensor, helper: Tensor) -> Tensor:
        """Where local training starts."""
        return helper

    def pull(self, weights: Tensor, helper: Tensor) -> Tensor | None:
        """A term without data, added to the gradient after clipping and noise."""
        return None

    def finish(self, own: Tensor, trained: Tensor, helper: Tensor) -> Tensor:
        """The outer step: what is sent, once local training is over."""
        return trained

    def noisy_gradients(self, local_steps: int) -> int:
        """How many noisy gradients a round costs: what accounting counts."""
        return local_steps
