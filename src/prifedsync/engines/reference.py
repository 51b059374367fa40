"""The slow twin that tests trust: one client, one record at a time, plain loops, torch.optim."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..local import Job, host, step
from ..local.augment import crop_flip
from ..local.batches import choose, expected_size
from ..local.client import Client, Slots, numbers
from ..local.job import Part
from ..local.step import LocalState
from ..rules import Steps
from .cohort import Cohort

NAMES = {  # our slots in torch.optim's words
    "velocity": "momentum_buffer",
    "mean": "exp_avg",
    ("adam", "square"): "exp_avg_sq",
    ("adagrad", "square"): "sum",
    ("rmsprop", "square"): "square_avg",
}


class Reference(Cohort):
    """Algorithm 2 as it is printed."""

    def take_steps(
        self, round: int, clients: Sequence[Client], part: Part, rule: Steps, begun: LocalState, slots: Slots
    ) -> LocalState:
        (client,) = clients
        job = client.job
        weights = torch.nn.Parameter(begun.weights[0].clone())
        optimiser = _optimiser(job, weights, client.taken - 1)
        if client.seen(part):
            _fill(optimiser, job, weights, slots, client.seen(part))

        def gradient(number: int, point: Tensor) -> Tensor:
            return self.gradients(round, number, clients, point, part)

        def update(before: Tensor, direction: Tensor) -> Tensor:
            weights.grad = direction[0]
            optimiser.step()
            return weights.detach()[None].clone()

        strength = numbers(clients, begun.weights).strength
        ended = step.run(rule, job.phase(part), begun, strength, gradient, update)
        for name in job.optimiser.slots:
            slots[name][0] = optimiser.state[weights][_theirs(job, name)]
        return ended

    def gradients(self, round: int, step: int, clients: Sequence[Client], weights: Tensor, part: Part = "upload") -> Tensor:
        sums = self.batch_sums(round, step, clients, weights, part)
        gradients = torch.empty_like(weights)
        for c, client in enumerate(clients):
            total = sums[c]
            if client.job.phase(part).noisy:
                total = host.noised(client, round, step, total)
            gradients[c] = total / expected_size(client.job.steps)
        return gradients

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


def _optimiser(job: Job, weights: torch.nn.Parameter, taken: int) -> torch.optim.Optimizer:
    o = job.optimiser
    rate = o.learning_rate * o.schedule.at(taken)
    if o.name in ("sgd", "momentum"):
        momentum = o.momentum if o.name == "momentum" else 0.0
        return torch.optim.SGD([weights], lr=rate, momentum=momentum, weight_decay=o.weight_decay)
    if o.name == "adam":
        return torch.optim.Adam([weights], lr=rate, betas=o.betas, eps=o.stability, weight_decay=o.weight_decay)
    if o.name == "adagrad":
        return torch.optim.Adagrad([weights], lr=rate, eps=o.stability, weight_decay=o.weight_decay)
    return torch.optim.RMSprop([weights], lr=rate, alpha=o.decay, eps=o.stability, weight_decay=o.weight_decay)


def _fill(
    optimiser: torch.optim.Optimizer, job: Job, weights: torch.nn.Parameter, slots: dict[str, Tensor], steps: int
) -> None:
    """Give torch.optim the state the client carried."""
    state = optimiser.state[weights]
    state["step"] = torch.tensor(float(steps))
    for name in job.optimiser.slots:
        state[_theirs(job, name)] = slots[name][0].clone()


def _theirs(job: Job, name: str) -> str:
    return NAMES.get((job.optimiser.name, name)) or NAMES[name]
