"""What would void the guarantee, each item tied to the settings of this run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..record import RunRecord
from .agreeing import beyond_plan
from .guarantee import Guarantee
from .leaving import in_one_place, kept_models, rehearsed, score_files, scores_leak, trusted
from .sources import STAY, Sources
from .wording import many

State = Literal["holds", "broken", "cannot be checked here"]
DRAWS = "Noise and batches are secret and drawn independently of the records."
KEY = "Nobody has the secret key of the draws."
SLOTS = "No client takes more slots than its plan has."
SCORES = "Nothing else that was computed from the records leaves."
TUNING = "Settings were not chosen by results on these records, or that was charged."


@dataclass(frozen=True)
class Condition:
    """Something that must be true, how it is in this run, and whether that is known."""

    what: str
    here: str
    state: State


def conditions_of(sources: Sources, record: RunRecord, guarantee: Guarantee | None) -> tuple[Condition, ...]:
    """What the guarantee needs; nothing where there is none."""
    if guarantee is None:
        return ()
    return (
        *_randomness(sources),
        *_records(sources, guarantee),
        *_one_place(record),
        *_participation(record),
        *_sums(record, guarantee),
        *_elsewhere(sources, record),
        *_computing(record),
    )


def _randomness(sources: Sources) -> Iterable[Condition]:
    if sources.seeded:
        yield Condition(DRAWS, "The draws are seeded, and the seed is in the record.", "broken")
    else:
        here = "They come from the operating system's randomness of each machine that trains."
        yield Condition(DRAWS, here, "cannot be checked here")
    if sources.key_left and not sources.seeded:
        yield Condition(KEY, "The folder still holds a checkpoint with it.", "broken")
    else:
        yield Condition(KEY, "The folder holds no checkpoint.", "holds")


def _records(sources: Sources, guarantee: Guarantee) -> Iterable[Condition]:
    unit = guarantee.unit
    if guarantee.neighbours == "replace":
        here = f"It is printed for each client. Under replacement the guarantee does not hide how many {unit}s there are."
        yield Condition(f"The number of {unit}s is public and right.", here, "cannot be checked here")
    else:
        here = "The plans have nominal numbers, which were chosen without looking."
        yield Condition(f"Nominal numbers of {unit}s do not depend on the records.", here, "cannot be checked here")
    most = guarantee.copies
    where = "one client only" if most == 1 else f"{most} clients at most"
    here = f"The numbers count the releases of {many(most, 'client')} that may hold the same {unit}."
    yield Condition(f"A {unit} is at {where}.", here, "cannot be checked here")
    if unit == "person":
        rows = sources.config["data"].get("rows_per_person")
        here = f"Of a person at most {rows} records count at a client; the ids are the owner's."
        yield Condition("One person has one id at a client.", here, "cannot be checked here")
    elif guarantee.groups:
        stated = sources.words.records_of_person
        here = (
            f"The owner states {many(stated, 'record')} at most."
            if stated
            else "How many records a person has is not said."
        )
        yield Condition("A person is read as one record only where it has one.", here, "cannot be checked here")


def _one_place(record: RunRecord) -> Iterable[Condition]:
    if in_one_place(record):
        yield Condition("Whoever ran all clients gives their records to nobody.", trusted(record), "cannot be checked here")


def _participation(record: RunRecord) -> Iterable[Condition]:
    share = record.config["participation"]
    if record.deployment and record.deployment["participation"] == "server":
        here = "The server chose, so every round of the plan is counted."
        yield Condition("Who takes part does not matter.", here, "holds")
    elif share < 1:
        here = f"Each client tosses its own secret coin with p = {share:g}. If others decide, the larger numbers hold."
        yield Condition("Nobody else decides who takes part.", here, "cannot be checked here")
    yield Condition(SLOTS, _slots(record), "broken" if beyond_plan(record) else "holds")
    here = (
        f"{many(int(record.config['rounds']), 'round')} were planned. Whoever stops by scores must state the planned end."
    )
    yield Condition("The number of rounds was not chosen by looking at results.", here, "cannot be checked here")


def _slots(record: RunRecord) -> str:
    most = max((client.slots_taken for client in record.clients), default=0)
    return f"No client took more than {many(most, 'slot')}."


def _sums(record: RunRecord, guarantee: Guarantee) -> Iterable[Condition]:
    """Of the smaller numbers only: that against everybody needs none of it."""
    if not any(view.claim and view.who != "everybody" for view in guarantee.views):
        return
    here = "Each row of the table of views says what it assumes. If that fails, the number against everybody is left."
    yield Condition("Those who see sums do not see single uploads.", here, "cannot be checked here")
    if record.config["privacy"].get("masks"):
        simulated = record.deployment is None
        here = (
            "All parties were on one machine: whoever ran the rehearsal has all keys."
            if rehearsed(record)
            else "Masks were simulated: whoever ran the process has all keys. The numbers against the server are about the "
            "same run between machines."
            if simulated
            else "Owners have pinned each other's public keys, got by another way than the server."
        )
        yield Condition("Masks hold.", here, "broken" if simulated or rehearsed(record) else "cannot be checked here")


def _elsewhere(sources: Sources, record: RunRecord) -> Iterable[Condition]:
    if scores_leak(sources, record):
        stay = sources.words.scores == STAY
        here = f"Scores are in {score_files(sources)}, without noise."
        here += " The owner says that these stay with the owners." if stay else ""
        yield Condition(SCORES, here, "cannot be checked here" if stay else "broken")
    if kept_models(record):
        here = f"{many(sources.personal, 'personal model')} in this folder are not private."
        yield Condition("What is kept stays.", here, "cannot be checked here")
    here = "Nothing is said of them; a ledger counts those of an owner's daemon."
    if sources.words.other_releases:
        here = f"The owner says: {sources.words.other_releases}."
    yield Condition("Other releases from the same records are counted.", here, "cannot be checked here")
    said = {
        "not said": "Nobody has said whether settings were tried on these records.",
        "none": "The owner says that none were tried.",
        "charged": "The owner says that they were charged.",
        "not charged": "They were tried and not charged.",
    }[sources.words.tuning]
    state: State = "broken" if sources.words.tuning == "not charged" else "cannot be checked here"
    yield Condition(TUNING, said, state)


def _computing(record: RunRecord) -> Iterable[Condition]:
    version = record.versions.get("prifedsync", "?")
    here = f"PriFedSync {version} with {record.gradients} gradients; each record's gradient is clipped by itself."
    yield Condition("The program does what its plan says.", here, "cannot be checked here")
    here = "Noise is rounded to a public grid of about 2⁻¹² standard deviations. That is an argument, and no theorem."
    yield Condition("Real numbers stand for those of the machine.", here, "cannot be checked here")
    here = "Duration, memory and refusals may depend on records, and are not covered."
    yield Condition("Nobody watches the machine while it trains.", here, "cannot be checked here")
