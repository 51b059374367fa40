"""Records and weights that try to move a clipped sum as far as possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..local import Net
from ..local.job import LARGEST_HELPER
from .subject import Records, Subject, all_kept

ATTACKED = 3  # example records that are changed in every way below
SPLITS = 6  # places in the net where a hostile server scales up the weights that it sends
LEVEL = 2.0  # norm of gradients under hostile weights, in clip norms: above 1, so that missing clipping shows
LIFTS = {  # how far activations are scaled up; the last is just below the overflow of their squares
    torch.float32: (1e9, 1e17, 2e18),
    torch.float64: (1e17, 2e18, 1e150),
}


@dataclass(frozen=True)
class Attack:
    """Weights that a server may send, and the worst records for them, with their targets."""

    weights: list[Tensor]
    x: Tensor
    y: Tensor


def attack(subject: Subject) -> Attack:
    x, y = twisted(subject)
    weights = ordinary(subject)
    for sent, (own_x, own_y) in hostile(subject):
        weights.append(sent)
        x, y = torch.cat([x, own_x]), torch.cat([y, own_y])
    return Attack(weights, x, y)


def ordinary(subject: Subject) -> list[Tensor]:
    """The initial weights, random ones, zero, large ones, and the largest that a client accepts."""
    start = subject.start
    random = subject.normal(len(start), what="weights").to(start)
    return [start, 0.5 * random, 0 * start, 30 * (start + random), LARGEST_HELPER * random.sign()]


# ------------------------------------------------------------------ records


def twisted(subject: Subject) -> Records:
    """Example records negated, scaled down and up, set to constants or replaced, with their own and with other targets."""
    x, y = subject.records(0, ATTACKED)
    like = [x, *_floats(subject, x)] if x.is_floating_point() else [x, *_tokens(x)]
    targets = [y, 1 - y, y - 1e6] if y.is_floating_point() else [y, (y + 1) % classes(subject)]
    return torch.cat(like * len(targets)), torch.cat([t for t in targets for _ in like])


def _floats(subject: Subject, x: Tensor) -> list[Tensor]:
    random = subject.normal(*x.shape, what="records").to(x)
    return [-x, 1e-6 * x, 1e6 * x, 1e18 * x, 0 * x, 1 + 0 * x, random]


def _tokens(x: Tensor) -> list[Tensor]:
    last = x.max()
    return [last - x, 0 * x, 0 * x + last, x.flip(-1) if x.dim() > 1 else x]


def classes(subject: Subject) -> int:
    """The number of classes, from the width of the model's output."""
    x, _ = subject.records(0, 1)
    return subject.net.outputs(given(subject.net, subject.start), given(subject.net, x)).shape[1]


def given(net: Net, values: Tensor) -> Tensor:
    """Weights, records or targets with the device and dtype that an engine uses."""
    return values.to(net.device, net.dtype) if values.is_floating_point() else values.to(net.device)


# ------------------------------------------------------------------ hostile weights


def hostile(subject: Subject) -> Iterator[tuple[Tensor, Records]]:
    """Weights with huge activations and tiny backpropagated gradients, whose product has a norm of LEVEL clip norms.

    A norm that squares before it scales then underflows to 0, and the record is not clipped. One parameter (or the record
    itself) is scaled up. All later parameters are scaled until the gradient has the wanted norm: there the loss is
    saturated, or later layers pass almost no gradient back.
    """
    net, wanted = subject.net, LEVEL * subject.noisy.clip_norm
    places = [-1, *range(len(net.names))] if subject.x.is_floating_point() else list(range(len(net.names)))
    for place in places[:: math.ceil(len(places) / SPLITS)]:
        for lift in LIFTS[net.dtype]:
            family = Family(subject, place, lift)
            for exponent in crossings(family.size, wanted):
                yield family.weights(exponent), family.record(exponent)


@dataclass(frozen=True)
class Family:
    """The net with one parameter (or, at place −1, the record) times `lift` and all later ones times 10**exponent."""

    subject: Subject
    place: int
    lift: float

    def weights(self, exponent: float) -> Tensor:
        net, parts = self.subject.net, self.subject.start.split(self.subject.net.sizes)
        factors = [1.0 if i < self.place else self.lift if i == self.place else 10**exponent for i in range(len(net.sizes))]
        return torch.cat([factor * part for factor, part in zip(factors, parts, strict=True)])

    def record(self, exponent: float) -> Records:
        """The first record with the target that is best for the attacker: the model's own prediction, or 0."""
        net, (x, y) = self.subject.net, self.subject.records(0, 1)
        x = self.lift * x if self.place < 0 else x
        if y.is_floating_point():
            return x, 0 * y
        answer = net.outputs(given(net, self.weights(exponent)), given(net, x)).detach().cpu()
        return x, answer.argmax(1).expand_as(y)

    def size(self, exponent: float) -> float:
        """The norm of the record's gradient by plain autograd; NaN if it is not finite."""
        net = self.subject.net
        x, y = self.record(exponent)
        gradient = net.one_record(given(net, self.weights(exponent)), given(net, x), given(net, y), all_kept(net)).double()
        return float(gradient.norm()) if bool(torch.isfinite(gradient).all()) else math.nan


def crossings(size: Callable[[float], float], wanted: float) -> list[float]:
    """Exponents at which the size crosses the wanted one, found on a coarse grid and then by bisection."""
    grid = [float(e) for e in range(-36, 4, 3)]
    sizes = [size(e) for e in grid]
    found = []
    for low, high, at_low, at_high in zip(grid, grid[1:], sizes, sizes[1:], strict=False):
        if (at_low < wanted) == (at_high < wanted) or math.isnan(at_low + at_high):
            continue
        for _ in range(20):
            middle = (low + high) / 2
            low, high = (middle, high) if (size(middle) < wanted) == (at_low < wanted) else (low, middle)
        found.append(low if at_low > wanted else high)
    return found
