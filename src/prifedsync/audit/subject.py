"""What is audited: an unchanged engine, with clients that the audit makes up.

The audit calls the engine's public methods. `uploads` is what leaves the clients. `sums`, the clipped sum before noise,
is the only internal value that it reads. Draws depend on their key alone (`Unbound`): two cohorts with one source draw
the same numbers, and a key that is used twice shows, although an engine's own draws are bound to more than keys.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..accounting import Mechanism, NoisySteps, OutputPerturbation, PrivacyPlan
from ..engines import Cohort, Performance
from ..engines.messages import Messages
from ..fdp import Neighbours
from ..limits import RECORD, Unit
from ..local import Draws, Job, Key, Net, Optimiser, SeededDraws, SystemDraws, UnnoisedSteps
from ..local.client import bounded
from ..local.device import streams
from ..local.device.streams import Streams
from ..local.losses import regression
from ..local.sums import CELL_BITS, Sums, sums_of, why_not
from ..rules import FedAvg, Rule
from ..sync import Helpers, Summed, Uploads

Records = tuple[Tensor, Tensor]
PLAIN = Optimiser(name="sgd", learning_rate=1.0)
MOST_COPIES = 3  # rows of a person
OPEN_STEPS = 2  # local steps before an output is perturbed
CLOSE = {"float64": 1e-9, "float32": 5e-4, "tf32": 2e-3, "bf16": 2e-3}
GRID = 2.0**-12  # uploads are rounded to a grid of at most this many noise scales


@dataclass(frozen=True)
class Subject:
    """A net, how it is trained, and the source of random numbers."""

    net: Net
    x: Tensor
    y: Tensor
    mechanism: Mechanism
    optimiser: Optimiser
    engine: type[Cohort]
    neighbours: Neighbours
    draws: Draws
    augment: str = "none"
    summed: bool = False  # what is audited adds up messages where it can

    @property
    def grid(self) -> float:
        """What uploads are rounded to, in noise scales."""
        return 2.0**-CELL_BITS if self.summed else GRID

    @property
    def noisy(self) -> NoisySteps:
        """The noisy steps, for checks that are made only where there are some."""
        assert self.mechanism.steps is not None
        return self.mechanism.steps

    @property
    def rows(self) -> int:
        """The planned bound on the records of one unit: more than one where units are persons."""
        return self.mechanism.steps.rows_per_unit if self.mechanism.steps else 1

    @property
    def output(self) -> OutputPerturbation:
        """The output perturbation, for checks that are made only where there is one."""
        assert self.mechanism.output is not None
        return self.mechanism.output

    @property
    def close(self) -> float:
        """How far two computations of the same sum may differ, in clip norms."""
        return CLOSE[self.net.arithmetic]

    @property
    def start(self) -> Tensor:
        return self.net.initial().cpu()

    def records(self, low: int, high: int) -> Records:
        """Example records by number; after the last one they start again."""
        places = torch.arange(low, high) % len(self.x)
        return self.x[places], self.y[places]

    def normal(self, *shape: int, what: str) -> Tensor:
        """Random numbers of the audit itself."""
        return self.draws.normal(Key("the auditor", 0, 0, what), torch.Size(shape).numel()).reshape(shape)

    def job(
        self, client: str, mechanism: Mechanism, records: int, *, optimiser: Optimiser = PLAIN, rounds: int = 1,
        neighbours: Neighbours | None = None,
    ) -> Job:  # fmt: skip
        unit: Unit = RECORD if self.rows == 1 else "person"
        plan = PrivacyPlan(mechanism=mechanism, rounds=rounds, neighbours=neighbours or self.neighbours, unit=unit)
        return Job(client=client, plan=plan, optimiser=optimiser, unnoised_steps=unnoised_steps(mechanism, records))

    def cohort(
        self, jobs: Sequence[Job], data: Sequence[Records], *, net: Net | None = None, draws: Draws | None = None,
        start: Tensor | None = None, chunk: int = 0, records_at_once: int = 0, rule: Rule | None = None,
        shared: Sums | None = None,
    ) -> Cohort:  # fmt: skip
        """shared: the numbers of a sum that other clients are in too."""
        performance = Performance(chunk=chunk, records_at_once=records_at_once)
        augment = self.augment if net is None else "none"  # another net is the audit's own, and its records are not images
        net, draws = net or self.net, draws or Unbound(self.draws)
        persons = [_copies(len(x), self.rows) for x, _ in data] if self.rows > 1 else None
        if persons:
            data = [(x[whose], y[whose]) for (x, y), whose in zip(data, persons, strict=True)]
        rule = rule or FedAvg()
        sums = shared or (sums_of(jobs) if self.summed and not why_not(rule, jobs) else None)
        return self.engine(
            net, jobs, data, rule, draws, start=start, augment=augment, performance=performance,
            persons=persons, rows_per_person=self.rows, sums=sums,
        )  # fmt: skip


def _copies(records: int, most: int) -> Tensor:
    """Whose each row is, where each example record becomes a person with one, two or three equal rows.

    The mean of equal gradients is one of them. So all that the audit expects of a record holds for such a person.
    """
    units = torch.arange(records)
    return units.repeat_interleave(1 + units % min(most, MOST_COPIES))


def another_key(draws: Draws) -> Draws:
    """Draws of the same kind under another key."""
    return SeededDraws(secrets.randbits(63)) if isinstance(draws, SeededDraws) else SystemDraws()


def unnoised_steps(mechanism: Mechanism, records: int) -> UnnoisedSteps | None:
    if mechanism.steps:
        return None
    return UnnoisedSteps(records=records, batch="full", local_steps=OPEN_STEPS)


def fitted(steps: NoisySteps, records: int, **changes: object) -> NoisySteps:
    """The steps for another number of records, at nearly the same sampling rate."""
    batch = steps.batch if steps.batch == "full" else max(1, min(round(steps.rate * records), records - 1))
    if steps.rate >= 1 or records == 1:
        batch = "full"
    return replace(steps, **{"records": records, "batch": batch, **changes})  # type: ignore[arg-type]


def uploads(cohort: Cohort, round: int, weights: Tensor) -> Tensor:
    """The uploads of all clients in a round that starts at these weights [C, P].

    Where messages are added up, each is turned into the model that the server would make of it alone."""
    if cohort.sums is None:
        sent = answers(cohort, round, weights)
        assert isinstance(sent, Uploads)
        return sent.rows.value.detach().cpu()
    words, _ = messages(cohort, round, weights)
    alone = [cohort.sums.change(words[name], (name,), round) for name in cohort.names]
    return bounded(weights).double().cpu() + torch.stack(alone).cpu()


def answers(cohort: Cohort, round: int, weights: Tensor) -> Uploads | Summed:
    """What all clients answer when they are sent these weights."""
    row = weights.to(cohort.net.device, cohort.net.dtype)
    return cohort.train(round, Helpers(cohort.names, lambda names: row.expand(len(names), -1)))


class Heard:
    """Adds up messages, and keeps each as it came."""

    def __init__(self, adding: Messages) -> None:
        self._adding = adding
        self.words: dict[str, Tensor] = {}

    def add(self, clients: Sequence[str], words: Tensor) -> None:
        self.words |= dict(zip(clients, words.clone(), strict=True))
        self._adding.add(clients, words)

    def total(self) -> Tensor:
        return self._adding.total()


def messages(cohort: Cohort, round: int, weights: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """The messages of all clients in a round that starts at these weights, by client, and the sum that the server has."""
    heard: list[Heard] = []
    adding = cohort.messages

    def listening(*slot: Any) -> Heard:
        heard.append(Heard(adding(*slot)))
        return heard[-1]

    vars(cohort)["messages"] = listening
    summed = answers(cohort, round, weights)
    del vars(cohort)["messages"]
    assert isinstance(summed, Summed)
    return heard[-1].words, summed.total.value


def sums(cohort: Cohort, weights: Tensor, round: int = 0, step: int = 0) -> Tensor:
    """The clipped sum of every client before noise, double [C, P]; weights are [P] or [C, P]."""
    rows = weights.to(cohort.net.device, cohort.net.dtype).expand(len(cohort.jobs), -1)
    clipped = torch.zeros(rows.shape, dtype=torch.float64)
    for group in cohort.groups(cohort.clients):
        places = [client.index for client in group]
        clipped[places] = cohort.batch_sums(round, step, group, rows[places]).detach().cpu()
    return clipped


def transparent_net(like: Net, width: int) -> Net:
    """A linear model without bias, whose clipped sums are known in advance.

    If targets are far below all outputs, every record's gradient points along the record and is clipped to exactly
    clip_norm, for any weights.
    """
    with torch.random.fork_rng(devices=[]):  # does not change the caller's random state
        module = nn.Linear(width, 1, bias=False)
    return Net(
        module, regression, torch.eye(4, width), torch.zeros(4), like.dtype, like.device, like.grad_method, like.arithmetic
    )


def far_below(clip: float, count: int) -> Tensor:
    """Targets for `transparent_net`."""
    return torch.full((count,), -1e6 * max(clip, 1.0))


def stream_of(draws: Draws, client: str, round: int, purpose: str) -> bytes:
    assert isinstance(draws, Streams), draws  # an engine asks for streams on a device alone
    return draws.stream(client, round, purpose)


def device_noise(cohort: Cohort, client: str, round: int, steps: int) -> list[Tensor]:
    """The normal draws that a device should have made for these noisy steps."""
    return list(device_noises(cohort, [client], round, range(steps))[0])


def device_noises(cohort: Cohort, clients: Sequence[str], round: int, steps: range) -> Tensor:
    """The same for several clients, computed again on the host [C, steps, P]."""
    assert cohort.streams is not None
    (keys,) = streams.keys([cohort.streams] * len(clients), clients, round, ["noise"], torch.device("cpu"))

    def part(place: int, size: int) -> Tensor:
        nonces = torch.tensor([[step, place] for step in steps], dtype=torch.int32)
        return streams.normals(keys, nonces.expand(len(clients), -1, -1), size)

    return torch.cat([part(place, size) for place, size in enumerate(cohort.net.sizes)], 2)


@dataclass(frozen=True)
class Unbound:
    """Draws that depend on the key alone, not on what they are bound to."""

    source: Draws

    def uniform(self, key: Key, count: int) -> Tensor:
        return self.source.uniform(key, count)

    def normal(self, key: Key, count: int) -> Tensor:
        return self.source.normal(key, count)

    def stream(self, client: str, round: int, purpose: str) -> bytes:
        return stream_of(self.source, client, round, purpose)

    def bound(self, context: bytes) -> Unbound:
        return self


@dataclass(frozen=True)
class Silent:
    """Draws without noise, except for noise that a device makes itself; batches are drawn as usual."""

    source: Draws

    def uniform(self, key: Key, count: int) -> Tensor:
        if key.purpose == "output":  # the middle of a Laplace distribution
            return torch.full((count,), 0.5, dtype=torch.float64)
        return self.source.uniform(key, count)

    def normal(self, key: Key, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.float64)

    def stream(self, client: str, round: int, purpose: str) -> bytes:
        return stream_of(self.source, client, round, purpose)

    def bound(self, context: bytes) -> Silent:
        return self


class AllKept:
    """Draws under which dropout keeps every unit and augmentation shifts nothing.

    The sensitivity bound must hold for any draw; hostile weights and records are made for these.
    """

    def uniform(self, key: Key, count: int) -> Tensor:
        if key.purpose == "augment":
            return torch.tensor([0.5, 0.5, 0.25], dtype=torch.float64)
        return torch.full((count,), 1 - 2.0**-53, dtype=torch.float64)

    def normal(self, key: Key, count: int) -> Tensor:
        raise ValueError("there is no noise in a clipped sum")

    def bound(self, context: bytes) -> AllKept:
        return self


def all_kept(net: Net) -> dict[str, Tensor]:
    """The masks of one record under `AllKept`."""
    return {
        name: torch.full((1, *shape), 1 / (1 - rate) if rate < 1 else 0.0, dtype=net.dtype, device=net.device)
        for name, (rate, shape) in net.dropouts.items()
    }


@dataclass(frozen=True)
class Tape:
    """Records every draw in order. It never refuses: an engine that draws a key twice should be found, not stopped."""

    source: Draws
    notes: list[tuple[str, Key, Tensor]] = field(default_factory=list)

    def uniform(self, key: Key, count: int) -> Tensor:
        self.notes.append(("uniform", key, self.source.uniform(key, count)))
        return self.notes[-1][2]

    def normal(self, key: Key, count: int) -> Tensor:
        self.notes.append(("normal", key, self.source.normal(key, count)))
        return self.notes[-1][2].clone()

    def stream(self, client: str, round: int, purpose: str) -> bytes:
        return stream_of(self.source, client, round, purpose)

    def bound(self, context: bytes) -> Tape:
        return self

    def normals(self, client: str, round: int) -> list[Tensor]:
        return [values for kind, key, values in self.notes if (kind, key.client, key.round) == ("normal", client, round)]

    def purpose(self, name: str, client: str, round: int) -> list[Key]:
        return [key for _, key, _ in self.notes if (key.purpose, key.client, key.round) == (name, client, round)]
