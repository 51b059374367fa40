"""A plan and a target as options give them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, cast

from ..values import NOT_GIVEN, BadValue

if TYPE_CHECKING:
    from ..accounting import Crowd, PrivacyPlan, Target
    from ..accounting.view_numbers import ViewNumbers

TARGETS = ("epsilon", "mu", "advantage")
ALIKE = "all add one sgd step from the global model, by this plan"
ONE_RATE = "all add one sgd step from the global model, at one learning rate"
ONE_TARGET = "give exactly one of --target-epsilon, --target-mu, --target-advantage"


def plan_of(
    *,
    records: int,
    batch: str,
    noise_multiplier: float,
    local_steps: int,
    rounds: int,
    participation: float,
    sampling: str,
    neighbours: str,
    attempts: int = 0,
) -> PrivacyPlan:
    """The plan of one client."""
    from ..accounting import Neighbours, NoisySteps, PrivacyPlan, Sampling

    mechanism = NoisySteps(
        noise_multiplier=noise_multiplier,
        records=records,
        batch=batch_size(batch),
        local_steps=local_steps,
        sampling=Sampling(sampling),
    )
    return PrivacyPlan(
        mechanism=mechanism, rounds=rounds, participation=participation, neighbours=Neighbours(neighbours),
        attempts=attempts,
    )  # fmt: skip


def views_of_alike(
    plan: PrivacyPlan, delta: float, clients: int | None, masks: object, colluders: int | None, least_clients: int | None
) -> tuple[ViewNumbers, ...]:
    """Who learns how much about a client of this plan among so many alike; nothing if their number is not given."""
    crowd = crowd_of_alike(plan, clients, masks, colluders, least_clients)
    if crowd is None:
        return ()
    from ..record import Guarantees

    return supposing(Guarantees(delta, crowd.size).views(crowd, [plan], colluders), ALIKE)


def supposing(views: Sequence[ViewNumbers], supposed: str) -> tuple[ViewNumbers, ...]:
    """The views with what their sums suppose of a run that no config describes."""
    return tuple(
        each if each.who == "everybody" else replace(each, assumes=f"{each.assumes}; {supposed}") for each in views
    )


def crowd_of_alike(
    plan: PrivacyPlan, clients: int | None, masks: object, colluders: int | None, least: int | None
) -> Crowd | None:
    """So many clients with this plan; None if their number is not given."""
    from ..accounting import Crowd
    from ..accounting.sums import check_masked, least_clients

    if clients is None:
        for name, value in {"masks": masks, "colluders": colluders, "least_clients": least}.items():
            if value is not None:
                raise BadValue(name, value, "needs the number of clients", "add --clients")
        return None
    fewest = least_clients(clients, least, bool(masks), plan.attempts, plan.participation)
    if masks:
        check_masked(fewest, least, plan.attempts)
    return Crowd.alike(clients, fewest, bool(masks))


def batch_size(batch: str) -> int | Literal["full"]:
    if batch == "full":
        return "full"
    try:
        return int(batch)
    except ValueError:
        raise BadValue("batch", batch, "must be a whole number or 'full'") from None


def target_of(epsilon: float | None, mu: float | None, advantage: float | None, delta: float) -> Target:
    """The one target that was given."""
    from ..accounting import Target

    given = {kind: value for kind, value in zip(TARGETS, (epsilon, mu, advantage), strict=True) if value is not None}
    if not given:
        raise BadValue("target", NOT_GIVEN, "is missing", ONE_TARGET)
    kind, *others = given
    if others:
        rule = f"cannot be combined with target_{others[0]} = {given[others[0]]}"
        raise BadValue(f"target_{kind}", given[kind], rule, ONE_TARGET)
    return Target(cast(Literal["epsilon", "mu", "advantage"], kind), given[kind], delta)
