"""The lines of the page: the trade-off curve, ε over rounds, and ε at each δ. Every point is on its safe side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, isfinite, log10
from typing import Any

import numpy as np

from ..accounting.statement import finite
from ..fdp import gaussian
from ..record import RunRecord
from .audits import band_of
from .guarantee import Stated, beyond_one, stated
from .plans import EVERY, ROUNDING, Plans
from .sources import Extra, Sources
from .wording import percent, share_up

FEW_ROUNDS = 60  # after each of which ε is computed
FEW_BOUNDS = 240  # bounds that are computed for that, over all plans: about a second
MOST_ROUNDS = 25  # points of ε over more rounds
MOST_BOUNDS = 64  # bounds that are computed for them, over all plans
LEAST_ROUNDS = 4
DIGITS = 7  # of a β
LEAST = 1e-12  # a smaller β is drawn as 0
CERTIFIED = "certified lower bound"
NOT_A_GUARANTEE = "the paper's asymptotic value, not a guarantee"


@dataclass(frozen=True)
class Curve:
    """Error rates of attacks. No attack is below `certified`.

    says           of each point the sentence that is shown when it is pointed at
    if_others_choose  the same where somebody else decides who takes part; None where that is no different
    gaussian       G_μ for the stated μ: it holds on the range of μ alone
    asymptotic     the paper's value. It is not a guarantee
    audit          what each attack has measured, as (α, lowest β, highest β) from the smallest α; empty where there is none
    """

    alpha: tuple[float, ...]
    certified: tuple[float, ...]
    says: tuple[str, ...]
    identity: tuple[float, ...]
    gaussian: tuple[float, ...]
    gaussian_mu: float
    if_others_choose: tuple[float, ...] | None
    asymptotic: tuple[float, ...] | None
    asymptotic_mu: float | None
    asymptotic_note: str
    audit: tuple[tuple[tuple[float, float, float], ...], ...]
    holds_for: str


@dataclass(frozen=True)
class Progress:
    """ε at δ after so many rounds, up to the planned end. Between two points the bound is that of the later one.

    done  rounds that were taken
    """

    delta: float
    rounds: tuple[int, ...]
    epsilon: tuple[Stated, ...]
    planned: int
    done: int
    holds_for: str


@dataclass(frozen=True)
class Delta:
    """ε at one δ. `warning`: δ is not below one over the number of units."""

    delta: float
    epsilon: Stated
    warning: bool


@dataclass(frozen=True)
class Deltas:
    """The table behind the slider. One of the rows is that of the run's own δ."""

    rows: tuple[Delta, ...]
    own: float
    holds_for: str


def levels() -> np.ndarray:
    """False positive rates, dense at both ends, each with three digits so that it can be printed as it is."""
    low = np.geomspace(1e-5, 0.1, 70)
    steps = np.linspace(0.1, 0.9, 81)
    found = {float(f"{level:.3g}") for level in (*low, *steps)} | {1e-6, 1e-3, 0.01, 0.05}
    return np.array(sorted({0.0, *found, *(1 - level for level in found if level < 0.1), 1.0}))


def curve_of(record: RunRecord, plans: Plans, audits: Sequence[Extra]) -> Curve:
    """The certified curve of all clients beside its neighbours in the picture."""
    said: Mapping[str, Any] = record.guarantee or {}
    alpha = levels() if plans.every else np.array([level for level, _ in said["curve"]])
    certified = plans.curve(alpha) if plans.every else np.array([beta for _, beta in said["curve"]])
    betas = tuple(_down(max(0.0, beta - ROUNDING)) for beta in certified.tolist())
    mu = said["mu"]["upper"]
    asymptotic_mu = said.get("paper", {}).get("mu_weak")
    known = asymptotic_mu is not None and isfinite(asymptotic_mu)
    chosen = plans.curve(alpha, "adversarial") if plans.every and plans.worst_case is not plans.honest else None
    return Curve(
        alpha=tuple(alpha.tolist()),
        certified=betas,
        says=tuple(_says(level, beta, record.unit) for level, beta in zip(alpha.tolist(), betas, strict=True)),
        identity=tuple((1 - alpha).tolist()),
        gaussian=_points(gaussian(mu)(alpha)) if mu is not None else tuple(0.0 for _ in betas),
        gaussian_mu=mu,
        if_others_choose=None if chosen is None else _points(chosen),
        asymptotic=_points(gaussian(asymptotic_mu)(alpha)) if known else None,
        asymptotic_mu=asymptotic_mu if known else None,
        asymptotic_note=NOT_A_GUARANTEE,
        audit=tuple(tuple(sorted(band)) for band in map(band_of, audits) if band),
        holds_for=EVERY,
    )


def progress_of(sources: Sources, record: RunRecord, plans: Plans) -> Progress:
    """ε after some of the rounds, and at the planned end."""
    said: Mapping[str, Any] = record.guarantee or {}
    delta = float(said["delta"])
    planned = max((plan.rounds for plan in plans.plans), default=0)
    spending = plans.progress(delta)
    marks = _marks(planned, _most_points(planned, len(plans.plans)))
    bounds = [spending.after(rounds) for rounds in marks]
    if not plans.every and marks:
        end = said["epsilon"]["upper"]
        bounds[-1] = bounds[-1] if end is None else max(bounds[-1], end)  # the end holds for every client
    return Progress(
        delta=delta,
        rounds=tuple(marks),
        epsilon=tuple(stated(finite(bound)) for bound in bounds),
        planned=planned,
        done=sources.rounds_done,
        holds_for=plans.holds_for,
    )


def deltas_of(record: RunRecord, plans: Plans) -> Deltas:
    """ε from δ = 0.01 to 1e-10, two to a decade."""
    said: Mapping[str, Any] = record.guarantee or {}
    own = float(said["delta"])
    grid = sorted({own, *(float(f"{10**-power:.1g}") for power in np.arange(2, 10.1, 0.5))}, reverse=True)
    rows = []
    for delta in grid:
        epsilon = said["epsilon"]["upper"] if delta == own else finite(plans.epsilon(delta))
        rows.append(Delta(delta, stated(epsilon), beyond_one(delta, plans.most_units)))
    return Deltas(tuple(rows), own, plans.holds_for)


def _most_points(rounds: int, plans: int) -> int:
    """After how many rounds ε is computed: after each of few, as long as that takes no more than about a second."""
    if rounds <= FEW_ROUNDS and rounds * plans <= FEW_BOUNDS:
        return rounds
    return max(LEAST_ROUNDS, min(MOST_ROUNDS, MOST_BOUNDS // max(1, plans)))


def _marks(rounds: int, most: int) -> list[int]:
    """Rounds at which ε is computed: all of few, else so many at about equal distances, the last one always."""
    if rounds <= most:
        return list(range(1, rounds + 1))
    return sorted({max(1, round(float(mark))) for mark in np.linspace(1, rounds, most)})


def _says(alpha: float, beta: float, unit: str) -> str:
    whom = "members" if unit == "record" else "persons"
    return (
        f"an attacker who accepts {percent(alpha)} false positives finds at most {share_up(1 - beta + ROUNDING)} of {whom}"
    )


def _points(values: np.ndarray) -> tuple[float, ...]:
    return tuple(_down(value) for value in values.tolist())


def _down(value: float) -> float:
    """The value rounded down to a few digits: β is a lower bound, and files stay small."""
    if value < LEAST:
        return 0.0
    scale = 10.0 ** (DIGITS - 1 - floor(log10(value)))
    return min(value, floor(value * scale) / scale)
