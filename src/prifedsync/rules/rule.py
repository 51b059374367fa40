"""What a rule is: pure functions on weights, none of which sees a record. What it does not override is FedAvg's way.

[C, P] are stacked clients, [C, 1] one number a client.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Generic, NamedTuple, TypeVar

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
class LocalOnly(Generic[T]):
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


class Numbers(NamedTuple):
    """Public numbers of stacked clients, [C, 1] each."""

    mixing: Tensor  # α_i
    strength: Tensor  # λ_i
    reach: Tensor  # how far a round goes: learning rate, as scheduled and with momentum, times local steps


class Steps:
    """What local steps do besides following the gradient, which has been clipped and noised by then.

    A step takes its gradient g at `point`, follows `through`(g) + `pull`, and then moves share and anchor.
    """

    anchored: ClassVar[bool] = False  # whether there is an anchor
    every: int = 0  # the anchor moves after every so many steps; 0: it stays
    share: float | None = None  # a number of each client's own that adapts: its first value

    def __init_subclass__(cls) -> None:
        own = [
            name
            for name in ("point", "through", "pull", "adapted", "moved")
            if getattr(cls, name) is not getattr(Steps, name)
        ]
        if own and not cls.anchored:
            raise TypeError(f"{cls.__name__} overrides {', '.join(own)}: say anchored = True, or a GPU would leave it out")

    def point(self, weights: Tensor, anchor: Tensor, share: Tensor) -> Tensor:
        """Where the gradient is taken."""
        return weights

    def through(self, gradient: Tensor, share: Tensor) -> Tensor:
        """The gradient by the weights, given the gradient at that point."""
        return gradient

    def pull(self, weights: Tensor, anchor: Tensor, strength: Tensor) -> Tensor | None:
        """A term without data, added to the gradient after clipping and noise."""
        return None

    def adapted(self, share: Tensor, gradient: Tensor, weights: Tensor, anchor: Tensor) -> Tensor:
        """The share after a step from these weights."""
        return share

    def moved(self, anchor: Tensor, weights: Tensor) -> Tensor:
        """The anchor after `every` steps."""
        return anchor


class Pulled(Steps):
    """λ(w − anchor) at every step: the gradient of (λ/2)·‖w − anchor‖²."""

    anchored = True

    def pull(self, weights: Tensor, anchor: Tensor, strength: Tensor) -> Tensor:
        return strength * (weights - anchor)


class Kept(Steps):
    """Training of a model v_i that stays with the client, once its upload is sealed."""

    def anchor(self, upload: Tensor, helper: Tensor) -> Tensor:
        """What the steps look at besides v_i."""
        return helper

    def model(self, weights: Tensor, upload: Tensor, share: Tensor) -> Tensor:
        """The client's personal model."""
        return weights


@dataclass(frozen=True)
class Rule:
    """F_i and what the client does with it. Its fields (`rules.field`) are filled from the config's [rule] by name."""

    name: ClassVar[str] = ""
    server_sends: ClassVar[str] = "w_glob"
    client_does: ClassVar[str] = ""
    leaves: ClassVar[str] = "w̃_i"
    cost: ClassVar[str] = "K"  # noisy gradients a round
    numbers: ClassVar[tuple[str, ...]] = ()  # the numbers of each client that it reads: "mixing", "strength"
    uploads: ClassVar[bool] = True  # whether anything is sent at all
    attends: ClassVar[bool] = False  # whether what a client is sent is made of everybody's last uploads
    outer: ClassVar[bool] = False  # whether the upload is not the last iterate; that one is the personal model then

    @property
    def reads_uploads(self) -> bool:
        """Whether what a client is sent is made of more than the global model: of its own last upload, or everybody's."""
        return self.attends or type(self).helper is not Rule.helper

    @property
    def steps(self) -> Steps:
        """Of the training for the upload."""
        return Steps()

    @property
    def kept(self) -> Kept | None:
        """Of the training for a model of the client's own, if there is one."""
        return None

    @property
    def publishes(self) -> bool:
        """Whether the training of the client's own model is noisy and counted too."""
        return False

    def merge(self, server: Server, uploads: Noised[Tensor] | Unprotected[Tensor], rate: float) -> Server:
        if not isinstance(uploads, (Noised, Unprotected)):
            raise TypeError(f"an upload must be Noised, not {type(uploads).__name__}")
        return server.merged(uploads.value, rate)

    def helper(self, weights: Tensor, own: Tensor, numbers: Numbers) -> Tensor:
        """h_i = F_i(w_glob), with the client's own last upload in view."""
        return weights.expand_as(own)

    def attention(self, squared: Tensor, mine: Tensor, numbers: Numbers) -> Tensor:
        """ξ [C, m]: what everybody's last upload weighs for each client, by squared distances; `mine` marks its own.

        An infinite distance is that of a client who has not sent anything yet.
        """
        return mine.to(squared.dtype)

    def start(self, own: Tensor, helper: Tensor) -> Tensor:
        """Where local training starts."""
        return helper

    def finish(self, trained: Tensor, anchor: Tensor) -> Tensor:
        """The upload, once local training is over."""
        return trained

    def upload_steps(self, local_steps: int) -> int:
        """Gradients of one round for the upload."""
        return local_steps if self.uploads else 0

    def noisy_gradients(self, local_steps: int) -> int:
        """How many noisy gradients a round costs: what accounting counts."""
        return self.upload_steps(local_steps) + (local_steps if self.publishes else 0)
