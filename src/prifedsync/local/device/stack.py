"""Stacked clients on a GPU: tensors that stay in place, and one local step that is made once and replayed.

Every random number is made on the device from the client's own stream (`streams.py`), so a step is nothing but work
for the device: which records, their clipped gradients, noise, optimiser. The host only says how often.
Axis letters: C clients, P parameters, K local steps, W records of a batch, padding included.
"""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from ...rules import Steps
from .. import noise, step
from ..augment import CHOICES, crop_flip, moves_from_words
from ..batches import expected_size
from ..client import Client
from ..host import Records, shares_of
from ..job import Job, Phase
from ..net import Net, invariance
from ..net.programs import Program
from ..noise import DeviceNoise
from ..optimisers import Optimiser, Stacked
from ..step import LocalState
from . import streams
from .batches import Batches, BatchSpec, BatchTensors, choose, with_rows
from .compiled import compiled

UNIFORMS_REPLAYED = 2**22  # up to so many a round, queueing that work costs more than the work
ALIGNED = 32  # a client's vector begins at a multiple of this: products read it several entries at a time
FIXED_COST = 8  # what a stack costs besides its clients, in clients


def _sent(
    values: Sequence[float] | Sequence[Sequence[float]], device: torch.device, dtype: torch.dtype = torch.long
) -> Tensor:
    """On the device, in the order of its work: the host need not wait until it is there."""
    return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)


def capacity_of(clients: int, share: float, limit: int) -> int:
    """Clients in a stack, decided once so that rounds of changing size share one program: what costs least on average."""
    if share >= 1:
        return math.ceil(clients / math.ceil(clients / limit))
    present = np.arange(clients + 1)
    chance = stats.binom.pmf(present, clients, share)
    sizes = np.arange(1, min(clients, limit) + 1)
    costs = [float(chance @ np.ceil(present / size)) * (size + FIXED_COST) for size in sizes]
    return int(sizes[int(np.argmin(costs))])


class Stack:
    """Room for some clients of one kind. Rows that nobody sits in have no records, and noise that nobody sees."""

    def __init__(
        self, net: Net, records: Records, rule: Steps, phase: Phase, optimiser: Optimiser, spec: BatchSpec, *,
        capacity: int, program: Program, compiles: bool, replays: bool,
    ) -> None:  # fmt: skip
        self.net = net
        self.rule = rule
        self.phase = phase
        self.augmented = records.augmented
        self.program = program
        # where nobody has a record, padding still points at one
        self.x, self.y = (each if len(each) else each.new_zeros(1, *each.shape[1:]) for each in (records.x, records.y))
        self.spec = spec
        self.persons = records.persons and records.persons.to(net.device)
        self.capacity = capacity
        self.width = program.width
        self.replays = replays
        self.private = phase.noisy
        self.first = phase.first
        self.local_steps = phase.steps

        def tensor(*shape: int, dtype: torch.dtype = net.dtype) -> Tensor:
            return torch.zeros(capacity, *shape, dtype=dtype, device=net.device)

        def vectors() -> Tensor:
            return tensor(ALIGNED * math.ceil(net.count / ALIGNED))[:, : net.count]

        self.weights = vectors()
        self.slots = {name: vectors() for name in optimiser.slots}
        self.anchor = vectors() if rule.anchored else None
        self.share, self.strength = tensor(1).add_(1), tensor(1)
        self.mean = vectors() if step.averages(phase) else None
        plain = self.anchor is None and self.mean is None
        known = optimiser.update.kernel is not None  # else `_updated` takes the step
        self.at_once = plain and known and net.device.type == "cuda" and streams.kernels_there()
        self.gradient = tensor(net.count if self.private and not self.at_once else 0)
        self.optimiser = Stacked([optimiser] * capacity, [0] * capacity, self.weights)
        self.counts = tensor(1)  # steps that the carried state has seen
        self.numbers = torch.ones(5, capacity, dtype=torch.float64, device=net.device)
        self.clip, scale, grid, self.divisor, rates = self.numbers
        self.wholes = torch.zeros(4, capacity, dtype=torch.long, device=net.device)
        sizes, offsets, wanted, self.first_rows = self.wholes
        self.terms = BatchTensors(sizes, offsets, wanted, rates)
        self.purposes = ["noise", "batch", *(f"dropout {layer}" for layer in range(len(net.dropouts)))]
        self.purposes += ["augment"] if records.augmented else []
        self.keys = torch.zeros(len(self.purposes), capacity, 8, dtype=torch.int32, device=net.device)
        self.step = torch.full((1,), phase.first, dtype=torch.int32, device=net.device)
        made = torch.zeros(capacity, len(net.sizes), dtype=torch.int32, device=net.device)
        self.noise = DeviceNoise(self.keys[0], self.step, scale, grid, self.divisor, made)
        # what a Poisson batch, or one of persons, needs shows when it is drawn
        self.grows = spec.kind == "poisson" or self.persons is not None
        self.pieces = 1 if self.grows else math.ceil(spec.batch / self.width)
        self.batches = self._room_for(self.pieces)
        self._graphs: dict[object, torch.cuda.CUDAGraph | None] = {}  # what is replayed; None: done once
        self._sums: Callable[..., tuple[Tensor, ...]] = self._sums_of
        self._update: Callable[..., None] = self._updated
        if compiles:
            with self.net.exact():
                self._sums = compiled(self._sums_of, *self._sum_arguments(self._point(), 0))
                if not self.at_once:
                    # on zeros: every round begins anew
                    self._update = compiled(self._updated, torch.zeros_like(self.weights), *self._update_arguments())
        if self.private and program.grad_method != "loop" and (compiles or net.device.type == "cuda"):
            self._choose_invariant(compiles)

    # ------------------------------------------------------------------ a round

    def load(self, clients: Sequence[Client], round: int, attempt: int) -> None:
        """Seat these clients for a round: their numbers, keys and batches. A further attempt has streams of its own."""
        seats = slice(len(clients))
        numbers = [_numbers(client.job) for client in clients]
        self.numbers[:, seats] = _sent(numbers, self.step.device, torch.float64).T
        draws = [client.streams for client in clients]
        names = [client.name for client in clients]
        self.keys[:, seats] = streams.keys(draws, names, round, self._purposes(attempt), self.step.device)
        self.wholes.zero_()  # seats that nobody has draw nothing
        self.wholes[:, seats] = _sent(_wholes(clients, self.persons is not None), self.step.device)
        self.noise.made.zero_()
        if self.grows:
            self._choose()
        else:
            uniforms = self.capacity * self.local_steps * self.spec.records
            self._replayed("batches", self._choose, uniforms <= UNIFORMS_REPLAYED)

    def _purposes(self, attempt: int) -> list[str]:
        return [f"{purpose}, attempt {attempt}" for purpose in self.purposes] if attempt else self.purposes

    def run(
        self, begun: LocalState, slots: dict[str, Tensor], counts: Tensor, optimiser: Stacked, strength: Tensor | None
    ) -> LocalState:
        """All local steps; `slots` hold the new state after it, in place until the next round."""
        seats = slice(len(counts))
        self._seat(self.weights, begun.weights)
        for name, rows in self.slots.items():
            self._seat(rows, slots[name])
        if self.anchor is not None and strength is not None:
            self._seat(self.anchor, begun.anchor)
            self._seat(self.share, begun.share)
            self._seat(self.strength, strength)
        self._seat(self.counts, counts)
        self.optimiser.numbers[:, seats] = optimiser.numbers
        if self.mean is not None:
            self.mean.zero_()
        self.step.fill_(self.first)
        with self.net.exact():
            for _ in range(self.local_steps):
                self._replayed(self.pieces, self._one_step)
        for name in self.slots:
            slots[name] = self.slots[name][seats]
        trained = (self.weights if self.mean is None else self.mean)[seats].clone()
        if self.anchor is None:
            return begun._replace(weights=trained)
        return LocalState(trained, self.anchor[seats].clone(), self.share[seats].clone())

    def sums(self, weights: Tensor, step: int) -> Tensor:
        """What one step of the loaded round sums up at these weights before noise, double [C, P]."""
        self._at(weights, step)
        with self.net.exact():
            return torch.cat([part.double() for part in self._parts(self.weights)], 1)[: len(weights)]

    def gradients(self, weights: Tensor, step: int) -> Tensor:
        """The gradients of one step of the loaded round at these weights, as the optimiser sees them [C, P]."""
        self._at(weights, step)
        with self.net.exact():
            parts = self._parts(self.weights)
            if self.private:
                return noise.add_normals(parts, self.noise, torch.empty_like(self.weights))[: len(weights)]
            plain: Tensor = torch.cat(parts, 1) / self.divisor.unsqueeze(1)
            return plain.to(weights.dtype)[: len(weights)]

    def messages(self, weights: Tensor, cells: Tensor) -> Tensor:
        """What the loaded clients add to a sum, int64 [C, P], in cells of a size of each [C]."""
        self._at(weights, self.first)
        every = torch.ones(self.capacity, dtype=torch.float64, device=cells.device)
        self._seat(every, cells)
        with self.net.exact():
            return noise.add_normals_in_cells(self._parts(self.weights), self.noise, every)[: len(weights)]

    def _at(self, weights: Tensor, step: int) -> None:
        self._seat(self.weights, weights)
        self.step.fill_(step)

    def _seat(self, seats: Tensor, values: Tensor) -> None:
        seats[: len(values)] = values

    def _room_for(self, pieces: int) -> Batches:
        shape = self.local_steps, self.capacity, pieces * self.width
        places = torch.zeros(shape, dtype=torch.long, device=self.net.device)
        groups = None
        if self.persons:
            groups = torch.arange(self.width, device=self.net.device).repeat(pieces).expand(shape).contiguous()
        return Batches(places, places.clone(), torch.zeros(shape, dtype=torch.bool, device=self.net.device), groups)

    def _choose(self) -> None:
        """The batches of the round, in their place."""
        batches = choose(self.spec, self.terms, self.keys[1])
        if self.persons:
            batches = with_rows(batches, self.persons, self.width, self.first_rows)
        width = batches.valid.shape[2]
        if self.grows:
            self.pieces = max(1, math.ceil(width / self.width))
            if width > self.batches.valid.shape[2]:
                self.batches = self._room_for(self.pieces)
                self._graphs.clear()
        self.batches.valid.zero_()
        for mine, drawn in zip(self.batches, batches, strict=True):
            if mine is not None and drawn is not None:
                mine[:, :, :width] = drawn
        for mine in self.batches[:2]:  # padding is a client's own: a record that is no number must not reach others
            mine[:, :, width:] = mine[:, :, :1]

    def _replayed(self, name: object, work: Callable[[], None], replays: bool = True) -> None:
        """The first time as it is, the second time noted down by the device while it is queued, then replayed."""
        graph = self._graphs.get(name)
        if graph is not None:
            graph.replay()
        elif not (self.replays and replays) or name not in self._graphs:
            self._graphs[name] = None
            work()
        else:
            graph = torch.cuda.CUDAGraph()
            try:
                with _nothing_collected(), torch.cuda.graph(graph):
                    work()
            except RuntimeError:  # a module that waits for the device cannot be noted down
                self.replays = False
                work()
            else:
                self._graphs[name] = graph
                graph.replay()

    # ------------------------------------------------------------------ a step

    def _one_step(self) -> None:
        parts = self._parts(self._point())
        if self.at_once:
            from . import kernels

            self.counts.add_(1)
            state = self.weights, self.slots, self.optimiser, self.counts
            if self.private:
                kernels.noisy_step(parts, self.noise, *state)
            else:
                kernels.plain_step(parts, self.divisor, *state)
            self.step.add_(1)
        else:
            gradient = noise.add_normals(parts, self.noise, self.gradient) if self.private else torch.cat(parts, 1)
            self._update(gradient, *self._update_arguments())

    def _point(self) -> Tensor:
        """Where gradients are taken."""
        anchor = self.weights if self.anchor is None else self.anchor
        return step.point(self.rule, LocalState(self.weights, anchor, self.share))

    def _parts(self, point: Tensor) -> tuple[Tensor, ...]:
        """Sums over the batches of the step, parameter by parameter; added up in double where there are several pieces."""
        total = self._sums(*self._sum_arguments(point, 0))
        for piece in range(1, self.pieces):
            more = self._sums(*self._sum_arguments(point, piece))
            total = tuple(sum.double() + part for sum, part in zip(total, more, strict=True))
        return total

    def _sum_arguments(self, point: Tensor, piece: int) -> tuple[Any, ...]:
        here = slice(piece * self.width, (piece + 1) * self.width)
        at = self.step.long() - self.first
        chosen = (None if each is None else each.index_select(0, at)[0, :, here].contiguous() for each in self.batches)
        picked, places, valid, groups = chosen
        assert picked is not None
        return self.x, self.y, point, places, valid, groups, self.clip, *self._randomness(picked)

    def _sums_of(
        self, x: Tensor, y: Tensor, weights: Tensor, places: Tensor, valid: Tensor, groups: Tensor | None, clip: Tensor,
        words: dict[str, Tensor], turns: Tensor | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        masks = {name: self._mask(name, drawn) for name, drawn in words.items()}
        records = x[places] if turns is None else crop_flip(x[places], moves_from_words(turns))
        if self.private:
            return self.net.clipped_parts(weights, records, y[places], valid, clip, masks, self.program, groups)
        return self.net.plain_parts(weights, records, y[places], valid, masks, shares_of(groups, valid))

    def _randomness(self, picked: Tensor) -> tuple[dict[str, Tensor], Tensor | None]:
        """What decides about dropout and augmentation, int32 [C, W, …]: of each record its own, wherever it sits."""
        if not self.net.dropouts and not self.augmented:
            return {}, None
        nonces = torch.stack([self.step.expand_as(picked), picked.int()], 2)
        dropouts = self.net.dropouts.items()
        masks = {
            name: streams.words(keys, nonces, torch.Size(shape).numel()).reshape(*picked.shape, *shape)
            for keys, (name, (_, shape)) in zip(self.keys[2 : 2 + len(dropouts)], dropouts, strict=True)
        }
        return masks, streams.words(self.keys[-1], nonces, len(CHOICES)) if self.augmented else None

    def _mask(self, name: str, words: Tensor) -> Tensor:
        rate, _ = self.net.dropouts[name]
        kept = ((words.long() & 0xFFFFFFFF) >= rate * 2**32).to(self.net.dtype)
        return kept / (1 - rate) if rate < 1 else kept

    def _choose_invariant(self, compiles: bool) -> None:
        """Take back what does not treat rows alike with the very tensors that will run: compiled sums, then all rows."""
        if compiles and self._treats_rows_alike():
            return
        self._sums = self._sums_of
        if not self._treats_rows_alike():
            self.program = self.program._replace(grad_method="loop")
            self.replays = False

    def _treats_rows_alike(self) -> bool:
        """Whether these sums give a record the same bits in every row, tried with made-up records."""
        probe = invariance.made_up(self.net, self.capacity)
        records = min(len(probe.x), len(self.x))
        held = self.x[:records].clone(), self.y[:records].clone()
        self._at(probe.weights, self.first)
        _, _, point, _, _, groups, clip, *drawn = self._sum_arguments(self._point(), 0)
        if groups is not None:  # everybody has one row
            groups = torch.arange(self.width, device=groups.device).expand_as(groups).contiguous()

        def sums(which: Tensor, valid: Tensor) -> tuple[Tensor, ...]:
            places = which.to(self.x.device)
            return self._sums(self.x, self.y, point, places, valid.to(self.x.device), groups, torch.inf * clip, *drawn)

        try:
            self.x[:records] = probe.x[:records].to(self.x.dtype)
            self.y[:records] = probe.y[:records].to(self.y.dtype)
            with self.net.exact():
                return invariance.sums_treat_rows_alike(sums, self.width, self.capacity, records)
        finally:
            self.x[:records], self.y[:records] = held
            self.weights.zero_()  # every round begins anew

    def _update_arguments(self) -> tuple[Any, ...]:
        numbers = self.divisor, self.counts, self.step, self.optimiser.numbers, self.strength
        return self.weights, self.slots, self.anchor, self.share, self.mean, *numbers

    def _updated(
        self, gradient: Tensor, weights: Tensor, slots: dict[str, Tensor], anchor: Tensor | None, share: Tensor,
        mean: Tensor | None, divisor: Tensor, counts: Tensor, number: Tensor, numbers: Tensor, strength: Tensor,
    ) -> None:  # fmt: skip
        """One step of the optimiser, in place; what was noised is divided already."""
        if not self.private:
            gradient = gradient / divisor.to(weights.dtype).unsqueeze(1)
        optimiser = copy.copy(self.optimiser)
        optimiser.use(numbers)  # what is compiled takes them as they are then, not as they are now
        counts.add_(1)

        def update(before: Tensor, direction: Tensor) -> Tensor:
            return weights.copy_(optimiser.step(before, direction, slots, counts))

        state = LocalState(weights, weights if anchor is None else anchor, share, mean)
        after = step.followed(self.rule, self.phase, state, gradient, strength, number - self.first, update)
        if anchor is not None:
            share.copy_(after.share)
            anchor.copy_(after.anchor)
        if mean is not None and after.mean is not None:
            mean.copy_(after.mean)
        number.add_(1)


def _wholes(clients: Sequence[Client], persons: bool) -> tuple[list[int], list[int], list[int], list[int]]:
    """The whole numbers of `BatchTensors`, and where each client's rows begin."""
    sizes = [client.records for client in clients]
    first_rows = [client.offset for client in clients]
    offsets = [client.first_unit for client in clients] if persons else first_rows
    wanted = [min(expected_size(client.job.steps), client.records) for client in clients]
    return sizes, offsets, wanted, first_rows


def _numbers(job: Job) -> tuple[float, float, float, float, float]:
    """Clip norm, noise, grid, divisor, and the rate of `BatchTensors`."""
    clip, scale, grid, noisy = 1.0, 1.0, 1.0, job.noisy
    if noisy:
        clip, scale = noisy.clip_norm, noisy.noise_multiplier * noisy.clip_norm
        grid = noise.grid(scale, noisy.records * noisy.clip_norm)
    return clip, scale, grid, expected_size(job.steps), job.steps.rate


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """While the device notes down a step, an earlier note must not be thrown away: it would spoil this one."""
    collects = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
