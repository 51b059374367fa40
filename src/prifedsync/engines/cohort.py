"""The clients of a simulation: their records, their jobs, what they carry and what has been counted."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..accounting import BudgetSpent, FixedMechanism
from ..fdp import Neighbours
from ..local import Draws, Job, Key, Net, behaviour, digests
from ..local.augment import CHOICES, check, moves_from_uniforms
from ..local.draws import VERSION
from ..local.job import LARGEST_HELPER
from ..local.perturbation import released
from ..local.streams import Streams
from ..rules import LocalOnly, Noised, Numbers, Rule, Steps, Unprotected
from ..sync import Lost, Refused, Sent, Stayed, Uploads
from ..values import BadValue
from .binding import Binding, machinery
from .store import Place, Resident, Store


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
NOTHING: Mapping[str, Any] = MappingProxyType({})
Part = Literal["upload", "kept"]  # of a round: what is sent, and what stays
COUNTERS = ("taken", "queries", "steps", "kept_seen", "shares", "chains")  # what is kept of each client besides its state
AT_ONCE = 64  # models whose distances are taken together
PROBED = 4  # records whose gradients show how this machine rounds


class LocalState(NamedTuple):
    """Where the local steps of a group ended."""

    weights: Tensor  # [C, P]
    anchor: Tensor  # [C, P]
    share: Tensor  # [C, 1]


class Cohort(ABC):
    """What both engines share. A subclass says how a group of clients takes its local steps."""

    def __init__(
        self, net: Net, jobs: Sequence[Job], records: Sequence[tuple[Tensor, Tensor]], rule: Rule, draws: Draws, *,
        start: Tensor | None = None, pushes: bool = False, augment: str = "none", performance: Performance = DEFAULT,
        folder: Path | None = None, config: Mapping[str, Any] = NOTHING,
        bound_to: Mapping[str, Sequence[Tensor | str]] = NOTHING,
    ) -> None:  # fmt: skip
        """`config` and `bound_to`: what else decides about this run, as `Binding` has it; secret draws depend on it."""
        self.config, self.bound_to = config, bound_to
        self.net, self.jobs, self.rule, self.draws = net, tuple(jobs), rule, draws
        self.start = (net.initial() if start is None else start).to(net.device, net.dtype)  # w_0
        self.performance, self.augmented = performance, augment != "none"
        names = [job.client for job in jobs]
        if len(set(names)) < len(names):
            raise BadValue("clients", len(names), "share a name", "two clients of one name would share their noise")
        if len({job.plan is None for job in jobs}) > 1:
            raise BadValue("clients", len(names), "are private and not private in one run", "train them apart")
        for job in jobs:
            _check_steps(job, rule)
        for job, (x, _) in zip(jobs, records, strict=True):
            margin = net.margin_for(job.noisy, job.plan.neighbours) if job.plan and job.noisy else 0.0
            job.check(len(x), net.arithmetic, margin)
        # all records in one tensor: a batch of stacked clients is one lookup
        self.sizes = [len(x) for x, _ in records]
        self.offsets = torch.tensor([0, *self.sizes]).cumsum(0)[:-1]
        self.x = torch.cat([x for x, _ in records]).to(net.device)
        self.y = torch.cat([y for _, y in records]).to(net.device)
        check(augment, self.x.shape[1:], not self.x.is_floating_point())
        if self.x.is_floating_point():
            self.x = self.x.to(net.dtype)
        if self.y.is_floating_point():
            self.y = self.y.to(net.dtype)
        optimised = sorted({s for job in jobs for s in job.optimiser.slots})
        beside = (*(("helper",) if pushes else ()), *(("personal",) if rule.outer else ()))
        self.slots = ("own", *beside, *optimised)
        self.store = self._room(self.slots, folder / "clients.safetensors" if folder else None)
        # What stays with the clients lies in a room of its own, which nothing that leads to an upload reads.
        self.kept_slots = ("personal", *optimised)
        path = folder / "kept.safetensors" if folder else None
        self.kept = self._room(self.kept_slots, path) if rule.kept else None
        self.shares = [rule.kept.share if rule.kept and rule.kept.share is not None else 1.0] * len(jobs)
        self.budgets = [FixedMechanism(job.plan) if job.plan else None for job in jobs]
        self.taken = [0] * len(jobs)  # rounds committed to
        self.queries = [0] * len(jobs)  # noisy queries, counted where noise is added
        self.steps = [0] * len(jobs)  # steps the carried optimiser state has seen
        self.kept_seen = [0] * len(jobs)  # the same, of the clients' own models
        self.chains = [""] * len(jobs)  # digests of all that each client was sent, where draws are bound to it
        self.compiles = self.worth_compiling()  # decided once: a resumed run goes on as it was begun

    @property
    def streams(self) -> Streams | None:
        """Where random numbers are made on the device that uses them; None: on the host."""
        return None

    # ------------------------------------------------------------------ the protocol of sync.py

    def train(self, round: int, chosen: Sequence[int], weights: Tensor | None) -> Uploads:
        """Local training of the chosen clients, group by group."""
        of: dict[int, Sent | Stayed | Refused | Lost] = {}
        senders = self._senders()
        for i in chosen:
            budget = self.budgets[i]
            try:  # commit before anything is sent
                self.budgets[i] = budget.spend(budget.plan) if budget else None
            except BudgetSpent as spent:
                of[i] = Refused(str(spent))
            else:
                self.taken[i] += 1
        groups = self.groups([i for i in chosen if i not in of])
        helpers = self._helpers(groups, weights, senders)
        self._receive(groups, helpers, weights, f"round {round}")
        sealed: list[Tensor] = []
        order: list[int] = []
        for at, group in enumerate(groups if self.rule.uploads else ()):
            before = [self.queries[i] for i in group]
            upload, begun_with = self._train_group(round, group, weights, helpers[at])
            sealed.append(upload)
            order += group
            if self.kept:
                helpers[at] = begun_with
            for row, i, was in zip(sealed[-1], group, before, strict=True):
                of[i] = Sent(row, self.queries[i] - was)
        rows = sealed[0] if len(sealed) == 1 else torch.cat([self.start.new_zeros(0, self.net.count), *sealed])
        if order != sorted(order):
            rows = rows[torch.tensor(order).argsort().to(rows.device)]
        uploads = Uploads(of, Noised(rows) if self.jobs[0].plan else Unprotected(rows))
        if self.kept:
            for group, helper in zip(groups, helpers, strict=True):
                self._train_kept(round, group, self.start.expand(len(group), -1) if helper is None else helper)
                of |= {i: Stayed() for i in group if i not in of}
        return uploads

    def push(self, chosen: Sequence[int], weights: Tensor) -> None:
        if not self.rule.uploads:
            return
        groups = self.groups(chosen)
        helpers = self._helpers(groups, weights, self._senders())
        self._receive(groups, helpers, weights, "pushed")
        for group, helper in zip(groups, helpers, strict=True):
            slots = dict(zip(self.slots, self._states(group), strict=True))
            slots["helper"] = self._helper(group, slots, weights) if helper is None else helper
            self.store.scatter(group, list(slots.values()))

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
        # where the number of records is private and steps are open, a stack would be as wide as the largest client
        alone = job.client if job.output and job.plan and job.plan.neighbours is Neighbours.ADD_REMOVE else ""
        return job.upload, job.kept, job.optimiser.name, steps.batch == "full", alone

    @cached_property
    def kinds(self) -> list[tuple[object, ...]]:
        return [self.kind(i) for i in range(len(self.jobs))]

    def chunk(self, group: list[int]) -> int:
        """How many of these clients are stacked at once."""
        return 1

    def _train_group(
        self, round: int, group: list[int], weights: Tensor | None, helper: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The uploads of a group [C, P], and the helpers they began with."""
        slots: dict[str, Tensor] = dict(zip(self.slots, self._states(group), strict=True))  # [C, P] each
        if helper is None:
            helper = self._helper(group, slots, weights)
        self._forget(group, slots, self.steps)
        start = self.rule.start(slots["own"], helper)
        found = self._local(round, group, "upload", LocalState(start, helper, start.new_ones(len(group), 1)), slots)
        for i in group:
            self.steps[i] += self.jobs[i].upload.steps
        if self.rule.outer:
            slots["personal"] = found.weights
        slots["own"] = self._perturbed(round, group, start, self.rule.finish(found.weights, found.anchor))
        self.store.scatter(group, [slots[name] for name in self.slots])
        return slots["own"], helper

    def _perturbed(self, round: int, group: list[int], start: Tensor, upload: Tensor) -> Tensor:
        """Output perturbation, at the door: whatever the rule made of the training."""
        outputs = [self.jobs[i].output for i in group]
        if not any(outputs):
            return upload
        rows = list(upload)
        for c, (i, mechanism) in enumerate(zip(group, outputs, strict=True)):
            if mechanism:
                key = Key(self.jobs[i].client, round, 0, "output")
                rows[c] = released(start[c], upload[c], mechanism, self.draws_of(i), key)
                self.queries[i] += 1
        return torch.stack(rows)

    def _train_kept(self, round: int, group: list[int], helper: Tensor) -> None:
        """The models that stay with the clients of a group; their uploads are sealed."""
        assert self.kept is not None
        assert self.rule.kept is not None
        self.kept.fill([i for i in group if self.kept.read(i) is None], self._fresh_kept)
        slots = dict(zip(self.kept_slots, self.kept.gather(group).to(self.net.device), strict=True))
        self._forget(group, slots, self.kept_seen)
        anchor = self.rule.kept.anchor(self._uploads(group), helper)
        begun = LocalState(slots["personal"], anchor, self._column([self.shares[i] for i in group]))
        found = self._local(round, group, "kept", begun, slots)
        slots["personal"] = found.weights
        self.kept.scatter(group, [slots[name] for name in self.kept_slots])
        if self.rule.kept.share is not None:
            for i, share in zip(group, found.share.flatten().tolist(), strict=True):
                self.shares[i] = share
        for i in group:
            self.kept_seen[i] += self.jobs[i].kept.steps

    @abstractmethod
    def _local(self, round: int, group: list[int], part: Part, begun: LocalState, slots: dict[str, Tensor]) -> LocalState:
        """The local steps of this part of a round; `slots` hold the optimisers' new state after it."""

    def _part(self, part: Part) -> Steps:
        if part == "upload":
            return self.rule.steps
        assert self.rule.kept is not None
        return self.rule.kept

    def _forget(self, group: Sequence[int], slots: dict[str, Tensor], seen: list[int]) -> None:
        """Optimisers that do not carry their state begin anew."""
        anew = [c for c, i in enumerate(group) if not self.jobs[i].optimiser.carried]
        for c in anew:
            seen[group[c]] = 0
        for name in self.jobs[group[0]].optimiser.slots if anew else ():
            slots[name][anew] = 0

    # ------------------------------------------------------------------ what clients are sent

    def _helper(self, group: Sequence[int], slots: dict[str, Tensor], weights: Tensor | None) -> Tensor:
        """h_i [C, P], of these weights or as it was last pushed."""
        if weights is None:
            return _bounded(slots["helper"])
        return self.rule.helper(_bounded(weights.to(self.net.device)), slots["own"], self.numbers(group))

    def _senders(self) -> set[int]:
        return {i for i, taken in enumerate(self.taken) if taken}

    def _helpers(self, groups: Sequence[list[int]], weights: Tensor | None, senders: set[int]) -> list[Tensor | None]:
        """Where they are made of everybody's uploads, they are made before anybody trains; None: from its own alone."""
        if not self.rule.attends or weights is None:
            return [None] * len(groups)
        return [_bounded(helper) for helper in self._attended(groups, senders)]

    def _attended(self, groups: Sequence[list[int]], senders: set[int]) -> list[Tensor]:
        """Σ_j ξ_ij·w̃_j for each group, over all who ever sent something, and the client itself."""
        everybody = sorted(senders.union(*groups))
        silent = torch.tensor([j not in senders for j in everybody], device=self.net.device)
        pieces = [everybody[at : at + AT_ONCE] for at in range(0, len(everybody), AT_ONCE)]
        found = []
        for group in groups:
            own = self._uploads(group).double()
            centre = own.mean(0)  # distances are those of small differences
            squared = torch.cat([_squared(own - centre, self._uploads(piece).double() - centre) for piece in pieces], 1)
            mine = torch.tensor(everybody).unsqueeze(0) == torch.tensor(group).unsqueeze(1)
            squared = torch.where(silent, torch.inf, squared)
            weights = self.rule.attention(squared, mine.to(squared.device), self.numbers(group))
            parts = zip(weights.split(AT_ONCE, 1), pieces, strict=True)
            total = sum((part @ self._uploads(piece).double() for part, piece in parts), torch.zeros_like(own))
            found.append(total.to(self.start.dtype))
        return found

    def _uploads(self, group: Sequence[int]) -> Tensor:
        """w̃_i of these clients [C, P]."""
        self._fill(group)
        return self.store.rows(group, 0).to(self.net.device)

    def numbers(self, group: Sequence[int]) -> Numbers:
        """The public numbers of these clients, as rules read them."""
        jobs = [(self.jobs[i], max(0, self.taken[i] - 1)) for i in group]
        rows = [(job.mixing, job.strength, job.optimiser.pace(taken) * job.upload.steps) for job, taken in jobs]
        return Numbers(*self._column(rows).unsqueeze(2).unbind(1))

    def _column(self, values: Sequence[float] | Sequence[tuple[float, ...]]) -> Tensor:
        column = torch.tensor(values, dtype=self.start.dtype).to(self.start.device, non_blocking=True)
        return column.unsqueeze(1) if column.dim() == 1 else column

    def moves(self, i: int, round: int, step: int, picked: Tensor) -> Tensor:
        """How the picked records are augmented, int64 [B, 3], each by its own key."""
        keys = [Key(self.jobs[i].client, round, step, "augment", record) for record in picked.tolist()]
        draws = self.draws_of(i)
        lots = [draws.uniform(key, len(CHOICES)) for key in keys]
        return moves_from_uniforms(torch.stack(lots) if lots else torch.zeros(0, len(CHOICES))).to(self.net.device)

    def masks(self, i: int, round: int, step: int, picked: Tensor) -> dict[str, Tensor]:
        """Dropout masks of the picked records [B, …], each drawn by its own key."""
        masks = {}
        draws = self.draws_of(i)
        for layer, (name, (rate, shape)) in enumerate(self.net.dropouts.items()):
            values = torch.Size(shape).numel()
            keys = [Key(self.jobs[i].client, round, step, f"dropout {layer}", record) for record in picked.tolist()]
            lots = [draws.uniform(key, values) for key in keys]
            kept = torch.stack(lots) >= rate if lots else torch.zeros(0, values)
            masks[name] = (kept / (1 - rate) if rate < 1 else kept).reshape(-1, *shape).to(self.net.device, self.net.dtype)
        return masks

    # ------------------------------------------------------------------ what draws are bound to

    def draws_of(self, i: int) -> Draws:
        """A client's draws, bound to all that decides its gradients: the run, and everything it was sent."""
        if not self._binds:
            return self.draws
        return self.draws.bound(bytes.fromhex(self.chains[i]) or self.context)

    def streams_of(self, i: int) -> Streams:
        """The same, for a device."""
        draws = self.draws_of(i)
        assert isinstance(draws, Streams), draws
        return draws

    @property
    def coins(self) -> Draws:
        """Who takes part: bound to the run alone, since a repeated round must have the same clients on any machine."""
        return self.draws.bound(self.binding.identity) if self._binds else self.draws

    @property
    def _binds(self) -> bool:
        """Whether draws depend on what they are bound to; where they do not, nothing has to be digested."""
        return self.draws.bound(b"") is not self.draws

    def _receive(
        self, groups: Sequence[list[int]], helpers: Sequence[Tensor | None], weights: Tensor | None, when: str
    ) -> None:
        """What clients are sent becomes part of their chains.

        A client's gradients follow from the run and from what it was sent, round by round: its own state is made of these.
        """
        if not self._binds:
            return
        common = self._digest(weights) if weights is not None and not self.rule.attends else b""
        for group, helper in zip(groups, helpers, strict=True):
            sent = [common] * len(group) if helper is None else [self._digest(row) for row in helper]
            for i, digest in zip(group, sent, strict=True):
                self.chains[i] = digests.of([self.context, self.chains[i], when, digest]).hex()

    @cached_property
    def _digest(self) -> Callable[[Tensor], bytes]:
        if not self.streams:
            return lambda vector: digests.of([vector])
        on_device = digests.OnDevice(self.streams.stream("", 0, "digest"), self.net.device)
        return lambda vector: on_device(vector.to(self.net.device))

    @cached_property
    def context(self) -> bytes:
        """The digest of all that decides gradients before anything is sent, how they are computed included.

        Copies of a run that are computed in other ways round differently, and so must not share their noise either.
        """
        how = dataclasses.replace(self.performance, memory=0.0)
        return digests.of([self.binding.identity, *machinery(self.net.device), f"{how} {self.compiles}", *self._probed()])

    def _probed(self) -> list[Tensor]:
        """Answers and gradients of a few records, to the last bit."""
        if not len(self.x):
            return []
        places = torch.linspace(0, len(self.x) - 1, PROBED).long().to(self.x.device)
        x, y = self.x[places], self.y[places.to(self.y.device)]
        spread = torch.randn(self.start.shape, generator=torch.Generator().manual_seed(0), dtype=self.start.dtype)
        found = []
        with self.net.exact():
            for weights in (self.start, self.start + 0.1 * spread.to(self.start.device)):
                with torch.no_grad():
                    found.append(self.net.outputs(weights, x))
                found += [self.net.one_record(weights, *one, {}) for one in zip(x.split(1), y.split(1), strict=True)]
        return found

    @cached_property
    def binding(self) -> Binding:
        """Of all that must stay the same while a run lasts."""
        drawn = "device" if self.streams else "host"  # other noise under the same key
        how = (type(self).__name__, self.net.arithmetic, self.net.way, drawn, VERSION, self.augmented, self.slots)
        state = {**dict(self.net.module.named_parameters()), **dict(self.net.module.named_buffers())}
        given = self.net.names, self.net.dropouts
        fixed = [value for name, value in sorted(state.items()) if not any(name in names for names in given)]
        parts: dict[str, Sequence[Tensor | bytes | str]] = {
            "plans": [f"{job} {size}" for job, size in zip(self.jobs, self.sizes, strict=True)],
            "rule": [behaviour.of(self.rule)],
            "optimiser": [behaviour.of({job.optimiser.name: job.optimiser.update for job in self.jobs})],
            "arithmetic": [repr(how)],
            "model code": [self.net.code, repr((self.net.names, self.net.shapes))],
            "fixed weights and buffers": fixed,
            "first weights": [self.start],
            "records": [self.x],
            "labels": [self.y],
            **self.bound_to,
        }
        key = self.draws.uniform(Key("", 0, 0, "fingerprint"), 4).numpy().tobytes()
        return Binding(self.config, {name: digests.of(part) for name, part in parts.items()}, self.net.answers, key)

    # ------------------------------------------------------------------ state

    def _states(self, group: Sequence[int]) -> Tensor:
        """What these clients carry, in a tensor of its own on the net's device [slots, C, P]."""
        self._fill(group)
        states: Tensor = self.store.gather(group).to(self.net.device)
        return states

    def _fill(self, group: Sequence[int]) -> None:
        self.store.fill([i for i in group if self.store.read(i) is None], self._fresh)

    def _room(self, slots: Sequence[str], path: Path | None) -> Store:
        """Where these vectors of all clients are kept."""
        shape = len(self.jobs), len(slots), self.net.count
        if self.net.device.type == "cuda" and _fits_on(self.net.device, math.prod(shape) * self.net.dtype.itemsize):
            return Resident(*shape, self.net.dtype, self.net.device, path)
        return Store(*shape, self.net.dtype, self.performance.memory / (2 if self.rule.kept else 1), path)

    def state(self, i: int) -> Tensor:
        """All a client carries [slots, P]: its last upload (w_0 before the first), its helper, its optimiser's vectors."""
        found = self.store.read(i)
        return self._fresh if found is None else found

    @cached_property
    def _fresh(self) -> Tensor:
        """What a client carries before it takes part."""
        fresh = self.start.new_zeros(len(self.slots), self.net.count)
        fresh[0] = self.start
        for name in {"helper", "personal"} & set(self.slots):
            fresh[self.slots.index(name)] = self.start
        return fresh

    @cached_property
    def _fresh_kept(self) -> Tensor:
        fresh = self.start.new_zeros(len(self.kept_slots), self.net.count)
        fresh[0] = self.start
        return fresh

    def own(self, i: int) -> Tensor:
        """w̃_i, the client's last upload."""
        return self.state(i)[0].to(self.net.device)

    def personal(self, i: int) -> Noised[Tensor] | Unprotected[Tensor] | LocalOnly[Tensor]:
        """The model that the client uses, and whether it may leave."""
        if not self.kept or not self.rule.kept:
            row = self.slots.index("personal") if self.rule.outer else 0
            found = self.state(i)[row].to(self.net.device)
            return Noised(found) if self.jobs[i].plan else Unprotected(found)
        state = self.kept.read(i)
        weights = (self._fresh_kept if state is None else state)[0].to(self.net.device)
        model = self.rule.kept.model(weights[None], self.own(i)[None], self._column([self.shares[i]]))[0]
        if not self.jobs[i].plan and self.rule.uploads:
            return Unprotected(model)
        return Noised(model) if self.jobs[i].kept.noisy else LocalOnly(model)

    def counters(self) -> dict[str, list[Any]]:
        return {name: list(getattr(self, name)) for name in COUNTERS}

    def restore(
        self, counters: dict[str, list[Any]], places: dict[int, Place], kept: dict[int, Place] | None = None
    ) -> None:
        """Go on where a checkpoint was taken; damaged states are refused."""
        for name in COUNTERS:
            setattr(self, name, list(counters[name]))
        self.budgets = [
            FixedMechanism(job.plan, taken) if job.plan else None for job, taken in zip(self.jobs, self.taken, strict=True)
        ]
        self.store.restore(places)
        if self.kept:
            self.kept.restore(kept or {})


def _fits_on(device: torch.device, size: int) -> bool:
    """Whether so many bytes may stay there and leave room to work."""
    return 2 * size < torch.cuda.mem_get_info(device)[0]


def _check_steps(job: Job, rule: Rule) -> None:
    """Refuse a job whose steps are not those of the rule: what is trained would not be what is counted."""
    if (job.upload.steps > 0) != rule.uploads or (job.kept.steps > 0) != (rule.kept is not None):
        steps = f"{job.upload.steps} for the upload and {job.kept.steps} for a model of its own"
        raise BadValue(
            f"clients.{job.client} steps", steps, f"do not go with rule {rule.name}", "plan for the rule's steps"
        )
    if job.output and (rule.outer or rule.publishes):
        why = f"covers one model, and under rule {rule.name} two may leave"
        raise BadValue(f"clients.{job.client} mechanism", "output perturbation", why, "use noisy steps")


def _squared(one: Tensor, other: Tensor) -> Tensor:
    """Squared distances [C, D] of rows [C, P] and [D, P]."""
    found = one.square().sum(1, keepdim=True) + other.square().sum(1) - 2 * one @ other.T
    return found.clamp(min=0)


def _bounded(helper: Tensor) -> Tensor:
    """Entries beyond any use are cut, and what is no number becomes zero: a server may send anything."""
    return torch.nan_to_num(helper, nan=0.0, posinf=LARGEST_HELPER, neginf=-LARGEST_HELPER).clamp(
        -LARGEST_HELPER, LARGEST_HELPER
    )
