"""The slow twin that tests trust: one client, one record at a time, plain loops, torch.optim where it has the optimiser."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..local import Key, noise
from ..local.augment import crop_flip
from ..local.batches import choose, expected_size
from ..local.optimisers import single
from .cohort import Cohort, LocalState, Part


class Reference(Cohort):
    """Algorithm 2 as it is printed."""

    def _local(self, round: int, group: list[int], part: Part, begun: LocalState, slots: dict[str, Tensor]) -> LocalState:
        (i,) = group
        job, rule, strength = self.jobs[i], self._part(part), self.numbers(group).strength
        phase, seen = (job.upload, self.steps[i]) if part == "upload" else (job.kept, self.kept_seen[i])
        anchor, share = begun.anchor, begun.share
        kept = {name: slots[name][0] for name in job.optimiser.slots}
        optimiser = single(job.optimiser, self.taken[i] - 1, begun.weights[0], kept, seen)
        iterates = []
        for step in range(phase.steps):
            before = optimiser.weights[None]
            noisy = self.gradient(round, phase.first + step, i, rule.point(before, anchor, share)[0], phase.noisy)[None]
            pull = rule.pull(before, anchor, strength)
            optimiser.step((rule.through(noisy, share) + (0 if pull is None else pull))[0])
            share = rule.adapted(share, noisy, before, anchor)
            iterates.append(optimiser.weights)
            if rule.every and len(iterates) % rule.every == 0:
                anchor = rule.moved(anchor, iterates[-1][None])
        for name, vector in optimiser.slots.items():
            slots[name][0] = vector
        last = iterates[phase.averaged_from :]
        return LocalState((sum(last[1:], last[0]) / len(last))[None], anchor, share)

    def gradient(self, round: int, step: int, i: int, weights: Tensor, noisy: bool = True) -> Tensor:
        job = self.jobs[i]
        total = self.batch_sum(round, step, i, weights, noisy)
        if job.noisy and noisy:
            scale, bound = job.noisy.noise_multiplier * job.noisy.clip_norm, job.noisy.records * job.noisy.clip_norm
            total = noise.gaussian(total, scale, bound, self.draws_of(i), Key(job.client, round, step, "noise"))
            self.queries[i] += 1
        return (total / expected_size(job.steps)).to(weights.dtype)

    def batch_sum(self, round: int, step: int, i: int, weights: Tensor, noisy: bool = True) -> Tensor:
        job = self.jobs[i]
        picked = choose(job.steps, self.sizes[i], job.client, round, step, self.draws_of(i))
        masks = self.masks(i, round, step, picked)
        moves = self.moves(i, round, step, picked) if self.augmented else None
        total = weights.new_zeros(self.net.count, dtype=torch.float64)
        for at, record in enumerate(picked.tolist()):
            here = slice(int(self.offsets[i]) + record, int(self.offsets[i]) + record + 1)
            mask = {name: m[at : at + 1] for name, m in masks.items()}
            x = self.x[here] if moves is None else crop_flip(self.x[here], moves[at])
            with self.net.exact():
                v = self.net.one_record(weights, x, self.y[here], mask).double()
            size = math.hypot(*v.tolist())
            if not job.noisy or not noisy:
                total += v
            elif math.isfinite(size):
                total += v / max(1.0, size / job.noisy.clip_norm)
        return total
