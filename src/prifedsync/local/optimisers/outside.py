"""An optimiser from outside the package: found by its name or given from Python, and tried out before it is used."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ... import named
from ...values import BadValue
from .optimiser import Optimiser
from .single import single
from .stacked import Stacked
from .update import NUMBERS, Update

RESERVED = ("own", "helper", "personal")  # vectors that a client keeps besides those of its optimiser
CLIENTS = 3
PARAMETERS = 6
STEPS = 4
CLOSE = 1e-6  # relative: a row alone may be rounded in another order than in a stack
HOW = "derive a class from prifedsync.local.Update"
Trace = tuple[Tensor, dict[str, Tensor]]  # weights and slots after a trial


def by_name(field: str, name: str) -> Update:
    """The update that a class, or a function without arguments, of that name makes."""
    return checked(field, name, named.call(field, name))


def checked(field: str, name: str, given: Any) -> Update:
    """The update, or a refusal in one line; a class is made into its value."""
    try:
        update = given() if isinstance(given, type) and issubclass(given, Update) else given
        if not isinstance(update, Update):
            raise BadValue(field, name, f"must be an Update, and is a {type(update).__name__}", HOW)
        _check_declaration(field, name, update)
        _try(field, name, update)
    except BadValue:
        raise
    except Exception as error:
        rule = f"failed in a trial step with made-up gradients: {named.one_line(error)}"
        remedy = "call its step by itself; it is told the rate and the numbers in `reads`"
        raise BadValue(field, name, rule, remedy) from error
    return update


def bits(update: Update) -> list[Tensor]:
    """What it makes of made-up gradients, to the last bit: secret draws are bound to it, since an update may read a value
    that no digest of its code covers."""
    weights, slots = _stacked([Optimiser(name="bits", own=update)] * CLIENTS, torch.float64)
    return [weights, *(slots[name] for name in sorted(slots))]


def _check_declaration(field: str, name: str, update: Update) -> None:
    for what, words in (("slots", update.slots), ("reads", update.reads)):
        if not isinstance(words, tuple):
            raise BadValue(field, name, f"has {what} = {words!r}, which is no tuple", 'write ("mean",)')
    for slot in update.slots:
        if not slot.isidentifier() or slot in RESERVED:
            raise BadValue(field, name, f"has a slot called {slot!r}", "choose another word for it, without spaces")
    for read in update.reads:
        if read not in NUMBERS:
            remedy = f"choose from {', '.join(NUMBERS)}"
            raise BadValue(field, name, f"reads {read!r}, which an optimiser is not told", remedy)
    if update.kernel is not None:
        raise BadValue(field, name, f"says that the GPU kernel knows it as {update.kernel!r}", "leave `kernel` out")


def _try(field: str, name: str, update: Update) -> None:
    """A few steps of made-up clients: stacked, once more, each alone, by torch, and in single precision."""
    optimisers = [
        Optimiser(name=f"{name} in a trial", own=update, learning_rate=0.5 / (c + 1), weight_decay=0.1 * c)
        for c in range(CLIENTS)
    ]
    weights, slots = _stacked(optimisers, torch.float64)
    if weights.shape != (CLIENTS, PARAMETERS):
        raise BadValue(field, name, f"returned weights of shape {tuple(weights.shape)}", "return one row for each client")
    if not _same(_stacked(optimisers, torch.float64), (weights, slots), 0.0):
        rule = "gave another result for the same input: it must be a pure function"
        raise BadValue(field, name, rule, "keep what it remembers in its slots, and draw no random numbers")
    for c, optimiser in enumerate(optimisers):
        mine = (weights[c], {slot: rows[c] for slot, rows in slots.items()})
        alone = _stacked([optimiser], torch.float64, first=c)
        if not _same((alone[0][0], {slot: rows[0] for slot, rows in alone[1].items()}), mine, CLOSE):
            rule = "gave a client another result in a stack than alone"
            raise BadValue(field, name, rule, "treat every row by itself: take no sum or mean over the first axis")
        if not _same(_single(optimiser, c), mine, CLOSE):
            rule = "does not do what its torch twin does"
            raise BadValue(field, name, rule, "correct one of the two, or let torch_twin return None")
    single_precision, _ = _stacked(optimisers, torch.float32)
    if single_precision.dtype != torch.float32:
        raise BadValue(field, name, f"made {single_precision.dtype} of float32", "return weights of the dtype they have")


def _stacked(optimisers: list[Optimiser], dtype: torch.dtype, first: int = 0) -> Trace:
    weights, gradients = _made_up(dtype)
    rows = slice(first, first + len(optimisers))
    weights = weights[rows]
    stacked = Stacked(optimisers, [0] * len(optimisers), weights)
    slots = {slot: torch.zeros_like(weights) for slot in stacked.update.slots}
    count = weights.new_zeros(len(optimisers), 1)
    for gradient in gradients:
        count += 1
        weights = stacked.step(weights, gradient[rows].clone(), slots, count)
    return weights, slots


def _single(optimiser: Optimiser, c: int) -> Trace:
    """As the reference engine does it, its state carried over a round."""
    weights, gradients = _made_up(torch.float64)
    row = weights[c]
    slots = {slot: torch.zeros_like(row) for slot in optimiser.slots}
    for seen, gradient in enumerate(gradients):
        one = single(optimiser, 0, row, slots, seen)
        one.step(gradient[c])
        row = one.weights
        slots = one.slots
    return row, slots


def _made_up(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(0)
    weights = torch.randn(CLIENTS, PARAMETERS, generator=dice, dtype=torch.float64)
    gradients = torch.randn(STEPS, CLIENTS, PARAMETERS, generator=dice, dtype=torch.float64)
    return weights.to(dtype), gradients.to(dtype)


def _same(one: Trace, other: Trace, close: float) -> bool:
    def alike(a: Tensor, b: Tensor) -> bool:
        return torch.allclose(a, b, rtol=close, atol=close, equal_nan=True)

    return alike(one[0], other[0]) and all(alike(one[1][slot], other[1][slot]) for slot in other[1])
