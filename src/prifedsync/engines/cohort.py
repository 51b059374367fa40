"""The clients of a simulation: their records, their jobs, what they carry and what has been counted."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ..accounting import BudgetSpent, FixedMechanism
from ..fdp import BadValue, Neighbours
from ..local import Draws, Job, Key, Net
from ..local.draws import VERSION
from ..local.job import LARGEST_HELPER
from ..local.streams import Streams
from ..rules import Noised, Rule, Unprotected
from ..sync import Lost, Refused, Sent, Uploads
from .store import Resident, Store


@dataclasses.dataclass(frozen=True, kw_only=True)
class Performance:
    """How fast something runs; nothing in it can change a guarantee. 0 means: choose."""

    chunk: int = 0  # clients stacked at once
    records_at_once: int = 0  # records of one client looked at together
    memory: float = 2.0 * 2**30  # bytes of client state kept in memory
    share: float = 1.0  # of the clients, expected in a round
    rounds: int = 1  # expected
    compile: Literal["auto", "on", "off"] = "auto"  # on a GPU; auto: where the rounds win it back


DEFAULT = Performance()


class Cohort(ABC):
    """What both engines share. A subclass says how a group of clients takes its local steps."""

    def __init__(
        self, net: Net, jobs: Sequence[Job], records: Sequence[tuple[Tensor, Tensor]], rule: Rule, draws: Draws, *,
        start: Tensor | None = None, pushes: bool = False, performance: Performance = DEFAULT,
        folder: Path | None = None,
    ) -> None:  # fmt: skip
        self.net, self.jobs, self.rule, self.draws = net, tuple(jobs), rule, draws
        self.start = (net.initial() if start is None else start).to(net.device, net.dtype)  # w_0
        self.performance = performance
        names = [job.client for job in jobs]
        if len(set(names)) < len(names):
            raise BadValue("clients", len(names), "share a name", "two clients of one name would share their noise")
        if len({job.plan is None for job in jobs}) > 1:
            raise BadValue("clients", len(names), "are private and not private in one run", "train them apart")
        for job, (x, _) in zip(jobs, records, strict=True):
            neighbours = job.plan.neighbours if job.plan else Neighbours.REPLACE
            job.check(len(x), net.arithmetic, net.margin_for(neighbours, max(job.steps.records, len(x))))
        # all records in one tensor: a batch of stacked clients is one lookup
        self.sizes = [len(x) for x, _ in records]
        self.offsets = torch.tensor([0, *self.sizes]).cumsum(0)[:-1]
        self.x = torch.cat([x for x, _ in records]).to(net.device)
        self.y = torch.cat([y for _, y in records]).to(net.device)
        if self.x.is_floating_point():
            self.x = self.x.to(net.dtype)
        if self.y.is_floating_point():
            self.y = self.y.to(net.dtype)
        self.slots = ("own", *(("helper",) if pushes else ()), *sorted({s for job in jobs for s in job.optimiser.slots}))
        path = folder / "clients.safetensors" if folder else None
        shape = len(jobs), len(self.slots), net.count
        if net.device.type == "cuda" and _fits_on(net.device, math.prod(shape) * net.dtype.itemsize):
            self.store: Store = Resident(*shape, net.dtype, net.device, path)
        else:
            self.store = Store(*shape, net.dtype, performance.memory, path)
        self.budgets = [FixedMechanism(job.plan) if job.plan else None for job in jobs]
        self.taken = [0] * len(jobs)  # rounds committed to
        self.queries = [0] * len(jobs)  # noisy queries, counted where noise is added
        self.steps = [0] * len(jobs)  # steps the carried optimiser state has seen
        self.compiles = self.worth_compiling()  # decided once: a resumed run goes on as it was begun

    @property
    def streams(self) -> Streams | None:
        """Where random numbers are made on the device that uses them; None: on the host."""
        return None

    # ------------------------------------------------------------------ the protocol of sync.py

    def train(self, round: int, chosen: Sequence[int], weights: Tensor | None) -> Uploads:
        """Local training of the chosen clients, group by group."""
        of: dict[int, Sent | Refused | Lost] = {}
        for i in chosen:
            budget = self.budgets[i]
            try:  # commit before anything is sent
                self.budgets[i] = budget.spend(budget.plan) if budget else None
            except BudgetSpent as spent:
                of[i] = Refused(str(spent))
            else:
                self.taken[i] += 1
        trained: list[Tensor] = []
        order: list[int] = []
        for group in self.groups([i for i in chosen if i not in of]):
            before = [self.queries[i] for i in group]
            trained.append(self._train_group(round, group, weights))
            order += group
            for row, i, was in zip(trained[-1], group, before, strict=True):
                of[i] = Sent(row, self.queries[i] - was)
        rows = trained[0] if len(trained) == 1 else torch.cat([self.start.new_zeros(0, self.net.count), *trained])
        if order != sorted(order):
            rows = rows[torch.tensor(order).argsort().to(rows.device)]
        return Uploads(of, Noised(rows) if self.jobs[0].plan else Unprotected(rows))

    def push(self, chosen: Sequence[int], weights: Tensor) -> None:
        weights = _bounded(weights)
        for group in self.groups(chosen):
            rows = list(self._states(group))
            rows[self.slots.index("helper")] = self.rule.helper(weights, rows[0], self._mixing(group))
            self.store.scatter(group, rows)

    def worth_compiling(self) -> bool:
        return False

    # ------------------------------------------------------------------ one group

    def groups(self, chosen: Sequence[int]) -> list[list[int]]:
        """Clients that can be stacked, in pieces of at most `chunk`."""
        alike: dict[Any, list[int]] = {}
        for i in chosen:
            alike.setdefault(self.kinds[i], []).append(i)
        return [group[at : at + size] for group in alike.values() for size in [self.chunk(group)]
                for at in range(0, len(group), size)]  # fmt: skip

    def kind(self, i: int) -> tuple[object, ...]:
        """Clients of one kind can be stacked."""
        job, steps = self.jobs[i], self.jobs[i].steps
        return job.noisy is None, job.optimiser.name, steps.local_steps, job.averaged_from, steps.batch == "full"

    @cached_property
    def kinds(self) -> list[tuple[object, ...]]:
        return [self.kind(i) for i in range(len(self.jobs))]

    def chunk(self, group: list[int]) -> int:
        """How many of these clients are stacked at once."""
        return 1

    def _train_group(self, round: int, group: list[int], weights: Tensor | None) -> Tensor:
        slots: dict[str, Tensor] = dict(zip(self.slots, self._states(group), strict=True))  # [C, P] each
        own = slots["own"]
        if weights is None:
            helper = _bounded(slots["helper"])
        else:
            helper = self.rule.helper(_bounded(weights.to(own.device)), own, self._mixing(group))
        anew = [c for c, i in enumerate(group) if not self.jobs[i].optimiser.carried]
        for c in anew:
            self.steps[group[c]] = 0
        for name in self.jobs[group[0]].optimiser.slots if anew else ():
            slots[name][anew] = 0
        trained = self._local(round, group, self.rule.start(own, helper), helper, slots)
        for i in group:
            self.steps[i] += self.jobs[i].steps.local_steps
        slots["own"] = self.rule.finish(own, trained, helper)
        self.store.scatter(group, [slots[name] for name in self.slots])
        return slots["own"]

    @abstractmethod
    def _local(self, round: int, group: list[int], start: Tensor, helper: Tensor, slots: dict[str, Tensor]) -> Tensor:
        """K local steps of each client from `start` [C, P]; updates `slots` and returns what may be sent [C, P]."""

    def _mixing(self, group: Sequence[int]) -> Tensor:
        mixing = torch.tensor([self.jobs[i].mixing for i in group], dtype=self.start.dtype)
        return mixing.to(self.start.device, non_blocking=True).unsqueeze(1)

    def masks(self, i: int, round: int, step: int, picked: Tensor) -> dict[str, Tensor]:
        """Dropout masks of the picked records [B, …], each drawn by its own key."""
        masks = {}
        for layer, (name, (rate, shape)) in enumerate(self.net.dropouts.items()):
            values = torch.Size(shape).numel()
            keys = [Key(self.jobs[i].client, round, step, f"dropout {layer}", record) for record in picked.tolist()]
            lots = [self.draws.uniform(key, values) for key in keys]
            kept = torch.stack(lots) >= rate if lots else torch.zeros(0, values)
            masks[name] = (kept / (1 - rate) if rate < 1 else kept).reshape(-1, *shape).to(self.net.device, self.net.dtype)
        return masks

    # ------------------------------------------------------------------ state

    def _states(self, group: Sequence[int]) -> Tensor:
        """What these clients carry, in a tensor of its own on the net's device [slots, C, P]."""
        self.store.fill([i for i in group if self.store.read(i) is None], self._fresh)
        states: Tensor = self.store.gather(group).to(self.net.device)
        return states

    def state(self, i: int) -> Tensor:
        """All a client carries [slots, P]: its last upload (w_0 before the first), its helper, its optimiser's vectors."""
        found = self.store.read(i)
        return self._fresh if found is None else found

    @cached_property
    def _fresh(self) -> Tensor:
        """What a client carries before it takes part."""
        fresh = self.start.new_zeros(len(self.slots), self.net.count)
        fresh[0] = self.start
        if "helper" in self.slots:
            fresh[self.slots.index("helper")] = self.start
        return fresh

    def own(self, i: int) -> Tensor:
        """w̃_i, the client's last upload."""
        return self.state(i)[0].to(self.net.device)

    @cached_property
    def fingerprint(self) -> str:
        """Of all that must stay the same while a run lasts: plans, jobs, records, first weights. Keyed like the draws."""
        digest = hashlib.sha256()
        for job, size in zip(self.jobs, self.sizes, strict=True):
            digest.update(f"{job} {size}".encode())
        drawn = "device" if self.streams else "host"  # other noise under the same key
        digest.update(f"{self.rule.name} {self.slots} {self.net.arithmetic} {self.net.way} {drawn} {VERSION}".encode())
        fixed = [value for name, value in sorted(self.net.module.state_dict().items()) if name not in self.net.names]
        for tensor in (self.start, self.x, self.y, *fixed):
            digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().data)
        key = self.draws.uniform(Key("", 0, 0, "fingerprint"), 4)  # records must not be guessed from their digest
        return hashlib.sha256(digest.digest() + key.numpy().tobytes()).hexdigest()

    def counters(self) -> dict[str, list[int]]:
        return {"taken": list(self.taken), "queries": list(self.queries), "steps": list(self.steps)}

    def restore(self, counters: dict[str, list[int]], places: dict[int, int]) -> None:
        """Go on where a checkpoint was taken."""
        self.taken, self.queries, self.steps = (list(counters[name]) for name in ("taken", "queries", "steps"))
        self.budgets = [
            FixedMechanism(job.plan, taken) if job.plan else None for job, taken in zip(self.jobs, self.taken, strict=True)
        ]
        self.store.committed = dict(places)


def _fits_on(device: torch.device, size: int) -> bool:
    """Whether so many bytes may stay there and leave room to work."""
    return 2 * size < torch.cuda.mem_get_info(device)[0]


def _bounded(helper: Tensor) -> Tensor:
    """Entries beyond any use are cut, and what is no number becomes zero: a server may send anything."""
    return torch.nan_to_num(helper, nan=0.0, posinf=LARGEST_HELPER, neginf=-LARGEST_HELPER).clamp(
        -LARGEST_HELPER, LARGEST_HELPER
    )
