"""Items about the guarantee: its numbers, its unit, what it compares, and what it does not cover."""

from __future__ import annotations

from ...accounting.statement import down, up
from ..guarantee import BEFORE_COINS, Guarantee
from ..leaving import unprotected
from ..wording import small
from .known import NOT_SAID, Filled, Known


def _none(known: Known) -> Filled:
    return "filled", known.record.sentence, "record"


def numbers(known: Known) -> Filled:
    """Item 3."""
    guarantee = known.guarantee
    if guarantee is None:
        return _none(known)
    text = (
        f"μ ≤ {guarantee.mu.text} for α from {small(guarantee.alpha_min)} to 1 − {small(guarantee.alpha_min)}; "
        f"ε ≤ {guarantee.epsilon.text} at δ = {small(guarantee.delta)}; the curve and the plans are in the record"
    )
    if guarantee.more_is_known:
        known_of = guarantee.known
        text += f"; given who took part: μ ≤ {known_of['mu'].text}, ε ≤ {known_of['epsilon'].text}"
        text += f", and two data sets are told apart at most {guarantee.known_correct.text} of the time"
    if guarantee.delta_warning:
        text += f". Warning: {guarantee.delta_warning}"
    return "filled", text, "record"


def judged(known: Known) -> Filled:
    """Item 4."""
    return ("filled", known.guarantee.judgement, "record") if known.guarantee else _none(known)


def unit(known: Known) -> Filled:
    """Item 5."""
    guarantee = known.guarantee
    if guarantee is None:
        return _none(known)
    return _person(known) if guarantee.unit == "person" else _record(known, guarantee)


def _person(known: Known) -> Filled:
    rows = known.sources.config["data"].get("rows_per_person")
    text = f"a person with all records at a client, up to {rows}"
    what = known.words.record_is
    if not what:
        return "filled", text, "record"
    return "filled", f"{text}; one record is {what}", "owner's words"


def _record(known: Known, guarantee: Guarantee) -> Filled:
    what = known.words.record_is
    most = known.words.records_of_person
    missing = [] if what else ["what one record is in the real world"]
    if guarantee.groups and not most:
        missing.append("how many records a person may have")
    parts = [f"one record: {what}" if what else "one record"]
    parts += [f"a person has at most {most}"] if most else []
    parts += [f"{NOT_SAID}: {', '.join(missing)}"] if missing else []
    text = f"{'; '.join(parts)}. {_together(guarantee)}"
    return "open" if missing else "filled", text, "owner's words" if what or most else "record"


def _together(guarantee: Guarantee) -> str:
    """Where there are no groups, noise is added to a whole round, and all records of a client are protected as one."""
    if not guarantee.groups:
        return "The numbers hold for all records of a client together"
    groups = [
        f"{group.records} records: ε ≤ {group.epsilon.text}" + (f", μ ≤ {group.mu.text}" if group.mu else "")
        for group in guarantee.groups
    ]
    return f"Several records together: {'; '.join(groups)}"


def neighbours(known: Known) -> Filled:
    """Item 6."""
    guarantee = known.guarantee
    if guarantee is None:
        return _none(known)
    unit = guarantee.unit
    public = f"the number of {unit}s of each client" if guarantee.neighbours == "replace" else "nominal numbers only"
    return "filled", f"two data sets differ in {guarantee.adjacency}; public by that choice: {public}", "record"


def hypotheses(known: Known) -> Filled:
    """Item 7."""
    if known.guarantee is None:
        return _none(known)
    first, second = known.guarantee.hypotheses
    return "filled", f"{first} Or: {second}", "record"


def domain(known: Known) -> Filled:
    """Item 8."""
    text = f"not protected: {unprotected(known.leaving)}"
    who = known.words.population
    if not who:
        return "open", f"whom the records are about is {NOT_SAID}; {text}", "record"
    return "filled", f"{who}; {text}", "owner's words"


def accounting(known: Known) -> Filled:
    """Item 13."""
    said = known.record.guarantee
    if said is None:
        return _none(known)
    ends = [said["epsilon"][end] for end in ("lower", "upper")]
    bracket = "No upper bound on ε is known" if ends[1] is None else f"ε is between {down(ends[0], 6)} and {up(ends[1], 6)}"
    return (
        "filled",
        "a closed form where releases are exactly Gaussian, else numerical composition of privacy loss distributions, as a "
        "certified bracket; upper ends are printed. Assumed: noise, batches and coins are independent of the records, and "
        f"batches and noise are secret. {bracket}",
        "record",
    )


def attacks(known: Known) -> Filled:
    """Item 21."""
    if not known.attacks:
        return _none(known)
    names = ", ".join(attack.name for attack in known.attacks)
    rates = "; ".join(f"{rate.base_text}: {rate.at_most.text}" for rate in known.attacks[0].rates)
    text = f"{names}: right without the model, and at most with it: {rates}"
    if known.guarantee and known.guarantee.more_is_known:
        text += f". {BEFORE_COINS}"
    return "filled", text, "record"
