"""The base class of rules: pure functions of weights, none of which sees a record. The defaults are those of FedAvg.

Tensors [C, P] are stacked clients, [C, 1] is one number for each client.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
WEIGHED_AT_ONCE = 16  # uploads that are held in double precision together


@dataclass(frozen=True)
class Noised(Generic[T]):
    """A value made of public inputs and counted noisy queries only. It may leave the client."""

    value: T


@dataclass(frozen=True)
class Unprotected(Generic[T]):
    """A value trained without privacy. It may leave the client in a run that says "no guarantee", and in no other."""

    value: T


@dataclass(frozen=True)
class LocalOnly(Generic[T]):
    """A value that never leaves the client. Nothing that leaves may depend on it."""

    value: T


@dataclass(frozen=True)
class Server:
    """All that the server knows: the global model w_glob after `round` rounds, and the mean of its last values."""

    weights: Tensor  # w_glob, [P]
    round: int = 0
    mean: Tensor | None = None  # of the last global models, in double precision
    averaged: int = 0  # how many of them
    momentum: Tensor | None = None  # what the server's optimiser keeps, in double precision: a mean of changes,
    square: Tensor | None = None  # one of their squares,
    merges: int = 0  # and how many there were

    @property
    def released(self) -> Tensor:
        """The global model that is published."""
        return self.weights if self.mean is None else self.mean.to(self.weights.dtype)

    def merged(self, uploads: Tensor, rate: float, weights: Tensor | None = None) -> Server:
        """w_glob ← (1 − η)·w_glob + η·mean(uploads), summed in double precision.

        weights: of each upload in the mean [C]; None weighs all alike.
        """
        weights = (1 - rate) * self.weights.double() + rate * mean_of(uploads, weights)
        return replace(self, weights=weights.to(self.weights.dtype))

    def next_round(self, average: bool) -> Server:
        """The server after this round. With `average`, the global model joins the mean."""
        if not average:
            return replace(self, round=self.round + 1)
        before = self.weights.double() * 0 if self.mean is None else self.mean
        mean = before + (self.weights.double() - before) / (self.averaged + 1)
        return replace(self, round=self.round + 1, mean=mean, averaged=self.averaged + 1)


def mean_of(uploads: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean of these uploads [C, P] in double precision; weights: of each of them [C]."""
    if weights is None:
        return uploads.sum(0, dtype=torch.float64) / len(uploads)
    return _weighted_mean(uploads, weights.double())


def _weighted_mean(uploads: Tensor, weights: Tensor) -> Tensor:
    """Σ n_j·w_j / Σ n_j. Only a few uploads at a time are copied to double precision, because there may be thousands."""
    total = torch.zeros(uploads.shape[1], dtype=torch.float64, device=uploads.device)
    for rows, share in zip(uploads.split(WEIGHED_AT_ONCE), weights.split(WEIGHED_AT_ONCE), strict=True):
        total += (rows.double() * share.unsqueeze(1)).sum(0)
    return total / weights.sum()


class Numbers(NamedTuple):
    """Public numbers of C stacked clients, [C, 1] each."""

    mixing: Tensor  # α_i, `mixing` of the config
    strength: Tensor  # λ_i, `strength` of the config
    reach: Tensor  # effective step size of a round: learning rate × schedule ÷ (1 − momentum), times local steps


class Steps:
    """What a local step does besides following the gradient, which is already clipped and noised.

    A step computes its gradient g at `point`, follows `through`(g) + `pull`, and then updates the share and the anchor.
    """

    anchored: ClassVar[bool] = False  # whether the steps use an anchor
    every: int = 0  # the anchor moves after this many steps; 0: it never moves
    share: float | None = None  # the first value of a number that adapts for each client; None: there is none

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
        """The gradient with respect to the weights, from the gradient at `point`."""
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
    """Training of a model v_i that stays with the client. It begins after the upload is complete."""

    def anchor(self, upload: Tensor, helper: Tensor) -> Tensor:
        """The anchor of the steps."""
        return helper

    def model(self, weights: Tensor, upload: Tensor, share: Tensor) -> Tensor:
        """The client's personal model."""
        return weights


@dataclass(frozen=True)
class Rule:
    """F_i, and what the client does with it. A method that a rule does not override does what FedAvg does.

    A rule is a frozen dataclass. Its fields (`rules.field`) are filled from the config's [rule] by name. Methods are pure
    functions of weights and public numbers; none is given a record. [C, P] are C stacked clients with P parameters each.
    """

    name: ClassVar[str] = ""
    server_sends: ClassVar[str] = "w_glob"
    client_does: ClassVar[str] = ""
    leaves: ClassVar[str] = "w̃_i"
    cost: ClassVar[str] = "K"  # noisy gradients in a round, in words
    numbers: ClassVar[tuple[str, ...]] = ()  # which numbers of each client it reads: "mixing", "strength"
    uploads: ClassVar[bool] = True  # whether clients send anything
    attends: ClassVar[bool] = False  # whether a client is sent something made of all clients' last uploads
    outer: ClassVar[bool] = False  # whether the upload differs from the last iterate, which is then the personal model

    @property
    def reads_uploads(self) -> bool:
        """Whether a client is sent something that depends on last uploads, its own or all clients'."""
        return self.attends or type(self).helper is not Rule.helper

    @property
    def personalises(self) -> bool:
        """Whether a client goes on with a model of its own, and not with the released one."""
        own_start = type(self).start is not Rule.start
        return not self.uploads or self.kept is not None or self.outer or self.reads_uploads or own_start

    @property
    def needs_sum_alone(self) -> bool:
        """Whether the server needs the sum of the uploads and no single one, and a client goes on from the global model."""
        return not beyond_sum(self)

    @property
    def steps(self) -> Steps:
        """The local steps that lead to the upload."""
        return Steps()

    @property
    def kept(self) -> Kept | None:
        """The local steps of a model that the client keeps; None if there is none."""
        return None

    @property
    def publishes(self) -> bool:
        """Whether the steps of the kept model are noised and counted too, so that it may be published."""
        return False

    def merge(
        self, server: Server, uploads: Noised[Tensor] | Unprotected[Tensor], rate: float, weights: Tensor | None = None
    ) -> Server:
        """The server after these uploads: by default w_glob moves towards their mean by the server rate.

        weights: public numbers [C] by which uploads count in the mean. None weighs all alike, and then it is not passed.
        """
        if not isinstance(uploads, (Noised, Unprotected)):
            raise TypeError(f"an upload must be Noised, not {type(uploads).__name__}")
        return server.merged(uploads.value, rate, weights)

    def helper(self, weights: Tensor, own: Tensor, numbers: Numbers) -> Tensor:
        """h_i = F_i(w_glob), what a client is sent. `own` is its last upload w̃_i."""
        return weights.expand_as(own)

    def attention(self, squared: Tensor, mine: Tensor, numbers: Numbers) -> Tensor:
        """ξ [C, m]: the weight of each last upload for each client, from squared distances. `mine` marks its own upload.

        A client that has not sent anything yet is infinitely far away.
        """
        return mine.to(squared.dtype)

    def start(self, own: Tensor, helper: Tensor) -> Tensor:
        """The weights that local training starts from."""
        return helper

    def finish(self, trained: Tensor, anchor: Tensor) -> Tensor:
        """The upload, from the weights at the end of local training and the anchor."""
        return trained

    def upload_steps(self, local_steps: int) -> int:
        """How many gradients one round takes for the upload."""
        return local_steps if self.uploads else 0

    def noisy_gradients(self, local_steps: int) -> int:
        """How many noisy gradients one round takes. The accounting counts these."""
        return self.upload_steps(local_steps) + (local_steps if self.publishes else 0)


def beyond_sum(rule: Rule) -> str:
    """What this rule needs or shows of single clients, beyond the sum of their uploads; "" if nothing."""

    def own(*names: str) -> bool:
        return any(getattr(type(rule), name) is not getattr(Rule, name) for name in names)

    reasons = {
        "its clients send nothing": not rule.uploads,
        "its personal models are published": rule.publishes,
        "it needs every client's single upload": rule.attends or own("helper"),
        "a client goes on from its own model": rule.outer or own("start", "finish"),
        "its merge is its own": own("merge"),
        "its local steps are its own": type(rule.steps) not in (Steps, Pulled),  # whose pull is 0 where training starts
    }
    return next((reason for reason, holds in reasons.items() if holds), "")
