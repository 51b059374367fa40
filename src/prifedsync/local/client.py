"""One client: what it commits to, what it counts, what its draws are bound to, and the order of its round:

    join      its own coin, then its budget; the slot is committed to before anything is trained
    receive   what the server sent, cut to a public range, becomes part of what secret draws depend on
    upload    start → local steps → finish → output perturbation; what comes out may leave, and is sealed by the engine
    kept      the steps of a model that stays, after the upload is sealed

Clients that are trained together are stacked: [C, P] vectors, [C, 1] numbers. A stack of one is one client, and how many
are stacked changes no draw of any of them. A machine (`Machine`) takes the local steps; nothing here knows how.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..accounting import BudgetSpent, FixedMechanism
from ..rules import LocalOnly, Noised, Numbers, Rule, Steps, Unprotected
from . import digests, noise
from .answers import Absent, Refused
from .device.streams import Streams
from .draws import Draws, Key
from .job import LARGEST_HELPER, Job, Part, Phase, column, numbers_of
from .perturbation import clipped, released
from .step import LocalState
from .sums import Sums

Slots = dict[str, Tensor]  # what clients carry from round to round, vector by vector, [C, P] each
COUNTERS = (
    "asked",
    "taken",
    "spare",
    "queries",
    "steps",
    "kept_steps",
    "share",
    "chain",
)  # what a client carries besides vectors


@dataclass
class Client:
    """One client on the machine that holds its records."""

    job: Job
    source: Draws
    records: int  # units that there really are, records or persons; private under add-remove neighbours
    index: int = 0  # among the clients of its machine
    offset: int = 0  # where its records begin among all records of its machine
    first_unit: int = 0  # and its persons among all persons
    context: Callable[[], bytes] | None = None  # what its draws are bound to before it received anything; None: to nothing
    asked: int = 0  # the first round that it may still be asked in
    attempt: int = 0  # at the round that it was last asked in; each is a slot of its own
    taken: int = 0  # slots committed to
    spare: int = 0  # how many of them were not the first attempt at their round
    queries: int = 0  # noisy queries, as whoever added noise has counted them
    steps: int = 0  # that the carried state of the optimiser has seen
    kept_steps: int = 0  # the same, of its own model
    share: float = 1.0
    chain: str = ""  # digest of all that it was sent, where draws are bound to it

    @property
    def name(self) -> str:
        return self.job.client

    def join(self, round: int, coins: Draws) -> Absent | Refused | None:
        """None where it takes part; it is then to `commit` before anything is trained.

        A round is answered once, and never after a later one. A plan counts the rounds in which a coin is tossed, so a
        server that could ask again, or ask in more rounds than planned, would choose who takes part.
        """
        refused = self._refused(round)
        if refused:
            return refused
        self.asked = round + 1
        if self.job.participation < 1 and self._toss(round, coins) >= self.job.participation:
            return Absent()
        self.attempt = 0
        return None

    def commit(self) -> None:
        """A slot is spent, whatever becomes of it."""
        self.taken += 1
        self.spare += self.attempt > 0

    def join_again(self) -> Refused | None:
        """The same for a further attempt at the round. No coin is tossed, since others choose when a round is repeated."""
        plan = self.job.plan
        if plan is None or self.spare >= plan.attempts:
            return Refused(f"all {plan.attempts if plan else 0} spare attempts of the plan are taken")
        self.attempt += 1
        return None

    def _refused(self, round: int) -> Refused | None:
        """By public numbers alone: the rounds asked so far, and the plan."""
        if round < self.asked:
            return Refused(f"round {round} is over: the client was asked in round {self.asked - 1} before")
        plan = self.job.plan
        if plan is None:
            return None
        try:
            FixedMechanism(plan, self.taken).spend(plan)
        except BudgetSpent as spent:
            return Refused(str(spent))
        return Refused(f"round {round} is beyond the {plan.rounds} rounds of the plan") if round >= plan.rounds else None

    def _toss(self, round: int, coins: Draws) -> float:
        """Uniform in (0, 1), and blind: it sees neither records nor what was sent before."""
        return coins.uniform(Key(self.name, round, 0, "coin"), 1).item()

    def receive(self, digest: bytes, round: int) -> None:
        """What it was sent becomes part of the chain that its secret draws are bound to.

        A client's gradients follow from the run and from what it was sent, round by round: its own state is made of these.
        """
        if self.context:
            self.chain = digests.of([self.context(), self.chain, f"round {round}", digest]).hex()

    @property
    def draws(self) -> Draws:
        """Its draws, bound to all that decides its gradients: the run, and everything it was sent."""
        if not self.context:
            return self.source
        return self.source.bound(bytes.fromhex(self.chain) or self.context())

    @property
    def streams(self) -> Streams:
        """The same, for a device."""
        draws = self.draws
        assert isinstance(draws, Streams), draws
        return draws

    @property
    def rounds(self) -> int:
        """Rounds that it took part in."""
        return self.taken - self.spare

    def phase(self, part: Part) -> Phase:
        """Its steps in this part of the round."""
        return self.job.attempt(self.attempt) if part == "upload" else self.job.kept

    def seen(self, part: Part) -> int:
        """Steps that the optimiser's state has seen which this part of a round goes on with."""
        return self.steps if part == "upload" else self.kept_steps


class Machine(Protocol):
    """Whatever takes the local steps of stacked clients."""

    def take_steps(
        self, round: int, clients: Sequence[Client], part: Part, rule: Steps, begun: LocalState, slots: Slots
    ) -> LocalState:
        """All steps of this part of a round; `slots` hold the optimisers' new state then.

        It adds to `Client.queries` what was counted where noise was added."""

    def noised_sums(self, round: int, clients: Sequence[Client], weights: Tensor, sums: Sums) -> Tensor:
        """What these clients add to a sum of noisy gradients at these weights, int64 [C, P]; counted in the same way."""


def bounded(helper: Tensor) -> Tensor:
    """Entries beyond any use are cut, and what is no number becomes zero: a server may send anything."""
    if helper.dim() == 2 and helper.stride(0) == 0 and len(helper):  # the same for all: once is enough
        return bounded(helper[0]).expand_as(helper)
    limit = LARGEST_HELPER
    return torch.nan_to_num(helper, nan=0.0, posinf=limit, neginf=-limit).clamp(-limit, limit)


def train_upload(
    machine: Machine, rule: Rule, round: int, clients: Sequence[Client], helper: Tensor, slots: Slots
) -> Tensor:
    """What these clients send [C, P]; `slots` are what they carry, before and after."""
    _forget(clients, "upload", slots)
    start = rule.start(slots["own"], helper)
    origin = start.clone() if clients[0].job.output else start  # a change is measured from here, whatever is done to start
    begun = LocalState(start, helper, start.new_ones(len(clients), 1))
    ended = machine.take_steps(round, clients, "upload", rule.steps, begun, slots)
    for client in clients:
        client.steps += client.job.upload.steps
    if rule.outer:
        slots["personal"] = ended.weights
    slots["own"] = _perturbed(round, clients, origin, rule.finish(ended.weights, ended.anchor))
    return slots["own"]


def train_message(
    machine: Machine, rule: Rule, round: int, clients: Sequence[Client], helper: Tensor, slots: Slots, sums: Sums
) -> Tensor:
    """What these clients add to the sum of a round, int64 [C, P]; `slots` are what they carry, before and after.

    No earlier noise of a client leads to it, except by the models that the server has sent.
    """
    if clients[0].job.noisy:
        words = machine.noised_sums(round, clients, helper, sums)
    else:
        words = _noised_changes(machine, rule, round, clients, helper, slots, sums)
    slots["own"] = helper.clone()
    if rule.kept:  # a model that stays may begin at what the client would have sent by itself
        for own, client, row in zip(slots["own"], clients, words, strict=True):
            own += sums.change(row, (client.name,), round).to(own.dtype)
    return words


def _noised_changes(
    machine: Machine, rule: Rule, round: int, clients: Sequence[Client], helper: Tensor, slots: Slots, sums: Sums
) -> Tensor:
    """Output perturbation: the change of each client by steps without noise, clipped and noised once."""
    _forget(clients, "upload", slots)
    begun = LocalState(helper.clone(), helper, helper.new_ones(len(clients), 1))
    ended = machine.take_steps(round, clients, "upload", rule.steps, begun, slots)
    rows = []
    for client, start, trained in zip(clients, helper, ended.weights, strict=True):
        client.steps += client.job.upload.steps
        assert client.job.output is not None
        change = clipped(trained.double() - start.double(), client.job.output)
        rows.append(message(client, change, Key(client.name, round, client.attempt, "output"), sums))
    return torch.stack(rows)


def message(client: Client, vector: Tensor, key: Key, sums: Sums) -> Tensor:
    """What one client adds to a sum, int64 [P]: this vector with the noise of its plan, counted."""
    assert client.job.plan is not None
    scale = client.job.plan.mechanism.noise_scale
    words, queries = noise.integers(vector, scale, sums.factors[client.name], sums.grid, client.draws, key)
    client.queries += queries
    return words


def train_kept(
    machine: Machine, rule: Rule, round: int, clients: Sequence[Client], upload: Tensor, helper: Tensor, slots: Slots
) -> None:
    """The models that stay with these clients, in `slots["personal"]`; their uploads are sealed."""
    assert rule.kept is not None
    _forget(clients, "kept", slots)
    anchor = rule.kept.anchor(upload, helper)
    begun = LocalState(slots["personal"], anchor, column([client.share for client in clients], upload))
    ended = machine.take_steps(round, clients, "kept", rule.kept, begun, slots)
    slots["personal"] = ended.weights
    shares = ended.share.flatten().tolist() if rule.kept.share is not None else [client.share for client in clients]
    for client, share in zip(clients, shares, strict=True):
        client.share = share
        client.kept_steps += client.job.kept.steps


def personal_model(
    rule: Rule, client: Client, weights: Tensor, upload: Tensor
) -> Noised[Tensor] | Unprotected[Tensor] | LocalOnly[Tensor]:
    """The model that the client uses, made of its own weights and its last upload, and whether it may leave."""
    job = client.job
    if not rule.kept:
        return Noised(weights) if job.plan else Unprotected(weights)
    model = rule.kept.model(weights[None], upload[None], column([client.share], weights))[0]
    if not job.plan and rule.uploads:
        return Unprotected(model)
    return Noised(model) if job.kept.noisy else LocalOnly(model)


def numbers(clients: Sequence[Client], like: Tensor) -> Numbers:
    """The public numbers of these clients in the round that they take part in."""
    return numbers_of([client.job for client in clients], [client.rounds - 1 for client in clients], like)


def _perturbed(round: int, clients: Sequence[Client], start: Tensor, upload: Tensor) -> Tensor:
    """Output perturbation, at the door: whatever the rule made of the training."""
    if not any(client.job.output for client in clients):
        return upload
    rows = list(upload)
    for c, client in enumerate(clients):
        if client.job.output:
            key = Key(client.name, round, 0, "output")
            rows[c], queries = released(start[c], upload[c], client.job.output, client.draws, key)
            client.queries += queries
    return torch.stack(rows)


def _forget(clients: Sequence[Client], part: Part, slots: Slots) -> None:
    """Optimisers that do not carry their state begin anew."""
    anew = [c for c, client in enumerate(clients) if not client.job.optimiser.carried]
    for c in anew:
        if part == "upload":
            clients[c].steps = 0
        else:
            clients[c].kept_steps = 0
    for name in clients[0].job.optimiser.slots if anew else ():
        slots[name][anew] = 0
