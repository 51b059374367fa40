"""The slow twin that tests trust: one client, one record at a time, plain loops, torch.optim where it has the optimiser."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..local import digests, host, step
from ..local.augment import crop_flip
from ..local.batches import choose
from ..local.client import Client, Slots, numbers
from ..local.job import Part
from ..local.masks import Slot
from ..local.net.persons import FLOOR
from ..local.optimisers import single
from ..local.step import LocalState
from ..local.sums import Sums
from ..rules import Steps
from .cohort import Cohort
from .messages import Masked, Messages, Peers


class Reference(Cohort):
    """Algorithm 2 as it is printed."""

    def take_steps(
        self, round: int, clients: Sequence[Client], part: Part, rule: Steps, begun: LocalState, slots: Slots
    ) -> LocalState:
        (client,) = clients
        job = client.job
        carried = {name: slots[name][0] for name in job.optimiser.slots}
        optimiser = single(job.optimiser, client.rounds - 1, begun.weights[0], carried, client.seen(part))

        def gradient(number: int, point: Tensor) -> Tensor:
            return self.gradients(round, number, clients, point, part)

        def update(before: Tensor, direction: Tensor) -> Tensor:
            optimiser.step(direction[0])
            return optimiser.weights[None]

        strength = numbers(clients, begun.weights).strength
        ended = step.run(rule, client.phase(part), begun, strength, gradient, update)
        for name, vector in optimiser.slots.items():
            slots[name][0] = vector
        return ended

    def messages(self, round: int, listed: Sequence[Client], sums: Sums) -> Messages:
        """Where masks are on, each client masks its own message."""
        if not sums.masked:
            return super().messages(round, listed, sums)
        names = tuple(sorted(client.name for client in listed))
        return Masked(self._peers, Slot(digests.of([repr(sums)]), round, listed[0].attempt, names), self.net.device)

    @cached_property
    def _peers(self) -> Peers:
        assert self.sums is not None
        return Peers(self.names, self.sums.least)

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self.__dict__.pop("_peers", None)  # a run that is resumed meets anew

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
        clip = job.noisy.clip_norm if job.noisy and job.phase(part).noisy else None
        total = weights.new_zeros(self.net.count, dtype=torch.float64)
        for unit in choose(job.steps, client.records, client.name, round, step, client.draws).tolist():
            rows = [self._gradient(round, step, client, weights, row) for row in self._rows(client, unit)]
            mean = torch.stack(rows).mean(0) if len(rows) > 1 else rows[0]
            size = math.hypot(*mean.tolist())
            if len(rows) > 1:  # a person whose rows cancel counts as longer: docs/maths.md, section 18
                size = max(size, FLOOR * math.fsum(math.hypot(*row.tolist()) for row in rows) / len(rows))
            if clip is None:
                total += mean
            elif math.isfinite(size):
                total += mean / max(1.0, size / clip)
        return total

    def _rows(self, client: Client, unit: int) -> list[int]:
        """The client's records that belong to this unit."""
        persons = self.records.persons
        if persons is None:
            return [unit]
        first = int(persons.rows[: client.first_unit + unit].sum()) - client.offset
        return list(range(first, first + int(persons.rows[client.first_unit + unit])))

    def _gradient(self, round: int, step: int, client: Client, weights: Tensor, row: int) -> Tensor:
        """Of one record, double [P]."""
        picked = torch.tensor([row])
        here = slice(client.offset + row, client.offset + row + 1)
        x = self.records.x[here]
        if self.records.augmented:
            x = crop_flip(x, host.moves_of(client, round, step, picked)[0].to(x.device))
        masks = host.dropout_masks(self.net, client, round, step, picked)
        with self.net.exact():
            return self.net.one_record(weights, x, self.records.y[here], masks).double()
