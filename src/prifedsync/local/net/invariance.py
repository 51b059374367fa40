"""Does a record's gradient depend on the other records of the batch? Tested before the first step, bit by bit.

Sensitivity is about one record: if it is added, removed or replaced, the clipped gradients of all others must not change.
But kernels round the rows of a matrix product differently (the last rows of a block, for example). A row whose terms cancel
consists of rounding errors alone, and clipping can scale those up to full length. So a batch always has one public width,
and here records are moved through all its rows, among changing other records, on the device and in the arithmetic that
will run. A program that gives a record two results is not used. The last resort is one record at a time.

Axis letters: C clients, W rows of a batch, R records that are tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .programs import ALIGNED, ROWS, GradMethod, Program

if TYPE_CHECKING:
    from .net import Net

Sums = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
TRIED = 8  # records that visit every row
FEW = 4  # of them for a large net: its records have so many numbers that a difference shows in some
MANY = 10**4  # parameters
LARGE = 3e4  # scale of some records: a sum of large terms shows every change of order
WEIGHTS = (1.0, 30.0)  # scale of the weights of alternating clients


class Probe(NamedTuple):
    """Made-up records, and weights at which the terms of some outputs cancel."""

    weights: Tensor  # [C, P]
    x: Tensor  # [R, …]
    y: Tensor  # [R]


def invariant(net: Net, clients: int, width: int, sums: torch.dtype) -> Program:
    """The first program for so many clients and rows in which a record has the same bits in every row."""
    for program in _candidates(net.grad_method, width, sums):
        if program.grad_method == "loop" or program.width == 1 or _passes(net, program, clients):
            return program
    return Program("loop", width, sums)


def _passes(net: Net, program: Program, clients: int) -> bool:
    try:
        return treats_rows_alike(net, program, clients)
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError):
        return False  # a user's module may fail on made-up records; one record at a time remains


def _candidates(method: GradMethod, width: int, sums: torch.dtype) -> list[Program]:
    """Cheapest first: the width that was asked for, a few rows more, padded layers, and blocks of rows as well."""
    rows = ROWS * math.ceil(width / ROWS)
    blocks = ALIGNED * math.ceil(width / ALIGNED)
    every = [
        Program(method, width, sums),
        Program(method, rows, sums),
        Program(method, rows, sums, ALIGNED),
        Program(method, blocks, sums, ALIGNED),
    ]
    return list(dict.fromkeys(every))


def treats_rows_alike(net: Net, program: Program, clients: int) -> bool:
    """Whether every record has the same gradient, to the last bit, in every row and beside all other records."""
    if not net.takes_made_up:
        return False
    probe = made_up(net, clients, FEW if net.count >= MANY else TRIED)
    together = min(len(probe.x), program.width)
    groups = zip(probe.x.split(together), probe.y.split(together), strict=True)
    by_group: list[list[Tensor]] = []
    for x, y in groups:
        gradients = same_in_all_rows(net, program, probe._replace(x=x, y=y))
        if gradients is None:
            return False
        by_group.append(gradients)
    return all(tells(torch.cat(part, 1)) for part in zip(*by_group, strict=True))


def same_in_all_rows(net: Net, program: Program, probe: Probe) -> list[Tensor] | None:
    """The numbers that these records' gradients are made of [C, R, …]; None if a record has two results."""
    clients = len(probe.weights)
    first: list[Tensor] | None = None
    for which in turns(len(probe.x), program.width, probe.x.device):
        x = probe.x[which].expand(clients, -1, *probe.x.shape[1:])
        y = probe.y[which].expand(clients, -1, *probe.y.shape[1:])
        with net.exact():
            parts = net.per_record(probe.weights, x, y, net.no_masks(clients, program.width), program)
        if first is None:
            first = [part[:, : len(probe.x)] for part in parts]
        if not all(same(part, before[:, which]) for part, before in zip(parts, first, strict=True)):
            return None
    return first


def tells(part: Tensor) -> bool:
    """Whether a difference could have been seen: two records have finite numbers here, not all zero, that differ."""
    if not part.is_floating_point():
        return True
    rows = part.reshape(part.shape[0] * part.shape[1], -1)
    useful = rows[torch.isfinite(rows).all(1) & (rows != 0).any(1)]
    return bool((useful != useful[:1]).any())


def turns(records: int, width: int, device: torch.device) -> Iterator[Tensor]:
    """Which record is in which row [W]; over all turns, every record has been in every row."""
    rows = torch.arange(width, device=device)
    for shift in range(records):
        yield (rows + shift) % records


def same(one: Tensor, other: Tensor) -> bool:
    """Equal to the last bit; NaN equals NaN."""
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def made_up(net: Net, clients: int, count: int = TRIED) -> Probe:
    """Records and targets of the right shapes, and weights at which the terms of some outputs cancel. All are public."""
    generator = torch.Generator().manual_seed(0)
    weights = _weights(net, clients, generator)
    x = records_like(net.examples[0], net.tokens, count).to(net.device)
    if x.is_floating_point():
        x = x.to(net.dtype)
        cancels = torch.arange(count) % 2 == 0
        x[cancels] = _cancelling(net, weights[0], x[cancels])
    return Probe(weights, x, _targets(net, net.examples[1], weights[0], x, generator))


def records_like(like: Tensor, tokens: int, count: int) -> Tensor:
    """Made-up records of this shape and type: in turn normal numbers, uniform ones in [0, 1], large ones, uniform ones."""
    generator = torch.Generator().manual_seed(1)
    shape = (count, *like.shape[1:])
    if not like.is_floating_point():
        return torch.randint(0, tokens, shape, generator=generator).to(like.dtype)
    x = torch.rand(shape, generator=generator, dtype=torch.float64)
    normal = torch.randn(shape, generator=generator, dtype=torch.float64)
    x[::4] = normal[::4]
    x[2::4] = LARGE * normal[2::4]
    return x


def _weights(net: Net, clients: int, generator: torch.Generator) -> Tensor:
    """Nowhere zero: a layer whose weights are zero would hide the layers before it."""
    spread = 0.1 * torch.randn(net.count, generator=generator).to(net.device, net.dtype)
    sizes = torch.tensor([WEIGHTS[c % len(WEIGHTS)] for c in range(clients)]).to(net.device, net.dtype)
    return net.initial() + sizes.unsqueeze(1) * spread


def _cancelling(net: Net, weights: Tensor, x: Tensor) -> Tensor:
    """Records moved along the gradient until the first output is nearly zero: a sum of large terms that cancel."""
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


def _targets(net: Net, like: Tensor, weights: Tensor, x: Tensor, generator: torch.Generator) -> Tensor:
    """Random labels. For regression every other target is the model's own output, so that its residual is rounding."""
    outputs = net.outputs(weights, x).detach().reshape(len(x), -1)
    shape = (len(x), *like.shape[1:])
    if not like.is_floating_point():
        classes = max(2, outputs.shape[1])
        return torch.randint(0, classes, shape, generator=generator).to(net.device, like.dtype)
    y = torch.rand(shape, generator=generator).to(net.device, net.dtype)
    if outputs.numel() == y.numel():
        own = torch.arange(len(x), device=net.device) % 2 == 0
        y[own] = torch.nan_to_num(outputs).reshape(shape).to(net.dtype)[own]
    return y


def sums_treat_rows_alike(sums: Sums, width: int, seats: int, records: int) -> bool:
    """The same test for a compiled program, which returns sums only: with one valid record, the sum is that record's.

    `sums` takes the record of each row [C, W] and which rows are valid [C, W].
    """
    return all(_one_record_alike(sums, record, width, seats, records) for record in range(records))


def _one_record_alike(sums: Sums, record: int, width: int, seats: int, records: int) -> bool:
    rows = torch.arange(width)
    first: tuple[Tensor, ...] | None = None
    for shift in range(width):
        counted = rows == (torch.arange(seats).unsqueeze(1) + shift) % width  # [C, W]: one row of each seat
        neighbours = (rows + record + shift) % records
        which = torch.where(counted, record, neighbours)
        totals = tuple(part.clone() for part in sums(which, counted))
        if first is None:
            first = totals
        if not all(same(total, before) for total, before in zip(totals, first, strict=True)):
            return False
    return True
