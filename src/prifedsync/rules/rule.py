"""The base class of rules: pure functions of weights, none of which sees a record. The defaults are those of FedAvg.

Tensors [C, P] are stacked clients, [C, 1] is one number for each client.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Generic, NamedTuple, TypeVar

from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class Noised(Generic[T]):
    """A value computed from public inputs and counted noisy queries only: it may leave the client."""

    value: T


@dataclass(frozen=True)
class Unprotected(Generic[T]):
    """A value trained without privacy. It may leave the client only in a run that states no guarantee."""

    value: T


@dataclass(frozen=True)
class LocalOnly(Generic[T]):
    """A kept value: it never leaves the client, and nothing that leaves may depend on it."""

    value: T


@dataclass(frozen=True)
class Server:
    """The state of the server: w_glob, the number of rounds, and the mean of the last global models."""

    weights: Tensor  # [P]
    round: int = 0
    mean: Tensor | None = None  # double
    averaged: int = 0  # the number of models in that mean

    @property
    def released(self) -> Tensor:
        """The global model that is published."""
        return self.weights if self.mean is None else self.mean.to(self.weights.dtype)

    def merged(self, uploads: Tensor, rate: float) -> Server:
        """w_glob ← (1 − η)·w_glob + η·mean(uploads), summed in double precision."""
        mean = uploads.sum(0, dtype=self.weights.double().dtype) / len(uploads)
        weights = (1 - rate) * self.weights.double() + rate * mean
        return replace(self, weights=weights.to(self.weights.dtype))

    def next_round(self, average: bool) -> Server:
        """The state after the round. `average`: its global model joins the mean."""
        if not average:
            return replace(self, round=self.round + 1)
        before = self.weights.double() * 0 if self.mean is None else self.mean
        mean = before + (self.weights.double() - before) / (self.averaged + 1)
        return replace(self, round=self.round + 1, mean=mean, averaged=self.averaged + 1)


class Numbers(NamedTuple):
    """Public numbers of stacked clients, [C, 1] each."""

    mixing: Tensor  # α_i
    strength: Tensor  # λ_i
    reach: Tensor  # effective step size (learning rate × schedule ÷ (1 − momentum)) times local steps


class Steps:
    """What local steps do besides following the gradient, which is already clipped and noised.

    A step computes its gradient g at `point`, follows `through`(g) + `pull`, and then updates the share and the anchor.
    """

    anchored: ClassVar[bool] = False  # whether there is an anchor
    every: int = 0  # number of steps between two moves of the anchor; 0: it does not move
    share: float | None = None  # initial value of each client's adaptive number, if there is one

    def __init_subclass__(cls) -> None:
        own = [
            name
            for name in ("point", "through", "pull", "adapted", "moved")
            if getattr(cls, name) is not getattr(Steps, name)
        ]
        if own and not cls.anchored:
            raise TypeError(f"{cls.__name__} overrides {', '.join(own)}: set anchored = True, or a GPU would ignore it")

    def point(self, weights: Tensor, anchor: Tensor, share: Tensor) -> Tensor:
        """The weights at which the gradient is computed."""
        return weights

    def through(self, gradient: Tensor, share: Tensor) -> Tensor:
        """The gradient with respect to the weights, from the gradient at `point` (the chain rule)."""
        return gradient

    def pull(self, weights: Tensor, anchor: Tensor, strength: Tensor) -> Tensor | None:
        """A term that does not depend on data, added to the gradient after clipping and noise."""
        return None

    def adapted(self, share: Tensor, gradient: Tensor, weights: Tensor, anchor: Tensor) -> Tensor:
        """The share after a step from these weights."""
        return share

    def moved(self, anchor: Tensor, weights: Tensor) -> Tensor:
        """The anchor after `every` steps."""
        return anchor


class Pulled(Steps):
    """Steps with the pull λ(w − anchor), which is the gradient of (λ/2)·‖w − anchor‖²."""

    anchored = True

    def pull(self, weights: Tensor, anchor: Tensor, strength: Tensor) -> Tensor:
        return strength * (weights - anchor)


class Kept(Steps):
    """The steps of a model v_i that stays with the client. They run after the upload is complete."""

    def anchor(self, upload: Tensor, helper: Tensor) -> Tensor:
        """The anchor of the steps."""
        return helper

    def model(self, weights: Tensor, upload: Tensor, share: Tensor) -> Tensor:
        """The client's personal model."""
        return weights


@dataclass(frozen=True)
class Rule:
    """F_i and what the client does with it. Its fields (`rules.field`) have their values from [rule] in the config."""

    name: ClassVar[str] = ""
    server_sends: ClassVar[str] = "w_glob"
    client_does: ClassVar[str] = ""
    leaves: ClassVar[str] = "w̃_i"
    cost: ClassVar[str] = "K"  # noisy gradients per round
    numbers: ClassVar[tuple[str, ...]] = ()  # which numbers of each client it reads: "mixing", "strength"
    uploads: ClassVar[bool] = True  # whether clients send anything
    attends: ClassVar[bool] = False  # whether a helper is computed from the last uploads of all clients
    outer: ClassVar[bool] = False  # whether the upload differs from the last iterate, which is then the personal model

    @property
    def reads_uploads(self) -> bool:
        """Whether a helper is computed from uploads too, not from the global model alone."""
        return self.attends or type(self).helper is not Rule.helper

    @property
    def steps(self) -> Steps:
        """The steps of the training for the upload."""
        return Steps()

    @property
    def kept(self) -> Kept | None:
        """The steps of the client's own kept model; None if there is none."""
        return None

    @property
    def publishes(self) -> bool:
        """Whether the steps of the kept model are noised and counted too, so that it may be published."""
        return False

    def merge(self, server: Server, uploads: Noised[Tensor] | Unprotected[Tensor], rate: float) -> Server:
        """The server after it has merged these uploads with its learning rate."""
        if not isinstance(uploads, (Noised, Unprotected)):
            raise TypeError(f"an upload must be Noised, not {type(uploads).__name__}")
        return server.merged(uploads.value, rate)

    def helper(self, weights: Tensor, own: Tensor, numbers: Numbers) -> Tensor:
        """h_i = F_i(w_glob, w̃_i), where w̃_i is the client's own last upload."""
        return weights.expand_as(own)

    def attention(self, squared: Tensor, mine: Tensor, numbers: Numbers) -> Tensor:
        """ξ [C, m]: for each client, the weights of all last uploads, from squared distances. `mine` marks its own upload.

        The distance to a client that has not sent anything yet is infinite.
        """
        return mine.to(squared.dtype)

    def start(self, own: Tensor, helper: Tensor) -> Tensor:
        """The weights from which local training starts."""
        return helper

    def finish(self, trained: Tensor, anchor: Tensor) -> Tensor:
        """The upload, computed from the trained weights."""
        return trained

    def upload_steps(self, local_steps: int) -> int:
        """The number of gradients for the upload in one round."""
        return local_steps if self.uploads else 0

    def noisy_gradients(self, local_steps: int) -> int:
        """The number of noisy gradients in one round, which the accounting counts."""
        return self.upload_steps(local_steps) + (local_steps if self.publishes else 0)
