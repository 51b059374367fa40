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
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from ..accounting import Sampling
from ..local import Job, Net, noise, streams
from ..local.batches import expected_size
from ..local.compiled import compiled
from ..local.optimisers import Stacked
from ..local.streams import Noise, Streams
from ..rules import Rule

LOTS_AT_ONCE = 2**24  # drawn together when batches are chosen
ALIGNED = 32  # a client's vector begins at a multiple of this: products read it several entries at a time
FIXED_COST = 8  # what a stack costs besides its clients, in clients


@dataclass(frozen=True)
class Members:
    """The clients of one group: their jobs, how many records each has, and where these begin among all records."""

    jobs: Sequence[Job]
    sizes: Sequence[int]
    offsets: Sequence[int]


class Batches(NamedTuple):
    """Which records each step of a round looks at."""

    picked: Tensor  # int64 [K, C, W]: a client's own numbering; padding repeats a record of the batch
    places: Tensor  # int64 [K, C, W]: among all records
    valid: Tensor  # bool [K, C, W]


def choose(members: Members, steps: range, round: int, draws: Streams, device: torch.device) -> Batches:
    """Batches for these steps; all clients draw in the same manner."""
    most = max(1, *members.sizes)
    keys = streams.keys(draws, [job.client for job in members.jobs], round, "batch", device)
    at_once = max(1, LOTS_AT_ONCE // (len(keys) * most))
    pieces = [steps[low : low + at_once] for low in range(0, len(steps), at_once)]
    chosen = [_choose(members, piece, keys, most) for piece in pieces]
    counts = torch.cat([counts for counts, _ in chosen])  # [K, C]
    width = max(1, *(order.shape[2] for _, order in chosen))
    order = torch.cat([torch.nn.functional.pad(order, (0, width - order.shape[2])) for _, order in chosen])
    valid = torch.arange(width, device=device) < counts.unsqueeze(2)
    picked = torch.where(valid, order, order[:, :, :1])
    # whoever has no record in a batch, or none at all, points at the first record of all
    places = torch.where(counts.unsqueeze(2) > 0, picked + torch.tensor(members.offsets, device=device).unsqueeze(1), 0)
    return Batches(torch.where(counts.unsqueeze(2) > 0, picked, 0), places, valid)


def _choose(members: Members, steps: range, keys: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """How many records each client looks at in each step [K, C], and which, in ascending order [K, C, W]."""
    device, first = keys.device, members.jobs[0].steps
    number = torch.arange(most, device=device)
    sizes = torch.tensor(members.sizes, device=device).unsqueeze(1)  # [C, 1]
    if first.batch == "full":
        counts = sizes.squeeze(1).expand(len(steps), -1)
        return counts, number.expand(*counts.shape, -1)
    step = torch.tensor(steps, dtype=torch.int32, device=device)
    nonces = torch.stack([step, torch.zeros_like(step)], 1).expand(len(keys), -1, -1)
    lots = streams.uniforms(keys, nonces, most).transpose(0, 1)  # [K, C, n]
    lots = torch.where(number < sizes, lots, 2.0)  # what is not there is never drawn
    if first.sampling is Sampling.POISSON:
        rates = torch.tensor([job.steps.rate for job in members.jobs], dtype=torch.float64, device=device)
        taken = lots < rates.unsqueeze(1)
        counts = taken.sum(2)
        width = int(counts.max())  # waits for the device, once a round
    else:
        wanted = [min(expected_size(job.steps), size) for job, size in zip(members.jobs, members.sizes, strict=True)]
        width = max(wanted)
        counts = torch.tensor(wanted, device=device).expand(len(steps), -1)
        smallest = lots.topk(width, 2, largest=False).values  # in ascending order
        last = smallest.gather(2, (counts - 1).clamp(min=0).unsqueeze(2))
        taken = (lots <= last) & (counts > 0).unsqueeze(2)  # two equal lots of 52 bits: never in this world
    places = torch.where(taken, taken.cumsum(2) - 1, width)  # what is not taken goes where nobody looks
    order = torch.zeros(*counts.shape, width + 1, dtype=torch.long, device=device)
    return counts, order.scatter_(2, places, number.expand_as(places))[..., :width]


def width_of(jobs: Sequence[Job], at_once: int) -> int:
    """Records of one client that a program looks at together: so many that few Poisson batches need a second look."""
    widest = max(expected_size(job.steps) for job in jobs)
    steps = jobs[0].steps
    if steps.batch != "full" and steps.sampling is Sampling.POISSON:
        spread = max(expected_size(job.steps) * (1 - job.steps.rate) for job in jobs)
        widest = min(4 * math.ceil((widest + 3.5 * math.sqrt(spread)) / 4), max(job.steps.records for job in jobs))
    return min(widest, at_once)


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
        self, net: Net, x: Tensor, y: Tensor, rule: Rule, draws: Streams, job: Job, *,
        capacity: int, width: int, compiles: bool, replays: bool,
    ) -> None:  # fmt: skip
        self.net, self.rule, self.draws = net, rule, draws
        # where nobody has a record, padding still points at one
        self.x, self.y = (each if len(each) else each.new_zeros(1, *each.shape[1:]) for each in (x, y))
        self.capacity, self.width, self.replays = capacity, width, replays
        self.private, self.local_steps, self.averaged_from = job.noisy is not None, job.steps.local_steps, job.averaged_from

        def tensor(*shape: int, dtype: torch.dtype = net.dtype) -> Tensor:
            return torch.zeros(capacity, *shape, dtype=dtype, device=net.device)

        def vectors() -> Tensor:
            return tensor(ALIGNED * math.ceil(net.count / ALIGNED))[:, : net.count]

        self.weights = vectors()
        self.slots = {name: vectors() for name in job.optimiser.slots}
        pulled = rule.pull(self.weights[:1], self.weights[:1]) is not None
        self.helper = vectors() if pulled else None
        self.mean = vectors() if self.averaged_from < self.local_steps - 1 else None
        plain = self.helper is None and self.mean is None
        self.at_once = plain and net.device.type == "cuda" and streams.kernels_there()
        self.gradient = tensor(net.count if self.private and not self.at_once else 0)
        self.optimiser = Stacked([job.optimiser] * capacity, [0] * capacity, self.weights)
        self.counts = tensor(1)  # steps that the carried state has seen
        self.clip, scale, grid, self.divisor = (tensor(dtype=torch.float64).add_(1) for _ in range(4))
        self.mask_keys = [tensor(8, dtype=torch.int32) for _ in net.dropouts]
        self.step = torch.zeros(1, dtype=torch.int32, device=net.device)
        self.noise = Noise(tensor(8, dtype=torch.int32), self.step, scale, grid, self.divisor)
        self.batches = self._room_for(1)
        self._graphs: dict[int, torch.cuda.CUDAGraph | None] = {}  # pieces of a batch → a step; None: seen once
        self._sums: Callable[..., tuple[Tensor, ...]] = self._sums_of
        self._update: Callable[..., None] = self._updated
        if compiles:
            with self.net.exact():
                self._sums = compiled(self._sums_of, *self._sums_of_what(0))
                if not self.at_once:
                    # on zeros: every round begins anew
                    self._update = compiled(self._updated, torch.zeros_like(self.weights), *self._updated_what())

    # ------------------------------------------------------------------ a round

    def load(self, members: Members, round: int) -> None:
        """Seat these clients for a round: their numbers, keys and batches."""
        jobs, names = members.jobs, [job.client for job in members.jobs]
        if self.private:
            noisy = [job.noisy for job in jobs if job.noisy]
            scales = [steps.noise_multiplier * steps.clip_norm for steps in noisy]
            self._seat(self.clip, [steps.clip_norm for steps in noisy])
            self._seat(self.noise.scale, scales)
            bounds = [steps.records * steps.clip_norm for steps in noisy]
            self._seat(self.noise.grid, [noise.grid(*each) for each in zip(scales, bounds, strict=True)])
            self._seat(self.noise.keys, streams.keys(self.draws, names, round, "noise", self.step.device))
        self._seat(self.divisor, [expected_size(job.steps) for job in jobs])
        for layer, keys in enumerate(self.mask_keys):
            self._seat(keys, streams.keys(self.draws, names, round, f"dropout {layer}", self.step.device))
        batches = choose(members, range(self.local_steps), round, self.draws, self.step.device)
        width = batches.valid.shape[2]
        if width > self.batches.valid.shape[2]:
            self.batches = self._room_for(math.ceil(width / self.width))
            self._graphs.clear()
        self.batches.valid.zero_()
        for mine, drawn in zip(self.batches, batches, strict=True):
            mine[:, : len(jobs), :width] = drawn
        for mine in self.batches[:2]:  # padding is a client's own: a record that is no number must not reach others
            mine[:, : len(jobs), width:] = mine[:, : len(jobs), :1]
        self.pieces = math.ceil(width / self.width)

    def run(
        self, start: Tensor, helper: Tensor, slots: dict[str, Tensor], counts: Sequence[int], optimiser: Stacked
    ) -> Tensor:
        """All local steps from `start` [C, P]; `slots` hold the new state after it, in place until the next round."""
        self._seat(self.weights, start)
        for name, rows in self.slots.items():
            self._seat(rows, slots[name])
        if self.helper is not None:
            self._seat(self.helper, helper)
        self._seat(self.counts, torch.tensor(counts).unsqueeze(1))
        for name, numbers in self._numbers().items():
            self._seat(numbers, getattr(optimiser, name))
        if self.mean is not None:
            self.mean.zero_()
        self.step.zero_()
        with self.net.exact():
            for _ in range(self.local_steps):
                self._take_step()
        for name in self.slots:
            slots[name] = self.slots[name][: len(start)]
        return (self.weights if self.mean is None else self.mean)[: len(start)].clone()

    def sums(self, weights: Tensor, step: int) -> Tensor:
        """What one step of the loaded round sums up before noise, double [C, P]."""
        self._at(weights, step)
        with self.net.exact():
            return torch.cat([part.double() for part in self._parts(self.pieces)], 1)[: len(weights)]

    def gradients(self, weights: Tensor, step: int) -> Tensor:
        """The gradients of one step of the loaded round, as the optimiser sees them [C, P]."""
        self._at(weights, step)
        with self.net.exact():
            parts = self._parts(self.pieces)
            if self.private:
                return streams.add_normals(parts, self.noise, torch.empty_like(self.weights))[: len(weights)]
            return (torch.cat(parts, 1) / self.divisor.unsqueeze(1)).to(weights.dtype)[: len(weights)]

    def _at(self, weights: Tensor, step: int) -> None:
        self._seat(self.weights, weights)
        self.step.fill_(step)

    def _seat(self, seats: Tensor, values: Tensor | list[float] | list[int]) -> None:
        given = values if isinstance(values, Tensor) else torch.tensor(values, dtype=seats.dtype)
        seats[: len(given)].copy_(given)

    def _room_for(self, pieces: int) -> Batches:
        shape = self.local_steps, self.capacity, pieces * self.width
        places = torch.zeros(shape, dtype=torch.long, device=self.net.device)
        return Batches(places, places.clone(), torch.zeros(shape, dtype=torch.bool, device=self.net.device))

    # ------------------------------------------------------------------ a step

    def _take_step(self) -> None:
        """The first time as it is, the second time noted down by the device while it is queued, then replayed."""
        graph = self._graphs.get(self.pieces)
        if graph is not None:
            graph.replay()
        elif not self.replays or self.pieces not in self._graphs:
            self._graphs[self.pieces] = None
            self._one_step(self.pieces)
        else:
            graph = torch.cuda.CUDAGraph()
            try:
                with _nothing_collected(), torch.cuda.graph(graph):
                    self._one_step(self.pieces)
            except RuntimeError:  # a module that waits for the device cannot be noted down
                self.replays = False
                self._one_step(self.pieces)
            else:
                self._graphs[self.pieces] = graph
                graph.replay()

    def _one_step(self, pieces: int) -> None:
        parts = self._parts(pieces)
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
            self._update(gradient, *self._updated_what())

    def _parts(self, pieces: int) -> tuple[Tensor, ...]:
        """Sums over the batches of the step, parameter by parameter; added up in double where there are several pieces."""
        total = self._sums(*self._sums_of_what(0))
        for piece in range(1, pieces):
            more = self._sums(*self._sums_of_what(piece))
            total = tuple(sum.double() + part for sum, part in zip(total, more, strict=True))
        return total

    def _sums_of_what(self, piece: int) -> tuple[Any, ...]:
        here = slice(piece * self.width, (piece + 1) * self.width)
        at = self.step.long()
        picked, places, valid = (each.index_select(0, at)[0, :, here].contiguous() for each in self.batches)
        return self.x, self.y, self.weights, places, valid, self.clip, self._masks(picked)

    def _sums_of(
        self, x: Tensor, y: Tensor, weights: Tensor, places: Tensor, valid: Tensor, clip: Tensor, masks: dict[str, Tensor]
    ) -> tuple[Tensor, ...]:
        if self.private:
            return self.net.clipped_parts(weights, x[places], y[places], valid, clip, masks)
        return self.net.plain_parts(weights, x[places], y[places], valid, masks)

    def _masks(self, picked: Tensor) -> dict[str, Tensor]:
        """Dropout masks [C, W, …]: of each record its own, wherever it sits."""
        masks = {}
        for keys, (name, (rate, shape)) in zip(self.mask_keys, self.net.dropouts.items(), strict=True):
            nonces = torch.stack([self.step.expand_as(picked), picked.int()], 2)
            lots = streams.words(keys, nonces, torch.Size(shape).numel()).long() & 0xFFFFFFFF
            kept = (lots >= rate * 2**32).to(self.net.dtype)
            masks[name] = (kept / (1 - rate) if rate < 1 else kept).reshape(*picked.shape, *shape)
        return masks

    def _numbers(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self.optimiser).items() if isinstance(value, Tensor)}

    def _updated_what(self) -> tuple[Any, ...]:
        shared = self.divisor, self.counts, self.step, self._numbers()
        return self.weights, self.slots, self.helper, self.mean, *shared

    def _updated(
        self, gradient: Tensor, weights: Tensor, slots: dict[str, Tensor], helper: Tensor | None, mean: Tensor | None,
        divisor: Tensor, counts: Tensor, step: Tensor, numbers: dict[str, Tensor],
    ) -> None:  # fmt: skip
        """One step of the optimiser, in place; what was noised is divided already."""
        if not self.private:
            gradient = gradient / divisor.to(weights.dtype).unsqueeze(1)
        optimiser = copy.copy(self.optimiser)
        vars(optimiser).update(numbers)  # what is compiled takes them as they are then, not as they are now
        pull = None if helper is None else self.rule.pull(weights, helper)
        counts.add_(1)
        weights.copy_(optimiser.step(weights, gradient if pull is None else gradient + pull, slots, counts))
        if mean is not None:
            seen = (step - self.averaged_from + 1).to(weights.dtype)  # iterates in the mean, this one too
            mean.add_(torch.where(seen > 0, (weights - mean) / seen.clamp(min=1), 0.0))
        step.add_(1)


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
