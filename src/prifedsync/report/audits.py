"""What attacks have measured: checks of one noisy step, and lower bounds beside the claim.

An audit is JSON. `audit step --json` gives {"passed", "checks"}. A measured lower bound is {"mu": {"lower": …}} or
{"epsilon": {"lower": …}, "delta": …}, with "confidence", and "band": [[α, lowest β, highest β], …] for the picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..accounting.statement import down
from ..values import BadValue
from .plans import Plans
from .sources import Extra
from .wording import loss_up, small

REMEDY = "name a file that `prifedsync audit … --json` has printed"


@dataclass(frozen=True)
class Audited:
    """One audit. `broken`: what it has measured cannot be if the claim is true."""

    file: str
    kind: str  # "step" or "attack"
    passed: bool | None
    failed_checks: tuple[str, ...]
    lower: float | None
    claim: float | None
    of: str  # what both are numbers of: "μ", or "ε at δ = …"
    confidence: float | None
    broken: bool
    sentence: str


def audits_of(given: tuple[Extra, ...], said: Mapping[str, Any] | None, plans: Plans) -> tuple[Audited, ...]:
    """Each audit beside the claim of the record."""
    return tuple(_audited(each, said, plans) for each in given)


def _audited(audit: Extra, said: Mapping[str, Any] | None, plans: Plans) -> Audited:
    try:
        if "checks" in audit.holds:
            return _step(audit)
        return _attack(audit, said, plans)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, BadValue):
            raise
        raise BadValue("audit", audit.name, f"cannot be read: {error!r}", REMEDY) from None


def _step(audit: Extra) -> Audited:
    failed = tuple(str(check["name"]) for check in audit.holds["checks"] if not check["passed"])
    count = len(audit.holds["checks"])
    sentence = f"One noisy step was measured: {count - len(failed)} of {count} checks passed."
    if failed:
        sentence += f" Failed: {', '.join(failed)}. The guarantee does not hold for this step."
    return Audited(audit.name, "step", not failed, failed, None, None, "", None, bool(failed), sentence)


def _attack(audit: Extra, said: Mapping[str, Any] | None, plans: Plans) -> Audited:
    lower, claim, of = _bounds(audit, said, plans)
    confidence = audit.holds.get("confidence")
    surely = f" with {100 * confidence:g}% confidence" if confidence is not None else ""
    broken = claim is not None and lower > claim
    sentence = f"An attack found {of} ≥ {down(lower)}{surely}; the claim is {of} ≤ {loss_up(claim)}."
    if broken:
        sentence += " The claim is broken."
    return Audited(audit.name, "attack", None, (), lower, claim, of, confidence, broken, sentence)


def _bounds(audit: Extra, said: Mapping[str, Any] | None, plans: Plans) -> tuple[float, float | None, str]:
    """The measured lower bound, and the claim for the same number."""
    holds = audit.holds
    if "mu" in holds:
        return float(holds["mu"]["lower"]), said["mu"]["upper"] if said else None, "μ"
    delta = float(holds["delta"])
    claim = None
    if said and delta == said["delta"]:
        claim = said["epsilon"]["upper"]
    elif said and plans.every:
        claim = plans.epsilon(delta)
    return float(holds["epsilon"]["lower"]), claim, f"ε at δ = {small(delta)}"
