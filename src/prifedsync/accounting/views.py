"""Who looks at what a client released, and how much noise stands between: everybody, a coalition, or readers.

Notation, for a client j in a sum of at least L clients of whom t collude:
    s_k    the standard deviation of the noise of client k in the sum
    h      L − t, the clients in the sum whose noise the coalition does not know; j is one of them
    gain   √(s_j² + the h − 1 smallest s_k² of the others) ÷ s_j, which is √h where all are alike

What the coalition sees of j is a randomised function of the noised sum of the h honest clients. So every formula holds
with the noise multiplier of j times the gain (docs/maths.md). Against everybody else together the gain is 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import fsum, sqrt
from typing import TYPE_CHECKING, Literal, TypeAlias

from ..limits import LEAST_NOISE, MOST_NOISE
from ..values import counted, number, whole

if TYPE_CHECKING:
    from .plan import PrivacyPlan

Who = Literal["readers", "clients", "server", "everybody"]
Asked: TypeAlias = tuple[Who, int]  # who looks, and how many clients collude
ROUNDING = 1e-12  # a gain is smaller by this factor than computed, which is more than rounding can add

ONE_BY_ONE = "a round has several noisy steps, and only their last result is in the sum (local_steps = 1 has a claim)"
LAPLACE = "the noise is Laplace noise, and only Gaussian noises add up to Gaussian noise"
NO_MASKS = "masks are off, so the server sees every single upload (privacy.masks = true)"
FEW = "a sum may have as few as {}, and so many colluders may be all of them but one: the guarantee against everybody holds"
COPIES_SAMPLED = (
    "several clients may hold the same {}, and a batch is drawn at random: nothing is proved about the sum of their draws"
)
COPIES_COIN = "several clients may hold the same {}, and each tosses its own coin to take part"
COPIES_UNLIKE = "several clients may hold the same {}, and they do not count alike in the sum"


@dataclass(frozen=True)
class NoClaim:
    """Nothing smaller is proved against these people than against everybody, and why."""

    why: str


@dataclass(frozen=True, kw_only=True)
class View:
    """Who looks at the releases of one client, what that assumes, and how many times its own noise hides it from them.

    alike    whether all clients have the same noise and the same sensitivity in the sum.
    why_not  why nothing smaller is proved than against everybody; "" where it is.
    """

    who: Who
    colluders: int
    assumes: str
    gain: float = 1.0
    alike: bool = True
    why_not: str = ""

    def seen(self, plan: PrivacyPlan) -> PrivacyPlan | NoClaim:
        """The plan whose guarantee against everybody is that of `plan` against this view."""
        if self.who == "everybody":
            return plan
        why = self.why_not or _not_one_gaussian(plan) or self._not_together(plan)
        if why:
            return NoClaim(why)
        if plan.copies > 1 and self.gain**2 <= plan.copies:
            return plan  # the sum moves by `copies` clients' sensitivity: composing them is the smaller number
        noise = plan.mechanism.noise_multiplier * self.gain / plan.copies
        if noise < LEAST_NOISE:
            return plan  # noise that the accounting does not cover; what holds against everybody holds here
        return replace(plan.changed(noise_multiplier=min(noise, MOST_NOISE)), copies=1)

    def _not_together(self, plan: PrivacyPlan) -> str:
        """Why nothing is claimed where several clients hold the same unit."""
        if plan.copies == 1:
            return ""
        steps = plan.mechanism.steps
        if steps is not None and steps.rate < 1:
            return COPIES_SAMPLED.format(plan.unit)
        if plan.participation < 1:
            return COPIES_COIN.format(plan.unit)
        return "" if self.alike else COPIES_UNLIKE.format(plan.unit)


def _not_one_gaussian(plan: PrivacyPlan) -> str:
    """Why a round of this plan is not one Gaussian release; "" if it is."""
    mechanism = plan.mechanism
    if mechanism.queries_per_round > 1:
        return ONE_BY_ONE
    return "" if mechanism.noise == "gaussian" else LAPLACE


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """The clients of a run, as far as a sum of theirs hides each. Public numbers only.

    spreads     the standard deviation of each client's noise in the sum, in any unit.
    units       c_k·clip_norm_k, by which one unit of each client's data can move the sum, in any unit; () if not known.
    least       the least number of clients in a sum.
    masks       whether uploads are masked in pairs, so that the server learns only their sum.
    not_summed  why others see more than sums of all clients; "" where they do not.
    """

    spreads: tuple[float, ...]
    least: int
    masks: bool = False
    not_summed: str = ""
    units: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        whole("clients", len(self.spreads), 1)
        for spread in self.spreads:
            number("spread", spread, 0, ends="()")
        whole("least_clients", self.least, 1, self.size, remedy="a sum cannot have more clients than there are")
        if self.units:
            whole("units", len(self.units), self.size, self.size, remedy="give one for each client")

    @staticmethod
    def alike(clients: int, least: int | None = None, masks: bool = False, not_summed: str = "") -> Crowd:
        """So many clients that count alike in the sum. By default all of them are in every sum."""
        whole("clients", clients, 1)
        return Crowd(
            spreads=(1.0,) * clients, least=clients if least is None else least, masks=masks, not_summed=not_summed,
            units=(1.0,) * clients,
        )  # fmt: skip

    @property
    def size(self) -> int:
        """The number of clients."""
        return len(self.spreads)

    def everybody(self) -> View:
        """All other clients and the server together."""
        return View(who="everybody", colluders=self.size - 1, assumes="nothing about anybody else")

    def readers(self, place: int = 0) -> View:
        """Those who see the released global models alone, and look at the client at this place."""
        assumes = f"they see the released models only, each made of sums over {self.least} or more clients"
        return self._of_sums("readers", 0, assumes, self.not_summed, place)

    def clients(self, colluders: int, place: int = 0) -> View:
        """So many clients without the server. They see the released models, and know what they sent themselves."""
        assumes = f"the server does not collude, nor do {self.size - colluders} of {self.size} clients"
        return self._of_sums("clients", self._checked(colluders), assumes, self.not_summed, place)

    def server(self, colluders: int, place: int = 0) -> View:
        """The server and so many clients."""
        assumes = f"masks hold, and {self.size - colluders} of {self.size} clients never collude"
        why_not = self.not_summed or ("" if self.masks else NO_MASKS)
        return self._of_sums("server", self._checked(colluders), assumes, why_not, place)

    def against(self, who: Who, colluders: int, place: int = 0) -> View:
        """One of these views, by its name."""
        if who == "everybody":
            return self.everybody()
        if who == "readers":
            return self.readers(place)
        return self.server(colluders, place) if who == "server" else self.clients(colluders, place)

    def asked(self, colluders: int | None = None) -> tuple[Asked, ...]:
        """The views of a table: no colluders, a tenth of the clients, half, all but two, and as many as asked for."""
        most = self.size - 1
        more = () if colluders is None else (self._checked(colluders),)
        together = {max(1, self.size // 10), self.size // 2} if colluders is None else set(more)
        coalitions = {0, self.size // 10, self.size // 2, self.size - 2}
        servers = {each for each in coalitions if 0 <= each < most} | set(more)
        return (
            ("readers", 0),
            *(("clients", each) for each in sorted(together) if 0 < each <= most),
            *(("server", each) for each in sorted(servers)),
            ("everybody", most),
        )

    def _checked(self, colluders: int) -> int:
        return whole("colluders", colluders, 0, self.size - 1, remedy="one client is the one that is looked at")

    def _of_sums(self, who: Who, colluders: int, assumes: str, why_not: str, place: int) -> View:
        honest = self.least - colluders
        if honest < 1:
            why_not = why_not or FEW.format(counted(self.least, "client"))
        gain = 1.0 if why_not else self.gain(place, honest)
        return View(who=who, colluders=colluders, assumes=assumes, gain=gain, alike=self._same, why_not=why_not)

    def gain(self, place: int, honest: int) -> float:
        """How many times its own noise hides the client at this place, in a sum with so many honest clients.

        The worst coalition leaves it with the quietest others. It is rounded down, and never below 1.
        """
        whole("honest", honest, 1, self.size)
        own = self.spreads[place] ** 2
        quietest = self._quietest(honest)
        with_them = quietest if own <= self._squares[honest - 1] else own + self._quietest(honest - 1)
        return max(1.0, sqrt(with_them / own) * (1 - ROUNDING))

    @cached_property
    def _squares(self) -> list[float]:
        return sorted(spread**2 for spread in self.spreads)

    @cached_property
    def _quietest(self) -> Callable[[int], float]:
        """The variance of so many of the quietest clients together; each is computed once."""
        return cache(lambda count: fsum(self._squares[:count]))

    @cached_property
    def _same(self) -> bool:
        return len(set(self.spreads)) == 1 and len(set(self.units)) == 1
