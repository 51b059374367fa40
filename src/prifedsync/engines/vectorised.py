"""All sampled clients as one batched program: stacked weights [C, P], padded batches [C, B]."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ..local import Job, Key, Phase, Program, noise
from ..local.augment import crop_flip
from ..local.batches import choose, expected_size
from ..local.net.precision import sums_in
from ..local.optimisers import Stacked
from ..local.streams import Streams
from .cohort import Cohort, LocalState, Part
from .device import BatchSpec, Members, Stack, capacity_of
from .widths import cheapest_width, width_of

STACK_BYTES = 2**28  # what a stack of clients may take while it is trained; on a GPU a quarter of its memory
# What a program costs to compile, in seconds, and what it saves: measured on an H200, as docs/results/bench-gpu.md has it.
COMPILE_SECONDS, SAVED_SHARE, STEP_SECONDS, BYTES_A_SECOND = 25.0, 0.6, 5e-3, 1e12


class Shape(NamedTuple):
    """Of the batches of all clients of one kind, from public numbers."""

    width: int  # rows, padding included
    sums: torch.dtype  # what clipped vectors are added up in


class Vectorised(Cohort):
    """The engine that users run."""

    @property
    def streams(self) -> Streams | None:
        return self.draws if self.net.device.type == "cuda" and isinstance(self.draws, Streams) else None

    def kind(self, i: int) -> tuple[object, ...]:
        if not self.streams:
            return super().kind(i)
        return *super().kind(i), self.jobs[i].steps.sampling, self.jobs[i].optimiser.weight_decay > 0

    def chunk(self, group: list[int]) -> int:
        if self.streams:
            return self._stack(group, "upload" if self.rule.uploads else "kept").capacity
        return self.performance.chunk or self._most_stacked([self.jobs[i] for i in group])

    def records_at_once(self) -> int:
        at_once = self._stack_bytes() // self.net.record_bytes
        return min(self.performance.records_at_once or max(8, at_once), self.net.most_at_once)

    def _most_stacked(self, jobs: Sequence[Job]) -> int:
        batch = max(min(2 * expected_size(job.steps), self.records_at_once()) for job in jobs)
        return max(1, self._stack_bytes() // (64 * self.net.count + batch * self.net.record_bytes))

    def _stack_bytes(self) -> int:
        device = self.net.device
        return STACK_BYTES if device.type == "cpu" else torch.cuda.get_device_properties(device).total_memory // 4

    # ------------------------------------------------------------------ public shapes

    def _program(self, kind: tuple[object, ...], clients: int, phase: Phase) -> Program:
        """How the sums of so many clients of a kind are taken; all of it follows from public numbers."""
        shape = self._shape(kind)
        if not phase.noisy:  # nothing is clipped
            return Program(self.net.grad_method, shape.width, shape.sums)
        return self.net.program(clients, shape.width, shape.sums)

    def _shape(self, kind: tuple[object, ...]) -> Shape:
        """Of the batches of a kind, decided once for all who may take part."""
        if kind not in self._shapes:
            alike = self._alike(kind)
            jobs = [self.jobs[i] for i in alike]
            at_once = self.records_at_once()
            if self.streams:
                width = width_of(jobs, at_once)
            else:
                width = cheapest_width(jobs, min(len(jobs), self.chunk(alike)), at_once)
            self._shapes[kind] = Shape(width, _sums_in(jobs, self.net.sum_dtype))
        return self._shapes[kind]

    @cached_property
    def _shapes(self) -> dict[tuple[object, ...], Shape]:
        return {}

    def _alike(self, kind: tuple[object, ...]) -> list[int]:
        return [i for i, its in enumerate(self.kinds) if its == kind]

    # ------------------------------------------------------------------ on a device

    @cached_property
    def _stacks(self) -> dict[tuple[object, ...], Stack]:
        return {}

    def _stack(self, group: Sequence[int], part: Part) -> Stack:
        """The seats for clients of this kind, of which there are so many whoever takes part."""
        kind = self.kinds[group[0]]
        if (kind, part) not in self._stacks:
            assert self.streams
            alike = self._alike(kind)
            jobs, sizes = [self.jobs[i] for i in alike], [self.sizes[i] for i in alike]
            limit = self.performance.chunk or self._most_stacked(jobs)
            capacity = capacity_of(len(jobs), self.performance.share, min(limit, len(jobs)))
            phase = jobs[0].upload if part == "upload" else jobs[0].kept
            program = self._program(kind, capacity, phase)
            by_loop = program.grad_method == "loop"
            replays = self.performance.compile != "off" and not by_loop and self.net.device.type == "cuda"
            self._stacks[kind, part] = Stack(
                self.net, self.x, self.y, self._part(part), phase, jobs[0].optimiser,
                BatchSpec.of(jobs, sizes, phase), augmented=self.augmented, capacity=capacity, program=program,
                compiles=self.compiles and not by_loop, replays=replays,
            )  # fmt: skip
        return self._stacks[kind, part]

    def _seated(self, round: int, group: Sequence[int], part: Part) -> Stack:
        stack = self._stack(group, part)
        jobs, sizes = [self.jobs[i] for i in group], [self.sizes[i] for i in group]
        draws = [self.streams_of(i) for i in group]
        stack.load(Members(jobs, sizes, self.offsets[list(group)].tolist(), draws), round)
        return stack

    def worth_compiling(self) -> bool:
        """Whether what is planned wins the compiler's time back; the same answer on every machine."""
        if not self.streams or self.net.grad_method == "loop":  # a loop over records cannot be traced: it depends on them
            return False
        if self.performance.compile != "auto":
            return self.performance.compile == "on"
        clients = len(self.jobs) * self.performance.share
        steps = sum(job.upload.steps + job.kept.steps for job in self.jobs) / len(self.jobs)
        records = sum(expected_size(job.steps) for job in self.jobs) / len(self.jobs)
        eager = STEP_SECONDS + clients * records * self.net.record_bytes / BYTES_A_SECOND
        return self.performance.rounds * steps * eager * SAVED_SHARE > COMPILE_SECONDS

    # ------------------------------------------------------------------ local training

    def _local(self, round: int, group: list[int], part: Part, begun: LocalState, slots: dict[str, Tensor]) -> LocalState:
        if self.streams:
            return self._on_device(round, group, part, begun, slots)
        rule, phase, optimiser = self._part(part), self._phase(group, part), self._optimisers(group, begun.weights)
        counts, strength = self._seen(group, part), self.numbers(group).strength
        (weights, anchor, share), mean = begun, begun.weights
        for step in range(phase.steps):
            gradient = self.gradient(round, phase.first + step, group, rule.point(weights, anchor, share), part)
            adapted = rule.adapted(share, gradient, weights, anchor)
            direction, pull = rule.through(gradient, share), rule.pull(weights, anchor, strength)
            counts += 1
            weights = optimiser.step(weights, direction if pull is None else direction + pull, slots, counts)
            share = adapted
            if rule.every and (step + 1) % rule.every == 0:
                anchor = rule.moved(anchor, weights)
            if step >= phase.averaged_from:
                nth = step - phase.averaged_from + 1
                mean = weights if nth == 1 else mean + (weights - mean) / nth
        return LocalState(mean, anchor, share)

    def _on_device(
        self, round: int, group: list[int], part: Part, begun: LocalState, slots: dict[str, Tensor]
    ) -> LocalState:
        phase, optimiser = self._phase(group, part), self._optimisers(group, begun.weights)
        strength = self.numbers(group).strength if self._part(part).anchored else None
        found = self._seated(round, group, part).run(begun, slots, self._seen(group, part), optimiser, strength)
        if phase.noisy:
            for i in group:
                self.queries[i] += phase.steps
        return found

    def _optimisers(self, group: list[int], like: Tensor) -> Stacked:
        return Stacked([self.jobs[i].optimiser for i in group], [self.taken[i] - 1 for i in group], like)

    def _seen(self, group: list[int], part: Part) -> Tensor:
        seen = self.steps if part == "upload" else self.kept_seen
        return self._column([float(seen[i]) for i in group])

    def _phase(self, group: Sequence[int], part: Part) -> Phase:
        job = self.jobs[group[0]]
        return job.upload if part == "upload" else job.kept

    def gradient(self, round: int, step: int, group: list[int], weights: Tensor, part: Part = "upload") -> Tensor:
        """One gradient a client [C, P]: clipped, summed, noised, over the expected batch; plain where it is not noisy.

        `step` is its number in the round."""
        noisy_part = self._phase(group, part).noisy
        if self.streams:
            for i in group:
                self.queries[i] += noisy_part
            return self._seated(round, group, part).gradients(weights, step)
        sums = self.batch_sums(round, step, group, weights, part)
        gradient = torch.empty_like(sums, dtype=self.net.dtype)  # the grid's multiples are exact in single precision
        for c, i in enumerate(group):
            noisy = self.jobs[i].noisy
            if noisy and noisy_part:
                key = Key(self.jobs[i].client, round, step, "noise")
                scale, bound = noisy.noise_multiplier * noisy.clip_norm, noisy.records * noisy.clip_norm
                gradient[c] = noise.gaussian(sums[c], scale, bound, self.draws_of(i), key)
                self.queries[i] += 1
            else:
                gradient[c] = sums[c]
        expected = gradient.new_tensor([expected_size(self.jobs[i].steps) for i in group])
        return gradient.div_(expected.unsqueeze(1))

    def batch_sums(self, round: int, step: int, group: list[int], weights: Tensor, part: Part = "upload") -> Tensor:
        """Σ over each client's batch, double [C, P]; a large batch is taken in pieces."""
        if self.streams:
            return self._seated(round, group, part).sums(weights, step)
        jobs = [self.jobs[i] for i in group]
        picked = [
            choose(job.steps, self.sizes[i], job.client, round, step, self.draws_of(i))
            for i, job in zip(group, jobs, strict=True)
        ]
        sums: Tensor | None = None
        private = self._phase(group, part).noisy
        clips = [job.noisy.clip_norm if job.noisy else 1.0 for job in jobs]
        clip = torch.tensor(clips, dtype=torch.float64, device=weights.device)
        program = self._program(self.kinds[group[0]], len(group), self._phase(group, part))
        for low in range(0, max(len(p) for p in picked), program.width):
            here = [p[low : low + program.width] for p in picked]
            places, valid = _padded(here, self.offsets[group], program.width)
            x, y, valid = self.x[places.to(self.x.device)], self.y[places.to(self.y.device)], valid.to(self.x.device)
            masks = _stacked([self.masks(i, round, step, p) for i, p in zip(group, here, strict=True)], valid.shape[1])
            if self.augmented:
                moves = [{"moves": self.moves(i, round, step, p)} for i, p in zip(group, here, strict=True)]
                x = crop_flip(x, _stacked(moves, valid.shape[1])["moves"])
            with self.net.exact():
                if private:
                    some = self.net.clipped_sums(weights, x, y, valid, clip, masks, program).double()
                else:
                    some = self.net.plain_sums(weights, x, y, valid, masks).double()
            sums = some if sums is None else sums.add_(some)
        if sums is None:  # nobody's batch has a record in it
            sums = weights.new_zeros(len(group), self.net.count, dtype=torch.float64)
        return sums


def _sums_in(jobs: Sequence[Job], fastest: torch.dtype) -> torch.dtype:
    """The most exact that one of these plans asks for."""
    asked = {sums_in(job.noisy, job.plan.neighbours, fastest) for job in jobs if job.plan and job.noisy}
    return torch.float64 if torch.float64 in asked else fastest


def _padded(picked: list[Tensor], offsets: Tensor, width: int) -> tuple[Tensor, Tensor]:
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
