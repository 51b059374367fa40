"""The least noise with which a crowd of clients meets a target against the server and some of them.

Let Z_j be the noise multiplier with which client j meets the target by itself, u_j = c_j·clip_norm_j its unit in the sum,
and a_j = u_j·Z_j. For every T > 0 the noise s_j² = max(T, a_j² − (h−1)·T) is enough: every client has at least T, so the
h − 1 quietest others of j give at least (h−1)·T. The total noise Σ s_j² is convex and piecewise linear in T; it is least
where at least a share 1 − 1/h of the clients have a_k²/h ≤ T. For clients that are alike this is Z ÷ √h for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt

from ..limits import LEAST_NOISE
from ..values import BadValue, counted, whole
from .calibrate import FURTHEST_NOISE, CannotMeet, Target
from .calibrator import Calibrator
from .plan import PrivacyPlan
from .statement import up
from .sums import factors
from .views import ROUNDING, Crowd, NoClaim

MU = "privacy.target.coalition.mu"
COLLUDERS = "privacy.target.coalition.colluders"
SLACK = 1 + 10 * ROUNDING  # so that a gain, which is rounded down, is still large enough


@dataclass(frozen=True)
class Member:
    """A client of a sum: its plan, its factor in the sum, and whether its noise is given and may not be raised."""

    name: str
    plan: PrivacyPlan
    factor: float
    fixed: bool = False

    @property
    def unit(self) -> float:
        """What a noise multiplier of 1 is in the sum."""
        return self.factor * self.plan.mechanism.clip_norm

    @property
    def spread(self) -> float:
        """The standard deviation of its noise in the sum."""
        return self.factor * self.plan.mechanism.noise_scale


def members_of(
    clients: Sequence[tuple[str, float, float, PrivacyPlan]], fixed: frozenset[str] = frozenset()
) -> tuple[Member, ...]:
    """The clients of a sum, from the name, the weight, the learning rate and the plan of each.

    fixed: the names of clients whose noise is given.
    """
    weights, rates, batches = [], [], []
    for _, weight, rate, plan in clients:
        steps = plan.mechanism.steps
        weights.append(weight)
        rates.append(rate if steps else 1.0)
        batches.append(steps.expected_batch if steps else 1)
    shares = factors(weights, rates, batches)
    return tuple(
        Member(name, plan, share, name in fixed) for (name, _, _, plan), share in zip(clients, shares, strict=True)
    )


def crowd_of(members: Sequence[Member], least: int, masks: bool, not_summed: str = "") -> Crowd:
    """What hides each member of a sum from others."""
    spreads = tuple(member.spread for member in members)
    units = tuple(member.unit for member in members)
    return Crowd(spreads=spreads, units=units, least=least, masks=masks, not_summed=not_summed)


def meeting(members: Sequence[Member], target: Target, colluders: int, crowd: Crowd) -> tuple[PrivacyPlan, ...]:
    """Plans with which every client meets the target against the server and so many clients. No client gets less noise.

    crowd: what is public of the sum; the spreads of the members are made anew. If it has more clients than there are
    members, the single member stands for all.
    Raises `CannotMeet` if it takes more noise than a search goes to, and `BadValue` if nothing can be claimed.
    """
    honest = crowd.least - whole(COLLUDERS, colluders, 0, crowd.size - 1, remedy="one client is the one that is protected")
    if honest < 1:
        rule = (
            f"is too many: a sum may have {counted(crowd.least, 'client')} only, and all but one of them may then collude"
        )
        raise BadValue(COLLUDERS, colluders, rule, "set fewer colluders, or a larger privacy.least_clients")
    needed = [member.unit * noise for member, noise in zip(members, _alone(members, target, honest), strict=True)]
    raised = tuple(
        member if member.fixed else replace(member, plan=_raised(member, spread * SLACK))
        for member, spread in zip(members, shared(needed, honest), strict=True)
    )
    _check(raised, target, colluders, crowd)
    return tuple(member.plan for member in raised)


def shared(needed: Sequence[float], honest: int) -> list[float]:
    """The noise of each client in the sum, where any `honest` of them hide each as its own noise in `needed` would.

    It has the least total variance of the family above: one step of T up costs 1 for each client at T, and saves
    `honest` − 1 for each client above it.
    """
    squares = sorted(need**2 for need in needed)
    floor = squares[max(0, len(squares) - len(squares) // honest - 1)] / honest
    return [sqrt(max(floor, need**2 - (honest - 1) * floor)) for need in needed]


def _alone(members: Sequence[Member], target: Target, honest: int) -> list[float]:
    """The noise multiplier with which each client meets the target by itself, by one sum that all its copies move.

    Where there are no more honest clients than copies, composing the copies needs less, and no partner.
    """
    calibrator = Calibrator(target)

    def noise(plan: PrivacyPlan) -> float:
        if 1 < plan.copies >= honest:
            return sqrt(honest) * calibrator(plan).mechanism.noise_multiplier
        return plan.copies * calibrator(replace(plan, copies=1)).mechanism.noise_multiplier

    return [noise(member.plan) for member in members]


def _raised(member: Member, spread: float) -> PrivacyPlan:
    """The plan with at least this noise in the sum."""
    noise = max(member.plan.mechanism.noise_multiplier, spread / member.unit, LEAST_NOISE)
    if noise > FURTHEST_NOISE:
        raise CannotMeet(f"client {member.name} needs a noise multiplier above {FURTHEST_NOISE:g}")
    return member.plan.changed(noise_multiplier=noise)


def _check(members: Sequence[Member], target: Target, colluders: int, crowd: Crowd) -> None:
    """Every client's certified number is computed, and must not exceed the target."""
    everybody = list(members) * (crowd.size if len(members) == 1 else 1)
    crowd = crowd_of(everybody, crowd.least, crowd.masks, crowd.not_summed)
    checked: set[PrivacyPlan] = set()
    for place, member in enumerate(members):
        seen = crowd.server(colluders, place).seen(member.plan)
        if isinstance(seen, NoClaim):
            rule = f"cannot be met, because nothing can be claimed: {seen.why}"
            raise BadValue(MU, target.value, rule, "remove the cause, or the target against a coalition")
        if seen.accounted in checked:
            continue
        checked.add(seen.accounted)
        spent = target.spent(seen.accounted.guarantee())
        if spent > target.value:
            raise _missed(members, member, target, spent)


def _missed(members: Sequence[Member], worst: Member, target: Target, spent: float) -> Exception:
    given = [member.name for member in members if member.fixed]
    rule = f"is missed by client {worst.name}, which has μ ≤ {up(spent)}"
    if given:
        because = f"{rule}: clients with a noise_multiplier of their own keep it ({', '.join(given[:3])})"
        return BadValue(MU, target.value, because, "remove it, or give it more noise")
    return RuntimeError(f"{MU} = {target.value:g} {rule}")  # no noise was found wrong; the arithmetic above would be
