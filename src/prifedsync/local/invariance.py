"""Does a record's gradient depend on who else is in the batch? Found out before the first step, by comparing bits.

Sensitivity is about one record: if it comes, goes or changes, the clipped vectors of all others must stay as they are. But
kernels treat the rows of a product differently (the last rows of a block, say), and a row whose terms cancel is nothing but
rounding, which clipping can carry to full length. So a batch always has one public width, and here records are moved
through all its rows, among changing neighbours, on the device and in the arithmetic that will run. A program that gives a
record two results is not used. What is left in the end is one record at a time, where there are no rows.

Axis letters: C clients, W rows of a batch, R records that are tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .programs import ALIGNED, ROWS, Program, Way

if TYPE_CHECKING:
    from .net import Net

Sums = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
TRIED = 8  # records that visit every row
FEW = 4  # of them, where a record has so many numbers that none can hide a difference
MANY = 10**4  # parameters
LARGE = 3e4  # entries of some of them: sums of large terms show every change of order
WEIGHTS = (1.0, 30.0)  # how far from zero the weights of alternating clients are


class Probe(NamedTuple):
    """Made-up records, and weights at which some of their answers cancel."""

    weights: Tensor  # [C, P]
    x: Tensor  # [R, …]
    y: Tensor  # [R]


def invariant(net: Net, clients: int, width: int, sums: torch.dtype) -> Program:
    """The first program for so many clients and records under which a record has the same bits in every row."""
    for program in _candidates(net.way, width, sums):
        if program.way == "loop" or program.width == 1 or _passes(net, program, clients):
            return program
    return Program("loop", width, sums)


def _passes(net: Net, program: Program, clients: int) -> bool:
    try:
        return treats_rows_alike(net, program, clients)
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError):
        return False  # a module of the user's may fail on made-up records in any way; one record at a time is left


def _candidates(way: Way, width: int, sums: torch.dtype) -> list[Program]:
    """Cheapest first: as it is wanted, with a few rows more, with padded layers, with rows in blocks as well."""
    rows = ROWS * math.ceil(width / ROWS)
    blocks = ALIGNED * math.ceil(width / ALIGNED)
    every = [
        Program(way, width, sums),
        Program(way, rows, sums),
        Program(way, rows, sums, ALIGNED),
        Program(way, blocks, sums, ALIGNED),
    ]
    return list(dict.fromkeys(every))


def treats_rows_alike(net: Net, program: Program, clients: int) -> bool:
    """Whether every record has the same gradient, to the last bit, wherever it sits and whoever sits beside it."""
    if not net.takes_made_up:
        return False
    probe = made_up(net, clients, FEW if net.count >= MANY else TRIED)
    together = min(len(probe.x), program.width)
    groups = zip(probe.x.split(together), probe.y.split(together), strict=True)
    seen: list[list[Tensor]] = []
    for x, y in groups:
        gradients = same_in_all_rows(net, program, probe._replace(x=x, y=y))
        if gradients is None:
            return False
        seen.append(gradients)
    return all(tells(torch.cat(part, 1)) for part in zip(*seen, strict=True))


def same_in_all_rows(net: Net, program: Program, probe: Probe) -> list[Tensor] | None:
    """What the gradients of these records are made of [C, R, …]; None if a record has two results."""
    clients = len(probe.weights)
    first: list[Tensor] | None = None
    for which in turns(len(probe.x), program.width, probe.x.device):
        x = probe.x[which].expand(clients, -1, *probe.x.shape[1:])
        y = probe.y[which].expand(clients, -1, *probe.y.shape[1:])
        with net.exact():
            found = net.per_record(probe.weights, x, y, net.no_masks(clients, program.width), program)
        if first is None:
            first = [part[:, : len(probe.x)] for part in found]
        if not all(same(part, seen[:, which]) for part, seen in zip(found, first, strict=True)):
            return None
    return first


def tells(part: Tensor) -> bool:
    """Whether a difference could have shown: two records have numbers here that are not zero, and not the same."""
    if not part.is_floating_point():
        return True
    rows = part.reshape(part.shape[0] * part.shape[1], -1)
    useful = rows[torch.isfinite(rows).all(1) & (rows != 0).any(1)]
    return bool((useful != useful[:1]).any())


def turns(records: int, width: int, device: torch.device) -> Iterator[Tensor]:
    """Which record sits in which row [W]: in all of these together, every record in every row."""
    rows = torch.arange(width, device=device)
    for shift in range(records):
        yield (rows + shift) % records


def same(one: Tensor, other: Tensor) -> bool:
    """Equal to the last bit; what is no number equals what is no number."""
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def made_up(net: Net, clients: int, count: int = TRIED) -> Probe:
    """Records and targets of the right shapes, at weights at which some of their answers cancel. All of it is public."""
    dice = torch.Generator().manual_seed(0)
    weights = _weights(net, clients, dice)
    x = records_like(net.examples[0], net.tokens, count).to(net.device)
    if x.is_floating_point():
        x = x.to(net.dtype)
        cancels = torch.arange(count) % 2 == 0
        x[cancels] = _cancelling(net, weights[0], x[cancels])
    return Probe(weights, x, _targets(net, net.examples[1], weights[0], x, dice))


def records_like(like: Tensor, tokens: int, count: int) -> Tensor:
    """Made-up records of this shape and kind: any numbers, numbers in [0, 1], large ones, and again in [0, 1]."""
    dice = torch.Generator().manual_seed(1)
    shape = (count, *like.shape[1:])
    if not like.is_floating_point():
        return torch.randint(0, tokens, shape, generator=dice).to(like.dtype)
    x = torch.rand(shape, generator=dice, dtype=torch.float64)
    normal = torch.randn(shape, generator=dice, dtype=torch.float64)
    x[::4] = normal[::4]
    x[2::4] = LARGE * normal[2::4]
    return x


def _weights(net: Net, clients: int, dice: torch.Generator) -> Tensor:
    """Nowhere zero: a layer that starts at zero would hide what lies before it."""
    spread = 0.1 * torch.randn(net.count, generator=dice).to(net.device, net.dtype)
    sizes = torch.tensor([WEIGHTS[c % len(WEIGHTS)] for c in range(clients)]).to(net.device, net.dtype)
    return net.initial() + sizes.unsqueeze(1) * spread


def _cancelling(net: Net, weights: Tensor, x: Tensor) -> Tensor:
    """Records moved along the gradient until the model's first answer is nearly zero: a large sum of terms that cancel."""
    for _ in range(2):
        given = x.detach().requires_grad_()
        first = net.outputs(weights, given).reshape(len(x), -1)[:, 0]
        if not first.requires_grad:
            return x
        (slope,) = torch.autograd.grad(first.sum(), given, allow_unused=True, materialize_grads=True)
        steepness = slope.flatten(1).square().sum(1)
        step = torch.where(steepness > 0, first / steepness, 0.0)
        moved = x - step.detach().reshape(-1, *[1] * (x.dim() - 1)) * slope
        x = torch.where(torch.isfinite(moved), moved, x)
    return x


def _targets(net: Net, like: Tensor, weights: Tensor, x: Tensor, dice: torch.Generator) -> Tensor:
    """Random labels; numbers of which every other one is the model's own answer: what is left of it is rounding."""
    answers = net.outputs(weights, x).detach().reshape(len(x), -1)
    shape = (len(x), *like.shape[1:])
    if not like.is_floating_point():
        classes = max(2, answers.shape[1])
        return torch.randint(0, classes, shape, generator=dice).to(net.device, like.dtype)
    y = torch.rand(shape, generator=dice).to(net.device, net.dtype)
    if answers.numel() == y.numel():
        own = torch.arange(len(x), device=net.device) % 2 == 0
        y[own] = torch.nan_to_num(answers).reshape(shape).to(net.dtype)[own]
    return y


def sums_treat_rows_alike(sums: Sums, width: int, seats: int, records: int) -> bool:
    """The same of a compiled program, of which nothing but sums comes out: with one valid record, a sum is that record's.

    `sums` takes the record of each row [C, W] and which rows count [C, W].
    """
    return all(_one_record_alike(sums, record, width, seats, records) for record in range(records))


def _one_record_alike(sums: Sums, record: int, width: int, seats: int, records: int) -> bool:
    rows = torch.arange(width)
    first: tuple[Tensor, ...] | None = None
    for shift in range(width):
        counted = rows == (torch.arange(seats).unsqueeze(1) + shift) % width  # [C, W]: one row of each seat
        neighbours = (rows + record + shift) % records
        which = torch.where(counted, record, neighbours)
        found = tuple(part.clone() for part in sums(which, counted))
        if first is None:
            first = found
        if not all(same(part, seen) for part, seen in zip(found, first, strict=True)):
            return False
    return True
