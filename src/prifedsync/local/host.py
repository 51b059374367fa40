"""Stacked clients on the processor: their batches, clipped sums and noise, drawn on the host by each client's own draws.

Axis letters: C clients, B records of a batch, padding included, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from ..rules import Steps
from . import noise, step
from .augment import CHOICES, crop_flip, moves_from_uniforms
from .batches import choose, expected_size, packed
from .client import Client, Slots, message, numbers
from .draws import Key
from .job import Part, Phase, column
from .net import Net
from .net.persons import Groups
from .net.programs import Program
from .optimisers import Stacked
from .step import Gradient, LocalState
from .sums import Sums


@dataclass(frozen=True)
class Persons:
    """Where the rows of each person are among all records of a machine; persons in the order of their records."""

    rows: Tensor  # int64 [U]: how many there are
    most: int  # a public bound on that

    @cached_property
    def starts(self) -> Tensor:
        """Where they begin, int64 [U]."""
        return self.rows.cumsum(0) - self.rows

    def to(self, device: torch.device) -> Persons:
        return Persons(self.rows.to(device), self.most)

    def rows_of(self, first: int, units: Tensor) -> tuple[Tensor, Tensor]:
        """All rows of some of a client's persons, the first of which has the number `first`; each row's share."""
        own = units + first
        counts = self.rows[own]
        before = (counts.cumsum(0) - counts).repeat_interleave(counts)
        rows = self.starts[own].repeat_interleave(counts) + torch.arange(len(before)) - before
        return rows, 1 / counts.double().repeat_interleave(counts)


@dataclass(frozen=True)
class Records:
    """The records of all clients of a machine in one tensor: a batch of stacked clients is one lookup."""

    x: Tensor
    y: Tensor
    augmented: bool = False
    persons: Persons | None = None  # None where every record is a unit of its own


def take_steps(
    clients: Sequence[Client], part: Part, rule: Steps, begun: LocalState, slots: Slots, gradient: Gradient
) -> LocalState:
    """All local steps of stacked clients in this part of a round, with noisy gradients from somewhere."""
    optimiser = optimisers_of(clients, begun.weights)
    seen = column([float(client.seen(part)) for client in clients], begun.weights)

    def update(weights: Tensor, direction: Tensor) -> Tensor:
        seen.add_(1)
        return optimiser.step(weights, direction, slots, seen)

    strength = numbers(clients, begun.weights).strength
    return step.run(rule, clients[0].phase(part), begun, strength, gradient, update)


def optimisers_of(clients: Sequence[Client], like: Tensor) -> Stacked:
    """The optimisers of these clients, in the round that each takes part in."""
    return Stacked([client.job.optimiser for client in clients], [client.rounds - 1 for client in clients], like)


def gradients(sums: Tensor, round: int, number: int, clients: Sequence[Client], phase: Phase, dtype: torch.dtype) -> Tensor:
    """The gradient of each client [C, P]: its clipped sum, noised and over the expected batch; plain where it is not noisy.

    `number` is the step's in its round."""
    gradient = torch.empty_like(sums, dtype=dtype)  # the grid's multiples are exact in single precision
    for c, client in enumerate(clients):
        gradient[c] = noised(client, round, number, sums[c]) if phase.noisy else sums[c]
    expected = gradient.new_tensor([expected_size(client.job.steps) for client in clients])
    return gradient.div_(expected.unsqueeze(1))


def messages(sums: Tensor, round: int, clients: Sequence[Client], shared: Sums) -> Tensor:
    """What clients add to a sum, int64 [C, P]: the clipped sum of each, noised."""
    keys = [Key(client.name, round, client.phase("upload").first, "noise") for client in clients]
    return torch.stack([message(*each, shared) for each in zip(clients, sums, keys, strict=True)])


def noised(client: Client, round: int, number: int, total: Tensor) -> Tensor:
    """A clipped sum with the noise of the client's plan, counted."""
    steps = client.job.noisy
    assert steps is not None
    bound = steps.records * steps.clip_norm
    value, queries = noise.gaussian(total, steps.noise_scale, bound, client.draws, Key(client.name, round, number, "noise"))
    client.queries += queries
    return value


def batch_sums(
    net: Net, records: Records, program: Program, round: int, number: int, clients: Sequence[Client], weights: Tensor,
    phase: Phase,
) -> Tensor:  # fmt: skip
    """Σ over each client's batch, double [C, P]; a large batch is taken in pieces."""
    chosen = [choose(client.job.steps, client.records, client.name, round, number, client.draws) for client in clients]
    return sums_over(net, records, program, round, number, clients, weights, phase, chosen)


def sums_over(
    net: Net, records: Records, program: Program, round: int, number: int, clients: Sequence[Client], weights: Tensor,
    phase: Phase, chosen: Sequence[Tensor],
) -> Tensor:  # fmt: skip
    """Σ over these units of each client, double [C, P]."""
    jobs = [client.job for client in clients]
    batches = [_pieces(records, client, units, program.width) for client, units in zip(clients, chosen, strict=True)]
    clips = [job.noisy.clip_norm if job.noisy else 1.0 for job in jobs]
    clip = torch.tensor(clips, dtype=torch.float64, device=weights.device)
    sums = weights.new_zeros(len(clients), net.count, dtype=torch.float64)
    nothing = Piece.of(torch.zeros(0, dtype=torch.long), program.width, records.persons is not None)
    for at in range(max(len(batch) for batch in batches)):
        here = [batch[at] if at < len(batch) else nothing for batch in batches]
        places = torch.stack([_places(piece, client) for piece, client in zip(here, clients, strict=True)])
        x = records.x[places.to(records.x.device)]
        y = records.y[places.to(records.y.device)]
        valid = torch.stack([piece.valid for piece in here]).to(x.device)
        groups = None if records.persons is None else torch.stack([_groups(piece) for piece in here]).to(x.device)
        rows = [(client, round, number, piece.rows[piece.valid]) for client, piece in zip(clients, here, strict=True)]
        masks = _stacked([dropout_masks(net, *each) for each in rows], here)
        if records.augmented:
            moves = [{"moves": moves_of(*each)} for each in rows]
            x = crop_flip(x, _stacked(moves, here)["moves"].to(x.device))
        with net.exact():
            if phase.noisy:
                some = net.clipped_sums(weights, x, y, valid, clip, masks, program, groups).double()
            else:
                some = net.plain_sums(weights, x, y, valid, masks, shares_of(groups, valid)).double()
        sums = some if at == 0 else sums.add_(some)
    return sums


def plain_sums(net: Net, records: Records, round: int, number: int, client: Client, weights: Tensor) -> Tensor:
    """Σ over one client's batch, nothing clipped, double [1, P]; as many rows as there are records, in fixed pieces."""
    units = choose(client.job.steps, client.records, client.name, round, number, client.draws)
    picked, share = units, torch.ones(len(units), dtype=torch.float64)
    if records.persons is not None:
        picked, share = records.persons.rows_of(client.first_unit, units)
        picked = picked - client.offset
    weights = weights.clone()  # a row of a stack may begin anywhere in memory, and products round by where it begins
    sums = weights.new_zeros(1, net.count, dtype=torch.float64)
    pieces = zip(picked.split(net.most_at_once), share.split(net.most_at_once), strict=True) if len(picked) else ()
    for here, shares in pieces:
        x = records.x[here.to(records.x.device) + client.offset].unsqueeze(0)
        y = records.y[here.to(records.y.device) + client.offset].unsqueeze(0)
        masks = {name: mask.unsqueeze(0) for name, mask in dropout_masks(net, client, round, number, here).items()}
        if records.augmented:
            x = crop_flip(x, moves_of(client, round, number, here).unsqueeze(0).to(x.device))
        valid = torch.ones(1, len(here), dtype=torch.bool, device=x.device)
        share_of = None if records.persons is None else shares.unsqueeze(0).to(x.device)
        with net.exact():
            sums += net.plain_sums(weights, x, y, valid, masks, share_of).double()
    return sums


class Piece(NamedTuple):
    """Rows of one client's batch that are looked at together [W], padding included."""

    rows: Tensor  # int64: the client's own numbering
    valid: Tensor  # bool
    groups: Tensor | None = None  # int64: rows with the same number are one person's; None where units are records

    @staticmethod
    def of(rows: Tensor, width: int, persons: bool = False) -> Piece:
        """Rows without persons; padding repeats the first of them. Where others have persons, all is padding."""
        valid = torch.arange(width) < len(rows)
        padded = torch.full((width,), int(rows[0]) if len(rows) else 0)
        padded[: len(rows)] = rows
        return Piece(padded, valid, torch.arange(width) if persons else None)


def _pieces(records: Records, client: Client, units: Tensor, width: int) -> list[Piece]:
    """These units of the client."""
    persons = records.persons
    if persons is None:
        return [Piece.of(rows, width) for rows in units.split(width)] if len(units) else []
    own = units + client.first_unit
    unit, row, valid, groups = packed(persons.rows[own], width, persons.most)
    rows = persons.starts[own][unit] + row - client.offset if len(units) else unit
    return [Piece(*piece) for piece in zip(rows, valid, groups, strict=True)]


def _places(piece: Piece, client: Client) -> Tensor:
    """Among all records; a client without a row points at the first record of all, since it may have none at all."""
    return piece.rows + client.offset if bool(piece.valid.any()) else torch.zeros_like(piece.rows)


def _groups(piece: Piece) -> Tensor:
    assert piece.groups is not None
    return piece.groups


def shares_of(groups: Tensor | None, valid: Tensor) -> Tensor | None:
    """One over the number of the person's rows, for each row [C, B]: private and plain steps minimise the same loss."""
    if groups is None:
        return None
    return 1 / vmap(lambda of, there: Groups(of, 1).rows(there))(groups, valid)


def dropout_masks(net: Net, client: Client, round: int, number: int, picked: Tensor) -> dict[str, Tensor]:
    """Dropout masks of the picked records [B, …], each drawn by its own key."""
    masks = {}
    draws = client.draws
    for layer, (name, (rate, shape)) in enumerate(net.dropouts.items()):
        values = torch.Size(shape).numel()
        keys = [Key(client.name, round, number, f"dropout {layer}", record) for record in picked.tolist()]
        uniforms = [draws.uniform(key, values) for key in keys]
        kept = torch.stack(uniforms) >= rate if uniforms else torch.zeros(0, values)
        masks[name] = (kept / (1 - rate) if rate < 1 else kept).reshape(-1, *shape).to(net.device, net.dtype)
    return masks


def moves_of(client: Client, round: int, number: int, picked: Tensor) -> Tensor:
    """How the picked records are augmented, int64 [B, 3], each by its own key."""
    draws = client.draws
    keys = [Key(client.name, round, number, "augment", record) for record in picked.tolist()]
    uniforms = [draws.uniform(key, len(CHOICES)) for key in keys]
    return moves_from_uniforms(torch.stack(uniforms) if uniforms else torch.zeros(0, len(CHOICES)))


def _stacked(drawn: list[dict[str, Tensor]], pieces: list[Piece]) -> dict[str, Tensor]:
    """What was drawn for stacked clients' records, by name [C, B, …]; padding has zeros."""
    stacked = {}
    for name, first in drawn[0].items():
        stacked[name] = first.new_zeros(len(drawn), len(pieces[0].valid), *first.shape[1:])
        for c, (mine, piece) in enumerate(zip(drawn, pieces, strict=True)):
            stacked[name][c, piece.valid.to(first.device)] = mine[name]
    return stacked
