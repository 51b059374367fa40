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
FEW = 3  # of them, where a record has so many numbers that none can hide a difference
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
        if program.way == "loop" or program.width == 1 or treats_rows_alike(net, program, clients):
            return program
    return Program("loop", width, sums)


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
    probe = made_up(net, clients, FEW if net.count >= MANY else TRIED)
    together = min(len(probe.x), program.width)
    return all(
        same_in_all_rows(net, program, probe._replace(x=x, y=y))
        for x, y in zip(probe.x.split(together), probe.y.split(together), strict=True)
    )


def same_in_all_rows(net: Net, program: Program, probe: Probe) -> bool:
    """The same for these records, of which there are no more than rows."""
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
            return False
    return True


def turns(records: int, width: int, device: torch.device) -> Iterator[Tensor]:
    """Which record sits in which row [W]: in all of these together, every record in every row."""
    rows = torch.arange(width, device=device)
    for shift in range(records):
        yield (rows + shift) % records


def same(one: Tensor, other: Tensor) -> bool:
    """Equal to the last bit; what is no number equals what is no number."""
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def made_up(net: Net, clients: int, count: int = TRIED) -> Probe:
    """Records of the right shape, of which every other one has an answer that cancels; public, whatever the data."""
    dice = torch.Generator().manual_seed(0)
    like_x, like_y = net.examples
    few = torch.arange(count) % len(like_x)
    weights = _weights(net, clients, dice)
    if not like_x.is_floating_point():
        order = torch.randperm(like_x[few].numel(), generator=dice)
        tokens = like_x[few].flatten()[order].reshape(count, *like_x.shape[1:])
        return Probe(weights, tokens.to(net.device), _targets(net, like_y[few], weights[0], tokens))
    x = torch.randn(count, *like_x.shape[1:], generator=dice, dtype=torch.float64)
    x[1::2] *= LARGE
    x = x.to(net.device, net.dtype)
    x[::2] = _cancelling(net, weights[0], x[::2])
    return Probe(weights, x, _targets(net, like_y[few], weights[0], x))


def _weights(net: Net, clients: int, dice: torch.Generator) -> Tensor:
    """Nowhere zero: a layer that starts at zero would hide what lies before it."""
    spread = 0.1 * torch.randn(net.count, generator=dice).to(net.device, net.dtype)
    sizes = torch.tensor([WEIGHTS[c % len(WEIGHTS)] for c in range(clients)]).to(net.device, net.dtype)
    return net.initial() + sizes.unsqueeze(1) * spread


def _cancelling(net: Net, weights: Tensor, x: Tensor) -> Tensor:
    """Records moved along the gradient until the model's first answer is nearly zero: a large sum of terms that cancel."""
    for _ in range(2):
        given = x.detach().requires_grad_()
        first = net.outputs(weights, given).flatten(1)[:, 0]
        (slope,) = torch.autograd.grad(first.sum(), given)
        steepness = slope.flatten(1).square().sum(1)
        step = torch.where(steepness > 0, first / steepness, 0.0)
        x = x - step.detach().reshape(-1, *[1] * (x.dim() - 1)) * slope
    return torch.nan_to_num(x)


def _targets(net: Net, like: Tensor, weights: Tensor, x: Tensor) -> Tensor:
    """Labels as they come; numbers that the model answers itself, so that what is left of a residual is rounding."""
    if not like.is_floating_point():
        return like.to(net.device)
    answers = net.outputs(weights, x.to(net.device)).detach()
    if answers.numel() == like.numel():
        return answers.reshape(like.shape).to(net.dtype)
    return like.to(net.device, net.dtype)


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
