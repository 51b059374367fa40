"""The slow twin that tests trust: one client, one record at a time, plain loops, torch.optim."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..local import Job, Key, noise
from ..local.batches import choose, expected_size
from ..local.perturbation import released
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

    def _local(self, round: int, group: list[int], start: Tensor, helper: Tensor, slots: dict[str, Tensor]) -> Tensor:
        (i,) = group
        job = self.jobs[i]
        weights = torch.nn.Parameter(start[0].clone())
        optimiser = _optimiser(job, weights, self.taken[i] - 1)
        if self.steps[i]:
            _fill(optimiser, job, weights, slots, self.steps[i])
        iterates = []
        for step in range(job.steps.local_steps):
            gradient = self.gradient(round, step, i, weights.detach())
            pull = self.rule.pull(weights.detach()[None], helper)
            weights.grad = gradient if pull is None else gradient + pull[0]
            optimiser.step()
            iterates.append(weights.detach().clone())
        for name in job.optimiser.slots:
            slots[name][0] = optimiser.state[weights][_theirs(job, name)]
        kept = iterates[job.averaged_from :]
        trained = sum(kept[1:], kept[0]) / len(kept)
        if job.output:
            self.queries[i] += 1
            trained = released(start[0], trained, job.output, self.draws, Key(job.client, round, 0, "output"))
        return trained[None]

    def gradient(self, round: int, step: int, i: int, weights: Tensor) -> Tensor:
        job = self.jobs[i]
        total = self.batch_sum(round, step, i, weights)
        if job.noisy:
            scale, bound = job.noisy.noise_multiplier * job.noisy.clip_norm, job.noisy.records * job.noisy.clip_norm
            total = noise.gaussian(total, scale, bound, self.draws, Key(job.client, round, step, "noise"))
            self.queries[i] += 1
        return (total / expected_size(job.steps)).to(weights.dtype)

    def batch_sum(self, round: int, step: int, i: int, weights: Tensor) -> Tensor:
        job = self.jobs[i]
        picked = choose(job.steps, self.sizes[i], job.client, round, step, self.draws)
        masks = self.masks(i, round, step, picked)
        total = weights.new_zeros(self.net.count, dtype=torch.float64)
        for at, record in enumerate(picked.tolist()):
            here = slice(int(self.offsets[i]) + record, int(self.offsets[i]) + record + 1)
            mask = {name: m[at : at + 1] for name, m in masks.items()}
            with self.net.exact():
                v = self.net.one_record(weights, self.x[here], self.y[here], mask).double()
            size = math.hypot(*v.tolist())
            if not job.noisy:
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
