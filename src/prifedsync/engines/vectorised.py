"""All sampled clients as one batched program: stacked weights [C, P], padded batches [C, B]."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ..local import Job, Phase, host
from ..local.batches import expected_size
from ..local.client import Client, Slots, numbers
from ..local.device.batches import BatchSpec
from ..local.device.stack import Stack, capacity_of
from ..local.device.streams import Streams
from ..local.job import Part, column
from ..local.net import precision
from ..local.net.precision import sums_in
from ..local.net.programs import Program
from ..local.step import LocalState
from ..local.sums import Sums
from ..rules import Steps
from .cohort import Cohort
from .widths import cheapest_width, packed_width, width_of

STACK_BYTES = 2**28  # what a stack of clients may take while it is trained; on a GPU a quarter of its memory
PAIR_BYTES = 40  # of a pair of rows, where the norm of a person is computed from pairs
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

    def kind(self, client: Client) -> tuple[object, ...]:
        if not self.streams:
            return super().kind(client)
        return *super().kind(client), client.job.steps.sampling, client.job.optimiser.weight_decay > 0

    def chunk(self, group: Sequence[Client]) -> int:
        if self.streams:
            return self._stack(group, "upload" if self.rule.uploads else "kept").capacity
        return self.performance.chunk or self._most_stacked([client.job for client in group])

    def records_at_once(self) -> int:
        at_once = self._stack_bytes() // self.net.record_bytes
        most = self.net.most_at_once if self.records.persons is None else precision.DOUBLES_AT_ONCE
        return min(self.performance.records_at_once or max(8, at_once), most)

    def _most_stacked(self, jobs: Sequence[Job]) -> int:
        batch = max(min(2 * expected_size(job.steps), self.records_at_once()) for job in jobs)
        if self.records.persons:
            batch = packed_width(batch, self.records.persons.most, self.records_at_once())
        pairs = PAIR_BYTES * batch**2 if self.records.persons else 0
        return max(1, self._stack_bytes() // (64 * self.net.count + batch * self.net.record_bytes + pairs))

    def _stack_bytes(self) -> int:
        device = self.net.device
        return STACK_BYTES if device.type == "cpu" else torch.cuda.get_device_properties(device).total_memory // 4

    # ------------------------------------------------------------------ local training

    def take_steps(
        self, round: int, clients: Sequence[Client], part: Part, rule: Steps, begun: LocalState, slots: Slots
    ) -> LocalState:
        if not self.streams:

            def gradient(number: int, point: Tensor) -> Tensor:
                return self.gradients(round, number, clients, point, part)

            return host.take_steps(clients, part, rule, begun, slots, gradient)
        stack = self._seated(round, clients, part)
        optimiser = host.optimisers_of(clients, begun.weights)
        seen = column([float(client.seen(part)) for client in clients], begun.weights)
        strength = numbers(clients, begun.weights).strength if rule.anchored else None
        ended = stack.run(begun, slots, seen, optimiser, strength)
        self._count(stack, clients)
        return ended

    def gradients(self, round: int, step: int, clients: Sequence[Client], weights: Tensor, part: Part = "upload") -> Tensor:
        phase = clients[0].job.phase(part)
        if not self.streams:
            sums = self.batch_sums(round, step, clients, weights, part)
            return host.gradients(sums, round, step, clients, phase, self.net.dtype)
        stack = self._seated(round, clients, part)
        gradients = stack.gradients(weights, step)
        self._count(stack, clients)
        return gradients

    def noised_sums(self, round: int, clients: Sequence[Client], weights: Tensor, sums: Sums) -> Tensor:
        if not self.streams:
            return super().noised_sums(round, clients, weights, sums)
        stack = self._seated(round, clients, "upload")
        cells = [sums.grid / sums.factors[client.name] for client in clients]
        words = stack.messages(weights, torch.tensor(cells, dtype=torch.float64).to(weights.device))
        self._count(stack, clients)
        return words

    def batch_sums(
        self, round: int, step: int, clients: Sequence[Client], weights: Tensor, part: Part = "upload"
    ) -> Tensor:
        if self.streams:
            return self._seated(round, clients, part).sums(weights, step)
        phase = clients[0].job.phase(part)
        program = self._program(clients, part)
        if phase.noisy or self.net.dtype != torch.float64:
            return host.batch_sums(self.net, self.records, program, round, step, clients, weights, phase)
        # No probe makes plain sums the same in every stack. In double precision each client's are taken by themselves, so
        # that they have the same bits wherever it is trained.
        rows = zip(clients, weights.split(1), strict=True)
        alone = [host.plain_sums(self.net, self.records, round, step, client, row) for client, row in rows]
        return torch.cat(alone)

    def _count(self, stack: Stack, clients: Sequence[Client]) -> None:
        """What the device counted since these clients were seated."""
        for client, queries in zip(clients, stack.noise.queries(len(clients)), strict=True):
            client.queries += queries

    # ------------------------------------------------------------------ public shapes

    def _program(self, clients: Sequence[Client], part: Part) -> Program:
        return self._program_of(self.kinds[clients[0].index], len(clients), clients[0].job.phase(part))

    def _program_of(self, kind: tuple[object, ...], clients: int, phase: Phase) -> Program:
        """How the sums of so many clients of a kind are taken; all of it follows from public numbers."""
        shape = self._shape(kind)
        if not phase.noisy:  # nothing is clipped
            return Program(self.net.grad_method, shape.width, shape.sums)
        most_rows = self.records.persons.most if self.records.persons else 1
        return self.net.program(clients, shape.width, shape.sums)._replace(most_rows=most_rows)

    def _shape(self, kind: tuple[object, ...]) -> Shape:
        """Of the batches of a kind, decided once for all who may take part."""
        if kind not in self._shapes:
            alike = self._alike(kind)
            jobs = [client.job for client in alike]
            at_once = self.records_at_once()
            if self.streams:
                width = width_of(jobs, at_once)
            else:
                width = cheapest_width(jobs, min(len(jobs), self.chunk(alike)), at_once)
            if self.records.persons:
                width = packed_width(width, self.records.persons.most, at_once)
            self._shapes[kind] = Shape(width, _sums_in(jobs, self.net.sum_dtype))
        return self._shapes[kind]

    @cached_property
    def _shapes(self) -> dict[tuple[object, ...], Shape]:
        return {}

    def _alike(self, kind: tuple[object, ...]) -> list[Client]:
        return [client for client in self.clients if self.kinds[client.index] == kind]

    # ------------------------------------------------------------------ on a device

    @cached_property
    def _stacks(self) -> dict[tuple[object, ...], Stack]:
        return {}

    def _stack(self, group: Sequence[Client], part: Part) -> Stack:
        """The seats for clients of this kind, of which there are so many whoever takes part."""
        kind = self.kinds[group[0].index]
        if (kind, part) not in self._stacks:
            assert self.streams
            alike = self._alike(kind)
            jobs = [client.job for client in alike]
            limit = self.performance.chunk or self._most_stacked(jobs)
            capacity = capacity_of(len(jobs), self.performance.share, min(limit, len(jobs)))
            phase = jobs[0].phase(part)
            program = self._program_of(kind, capacity, phase)
            by_loop = program.grad_method == "loop"
            replays = self.performance.compile != "off" and not by_loop and self.net.device.type == "cuda"
            rule = self.rule.steps if part == "upload" else self.rule.kept
            assert rule is not None
            self._stacks[kind, part] = Stack(
                self.net, self.records, rule, phase, jobs[0].optimiser,
                BatchSpec.of(jobs, [client.records for client in alike], phase), capacity=capacity, program=program,
                compiles=self.compiles and not by_loop, replays=replays,
            )  # fmt: skip
        return self._stacks[kind, part]

    def _seated(self, round: int, clients: Sequence[Client], part: Part) -> Stack:
        stack = self._stack(clients, part)
        stack.load(clients, round, clients[0].attempt if part == "upload" else 0)
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


def _sums_in(jobs: Sequence[Job], fastest: torch.dtype) -> torch.dtype:
    """The most exact that one of these plans asks for."""
    asked = {sums_in(job.noisy, job.plan.neighbours, fastest) for job in jobs if job.plan and job.noisy}
    return torch.float64 if torch.float64 in asked else fastest
