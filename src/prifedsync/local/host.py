"""Stacked clients on the processor: their batches, clipped sums and noise, drawn on the host by each client's own draws.

Axis letters: C clients, B records of a batch, padding included, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..rules import Steps
from . import noise, step
from .augment import CHOICES, crop_flip, moves_from_uniforms
from .batches import choose, expected_size
from .client import Client, Slots, numbers
from .draws import Key
from .job import Part, Phase, column
from .net import Net
from .net.programs import Program
from .optimisers import Stacked
from .step import Gradient, LocalState


@dataclass(frozen=True)
class Records:
    """The records of all clients of a machine in one tensor: a batch of stacked clients is one lookup."""

    x: Tensor
    y: Tensor
    augmented: bool = False


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
    return step.run(rule, clients[0].job.phase(part), begun, strength, gradient, update)


def optimisers_of(clients: Sequence[Client], like: Tensor) -> Stacked:
    """The optimisers of these clients, in the round that each takes part in."""
    return Stacked([client.job.optimiser for client in clients], [client.taken - 1 for client in clients], like)


def gradients(sums: Tensor, round: int, number: int, clients: Sequence[Client], phase: Phase, dtype: torch.dtype) -> Tensor:
    """The gradient of each client [C, P]: its clipped sum, noised and over the expected batch; plain where it is not noisy.

    `number` is the step's in its round."""
    gradient = torch.empty_like(sums, dtype=dtype)  # the grid's multiples are exact in single precision
    for c, client in enumerate(clients):
        gradient[c] = noised(client, round, number, sums[c]) if phase.noisy else sums[c]
    expected = gradient.new_tensor([expected_size(client.job.steps) for client in clients])
    return gradient.div_(expected.unsqueeze(1))


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
    jobs = [client.job for client in clients]
    picked = [
        choose(client.job.steps, client.records, client.name, round, number, client.draws)
        for client in clients
    ]  # fmt: skip
    clips = [job.noisy.clip_norm if job.noisy else 1.0 for job in jobs]
    clip = torch.tensor(clips, dtype=torch.float64, device=weights.device)
    sums = weights.new_zeros(len(clients), net.count, dtype=torch.float64)
    for low in range(0, max(len(p) for p in picked), program.width):
        here = [p[low : low + program.width] for p in picked]
        places, valid = _padded(here, [client.offset for client in clients], program.width)
        x = records.x[places.to(records.x.device)]
        y = records.y[places.to(records.y.device)]
        valid = valid.to(x.device)
        drawn = [dropout_masks(net, client, round, number, p) for client, p in zip(clients, here, strict=True)]
        masks = _stacked(drawn, program.width)
        if records.augmented:
            moves = [{"moves": moves_of(client, round, number, p)} for client, p in zip(clients, here, strict=True)]
            x = crop_flip(x, _stacked(moves, program.width)["moves"].to(x.device))
        with net.exact():
            if phase.noisy:
                some = net.clipped_sums(weights, x, y, valid, clip, masks, program).double()
            else:
                some = net.plain_sums(weights, x, y, valid, masks).double()
        sums = some if low == 0 else sums.add_(some)
    return sums


def plain_sums(net: Net, records: Records, round: int, number: int, client: Client, weights: Tensor) -> Tensor:
    """Σ over one client's batch, nothing clipped, double [1, P]; as many rows as there are records, in fixed pieces."""
    picked = choose(client.job.steps, client.records, client.name, round, number, client.draws)
    weights = weights.clone()  # a row of a stack may begin anywhere in memory, and products round by where it begins
    sums = weights.new_zeros(1, net.count, dtype=torch.float64)
    for here in picked.split(net.most_at_once) if len(picked) else ():
        x = records.x[here.to(records.x.device) + client.offset].unsqueeze(0)
        y = records.y[here.to(records.y.device) + client.offset].unsqueeze(0)
        masks = {name: mask.unsqueeze(0) for name, mask in dropout_masks(net, client, round, number, here).items()}
        if records.augmented:
            x = crop_flip(x, moves_of(client, round, number, here).unsqueeze(0).to(x.device))
        valid = torch.ones(1, len(here), dtype=torch.bool, device=x.device)
        with net.exact():
            sums += net.plain_sums(weights, x, y, valid, masks).double()
    return sums


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


def _padded(picked: list[Tensor], offsets: list[int], width: int) -> tuple[Tensor, Tensor]:
    """Places in the tensor of all records [C, B], and which of them are real; padding repeats a record of the batch."""
    valid = torch.arange(width) < torch.tensor([[len(p)] for p in picked])
    places = torch.zeros(len(picked), width, dtype=torch.long)
    for c, p in enumerate(picked):
        if len(p):  # a client without one, or without any records, points at the first record of all
            places[c] = p[0] + offsets[c]
            places[c, : len(p)] = p + offsets[c]
    return places, valid


def _stacked(masks: list[dict[str, Tensor]], width: int) -> dict[str, Tensor]:
    """What was drawn for stacked clients' records, by name [C, B, …]; padding has zeros."""
    stacked = {}
    for name in masks[0]:
        stacked[name] = masks[0][name].new_zeros(len(masks), width, *masks[0][name].shape[1:])
        for c, mask in enumerate(masks):
            stacked[name][c, : len(mask[name])] = mask[name]
    return stacked
