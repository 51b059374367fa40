"""One client's optimiser: which update it is, and the numbers of that client."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...values import BadValue, number
from .builtin import OPTIMISERS
from .schedule import CONSTANT, Schedule
from .update import Update


@dataclass(frozen=True, kw_only=True)
class Optimiser:
    """One client's optimiser. `stability` is the ε of Adam and its kin, which means something else here.

    `own`: an update from outside the package. Its code is bound to a run by itself, so the text of a plan leaves it out.
    """

    name: str = "sgd"
    learning_rate: float = 1.0
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    decay: float = 0.99
    stability: float = 1e-8
    weight_decay: float = 0.0
    schedule: Schedule = CONSTANT
    carried: bool = True
    own: Update | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.own is None and self.name not in OPTIMISERS:
            raise BadValue("optimiser", self.name, f"must be one of {', '.join(OPTIMISERS)}")
        if self.own is not None and self.name in OPTIMISERS:
            raise BadValue("optimiser", self.name, "is the name of a built-in optimiser", "give yours another name")
        number("learning_rate", self.learning_rate, 0, ends="(]")
        number("momentum", self.momentum, 0, 1, ends="[)")
        for beta in self.betas:
            number("betas", beta, 0, 1, ends="[)")
        number("decay", self.decay, 0, 1, ends="[)")
        number("stability", self.stability, 0, ends="(]")
        number("weight_decay", self.weight_decay, 0)

    @property
    def update(self) -> Update:
        return OPTIMISERS[self.name] if self.own is None else self.own

    @property
    def slots(self) -> tuple[str, ...]:
        return self.update.slots

    def rate(self, taken: int) -> float:
        """The learning rate in the client's n-th round."""
        return self.learning_rate * self.schedule.at(taken)

    def pace(self, taken: int) -> float:
        """Effective step size in the client's n-th round: learning rate × schedule ÷ (1 − momentum)."""
        return self.rate(taken) / (1 - self.update.momentum_of(self))
