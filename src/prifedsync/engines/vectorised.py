"""All sampled clients as one batched program: stacked weights [C, P], padded batches [C, B]."""

from __future__ import annotations

import torch
from torch import Tensor

from ..local import Key, noise
from ..local.batches import choose, expected_size
from ..local.optimisers import Stacked
from ..local.perturbation import released
from .cohort import Cohort

STACK_BYTES = 2**28  # what a stack of clients may take while it is trained


class Vectorised(Cohort):
    """The engine that users run."""

    def chunk(self, group: list[int]) -> int:
        if self.performance.chunk:
            return self.performance.chunk
        batch = max(min(2 * expected_size(self.jobs[i].steps), self.records_at_once()) for i in group)
        return max(1, int(STACK_BYTES // (64 * self.net.count + batch * self.net.record_bytes)))

    def records_at_once(self) -> int:
        chosen = self.performance.records_at_once
        return chosen or max(8, min(1024, STACK_BYTES // self.net.record_bytes))

    def _local(self, round: int, group: list[int], start: Tensor, helper: Tensor, slots: dict[str, Tensor]) -> Tensor:
        jobs = [self.jobs[i] for i in group]
        optimiser = Stacked([job.optimiser for job in jobs], [self.taken[i] - 1 for i in group], start)
        counts = start.new_tensor([self.steps[i] for i in group]).unsqueeze(1)
        weights, mean, first = start, torch.zeros_like(start), jobs[0].averaged_from
        for step in range(jobs[0].steps.local_steps):
            gradient = self.gradient(round, step, group, weights)
            pull = self.rule.pull(weights, helper)
            counts += 1
            weights = optimiser.step(weights, gradient if pull is None else gradient + pull, slots, counts)
            if step >= first:
                mean += (weights - mean) / (step - first + 1)
        return self._perturbed(round, group, start, mean)

    def gradient(self, round: int, step: int, group: list[int], weights: Tensor) -> Tensor:
        """One gradient a client [C, P]: clipped, summed, noised, over the expected batch; plain where there is no plan."""
        sums = self.batch_sums(round, step, group, weights)
        for c, i in enumerate(group):
            noisy = self.jobs[i].noisy
            if noisy:
                key = Key(self.jobs[i].client, round, step, "noise")
                scale, bound = noisy.noise_multiplier * noisy.clip_norm, noisy.records * noisy.clip_norm
                sums[c] = noise.gaussian(sums[c], scale, bound, self.draws, key)
                self.queries[i] += 1
        expected = sums.new_tensor([expected_size(self.jobs[i].steps) for i in group])
        return sums.div_(expected.unsqueeze(1)).to(self.net.dtype)

    def batch_sums(self, round: int, step: int, group: list[int], weights: Tensor) -> Tensor:
        """Σ over each client's batch, double [C, P]; a large batch is taken in pieces."""
        jobs = [self.jobs[i] for i in group]
        picked = [
            choose(job.steps, self.sizes[i], job.client, round, step, self.draws)
            for i, job in zip(group, jobs, strict=True)
        ]
        sums: Tensor | None = None
        private = jobs[0].noisy is not None
        clips = [job.noisy.clip_norm if job.noisy else 1.0 for job in jobs]
        clip = torch.tensor(clips, dtype=torch.float64, device=weights.device)
        width, piece = max(len(p) for p in picked), self.records_at_once()
        for low in range(0, width, piece):
            here = [p[low : low + piece] for p in picked]
            places, valid = _padded(here, self.offsets[group])
            x, y, valid = self.x[places.to(self.x.device)], self.y[places.to(self.y.device)], valid.to(self.x.device)
            masks = _stacked([self.masks(i, round, step, p) for i, p in zip(group, here, strict=True)], valid.shape[1])
            if private:
                part = self.net.clipped_sums(weights, x, y, valid, clip, masks).double()
            else:
                part = self.net.plain_sums(weights, x, y, valid, masks).double()
            sums = part if sums is None else sums.add_(part)
        if sums is None:  # nobody's batch has a record in it
            sums = weights.new_zeros(len(group), self.net.count, dtype=torch.float64)
        return sums

    def _perturbed(self, round: int, group: list[int], start: Tensor, trained: Tensor) -> Tensor:
        for c, i in enumerate(group):
            mechanism = self.jobs[i].output
            if mechanism:
                key = Key(self.jobs[i].client, round, 0, "output")
                trained[c] = released(start[c], trained[c], mechanism, self.draws, key)
                self.queries[i] += 1
        return trained


def _padded(picked: list[Tensor], offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Places in the tensor of all records [C, B], and which of them are real; padding repeats a record of the batch."""
    width = max(len(p) for p in picked)
    valid = torch.arange(width) < torch.tensor([[len(p)] for p in picked])
    places = torch.zeros(len(picked), width, dtype=torch.long)
    for c, p in enumerate(picked):
        if len(p):  # a client without one, or without any records, points at the first record of all
            places[c] = p[0] + offsets[c]
            places[c, : len(p)] = p + offsets[c]
    return places, valid


def _stacked(masks: list[dict[str, Tensor]], width: int) -> dict[str, Tensor]:
    """Masks of stacked clients [C, B, …]; padding has zeros."""
    stacked = {}
    for name in masks[0]:
        stacked[name] = masks[0][name].new_zeros(len(masks), width, *masks[0][name].shape[1:])
        for c, mask in enumerate(masks):
            stacked[name][c, : len(mask[name])] = mask[name]
    return stacked
