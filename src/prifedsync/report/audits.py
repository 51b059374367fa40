"""What attacks have measured: checks of one noisy step, and lower bounds beside the claim.

An audit is JSON. `audit step --json` gives {"passed", "checks"}. A measured lower bound is {"mu": {"lower": …}} or
{"epsilon": {"lower": …}, "delta": …}, with "confidence", and "band": [[α, lowest β, highest β], …] for the picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import numpy as np

from ..accounting.statement import down, finite
from ..values import BadValue
from .plans import Plans
from .sources import Extra
from .wording import loss_up, percent, small

REMEDY = "name a file that `prifedsync audit … --json` has printed"
NOT_TIED = "An audit file names no run: that it is about this one is the word of whoever gave it."
SLACK = 1e-12  # of a β: so much rounding may add


@dataclass(frozen=True)
class Audited:
    """One audit. `broken`: what it has measured cannot be if the claim is true. `compared`: there is a claim beside it."""

    file: str
    kind: str  # "step" or "attack"
    passed: bool | None
    failed_checks: tuple[str, ...]
    lower: float | None
    claim: float | None
    of: str  # what both are numbers of: "μ", or "ε at δ = …"
    confidence: float | None
    compared: bool
    broken: bool
    sentence: str


def audits_of(given: tuple[Extra, ...], said: Mapping[str, Any] | None, plans: Plans) -> tuple[Audited, ...]:
    """Each audit beside the claim of the record."""
    return tuple(_audited(each, said, plans) for each in given)


def _audited(audit: Extra, said: Mapping[str, Any] | None, plans: Plans) -> Audited:
    try:
        if len({"checks", "mu", "epsilon"} & set(audit.holds)) > 1:
            raise _bad(audit, "has more than one of checks, mu and epsilon: give a file for each")
        below = _below(audit, said, plans)
        return _step(audit, said, below) if "checks" in audit.holds else _attack(audit, said, plans, below)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        if isinstance(error, BadValue):
            raise
        raise _bad(audit, f"cannot be read: {error!r}") from None


def _bad(audit: Extra, rule: str) -> BadValue:
    return BadValue("audit", audit.name, rule, REMEDY)


def _number(audit: Extra, value: Any, what: str, most: float = inf) -> float:
    """A finite number. NaN is smaller than no claim, so it would break none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _bad(audit, f"cannot be read: {what} must be a number")
    if not isfinite(value) or value > most:
        raise _bad(
            audit, f"has a {what} of {value:g}: it must be finite" + (f" and at most {most:g}" if most < inf else "")
        )
    return float(value)


def _probability(audit: Extra, value: Any, what: str) -> float:
    found = _number(audit, value, what, 1.0)
    if found < 0:
        raise _bad(audit, f"has a {what} of {found:g}: it must not be negative")
    return found


def _yes(audit: Extra, value: Any) -> bool:
    """Whether something passed: true or false. A text would count as true."""
    if not isinstance(value, bool):
        raise _bad(audit, "cannot be read: `passed` must be true or false")
    return value


def band_of(audit: Extra) -> tuple[tuple[float, float, float], ...]:
    """The measured error rates, as (α, lowest β, highest β)."""
    found = []
    for alpha, low, high in audit.holds.get("band", ()):
        names = ((alpha, "false positive rate in its band"), (low, "β in its band"), (high, "β in its band"))
        point = [_probability(audit, value, name) for value, name in names]
        found.append((point[0], point[1], point[2]))
    return tuple(found)


def _below(audit: Extra, said: Mapping[str, Any] | None, plans: Plans) -> str:
    """Where an attack was measured below the certified curve, in words; nothing where there is no such place."""
    band = band_of(audit)
    if said is None or not band:
        return ""
    for alpha, _, high in band:
        certified = _certified(alpha, said, plans)
        if high < certified - SLACK:
            return (
                f" At a false positive rate of {percent(alpha)} it missed at most {high:.6g} of members, and the certified "
                f"curve has {down(certified)} at least. The claim is broken."
            )
    return ""


def _certified(alpha: float, said: Mapping[str, Any], plans: Plans) -> float:
    """The certified β. Of a curve that is known at some levels alone, that of the next level, which is no larger."""
    if plans.every and plans.plans:
        return float(plans.curve(np.array([alpha]))[0])
    return max((float(beta) for level, beta in said["curve"] if level >= alpha), default=0.0)


def _step(audit: Extra, said: Mapping[str, Any] | None, below: str) -> Audited:
    checks = audit.holds["checks"]
    if not checks:
        raise _bad(audit, "has no checks")
    failed = tuple(str(check["name"]) for check in checks if not _yes(audit, check["passed"]))
    passed = _yes(audit, audit.holds.get("passed", not failed)) and not failed
    sentence = f"One noisy step was measured: {len(checks) - len(failed)} of {len(checks)} checks passed."
    if failed:
        sentence += f" Failed: {', '.join(failed)}."
    elif not passed:
        sentence += " The file says that the audit failed."
    if not passed:
        sentence += " The guarantee does not hold for this step."
    if said is None:
        sentence += " It is not compared: the run has no claim."
    return Audited(
        audit.name, "step", passed, failed, None, None, "", None, said is not None, not passed or bool(below),
        sentence + below,
    )  # fmt: skip


def _attack(audit: Extra, said: Mapping[str, Any] | None, plans: Plans, below: str) -> Audited:
    lower, claim, of = _bounds(audit, said, plans)
    confidence = audit.holds.get("confidence")
    surely = ""
    if confidence is not None:
        confidence = _probability(audit, confidence, "confidence")
        surely = f" with {100 * confidence:g}% confidence"
    failed = not _yes(audit, audit.holds.get("passed", True))
    over = claim is not None and lower > claim
    sentence = f"An attack found {of} ≥ {down(lower)}{surely}"
    if claim is None:
        sentence += "; that is not compared, for there is no finite claim about it."
    else:
        sentence += f"; the claim is {of} ≤ {loss_up(claim)}."
    if over:
        sentence += " The claim is broken."
    if failed:
        sentence += " The file says that the audit failed."
    broken = over or failed or bool(below)
    passed = False if failed else None
    return Audited(
        audit.name, "attack", passed, (), lower, claim, of, confidence, claim is not None, broken, sentence + below
    )


def _bounds(audit: Extra, said: Mapping[str, Any] | None, plans: Plans) -> tuple[float, float | None, str]:
    """The measured lower bound, and the claim for the same number; None where no finite one is known."""
    holds = audit.holds
    if "mu" in holds:
        lower = _number(audit, holds["mu"]["lower"], "lower bound")
        return lower, finite(said["mu"]["upper"]) if said else None, "μ"
    delta = _probability(audit, holds["delta"], "δ")
    if delta in (0, 1):
        raise _bad(audit, f"has a δ of {delta:g}: it must lie between 0 and 1")
    claim = None
    if said and delta == said["delta"]:
        claim = said["epsilon"]["upper"]
    elif said and plans.every and plans.plans:
        claim = plans.epsilon(delta)
    return _number(audit, holds["epsilon"]["lower"], "lower bound"), finite(claim), f"ε at δ = {small(delta)}"
