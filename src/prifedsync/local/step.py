"""The order of a local step, once for every engine.

    g ← noisy gradient at rule.point        direction ← rule.through(g) + rule.pull        w ← optimiser(w, direction)
    share ← rule.adapted                    anchor ← rule.moved, every so many steps       mean ← of the last iterates

The gradient has been clipped and noised before it comes here, so all of this is post-processing. An engine says where
gradients come from and what the optimiser is. Axis letters: C clients, P parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..rules import Steps
from .job import Phase


class LocalState(NamedTuple):
    """Where the local training of stacked clients is."""

    weights: Tensor  # [C, P]
    anchor: Tensor  # [C, P]; read where the rule says `anchored`
    share: Tensor  # [C, 1]
    mean: Tensor | None = None  # [C, P]: of the iterates that are averaged, so far


Gradient = Callable[[int, Tensor], Tensor]  # number of the step in its round, point [C, P] → noisy gradient [C, P]
Update = Callable[[Tensor, Tensor], Tensor]  # weights, direction → new weights


def averages(phase: Phase) -> bool:
    """Whether the phase ends at the mean of several iterates, not at the last one."""
    return phase.averaged_from < phase.steps - 1


def point(rule: Steps, state: LocalState) -> Tensor:
    """Where the gradient is taken."""
    return rule.point(state.weights, state.anchor, state.share) if rule.anchored else state.weights


def followed(
    rule: Steps, phase: Phase, state: LocalState, gradient: Tensor, strength: Tensor, step: int | Tensor, update: Update
) -> LocalState:
    """The state after the step with this noisy gradient, which is used up; `step` counts from 0 in its phase."""
    weights, anchor, share, mean = state
    if rule.anchored:
        share = rule.adapted(state.share, gradient, weights, anchor)
        direction = rule.through(gradient, state.share)
        pull = rule.pull(weights, anchor, strength)
        gradient = direction if pull is None else direction + pull
    weights = update(weights, gradient)
    if rule.every:
        anchor = _either((step + 1) % rule.every == 0, rule.moved(anchor, weights), anchor)
    if mean is not None:
        nth = step - phase.averaged_from + 1
        mean = _either(nth > 0, mean + (weights - mean) / _at_least_one(nth), mean)
    return LocalState(weights, anchor, share, mean)


def run(rule: Steps, phase: Phase, begun: LocalState, strength: Tensor, gradient: Gradient, update: Update) -> LocalState:
    """All steps of a phase, one after another; its weights are what comes out of it."""
    state = begun._replace(mean=torch.zeros_like(begun.weights) if averages(phase) else None)
    for step in range(phase.steps):
        noisy = gradient(phase.first + step, point(rule, state))
        state = followed(rule, phase, state, noisy, strength, step, update)
    return state if state.mean is None else state._replace(weights=state.mean, mean=None)


def _either(new: bool | Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """On a device the number of the step is a tensor, and so is whether it is the one."""
    return torch.where(new, yes, no) if isinstance(new, Tensor) else (yes if new else no)


def _at_least_one(count: int | Tensor) -> int | Tensor:
    return count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1)
