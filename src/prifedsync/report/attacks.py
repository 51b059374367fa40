"""Four attacks from one curve: whoever would be right with probability b without the model is right with at most 1 − f(b)
with it (arXiv 2507.06969)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .guarantee import BEFORE_COINS, Guarantee, Stated, chance
from .plans import ROUNDING, Plans
from .wording import one_in, percent, share_up

BASES = (0.001, 0.01, 0.1, 0.5)
NOTE = (
    "Of two cases that are equally likely an attacker is right at most {correct} of the time. The bound at 1 in 2 is "
    "larger, because it also covers attackers whose chances differ from case to case."
)
KINDS = (  # name, what an attacker tries to say
    ("membership", "which of several candidates is the {unit} that was in the training data"),
    ("attribute inference", "which value a hidden attribute of this {unit} has"),
    ("re-identification", "whose {unit} this is"),
    ("reconstruction", "what a whole {unit} contains, closely enough"),
)
OF_PERSONS = {  # the same where a person with all records is protected, and other words are needed
    "re-identification": "who the person behind these records is",
    "reconstruction": "what all records of a person contain, closely enough",
}


@dataclass(frozen=True)
class Rate:
    """One base rate: how often an attacker is right without the model, and at most with it."""

    base: float
    base_text: str
    at_most: Stated
    sentence: str


@dataclass(frozen=True)
class Attack:
    """One kind of attack at all base rates. `question`: what an attacker tries to say."""

    name: str
    question: str
    rates: tuple[Rate, ...]


def attacks_of(guarantee: Mapping[str, Any], plans: Plans, unit: str) -> tuple[Attack, ...]:
    """The four attacks. Their bounds are alike; the base rates of a real attacker differ."""
    bounds = {base: right_at_most(guarantee, plans, base) for base in BASES}
    return tuple(
        Attack(name, _question(name, said, unit), tuple(_rate(base, bounds[base]) for base in BASES))
        for name, said in KINDS
    )


def right_at_most(guarantee: Mapping[str, Any], plans: Plans, base: float) -> float:
    """1 − f(b) on the safe side, for every client: from the record's curve where it has this level, else from the plans."""
    known = dict(map(tuple, guarantee["curve"]))
    if base in known:
        return float(min(1.0, 1 - known[base] + ROUNDING))
    return float(plans.power(np.array([base]))[0])


def _question(name: str, said: str, unit: str) -> str:
    return OF_PERSONS.get(name, said.format(unit=unit)) if unit == "person" else said.format(unit=unit)


def note_of(guarantee: Guarantee) -> str:
    """How the bound at 1 in 2 goes with the one for two equally likely cases, and what attackers may know besides."""
    note = NOTE.format(correct=guarantee.correct.text)
    return f"{note} {BEFORE_COINS}" if guarantee.more_is_known else note


def _rate(base: float, bound: float) -> Rate:
    sentence = (
        f"Whoever would be right {percent(base)} of the time without the model is right at most {share_up(bound)} of the "
        "time with it."
    )
    return Rate(base, one_in(base), chance(bound), sentence)
