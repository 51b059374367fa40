"""What each client adds to the server's mean: its share of the signal, and its share of the noise. Public numbers alone.

A client's gradient, averaged over a batch of expected size b, has noise of the standard deviation s = noise scale ÷ b in
each entry; with noise on the round's update, s is the noise scale itself. With the weight a of a client in the mean
(Σ a = 1), a is its share of the signal and (a·s)² ÷ Σ (a·s)² its share of the noise. Clients are taken to have learning
rates and numbers of local steps alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import fsum, sqrt
from statistics import median_low

from ..limits import RECORD, Unit
from .plan import PrivacyPlan

MOST_SHOWN = 20  # clients that are all shown
TOO_LOUD = (
    2.0  # clients are warned of if without them the noise of the mean, its standard deviation, were so many times less
)
ALIKE = 1.2  # shares whose largest and smallest differ by less than this factor are alike
MOST_NAMED = 3


@dataclass(frozen=True)
class Contribution:
    """One client in the server's mean. `signal_to_noise` is 1 for a client that adds as much of the one as of the other."""

    client: str
    records: int | None  # None where the number is not public
    signal: float  # its weight in the mean, as a share
    noise_multiplier: float
    noise: float  # its share of the variance of the noise in the mean
    signal_to_noise: float


@dataclass(frozen=True)
class Contributions:
    """All clients that have a plan, in their order, and how the server weighs them."""

    clients: tuple[Contribution, ...]
    merge: str
    full_batches: bool
    unit: Unit = RECORD

    @property
    def alike(self) -> bool:
        """Whether all clients add about the same."""
        shares = [(each.signal, each.noise) for each in self.clients]
        return all(max(kind) < ALIKE * min(kind) for kind in zip(*shares, strict=True))

    def shown(self) -> dict[str, Contribution]:
        """Those that a table shows, each with a word for it: all, or the smallest, median, largest and noisiest."""
        if len(self.clients) <= MOST_SHOWN:
            return {each.client: each for each in self.clients}
        by_size = {(each.records or each.signal, place): each for place, each in enumerate(self.clients)}
        noisiest = max(self.clients, key=lambda each: each.noise)
        chosen = {"smallest": by_size[min(by_size)], "median": by_size[median_low(by_size)]}
        chosen |= {"largest": by_size[max(by_size)], "noisiest": noisiest}
        words: dict[Contribution, list[str]] = {}  # no client twice
        for word, each in chosen.items():
            words.setdefault(each, []).append(word)
        return {f"{each.client} ({' and '.join(its)})": each for each, its in words.items()}

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """A warning where the noise of some clients drowns the others: without them the mean would have far less noise."""
        loud, times = self._drowning()
        if not loud:
            return ()
        names = ", ".join(each.client for each in loud[:MOST_NAMED])
        more = f" and {len(loud) - MOST_NAMED} more" if len(loud) > MOST_NAMED else ""
        who, them = (f"clients {names}{more} add", "them") if len(loud) > 1 else (f"client {names} adds", "it")
        noise = fsum(each.noise for each in loud)
        signal = fsum(each.signal for each in loud)
        remedies = [f"leave {them} out"]
        remedies += ['set merge = "records"'] if self.merge == "equal" else []
        remedies += [] if self.full_batches else [f"give {them} a larger batch"]
        less = f"{float(f'{times:.2g}'):,.15g}"
        return (
            f"{who} {noise:.1%} of the noise and {signal:.1%} of the signal to the mean: without {them} its noise would be "
            f"{less} times smaller; {' or '.join(remedies)}",
        )

    def _drowning(self) -> tuple[list[Contribution], float]:
        """The fewest noisiest clients without whom the mean has far less noise, and how many times less; or nobody."""
        loudest_first = sorted(self.clients, key=lambda each: each.signal_to_noise * each.signal)  # which is 1/s²
        times = [1.0] * len(loudest_first)  # how many times less noise there is without the first so many
        noise = signal = 0.0
        for count in range(len(loudest_first) - 1, 0, -1):
            noise += loudest_first[count].noise
            signal += loudest_first[count].signal
            times[count] = signal / sqrt(noise) if noise > 0 else 1.0
        fewest = next((count for count, each in enumerate(times) if each >= TOO_LOUD), 0)
        return loudest_first[:fewest], times[fewest]

    def as_json(self) -> list[dict[str, object]]:
        return [asdict(each) for each in self.clients]


def contributions(clients: Sequence[tuple[str, float, PrivacyPlan]], merge: str) -> Contributions:
    """What each client adds: its name, its weight in the mean, and its plan."""
    total = fsum(weight for _, weight, _ in clients)
    variances = [(weight / total * _spread(plan)) ** 2 for _, weight, plan in clients]
    noise = fsum(variances)
    made = []
    for (client, weight, plan), variance in zip(clients, variances, strict=True):
        signal = weight / total
        share = variance / noise
        made.append(
            Contribution(client, plan.mechanism.records, signal, plan.mechanism.noise_multiplier, share, signal / share)
        )
    steps = [plan.mechanism.steps for _, _, plan in clients]
    full = all(each is None or each.rate == 1 for each in steps)
    return Contributions(tuple(made), merge, full, clients[0][2].unit)


def _spread(plan: PrivacyPlan) -> float:
    """The standard deviation of the noise in each entry of what a client sends, up to what all clients share."""
    mechanism = plan.mechanism
    return mechanism.noise_scale / (mechanism.steps.expected_batch if mechanism.steps else 1)
