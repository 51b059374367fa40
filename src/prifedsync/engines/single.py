"""One client alone on its machine, asked for one slot at a time by somebody who is not trusted.

It takes the same steps with the same code as a stack of many, and so the noise that leaves is that of `Vectorised`. Two
things are its own. What fails on a record is that record's zero: the others of its batch still count, since a whole batch
that vanished with one record would move the sum by more than one clip norm. And how this machine rounds is shown by made-up
records, since a failure on records of the client's own would show outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..local import host
from ..local.answers import Absent, Refused
from ..local.batches import choose
from ..local.client import COUNTERS, Client
from ..local.job import Part
from ..local.net.programs import Program
from ..sync import Helpers
from .vectorised import Vectorised

CARRIED = (*COUNTERS, "attempt")  # numbers of the client
NEVER = -1


@dataclass
class Carried:
    """All that a client takes from one slot to the next."""

    numbers: dict[str, Any] = field(default_factory=dict)
    vectors: dict[str, Tensor] = field(default_factory=dict)  # "store", and "kept" where a model stays


class Single(Vectorised):
    """An engine with one client, which is asked slot by slot."""

    failed: Callable[[str], None] = staticmethod(lambda text: None)  # told what failed; for the owner of the records alone

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        (self.client,) = self.clients
        self._received_last: dict[str, Tensor] = {}
        self._kept_round = NEVER  # the last round whose kept model was trained

    # ------------------------------------------------------------------ one slot

    def slot(self, round: int, attempt: int, helper: Tensor, listed: Sequence[str]) -> Tensor | Absent | Refused:
        """What the client sends for this slot: a model [P], or its message of a sum [P], int64.

        listed: who is in the sum, itself among them."""
        self._received_last = {}  # whoever is absent keeps nothing of this round
        refusal = self._joins(round, attempt)
        if refusal is not None:
            return refusal
        asked = [self.client]
        self.client.commit()
        if self.sums:
            self._bind_to_list(round, asked, listed)
        offered = Helpers(self.names, lambda names: helper.expand(len(names), -1))
        received = self._received(round, asked, offered, self._received_last)
        sent = self._messages(self.sums, round, asked, received) if self.sums else self._upload(round, asked, received)
        assert sent is not None, self.rule  # a rule that sends nothing is never asked
        return sent[0]

    def _joins(self, round: int, attempt: int) -> Absent | Refused | None:
        client = self.client
        if attempt == 0:
            return client.join(round, self.coins)
        if (round, attempt) != (client.asked - 1, client.attempt + 1):
            return Refused(f"attempt {attempt} at round {round} does not follow the last slot")
        return client.join_again()

    def keep(self, round: int) -> None:
        """Train the model that stays, once in a round, after what was sent is safe."""
        helper = self._received_last.get(self.client.name)
        if self.kept is None or helper is None or round == self._kept_round:
            return
        self._kept_round = round
        self._keep(round, [self.client], helper[None])

    # ------------------------------------------------------------------ what is carried

    def carried(self) -> Carried:
        numbers = {name: getattr(self.client, name) for name in CARRIED} | {"kept_round": self._kept_round}
        held = {"store": self.store.read(0), "kept": self.kept.read(0) if self.kept else None}
        return Carried(numbers, {name: rows.clone() for name, rows in held.items() if rows is not None})

    def carry(self, before: Carried) -> None:
        """Go on from what was carried."""
        for name in CARRIED:
            setattr(self.client, name, before.numbers[name])
        self._kept_round = before.numbers["kept_round"]
        self._received_last = {}
        stores: Mapping[str, Any] = {"store": self.store, "kept": self.kept}
        for name, rows in before.vectors.items():
            stores[name].write(0, rows.clone())

    # ------------------------------------------------------------------ records that fail

    def batch_sums(
        self, round: int, step: int, clients: Sequence[Client], weights: Tensor, part: Part = "upload"
    ) -> Tensor:
        try:
            return super().batch_sums(round, step, clients, weights, part)
        except Exception as error:  # a module may fail on a record in any way, and nobody outside may see that
            self.failed(f"round {round}, step {step}: {type(error).__name__}: {error}")
        if not clients[0].job.phase(part).noisy:  # the whole change is clipped, whatever became of a step
            return torch.zeros_like(weights, dtype=torch.float64)
        return self._one_by_one(round, step, weights, part)

    def _one_by_one(self, round: int, step: int, weights: Tensor, part: Part) -> Tensor:
        """The same sum, unit by unit, by the same program: those on which it fails add zero. A unit alone has the bits that
        it has in a batch (`local/net/invariance.py`)."""
        client = self.client
        program = self._program([client], part)
        phase = client.job.phase(part)
        total = torch.zeros_like(weights, dtype=torch.float64)
        for unit in choose(client.job.steps, client.records, client.name, round, step, client.draws).split(1):
            try:
                total += host.sums_over(
                    self.net, self.records, program, round, step, [client], weights, phase, [unit]
                )  # fmt: skip
            except Exception as error:
                self.failed(f"unit {int(unit)}: {type(error).__name__}: {error}")
        return total

    def program_of(self, client: Client) -> Program:
        """How the sums of its upload are taken."""
        return self._program([client], "upload")

    def _few_records(self) -> tuple[Tensor, Tensor]:
        x, y = self.net.examples
        return self._placed(x), self._placed(y)

    def _placed(self, made_up: Tensor) -> Tensor:
        return made_up.to(self.net.device, self.net.dtype if made_up.is_floating_point() else made_up.dtype)
