"""What a rule answers to made-up rows: a rule from outside is tried before it is used, and its answers are part of what
secret draws are bound to. Its code alone would not do: it may read a value that no digest of code covers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..named import one_line
from ..values import BadValue
from .rule import Numbers, Rule

CLIENTS = 3
CLOSE = 1e-9  # relative: a row alone may be rounded in another order than in a stack


def is_outside(rule: Rule) -> bool:
    """Whether the rule's code is not this package's."""
    return not type(rule).__module__.startswith(__name__.split(".")[0] + ".")


def check(rule: Rule, parameters: int) -> None:
    """Refuse a rule that remembers, that changes what it is given, or that mixes clients."""
    whole = range(CLIENTS)
    try:
        first = answers(rule, parameters, whole)
        again = answers(rule, parameters, whole)
        alone = [answers(rule, parameters, range(c, c + 1)) for c in whole]
    except BadValue:
        raise
    except Exception as error:
        reason = f"failed with made-up rows: {one_line(error)}"
        raise BadValue("rule", rule.name, reason, "call its functions by themselves to see the traceback") from error
    if not all(torch.equal(one, other) for one, other in zip(first, again, strict=True)):
        reason = "gave another result for the same input: its functions must be pure"
        raise BadValue("rule", rule.name, reason, "let it remember nothing, and draw no random numbers")
    for c, own in enumerate(alone):
        for rows, row in zip(first, own, strict=True):
            if not torch.allclose(rows[c], row[0], rtol=CLOSE, atol=CLOSE, equal_nan=True):
                reason = "gave a client another result in a stack than alone"
                raise BadValue("rule", rule.name, reason, "treat every row by itself")


def answers(rule: Rule, parameters: int, clients: range) -> list[Tensor]:
    """What all functions of a rule make of these made-up clients, one row for each; changed arguments are refused."""
    draw = torch.Generator().manual_seed(0)
    rows = slice(clients.start, clients.stop)

    def vectors() -> Tensor:
        return torch.randn(CLIENTS, parameters, generator=draw, dtype=torch.float64)[rows].clone()

    def column() -> Tensor:
        return torch.rand(CLIENTS, 1, generator=draw, dtype=torch.float64)[rows].clone()

    own, helper, weights, anchor, gradient = vectors(), vectors(), vectors(), vectors(), vectors()
    share = column()
    numbers = Numbers(column(), column(), column())
    glob = torch.randn(parameters, generator=draw, dtype=torch.float64)
    given = [own, helper, weights, anchor, gradient, share, *numbers, glob]
    before = [each.clone() for each in given]
    made: list[Tensor] = []

    def note(function: Callable[..., Tensor | None], *arguments: Tensor | Numbers) -> None:
        answer = function(*arguments)
        if answer is not None:
            made.append(answer.clone())
        if not all(torch.equal(one, other) for one, other in zip(given, before, strict=True)):
            reason = "changes what it is given in place"
            raise BadValue("rule", rule.name, reason, "make new tensors: w.sub(…) in the place of w.sub_(…)")

    for steps in (rule.steps, rule.kept):
        if steps is not None:
            note(steps.point, weights, anchor, share)
            note(steps.through, gradient, share)
            note(steps.pull, weights, anchor, numbers.strength)
            note(steps.adapted, share, gradient, weights, anchor)
            note(steps.moved, anchor, weights)
    if rule.kept is not None:
        note(rule.kept.anchor, own, helper)
        note(rule.kept.model, weights, own, share)
    note(rule.helper, glob, own, numbers)
    note(rule.start, own, helper)
    note(rule.finish, weights, anchor)
    return made
