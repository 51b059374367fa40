"""The events that a run reports while it works."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .accounting.contributions import Contributions
from .accounting.progress import WorstEpsilon
from .scores import Score


@dataclass(frozen=True)
class RoundDone:
    """A round is over. `phase` is "private", "non-private", or the name of the baseline that is being trained.

    `personal` and `released` are scores by the run's first metric, over clients' own test records.
    """

    phase: str
    round: int
    rounds: int
    participants: int
    personal: Score | None
    released: Score | None
    seconds: float
    spending: WorstEpsilon | None  # None if there is no guarantee
    seeded: bool
    others: Mapping[str, Mapping[str, Score]] = field(default_factory=dict)  # metrics after the first: name → model → score
    attempts: int = 1  # made at this round
    lost: int = 0  # clients whose upload never arrived

    def epsilon_so_far(self) -> float | None:
        """An upper bound on every client's ε after these rounds. `spending.seconds` is the time that computing it took."""
        return self.spending.after(self.round) if self.spending else None

    def epsilon_planned(self) -> float | None:
        """An upper bound on every client's ε after all rounds."""
        return self.spending.after(self.rounds) if self.spending else None


@dataclass(frozen=True)
class Working:
    """Work besides training: its name, and how much of it is done."""

    what: str
    done: int
    of: int


@dataclass(frozen=True)
class ForOwner:
    """What only the owner of the records may be told: client → sentences. It depends on the records.

    Whoever watches shows it to the owner, and neither writes it down nor sends it on.
    """

    notes: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Planned:
    """All clients are planned, and the first round comes next: what each client adds to the server's mean."""

    contributions: Contributions


@dataclass(frozen=True)
class Note:
    """A sentence for whoever starts a run, before it trains: a setting that was chosen and why, or a warning."""

    text: str
    warning: bool = False


Event = RoundDone | Working | Planned | Note | ForOwner

Watch = Callable[[Event], None]

Until = Callable[[RoundDone], bool]
