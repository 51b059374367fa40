"""Clients of one process: who is stacked with whom, where their states lie, and what their draws are bound to.

The order of a client's round is `local/client.py`; the server's side is `server.py`. A subclass says how stacked clients
take their local steps.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from ..fdp import Neighbours
from ..limits import Unit
from ..local import Draws, Job, Key, Net, behaviour, digests, host
from ..local.answers import Answer, Lost, Refused, Sent, Stayed
from ..local.augment import check
from ..local.client import COUNTERS, Client, Slots, bounded, personal_model, train_kept, train_message, train_upload
from ..local.device.streams import Streams
from ..local.draws import VERSION
from ..local.host import Persons, Records
from ..local.job import Part
from ..local.optimisers import outside
from ..local.step import LocalState
from ..local.sums import Sums
from ..rules import Noised, Rule, Steps, Unprotected, trial
from ..scores import Measurement
from ..store import noted, places_of, room
from ..sync import Account, Evaluation, Helpers, Model, Summed, Uploads
from ..values import BadValue
from .binding import Binding, machinery
from .messages import Bare, Messages
from .outages import Outages
from .scoring import Scorer, with_pooled


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
NEVER_ARRIVED = "simulated: what the client sent never arrived"
NO_SUM = "a message is missing, and the masks of the others do not cancel without it"
NONE = Outages()
PROBED = 4  # records whose gradients show how this machine rounds


class Cohort(ABC):
    """An engine with its clients in it (`sync.Engine`)."""

    def __init__(
        self, net: Net, jobs: Sequence[Job], records: Sequence[tuple[Tensor, Tensor]], rule: Rule, draws: Draws, *,
        start: Tensor | None = None, augment: str = "none", performance: Performance = DEFAULT, folder: Path | None = None,
        scorer: Scorer | None = None, config: Mapping[str, Any] = NOTHING,
        bound_to: Mapping[str, Sequence[Tensor | str]] = NOTHING, persons: Sequence[Tensor] | None = None,
        rows_per_person: int = 1, sums: Sums | None = None, outages: Outages = NONE,
    ) -> None:  # fmt: skip
        """`config` and `bound_to`: what else decides about this run, as `Binding` has it; secret draws depend on it.

        persons          whose each record is [n], numbered 0, 1, 2, … from a client's first record to its last
        rows_per_person  a public bound on the records of one of them
        sums             where clients send messages that are added up; None: they send models
        outages          which uploads are lost, simulated
        """
        sizes = [len(x) for x, _ in records]
        rows = _rows(jobs, sizes, persons, rows_per_person)
        units = [len(each) for each in rows]
        _check_jobs(net, jobs, units, rule, "record" if persons is None else "person", rows_per_person)
        self.net = net
        self.jobs = tuple(jobs)
        self.rule = rule
        self.draws = draws
        self.start = (net.initial() if start is None else start).to(net.device, net.dtype)  # w_0
        self.performance = performance
        self.folder = folder
        self.scorer = scorer
        self.config = config
        self.bound_to = bound_to
        several = persons is not None and rows_per_person > 1  # else every record is a unit of its own
        self.records = _together(net, records, augment, Persons(torch.cat(rows), rows_per_person) if several else None)
        self.clients = self._clients(units, sizes)
        self.names = tuple(client.name for client in self.clients)
        optimised = sorted({slot for job in jobs for slot in job.optimiser.slots})
        self.slots = ("own", *(("personal",) if rule.outer else ()), *optimised)  # what a client carries
        self.store = room(len(jobs), len(self.slots), self.start, performance.memory, self._path("clients"))
        # What stays with the clients lies in a store of its own, which nothing that leads to an upload reads.
        self.kept_slots = ("personal", *optimised)
        self.kept = None
        if rule.kept:
            self.kept = room(len(jobs), len(self.kept_slots), self.start, performance.memory, self._path("kept"))
        self.sums = sums
        self.outages = outages
        self.attempts = 0  # spare ones that this run has used
        self.compiles = self.worth_compiling()  # decided once: a resumed run goes on as it was begun

    def _clients(self, units: Sequence[int], rows: Sequence[int]) -> list[Client]:
        binds = self.draws.bound(b"") is not self.draws  # where draws do not depend on it, nothing has to be digested
        context = (lambda: self.context) if binds else None
        offsets = torch.tensor([0, *rows]).cumsum(0)[:-1].tolist()
        firsts = torch.tensor([0, *units]).cumsum(0)[:-1].tolist()
        share = self.rule.kept.share if self.rule.kept and self.rule.kept.share is not None else 1.0
        return [
            Client(job, self.draws, size, index, offset, first, context, share=share)
            for index, (job, size, offset, first) in enumerate(zip(self.jobs, units, offsets, firsts, strict=True))
        ]

    def _path(self, name: str) -> Path | None:
        return self.folder / f"{name}.safetensors" if self.folder else None

    @property
    def streams(self) -> Streams | None:
        """Where random numbers are made on the device that uses them; None: on the host."""
        return None

    # ------------------------------------------------------------------ the protocol of sync.py

    def train(self, round: int, helpers: Helpers) -> Uploads | Summed:
        """Everybody answers; those who take part train group by group, and models that stay come after the seal."""
        answers, present = self._joined(round, helpers.names)
        received: dict[str, Tensor] = {}  # what is kept looks at what the upload began with
        if self.sums:
            uploads: Uploads | Summed = self._added_up(self.sums, round, answers, present, helpers, received)
        else:
            uploads = self._sent(round, answers, present, helpers, received)
        if self.kept:
            for group in self.groups([client for client in present if client.name in received]):
                self._keep(round, group, torch.stack([received[client.name] for client in group]))
        return uploads

    def _sent(
        self, round: int, answers: dict[str, Answer], present: Sequence[Client], helpers: Helpers,
        received: dict[str, Tensor],
    ) -> Uploads:  # fmt: skip
        """The models of those who take part."""
        sealed: dict[str, Answer] = {}
        stacks = []
        for client in present:
            client.commit()
        for group in self.groups(present):
            before = [client.queries for client in group]
            helper = self._received(round, group, helpers, received)
            rows = self._upload(round, group, helper)
            if rows is None:
                continue
            arrived = [c for c, client in enumerate(group) if not self.outages.lost(client.name, round)]
            stacks.append(rows if len(arrived) == len(group) else rows[arrived])
            sealed |= {client.name: Lost(NEVER_ARRIVED) for client in group}
            sealed |= {group[c].name: Sent(rows[c], group[c].queries - before[c]) for c in arrived}
        return self._sealed(answers | sealed, stacks, [name for name, it in sealed.items() if isinstance(it, Sent)])

    def _added_up(
        self, sums: Sums, round: int, answers: dict[str, Answer], present: Sequence[Client], helpers: Helpers,
        received: dict[str, Tensor],
    ) -> Summed:  # fmt: skip
        """The sum of the messages. A masked one that lacks a message is taken again without those who sent none, in a slot
        of its own, while there are spare attempts."""
        listed = list(present)
        attempts = self.attempts
        total = torch.zeros(self.net.count, dtype=torch.int64, device=self.net.device)
        while listed:
            if sums.masked and len(listed) < sums.least:
                short = f"{len(listed)} clients are left for a sum, and {sums.least} must be in it"
                answers |= {
                    client.name: Lost(short, arrived=True) if client.attempt else Refused(short) for client in listed
                }
                break
            sent = self._attempt(sums, round, answers, listed, helpers, received)
            arrived = [client for client in listed if isinstance(answers[client.name], Sent)]
            if len(arrived) == len(listed) or not sums.masked:
                total = sent.total()
                break
            answers |= {client.name: Lost(NO_SUM, arrived=True) for client in arrived}
            listed = self._again(sums, answers, arrived)
        return Summed(answers, Noised(total), 1 + self.attempts - attempts)

    def _again(self, sums: Sums, answers: dict[str, Answer], arrived: Sequence[Client]) -> list[Client]:
        """Who is in the next attempt at a round; nobody where the spare attempts of the run are used up."""
        if self.attempts >= sums.attempts:
            return []
        refusals = {client.name: client.join_again() for client in arrived}
        answers |= {name: refusal for name, refusal in refusals.items() if refusal}
        return [client for client in arrived if not refusals[client.name]]

    def _attempt(
        self, sums: Sums, round: int, answers: dict[str, Answer], listed: Sequence[Client], helpers: Helpers,
        received: dict[str, Tensor],
    ) -> Messages:  # fmt: skip
        """Those messages of one attempt that arrive; `answers` say whose do."""
        self.attempts += listed[0].attempt > 0
        for client in listed:
            client.commit()
        self._bind_to_list(round, listed, [client.name for client in listed])
        sent = self.messages(round, listed, sums)
        for group in self.groups(listed):
            before = [client.queries for client in group]
            words = self._messages(sums, round, group, self._received(round, group, helpers, received))
            arrived = [c for c, client in enumerate(group) if not self.outages.lost(client.name, round, client.attempt)]
            answers |= {client.name: Lost(NEVER_ARRIVED) for client in group}
            answers |= {group[c].name: Sent(None, group[c].queries - before[c]) for c in arrived}
            sent.add([group[c].name for c in arrived], words[arrived])
        return sent

    def _bind_to_list(self, round: int, asked: Sequence[Client], names: Sequence[str]) -> None:
        """Draws depend on who is in a sum, masked or not. The same noise in sums over two lists, of a run and of a copy of
        it, would show the difference of the sums."""
        listed = digests.of([f"attempt {asked[0].attempt}", *sorted(names)])
        for client in asked:
            client.receive(listed, round)

    def messages(self, round: int, listed: Sequence[Client], sums: Sums) -> Messages:
        """Where the messages of one attempt are added up."""
        return Bare(sums, self.net.count, self.net.device)

    def _joined(self, round: int, names: Sequence[str]) -> tuple[dict[str, Answer], list[Client]]:
        """What those who are asked answer as far as it is known before they train, and who takes part."""
        asked = set(names)
        answers: dict[str, Answer] = {}
        present = []
        for client in self.clients:
            if client.name not in asked:
                continue
            refusal = client.join(round, self.coins)
            if refusal is None:
                present.append(client)
            answers[client.name] = refusal or Stayed()  # until its upload is there
        answers |= {name: Refused("is not a client of this engine") for name in names if name not in answers}
        return answers, present

    def accounts(self) -> Mapping[str, Account]:
        return {client.name: Account(client.taken, client.queries, client.spare) for client in self.clients}

    def models(self, released: Tensor | None = None) -> Mapping[str, Model]:
        return _Models(self, released)

    @property
    def _uses_released(self) -> bool:
        """Whether clients use the released model: they have not made any that is their own."""
        return self.sums is not None and not self.rule.kept

    def evaluate(self, released: Tensor | None, own: Sequence[str] = ()) -> Evaluation | None:
        scorer = self.scorer
        if scorer is None:
            return None
        everywhere = dict(zip(self.names, scorer.each(released), strict=True)) if released is not None else {}
        if self._uses_released and everywhere:
            return Evaluation(personal=everywhere, released=everywhere)
        places = [self.place(name) for name in own]
        personal = scorer.own(lambda i: self.personal(i).value, places) if places else []
        return Evaluation(personal=dict(zip(own, personal, strict=True)), released=everywhere)

    def measure(self, released: Tensor | None, own: bool) -> Mapping[str, tuple[Measurement, ...]] | None:
        scorer = self.scorer
        if scorer is None:
            return None
        everywhere = scorer.measure_each(released) if released is not None else None
        found = {}
        if own:
            shared = everywhere if self._uses_released else None
            own_models = shared or self._pooled(scorer, scorer.measure_own(lambda i: self.personal(i).value))
            found["personal"] = own_models
        if everywhere is not None:
            found["released"] = everywhere
        return found

    def _pooled(self, scorer: Scorer, measured: Sequence[Measurement]) -> tuple[Measurement, ...]:
        """With clients' own models on everybody's test records; those that never took part all have the first one."""
        trained = [client.index for client in self.clients if client.taken]
        score = dict(zip(trained, scorer.pooled(self.personal(i).value for i in trained), strict=True))
        first = scorer.pooled([self.start]) if len(trained) < len(self.clients) else []
        found = [score[i] if i in score else first[0] for i in range(len(self.clients))]
        return with_pooled(measured, scorer.over_models(found))

    def save(self) -> dict[str, Any]:
        return {
            "bound to": self.binding.noted(),
            "counters": self.counters(),
            "attempts": self.attempts,
            "compiles": self.compiles,
            "places": noted(self.store.flush()),
            "kept": noted(self.kept.flush()) if self.kept else {},
        }

    def saved(self) -> None:
        self.store.commit()
        if self.kept:
            self.kept.commit()

    def load(self, state: Mapping[str, Any]) -> None:
        self.binding.check(state["bound to"], self.folder.parent if self.folder else Path())
        for name in COUNTERS:
            for client, value in zip(self.clients, state["counters"][name], strict=True):
                setattr(client, name, value)
        self.attempts = state["attempts"]
        self.store.restore(places_of(state["places"]))
        if self.kept:
            self.kept.restore(places_of(state["kept"]))
        self.compiles = state["compiles"]

    def counters(self) -> dict[str, list[Any]]:
        """What each client carries besides vectors."""
        return {name: [getattr(client, name) for client in self.clients] for name in COUNTERS}

    # ------------------------------------------------------------------ stacks

    def groups(self, clients: Sequence[Client]) -> list[list[Client]]:
        """Clients that can be stacked, in pieces of at most `chunk`."""
        alike: dict[Any, list[Client]] = {}
        for client in clients:
            alike.setdefault(self.kinds[client.index], []).append(client)
        return [group[at : at + size] for group in alike.values() for size in [self.chunk(group)]
                for at in range(0, len(group), size)]  # fmt: skip

    def kind(self, client: Client) -> tuple[object, ...]:
        """Clients of one kind can be stacked."""
        job = client.job
        # where the number of records is private and steps are open, a stack would be as wide as the largest client
        alone = job.client if job.output and job.plan and job.plan.neighbours is Neighbours.ADD_REMOVE else ""
        return job.upload, job.kept, job.optimiser.name, job.steps.batch == "full", alone

    @cached_property
    def kinds(self) -> list[tuple[object, ...]]:
        return [self.kind(client) for client in self.clients]

    def chunk(self, group: Sequence[Client]) -> int:
        """How many of these clients are stacked at once."""
        return 1

    def worth_compiling(self) -> bool:
        return False

    @abstractmethod
    def take_steps(
        self, round: int, clients: Sequence[Client], part: Part, rule: Steps, begun: LocalState, slots: Slots
    ) -> LocalState:
        """The local steps of one stack in this part of a round (`local.client.Machine`)."""

    @abstractmethod
    def batch_sums(
        self, round: int, step: int, clients: Sequence[Client], weights: Tensor, part: Part = "upload"
    ) -> Tensor:
        """What one step sums up for these clients before noise, double [C, P]; for audits and tests."""

    @abstractmethod
    def gradients(self, round: int, step: int, clients: Sequence[Client], weights: Tensor, part: Part = "upload") -> Tensor:
        """The gradients of one step of these clients [C, P], noisy where they are planned so; for audits and tests."""

    # ------------------------------------------------------------------ one stack's round

    def noised_sums(self, round: int, clients: Sequence[Client], weights: Tensor, sums: Sums) -> Tensor:
        """What these clients add to a sum of noisy gradients (`local.client.Machine`)."""
        step = clients[0].phase("upload").first
        return host.messages(self.batch_sums(round, step, clients, weights), round, clients, sums)

    def _received(self, round: int, group: Sequence[Client], helpers: Helpers, received: dict[str, Tensor]) -> Tensor:
        """What these clients are sent [C, P], as far as they use it; `received` has each row if it is looked at later."""
        sent = helpers([client.name for client in group]).detach().to(self.start.device, self.start.dtype)
        if sent.shape != (len(group), self.net.count):
            raise ValueError(f"a helper has shape {tuple(sent.shape)}, and must have {(len(group), self.net.count)}")
        if group[0].context:
            same = sent.stride(0) == 0
            digested = self._digests(sent[:1]) * len(group) if same else self._digests(sent)
            for client, digest in zip(group, digested, strict=True):
                client.receive(digest, round)
        helper = bounded(sent)
        if self.kept:
            received |= {client.name: row for client, row in zip(group, helper, strict=True)}
        return helper

    def _upload(self, round: int, group: Sequence[Client], helper: Tensor) -> Tensor | None:
        """What a stack sends [C, P]; None where the rule sends nothing."""
        if not self.rule.uploads:
            return None
        with self._carried(group) as slots:
            return train_upload(self, self.rule, round, group, helper, slots)

    def _messages(self, sums: Sums, round: int, group: Sequence[Client], helper: Tensor) -> Tensor:
        """What a stack adds to the sum of a round, int64 [C, P]."""
        with self._carried(group) as slots:
            return train_message(self, self.rule, round, group, helper, slots, sums)

    @contextmanager
    def _carried(self, group: Sequence[Client]) -> Iterator[Slots]:
        """What these clients carry, to be changed in the same round."""
        places = [client.index for client in group]
        self.store.fill([i for i in places if self.store.read(i) is None], self._fresh)
        carried: Tensor = self.store.gather(places).to(self.net.device)
        slots: Slots = dict(zip(self.slots, carried, strict=True))
        yield slots
        self.store.scatter(places, [slots[name] for name in self.slots])

    def _sealed(self, answers: Mapping[str, Answer], stacks: Sequence[Tensor], order: Sequence[str]) -> Uploads:
        """The uploads of a round, in the order of the clients."""
        rows = stacks[0] if len(stacks) == 1 else torch.cat([self.start.new_zeros(0, self.net.count), *stacks])
        places = [self.place(name) for name in order]
        if places != sorted(places):
            rows = rows[torch.tensor(places).argsort().to(rows.device)]
        return Uploads(answers, Noised(rows) if self.jobs[0].plan else Unprotected(rows))

    def _keep(self, round: int, group: Sequence[Client], helper: Tensor) -> None:
        """The models that stay with the clients of a stack; their uploads are sealed."""
        assert self.kept is not None
        places = [client.index for client in group]
        self.kept.fill([i for i in places if self.kept.read(i) is None], self._fresh_kept)
        slots: Slots = dict(zip(self.kept_slots, self.kept.gather(places).to(self.net.device), strict=True))
        train_kept(self, self.rule, round, group, self._uploads(places), helper, slots)
        self.kept.scatter(places, [slots[name] for name in self.kept_slots])

    # ------------------------------------------------------------------ what draws are bound to

    @cached_property
    def coins(self) -> Draws:
        """Who takes part: bound to the run alone, since a repeated round must have the same clients on any machine."""
        return self.draws.bound(self.binding.identity) if self.clients[0].context else self.draws

    @cached_property
    def _digests(self) -> Callable[[Tensor], list[bytes]]:
        """Of each row."""
        if self.streams:
            return digests.OnDevice(self.streams.stream("", 0, "digest"), self.net.device)
        return lambda rows: [digests.of([row]) for row in rows]

    @cached_property
    def context(self) -> bytes:
        """The digest of all that decides gradients before anything is sent, how they are computed included.

        Copies of a run that are computed in other ways round differently, and so must not share their noise either.
        """
        how = dataclasses.replace(self.performance, memory=0.0)
        return digests.of([self.binding.identity, *machinery(self.net.device), f"{how} {self.compiles}", *self._probed()])

    def _probed(self) -> list[Tensor]:
        """Answers and gradients of a few records, to the last bit."""
        if not len(self.records.x):
            return []
        x, y = self._few_records()
        spread = torch.randn(self.start.shape, generator=torch.Generator().manual_seed(0), dtype=self.start.dtype)
        probed = []
        with self.net.exact():
            for weights in (self.start, self.start + 0.1 * spread.to(self.start.device)):
                with torch.no_grad():
                    probed.append(self.net.outputs(weights, x))
                probed += [self.net.one_record(weights, *one, {}) for one in zip(x.split(1), y.split(1), strict=True)]
                probed += self.net.by_own_rules(weights, x, y)
        for update in {job.optimiser.update: None for job in self.jobs if job.optimiser.own}:
            probed += outside.bits(update)
        if trial.is_outside(self.rule):
            probed += trial.answers(self.rule, self.net.count, range(trial.CLIENTS))
        return probed

    def _few_records(self) -> tuple[Tensor, Tensor]:
        places = torch.linspace(0, len(self.records.x) - 1, PROBED).long().to(self.net.device)
        return self.records.x[places], self.records.y[places]

    @cached_property
    def binding(self) -> Binding:
        """Of all that must stay the same while a run lasts."""
        drawn = "device" if self.streams else "host"  # other noise under the same key
        augmented = self.records.augmented
        how = (type(self).__name__, self.net.arithmetic, self.net.grad_method, drawn, VERSION, augmented, self.slots)
        state = {**dict(self.net.module.named_parameters()), **dict(self.net.module.named_buffers())}
        given = self.net.names, self.net.dropouts
        fixed = [value for name, value in sorted(state.items()) if not any(name in names for names in given)]
        parts: dict[str, Sequence[Tensor | bytes | str]] = {
            "plans": [f"{client.job} {client.records}" for client in self.clients],
            "rule": [behaviour.of(self.rule)],
            "optimiser": [behaviour.of({job.optimiser.name: job.optimiser.update for job in self.jobs})],
            "arithmetic": [repr(how)],
            "model code": [self.net.code, repr((self.net.names, self.net.shapes))],
            "fixed weights and buffers": fixed,
            "first weights": [self.start],
            "records": [self.records.x],
            "labels": [self.records.y],
            **({"sums": [repr(self.sums)]} if self.sums else {}),
            **({"persons": [self.records.persons.rows, str(self.records.persons.most)]} if self.records.persons else {}),
            **self.bound_to,
        }
        key = self.draws.uniform(Key("", 0, 0, "fingerprint"), 4).numpy().tobytes()
        return Binding(self.config, {name: digests.of(part) for name, part in parts.items()}, self.net.answers, key)

    # ------------------------------------------------------------------ what clients carry

    def place(self, name: str) -> int:
        """The client's number in this engine."""
        if name not in self._place_of:
            raise BadValue("client", name, "is not in this run", f"clients: {', '.join(self.names[:5])}…")
        return self._place_of[name]

    @cached_property
    def _place_of(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}

    def state(self, i: int) -> Tensor:
        """All a client carries [slots, P]: its last upload (w_0 before the first), its optimiser's vectors."""
        found = self.store.read(i)
        return self._fresh if found is None else found

    @cached_property
    def _fresh(self) -> Tensor:
        """What a client carries before it takes part."""
        fresh = self.start.new_zeros(len(self.slots), self.net.count)
        for name in {"own", "personal"} & set(self.slots):
            fresh[self.slots.index(name)] = self.start
        return fresh

    @cached_property
    def _fresh_kept(self) -> Tensor:
        fresh = self.start.new_zeros(len(self.kept_slots), self.net.count)
        fresh[self.kept_slots.index("personal")] = self.start
        return fresh

    def _uploads(self, places: Sequence[int]) -> Tensor:
        """w̃_i of these clients [C, P]."""
        self.store.fill([i for i in places if self.store.read(i) is None], self._fresh)
        return self.store.rows(places, 0).to(self.net.device)

    def own(self, i: int) -> Tensor:
        """w̃_i, the client's last upload."""
        return self.state(i)[0].to(self.net.device)

    def personal(self, i: int) -> Model:
        """The model that the client uses, and whether it may leave."""
        if self.kept:
            state = self.kept.read(i)
            weights = (self._fresh_kept if state is None else state)[0]
        else:
            weights = self.state(i)[self.slots.index("personal") if self.rule.outer else 0]
        return personal_model(self.rule, self.clients[i], weights.to(self.net.device), self.own(i))


class _Models(Mapping[str, Model]):
    """Each client's model by its name, read when it is looked up."""

    def __init__(self, cohort: Cohort, released: Tensor | None) -> None:
        self._cohort = cohort
        self._released = released

    def __getitem__(self, name: str) -> Model:
        place = self._cohort.place(name)
        if self._released is not None and self._cohort._uses_released:
            return Noised(self._released)
        return self._cohort.personal(place)

    def __iter__(self) -> Iterator[str]:
        return iter(self._cohort.names)

    def __len__(self) -> int:
        return len(self._cohort.names)


def _rows(jobs: Sequence[Job], sizes: Sequence[int], persons: Sequence[Tensor] | None, most: int) -> list[Tensor]:
    """How many records each unit of each client has."""
    if persons is None:
        return [torch.ones(size, dtype=torch.long) for size in sizes]
    return [_rows_of(*each, most) for each in zip(jobs, sizes, persons, strict=True)]


def _rows_of(job: Job, records: int, persons: Tensor, most: int) -> Tensor:
    who = f"clients.{job.client}.persons"
    if persons.shape != (records,) or not torch.equal(persons, persons.unique_consecutive(return_inverse=True)[1]):
        rule = "must number the persons 0, 1, 2, … in the order of the records, with the records of a person side by side"
        raise BadValue(who, f"array of shape {tuple(persons.shape)}", rule, "use data.check")
    rows = torch.bincount(persons)
    if len(rows) and int(rows.max()) > most:
        rule = f"has more records than rows_per_person = {most}"
        raise BadValue(who, int(rows.max()), rule, "plan for more rows of a person")
    return rows


def _together(net: Net, records: Sequence[tuple[Tensor, Tensor]], augment: str, persons: Persons | None) -> Records:
    """All records in one tensor on the net's device."""
    x = torch.cat([x for x, _ in records]).to(net.device)
    y = torch.cat([y for _, y in records]).to(net.device)
    check(augment, x.shape[1:], not x.is_floating_point())
    x = x.to(net.dtype) if x.is_floating_point() else x
    y = y.to(net.dtype) if y.is_floating_point() else y
    return Records(x, y, augment != "none", persons)


def _check_jobs(net: Net, jobs: Sequence[Job], sizes: Sequence[int], rule: Rule, unit: Unit, rows: int) -> None:
    """Refuse jobs that cannot be trained together, or that are not about these records and this rule."""
    names = [job.client for job in jobs]
    if len(set(names)) < len(names):
        raise BadValue("clients", len(names), "share a name", "two clients of one name would share their noise")
    if len({job.plan is None for job in jobs}) > 1:
        raise BadValue("clients", len(names), "are private and not private in one run", "train them apart")
    if trial.is_outside(rule):
        trial.check(rule, net.count)
    for job in jobs:
        _check_steps(job, rule)
        _check_unit(job, unit, rows)
    for job, size in zip(jobs, sizes, strict=True):
        margin = net.margin_for(job.noisy, job.plan.neighbours) if job.plan and job.noisy else 0.0
        job.check(size, net.arithmetic, margin)


def _check_unit(job: Job, unit: Unit, rows: int) -> None:
    """Refuse a plan that is about something else than what is clipped, sampled and counted here."""
    if job.plan and job.plan.unit != unit:
        raise BadValue(f"clients.{job.client} unit", job.plan.unit, f"is not what is trained on, a {unit}", "plan for that")
    if job.plan and job.noisy and unit == "person" and job.noisy.rows_per_unit != rows:
        rule = f"is not the bound of these records, {rows}"
        raise BadValue(f"clients.{job.client} rows_per_unit", job.noisy.rows_per_unit, rule, "plan with that bound")


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
