"""A plan and a target as options give them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

from ..values import NOT_GIVEN, BadValue

if TYPE_CHECKING:
    from ..accounting import PrivacyPlan, Target

TARGETS = ("epsilon", "mu", "advantage")
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
    return PrivacyPlan(mechanism=mechanism, rounds=rounds, participation=participation, neighbours=Neighbours(neighbours))


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
