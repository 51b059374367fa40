"""Stacked clients on a GPU: tensors that stay in place, and one local step that is made once and replayed.

Every random number is made on the device from the client's own stream (`local/streams.py`), so a step is nothing but work
for the device: which records, their clipped gradients, noise, optimiser. The host only says how often.
Axis letters: C clients, P parameters, K local steps, W records of a batch, padding included.
"""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from ..accounting import Sampling
from ..local import Job, Net, Optimiser, Phase, invariance, noise, streams
from ..local.augment import CHOICES, crop_flip, moves_from_words
from ..local.batches import expected_size
from ..local.compiled import compiled
from ..local.optimisers import Stacked
from ..local.programs import Program
from ..local.streams import Noise, Streams
from ..rules import Steps
from .cohort import LocalState

LOTS_AT_ONCE = 2**24  # drawn together when batches are chosen
LOTS_REPLAYED = 2**22  # up to so many a round, queueing that work costs more than the work
ALIGNED = 32  # a client's vector begins at a multiple of this: products read it several entries at a time
FIXED_COST = 8  # what a stack costs besides its clients, in clients


@dataclass(frozen=True)
class Members:
    """The clients of one group: their jobs, how many records each has, where these begin among all records, and draws."""

    jobs: Sequence[Job]
    sizes: Sequence[int]
    offsets: Sequence[int]
    draws: Sequence[Streams]


class Batches(NamedTuple):
    """Which records each step of a round looks at."""

    picked: Tensor  # int64 [K, C, W]: a client's own numbering; padding repeats a record of the batch
    places: Tensor  # int64 [K, C, W]: among all records
    valid: Tensor  # bool [K, C, W]


@dataclass(frozen=True)
class BatchSpec:
    """How all clients of one kind draw their batches, and the largest numbers among them."""

    kind: Literal["full", "poisson", "fixed"]
    steps: range  # their numbers in the round
    records: int
    batch: int

    @staticmethod
    def of(jobs: Sequence[Job], sizes: Sequence[int], phase: Phase) -> BatchSpec:
        steps, numbers = jobs[0].steps, range(phase.first, phase.first + phase.steps)
        records, batch = max(1, *sizes), max(expected_size(job.steps) for job in jobs)
        if steps.batch == "full":
            return BatchSpec("full", numbers, records, records)
        kind: Literal["poisson", "fixed"] = "poisson" if steps.sampling is Sampling.POISSON else "fixed"
        return BatchSpec(kind, numbers, records, min(batch, records))


class BatchTensors(NamedTuple):
    """What the batches of stacked clients are drawn by. Whoever has no records in it draws none."""

    sizes: Tensor  # int64 [C]: records there are
    offsets: Tensor  # int64 [C]: where they begin among all records
    wanted: Tensor  # int64 [C]: records of a batch of fixed size
    rates: Tensor  # double [C]


def choose(spec: BatchSpec, terms: BatchTensors, keys: Tensor) -> Batches:
    """The batches of all these steps, each client's under its key [C, 8]."""
    steps, device = spec.steps, keys.device
    at_once = max(1, LOTS_AT_ONCE // (len(keys) * spec.records))
    pieces = [steps[low : low + at_once] for low in range(0, len(steps), at_once)]
    chosen = [_choose(spec, piece, terms, keys) for piece in pieces]
    counts = torch.cat([counts for counts, _ in chosen])  # [K, C]
    width = max(1, *(order.shape[2] for _, order in chosen))
    order = torch.cat([torch.nn.functional.pad(order, (0, width - order.shape[2])) for _, order in chosen])
    valid = torch.arange(width, device=device) < counts.unsqueeze(2)
    picked = torch.where(valid, order, order[:, :, :1])
    # whoever has no record in a batch, or none at all, points at the first record of all
    some = counts.unsqueeze(2) > 0
    return Batches(torch.where(some, picked, 0), torch.where(some, picked + terms.offsets.unsqueeze(1), 0), valid)


def _choose(spec: BatchSpec, steps: range, terms: BatchTensors, keys: Tensor) -> tuple[Tensor, Tensor]:
    """How many records each client looks at in each step [K, C], and which, in ascending order [K, C, W]."""
    device = keys.device
    number = torch.arange(spec.records, device=device)
    if spec.kind == "full":
        counts = terms.sizes.expand(len(steps), -1)
        return counts, number.expand(*counts.shape, -1)
    step = torch.arange(steps.start, steps.stop, dtype=torch.int32, device=device)
    nonces = torch.stack([step, torch.zeros_like(step)], 1).expand(len(keys), -1, -1)
    lots = streams.uniforms(keys, nonces, spec.records).transpose(0, 1)  # [K, C, n]
    lots = torch.where(number < terms.sizes.unsqueeze(1), lots, 2.0)  # what is not there is never drawn
    if spec.kind == "poisson":
        taken = lots < terms.rates.unsqueeze(1)
        counts = taken.sum(2)
        width = int(counts.max())  # waits for the device, once a round
    else:
        width = spec.batch
        counts = terms.wanted.expand(len(steps), -1)
        smallest = lots.topk(width, 2, largest=False).values  # in ascending order
        last = smallest.gather(2, (counts - 1).clamp(min=0).unsqueeze(2))
        taken = (lots <= last) & (counts > 0).unsqueeze(2)  # two equal lots of 52 bits: never in this world
    places = torch.where(taken, taken.cumsum(2) - 1, width)  # what is not taken goes where nobody looks
    order = torch.zeros(*counts.shape, width + 1, dtype=torch.long, device=device)
    return counts, order.scatter_(2, places, number.expand_as(places))[..., :width]


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
        self, net: Net, x: Tensor, y: Tensor, rule: Steps, phase: Phase, optimiser: Optimiser, spec: BatchSpec, *,
        augmented: bool, capacity: int, program: Program, compiles: bool, replays: bool,
    ) -> None:  # fmt: skip
        self.net, self.rule, self.augmented, self.program = net, rule, augmented, program
        # where nobody has a record, padding still points at one
        self.x, self.y = (each if len(each) else each.new_zeros(1, *each.shape[1:]) for each in (x, y))
        self.spec, self.capacity, self.width, self.replays = spec, capacity, program.width, replays
        self.private, self.first, self.local_steps = phase.noisy, phase.first, phase.steps
        self.averaged_from = phase.averaged_from

        def tensor(*shape: int, dtype: torch.dtype = net.dtype) -> Tensor:
            return torch.zeros(capacity, *shape, dtype=dtype, device=net.device)

        def vectors() -> Tensor:
            return tensor(ALIGNED * math.ceil(net.count / ALIGNED))[:, : net.count]

        self.weights = vectors()
        self.slots = {name: vectors() for name in optimiser.slots}
        self.anchor = vectors() if rule.anchored else None
        self.share, self.strength = tensor(1).add_(1), tensor(1)
        self.mean = vectors() if self.averaged_from < self.local_steps - 1 else None
        plain = self.anchor is None and self.mean is None
        known = optimiser.update.kernel is not None  # else `_updated` takes the step
        self.at_once = plain and known and net.device.type == "cuda" and streams.kernels_there()
        self.gradient = tensor(net.count if self.private and not self.at_once else 0)
        self.optimiser = Stacked([optimiser] * capacity, [0] * capacity, self.weights)
        self.counts = tensor(1)  # steps that the carried state has seen
        self.numbers = torch.ones(5, capacity, dtype=torch.float64, device=net.device)
        self.clip, scale, grid, self.divisor, rates = self.numbers
        self.wholes = torch.zeros(3, capacity, dtype=torch.long, device=net.device)
        sizes, offsets, wanted = self.wholes
        self.terms = BatchTensors(sizes, offsets, wanted, rates)
        self.purposes = ["noise", "batch", *(f"dropout {layer}" for layer in range(len(net.dropouts)))]
        self.purposes += ["augment"] if augmented else []
        self.keys = torch.zeros(len(self.purposes), capacity, 8, dtype=torch.int32, device=net.device)
        self.step = torch.full((1,), phase.first, dtype=torch.int32, device=net.device)
        self.noise = Noise(self.keys[0], self.step, scale, grid, self.divisor)
        # what a Poisson batch needs shows when it is drawn
        self.pieces = 1 if spec.kind == "poisson" else math.ceil(spec.batch / self.width)
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
        if self.private and program.way != "loop" and (compiles or net.device.type == "cuda"):
            self._choose_invariant(compiles)

    # ------------------------------------------------------------------ a round

    def load(self, members: Members, round: int) -> None:
        """Seat these clients for a round: their numbers, keys and batches."""
        jobs, names = members.jobs, [job.client for job in members.jobs]
        seats = slice(len(jobs))
        self.numbers[:, seats] = _sent([_numbers(job) for job in jobs], self.step.device, torch.float64).T
        self.keys[:, seats] = streams.keys(members.draws, names, round, self.purposes, self.step.device)
        self.wholes.zero_()  # seats that nobody has draw nothing
        self.wholes[:, seats] = _sent(_wholes(members), self.step.device)
        if self.spec.kind == "poisson":
            self._choose()
        else:
            lots = self.capacity * self.local_steps * self.spec.records
            self._replayed("batches", self._choose, lots <= LOTS_REPLAYED)

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
                return streams.add_normals(parts, self.noise, torch.empty_like(self.weights))[: len(weights)]
            plain: Tensor = torch.cat(parts, 1) / self.divisor.unsqueeze(1)
            return plain.to(weights.dtype)[: len(weights)]

    def _at(self, weights: Tensor, step: int) -> None:
        self._seat(self.weights, weights)
        self.step.fill_(step)

    def _seat(self, seats: Tensor, values: Tensor) -> None:
        seats[: len(values)] = values

    def _room_for(self, pieces: int) -> Batches:
        shape = self.local_steps, self.capacity, pieces * self.width
        places = torch.zeros(shape, dtype=torch.long, device=self.net.device)
        return Batches(places, places.clone(), torch.zeros(shape, dtype=torch.bool, device=self.net.device))

    def _choose(self) -> None:
        """The batches of the round, in their place."""
        batches = choose(self.spec, self.terms, self.keys[1])
        width = batches.valid.shape[2]
        if self.spec.kind == "poisson":
            self.pieces = math.ceil(width / self.width)
            if width > self.batches.valid.shape[2]:
                self.batches = self._room_for(self.pieces)
                self._graphs.clear()
        self.batches.valid.zero_()
        for mine, drawn in zip(self.batches, batches, strict=True):
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
            from ..local import kernels

            self.counts.add_(1)
            state = self.weights, self.slots, self.optimiser, self.counts
            if self.private:
                kernels.noisy_step(parts, self.noise, *state)
            else:
                kernels.plain_step(parts, self.divisor, *state)
            self.step.add_(1)
        else:
            gradient = streams.add_normals(parts, self.noise, self.gradient) if self.private else torch.cat(parts, 1)
            self._update(gradient, *self._update_arguments())

    def _point(self) -> Tensor:
        """Where gradients are taken."""
        return self.weights if self.anchor is None else self.rule.point(self.weights, self.anchor, self.share)

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
        picked, places, valid = (each.index_select(0, at)[0, :, here].contiguous() for each in self.batches)
        return self.x, self.y, point, places, valid, self.clip, *self._lots(picked)

    def _sums_of(
        self, x: Tensor, y: Tensor, weights: Tensor, places: Tensor, valid: Tensor, clip: Tensor,
        lots: dict[str, Tensor], turns: Tensor | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        masks = {name: self._mask(name, words) for name, words in lots.items()}
        records = x[places] if turns is None else crop_flip(x[places], moves_from_words(turns))
        if self.private:
            return self.net.clipped_parts(weights, records, y[places], valid, clip, masks, self.program)
        return self.net.plain_parts(weights, records, y[places], valid, masks)

    def _lots(self, picked: Tensor) -> tuple[dict[str, Tensor], Tensor | None]:
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
            self.program = self.program._replace(way="loop")
            self.replays = False

    def _treats_rows_alike(self) -> bool:
        """Whether these sums give a record the same bits in every row, tried with made-up records."""
        probe = invariance.made_up(self.net, self.capacity)
        records = min(len(probe.x), len(self.x))
        held = self.x[:records].clone(), self.y[:records].clone()
        self._at(probe.weights, self.first)
        _, _, point, _, _, clip, *lots = self._sum_arguments(self._point(), 0)

        def sums(which: Tensor, valid: Tensor) -> tuple[Tensor, ...]:
            places = which.to(self.x.device)
            return self._sums(self.x, self.y, point, places, valid.to(self.x.device), torch.inf * clip, *lots)

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
        mean: Tensor | None, divisor: Tensor, counts: Tensor, step: Tensor, numbers: Tensor, strength: Tensor,
    ) -> None:  # fmt: skip
        """One step of the optimiser, in place; what was noised is divided already."""
        if not self.private:
            gradient = gradient / divisor.to(weights.dtype).unsqueeze(1)
        optimiser = copy.copy(self.optimiser)
        optimiser.use(numbers)  # what is compiled takes them as they are then, not as they are now
        counts.add_(1)
        if anchor is None:
            weights.copy_(optimiser.step(weights, gradient, slots, counts))
        else:
            rule, adapted = self.rule, self.rule.adapted(share, gradient, weights, anchor)
            direction, pull = rule.through(gradient, share), rule.pull(weights, anchor, strength)
            weights.copy_(optimiser.step(weights, direction if pull is None else direction + pull, slots, counts))
            share.copy_(adapted)
            if rule.every:
                anchor.copy_(torch.where((step - self.first + 1) % rule.every == 0, rule.moved(anchor, weights), anchor))
        if mean is not None:
            seen = (step - self.first - self.averaged_from + 1).to(weights.dtype)  # iterates in the mean, this one too
            mean.add_(torch.where(seen > 0, (weights - mean) / seen.clamp(min=1), 0.0))
        step.add_(1)


def _wholes(members: Members) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """The whole numbers of `BatchTensors`."""
    wanted = [min(expected_size(job.steps), size) for job, size in zip(members.jobs, members.sizes, strict=True)]
    return members.sizes, members.offsets, wanted


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
