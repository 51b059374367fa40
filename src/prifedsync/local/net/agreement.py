"""Which method computes a module's per-sample gradients: the first that agrees with plain autograd on a few records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from ...values import BadValue
from . import methods
from .flat import FlatModule
from .inspection import FirstForward, first_line
from .programs import GradMethod, Program

AGREE = 1e-6  # relative, in double precision
CLIP = 1e-3  # small enough that the records are clipped
FAILS = (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError)  # what a user's code may raise


def choose(
    net: FlatModule, seen: FirstForward, x: Tensor, y: Tensor, asked: GradMethod | None, loop_first: bool
) -> tuple[GradMethod, str]:
    """The first method that agrees, and why earlier ones were not taken; `asked` tries one method alone.

    `loop_first` tries the loop before vmap: for a large net on a CPU, whose formed gradients do not fit the caches.
    """
    kind = type(net.module).__name__
    try:
        truth = _by_autograd(net, x, y, CLIP)
    except (RuntimeError, ValueError, IndexError) as error:
        raise BadValue("model", kind, f"fails on one record: {first_line(error)}") from error
    order: list[GradMethod] = ["bookkeeping", "loop", "vmap"] if loop_first else ["bookkeeping", "vmap", "loop"]
    reasons: list[str] = []
    for method in order:
        if asked not in (None, method):
            continue
        reason = _against_bookkeeping(net, seen) if method == "bookkeeping" else ""
        reason = reason or _disagreement(net, method, x, y, truth)
        if not reason:
            return method, "; ".join(reasons)
        reasons.append(reason)
    said = "; ".join(reasons)
    raise BadValue("model", kind, f"has no method for per-sample gradients: {said}")


def _against_bookkeeping(net: FlatModule, seen: FirstForward) -> str:
    """Why the module's layers rule bookkeeping out; empty if they do not."""
    missing = sorted(set(net.names) - net.bookkeeping.covered())
    if missing:
        layer = missing[0].rpartition(".")[0]
        calls = seen.calls.get(layer, 0)
        if calls > 1 and net.bookkeeping.has_rule(net.module.get_submodule(layer)):
            return f"{layer} is called {calls} times"
        return f"no layer rule for {missing[0]}"
    for name, uses in seen.uses.items():
        if uses != 1:  # counted, not tested: a ReLU may hide a second use from the few records
            return f"{name} is used {uses} times"
    return ""


def _disagreement(net: FlatModule, method: GradMethod, x: Tensor, y: Tensor, truth: Tensor) -> str:
    """What is wrong with this method on the few records; empty if it agrees with plain autograd."""
    try:
        computed = _by_method(net, method, x, y, CLIP)
    except FAILS as error:
        return f"{method}: {first_line(error)}"
    if torch.allclose(computed, truth, rtol=AGREE, atol=AGREE * CLIP):
        return ""
    wrong = next(_wrong_rules(net, x, y), "") if method == "bookkeeping" else ""
    return f"{method}: {wrong or 'differs from plain autograd'}"


def _wrong_rules(net: FlatModule, x: Tensor, y: Tensor) -> Iterator[str]:
    """Which of the user's layer rules are wrong. Not clipped: one wrong norm would change all clipped gradients."""
    truth = _by_autograd(net, x, y, torch.inf).split(net.sizes, 1)
    computed = _by_method(net, "bookkeeping", x, y, torch.inf).split(net.sizes, 1)
    for name, right, other in zip(net.names, truth, computed, strict=True):
        layer, _, parameter = name.rpartition(".")
        kind = type(net.module.get_submodule(layer))
        agrees = torch.allclose(other, right, rtol=AGREE, atol=AGREE * float(right.abs().max()))
        if kind in net.bookkeeping.own_rules and not agrees:
            yield f"the layer rule of {kind.__name__} differs from plain autograd in the gradient of {parameter}"


def _by_autograd(net: FlatModule, x: Tensor, y: Tensor, clip: float) -> Tensor:
    """Each record's clipped gradient by plain autograd [B, P]."""
    masks = _no_masks(net, x)
    limit = torch.tensor(clip, dtype=torch.float64)
    every = torch.eye(len(x)).bool()
    return torch.stack([methods.by_loop(net, net.off_zero(), x, y, only, limit, masks) for only in every])


def _by_method(net: FlatModule, method: GradMethod, x: Tensor, y: Tensor, clip: float) -> Tensor:
    """The same by this method: as many stacked clients as records, each with all records, of which one is valid."""
    clients = len(x)
    flat, x_of, y_of = (given.expand(clients, *given.shape) for given in (net.off_zero(), x, y))
    masks = {name: mask.expand(clients, *mask.shape) for name, mask in _no_masks(net, x).items()}
    limits = torch.tensor(clip, dtype=torch.float64).expand(clients)
    program = Program(method, len(x), torch.float64)
    every = torch.eye(len(x)).bool()
    return torch.cat(methods.clipped_sums(net, program, flat, x_of, y_of, every, limits, masks), 1)


def _no_masks(net: FlatModule, x: Tensor) -> Mapping[str, Tensor]:
    return {name: x.new_ones(len(x), *shape, dtype=torch.float64) for name, (_, shape) in net.dropouts.items()}
