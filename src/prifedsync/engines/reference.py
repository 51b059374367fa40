"""The slow twin that tests trust: one client, one record at a time, plain loops, torch.optim where it has the optimiser."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..local import host, step
from ..local.augment import crop_flip
from ..local.batches import choose
from ..local.client import Client, Slots, numbers
from ..local.job import Part
from ..local.optimisers import single
from ..local.step import LocalState
from ..rules import Steps
from .cohort import Cohort


class Reference(Cohort):
    """Algorithm 2 as it is printed."""

    def take_steps(
        self, round: int, clients: Sequence[Client], part: Part, rule: Steps, begun: LocalState, slots: Slots
    ) -> LocalState:
        (client,) = clients
        job = client.job
        carried = {name: slots[name][0] for name in job.optimiser.slots}
        optimiser = single(job.optimiser, client.taken - 1, begun.weights[0], carried, client.seen(part))

        def gradient(number: int, point: Tensor) -> Tensor:
            return self.gradients(round, number, clients, point, part)

        def update(before: Tensor, direction: Tensor) -> Tensor:
            optimiser.step(direction[0])
            return optimiser.weights[None]

        strength = numbers(clients, begun.weights).strength
        ended = step.run(rule, job.phase(part), begun, strength, gradient, update)
        for name, vector in optimiser.slots.items():
            slots[name][0] = vector
        return ended

    def gradients(self, round: int, step: int, clients: Sequence[Client], weights: Tensor, part: Part = "upload") -> Tensor:
        sums = self.batch_sums(round, step, clients, weights, part)
        return host.gradients(sums, round, step, clients, clients[0].job.phase(part), weights.dtype)

    def batch_sums(
        self, round: int, step: int, clients: Sequence[Client], weights: Tensor, part: Part = "upload"
    ) -> Tensor:
        sums = [self._batch_sum(round, step, client, row, part) for client, row in zip(clients, weights, strict=True)]
        return torch.stack(sums)

    def _batch_sum(self, round: int, step: int, client: Client, weights: Tensor, part: Part) -> Tensor:
        job = client.job
        picked = choose(job.steps, client.records, client.name, round, step, client.draws)
        masks = host.dropout_masks(self.net, client, round, step, picked)
        moves = host.moves_of(client, round, step, picked) if self.records.augmented else None
        total = weights.new_zeros(self.net.count, dtype=torch.float64)
        for at, record in enumerate(picked.tolist()):
            here = slice(client.offset + record, client.offset + record + 1)
            mask = {name: m[at : at + 1] for name, m in masks.items()}
            x = self.records.x[here]
            x = x if moves is None else crop_flip(x, moves[at].to(x.device))
            with self.net.exact():
                v = self.net.one_record(weights, x, self.records.y[here], mask).double()
            size = math.hypot(*v.tolist())
            if not job.noisy or not job.phase(part).noisy:
                total += v
            elif math.isfinite(size):
                total += v / max(1.0, size / job.noisy.clip_norm)
        return total
