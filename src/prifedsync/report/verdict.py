"""May this model leave: release, review or do not release. The worst of all grounds decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import hypot, inf
from typing import Literal

from ..config import ReportConfig
from ..fdp import gaussian
from ..files import CONFIG, LOG
from ..record import NOTHING_LEAVES, RunRecord
from .agreeing import beyond_plan, changed_settings, contradictions, miscounted, understated
from .audits import Audited
from .clients import ClientRow, ClientTable, refuting, says_none
from .guarantee import Guarantee, Stated, largest, stated
from .leaving import kept_models, rehearsed, score_files, scores_leak, sends
from .plans import EVERY, Plans
from .sources import GLOBAL, MODELS, PUBLISHED, REFUSED, STAY, Sources, publishing
from .voiding import DRAWS, KEY, SCORES, SLOTS, TUNING, Condition
from .wording import loss_up, many, named, small

Decision = Literal["release", "review", "do not release"]
SIMULATED = "a simulation"
ORDER: tuple[Decision, ...] = ("release", "review", "do not release")
MOST_GROUNDS = 20  # of one kind, about clients' ledgers
RELEASED = f"{MODELS}/{GLOBAL}"


@dataclass(frozen=True)
class Ground:
    """One reason, and what would change it."""

    decision: Decision
    what: str
    next_step: str


@dataclass(frozen=True)
class Verdict:
    """The decision, its reason in one sentence, what to do next, and everything that was looked at."""

    decision: Decision
    reason: str
    next_step: str
    grounds: tuple[Ground, ...]
    thresholds: tuple[str, ...]
    would_change: tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    """What a verdict is made from. `record` and `clients` are None while the run is not finished."""

    sources: Sources
    record: RunRecord | None
    plans: Plans
    guarantee: Guarantee | None
    clients: ClientTable | None
    audits: tuple[Audited, ...]
    conditions: tuple[Condition, ...]


def verdict_of(facts: Facts) -> Verdict:
    """The worst of all grounds; the first of them gives the reason."""
    words = facts.sources.words
    grounds = sorted(_grounds(facts), key=_severity)
    if not grounds:
        grounds = [_nothing_against(facts)]
    first = grounds[0]
    return Verdict(
        decision=first.decision,
        reason=first.what,
        next_step=first.next_step,
        grounds=tuple(grounds),
        thresholds=tuple(_thresholds(words)),
        would_change=tuple(_would_change(facts, first.decision)),
    )


def _nothing_against(facts: Facts) -> Ground:
    assert facts.guarantee is not None
    mu, _, given = _deciding(facts, facts.guarantee)
    what = (
        f"μ ≤ {mu.text}{given} is within the threshold for release, {facts.sources.words.release_mu:g}, and "
        "nothing speaks against it."
    )
    taken = _taken(facts)
    totals = [_total(taken, row) for row in facts.clients.rows if _has_spent(row)] if facts.clients else []
    if totals:
        what += f" With what ledgers have spent before it comes to μ ≤ {loss_up(largest(totals))}."
    return Ground("release", what, "Sign below, and send the released model with its model card.")


def _thresholds(words: ReportConfig) -> Iterable[str]:
    yield f"release: μ ≤ {words.release_mu:g}" + _beside(words.release_epsilon)
    yield f"review: μ ≤ {words.review_mu:g}" + _beside(words.review_epsilon)
    yield "do not release: anything larger, or no guarantee"
    yield "These are set in [report] of the config. A guarantee within them does not outweigh any other ground."


def _beside(epsilon: float | None) -> str:
    return "" if epsilon is None else f" and ε ≤ {epsilon:g}"


def _grounds(facts: Facts) -> Iterable[Ground]:
    if facts.record is None:
        yield _unfinished(facts)
        return
    if rehearsed(facts.record):
        what = "This was a rehearsal on one machine, and no ledger charges it."
        yield Ground("do not release", what, "Run the deployment itself, between the machines of its parties.")
    yield from _broken(facts, facts.record)
    yield from _about(facts, facts.record)
    yield from _size(facts)
    yield from _leaks(facts, facts.record)
    yield from _others(facts)
    yield from _conditions(facts)


def _unfinished(facts: Facts) -> Ground:
    sources = facts.sources
    planned = sources.config.get("rounds")
    with_owners = sources.between_machines  # and so are the keys of the draws
    has_key = sources.key_left and not (sources.seeded or with_owners)
    key = " Its folder holds the secret key of the draws." if has_key else ""
    again = "prifedsync deploy serve" if with_owners else "prifedsync train --resume"
    return Ground(
        "do not release",
        f"The run is not finished: it has {sources.rounds_done} of {planned} rounds and no record, so no guarantee is "
        f"stated.{key}",
        f"Go on with `{again}`, and make the report again.",
    )


# ---------------------------------------------------------------------- the guarantee is broken, or there is none


def _broken(facts: Facts, record: RunRecord) -> Iterable[Ground]:
    for audit in facts.audits:
        if audit.broken:
            what = f"An audit contradicts the guarantee. {audit.sentence}"
            yield Ground("do not release", what, "Find the fault; train again with an engine that passes its audit.")
    yield from _disagreeing(facts, record)
    yield from _first(_contradicting(facts.clients)) if facts.clients else ()


def _contradicting(clients: ClientTable) -> Iterable[Ground]:
    """Each ledger that says otherwise than the record."""
    for row in clients.rows:
        if row.spent is not None and not row.spent.agrees:
            what = f"The ledger of {row.name} and the record disagree: {row.spent.why}."
            yield Ground("do not release", what, "Ask the owner which of the two is about this run.")


def _first(grounds: Iterable[Ground]) -> Iterable[Ground]:
    """The worst of grounds that thousands of clients may have, and how many more there are."""
    found = sorted(grounds, key=_severity)
    yield from found[:MOST_GROUNDS]
    further = found[MOST_GROUNDS:]
    if further:
        what = (
            f"There {'is' if len(further) == 1 else 'are'} {many(len(further), 'further ground')} about clients' ledgers."
        )
        yield Ground(further[0].decision, what, "See what each client has spent before, and what is left, in report.json.")


def _severity(ground: Ground) -> int:
    """The worst first."""
    return -ORDER.index(ground.decision)


def _disagreeing(facts: Facts, record: RunRecord) -> Iterable[Ground]:
    """A record whose numbers do not go together was changed, or was written by a faulty program."""
    again = "Train again: what was released is not what was accounted."
    restore = "Restore the record from a copy; do not use its numbers."
    wrong = miscounted(record)
    if wrong:
        what = f"The record's counts of noisy queries do not agree with its plans, at {named(wrong)}."
        yield Ground("do not release", what, again)
    over = beyond_plan(record)
    if over:
        what = f"More slots were taken than the plan has, at {named(over)}: the guarantee does not count them."
        yield Ground("do not release", what, again)
    odd = contradictions(facts.sources, record)
    if odd:
        yield Ground("do not release", f"The record contradicts itself: {'; '.join(odd)}.", restore)
    smaller = understated(record, facts.plans)
    if smaller:
        yield Ground("do not release", f"The record states less than its plans: a smaller {', '.join(smaller)}.", restore)
    if facts.guarantee and not facts.plans.every:
        what = "The clients have so many different plans that the record's numbers were compared with a few of them only."
        yield Ground("review", what, "Check the others with `prifedsync account`, which states the guarantee of one plan.")


def _about(facts: Facts, record: RunRecord) -> Iterable[Ground]:
    """Whether there is a guarantee, and whether it is about these files."""
    sources = facts.sources
    if record.sentence == NOTHING_LEAVES:
        what = "There is no released model: nothing leaves a client, and personal models are trained without noise."
        yield Ground("do not release", what, "Keep each model with its client, or train under a rule that releases one.")
    elif facts.guarantee is None:
        what = "The model was trained without noise, so there is no guarantee."
        yield Ground("do not release", what, "Train again with noise: set privacy.target.mu.")
    elif sources.seeded and sources.public_data:
        what = (
            f"This is a simulation on a public data set ({sources.config['data']['source']}): whoever knows the seed can "
            "subtract the noise, so the guarantee is of the algorithm and not of these files."
        )
        yield Ground("review", what, 'On records of your own, train with privacy.randomness = "system".')
    elif sources.seeded:
        what = (
            "The draws are seeded: whoever knows the seed, which is in the record, can subtract the noise, so nothing "
            "protects these records."
        )
        yield Ground("do not release", what, 'Train again with privacy.randomness = "system".')


# ---------------------------------------------------------------------- how large it is


def _size(facts: Facts) -> Iterable[Ground]:
    guarantee = facts.guarantee
    if guarantee is None:
        return
    words = facts.sources.words
    mu, epsilon, given = _deciding(facts, guarantee)
    numbers = f"μ ≤ {mu.text} (ε ≤ {epsilon.text} at δ = {small(guarantee.delta)}){given}"
    if _above(mu.upper, words.review_mu) or _above(epsilon.upper, words.review_epsilon):
        what = f"{numbers} is above the threshold for a review ({_limits(words.review_mu, words.review_epsilon)})."
        yield Ground("do not release", what, "Train again with more noise or fewer rounds: set privacy.target.mu.")
    elif _above(mu.upper, words.release_mu) or _above(epsilon.upper, words.release_epsilon):
        what = (
            f"{numbers} is above the threshold for release ({_limits(words.release_mu, words.release_epsilon)}) and within "
            "that for a review."
        )
        yield Ground("review", what, "Decide whether this use justifies it, and write down why; or train with more noise.")
    if epsilon.upper is None and mu.upper is not None:
        what = f"There is no bound on ε at δ = {small(guarantee.delta)}."
        yield Ground("review", what, "Judge by μ, or state ε at a larger privacy.delta.")
    if guarantee.delta_warning:
        yield Ground("review", f"{guarantee.delta_warning}.", "Judge by μ, or state ε at a smaller privacy.delta.")
    yield from _persons(facts, guarantee)


def _deciding(facts: Facts, guarantee: Guarantee) -> tuple[Stated, Stated, str]:
    """The μ and ε that are compared with the thresholds: the largest that holds, and what it is given."""
    assert facts.record is not None
    found = {"": {"mu": guarantee.mu, "epsilon": guarantee.epsilon}, " given who took part": guarantee.given_who_took_part}
    if facts.record.server_chose:
        found[" where the server decides who takes part"] = guarantee.if_others_choose
    worst = {name: stated(largest([each[name].upper for each in found.values()])) for name in ("mu", "epsilon")}
    given = next(given for given, each in found.items() if each["mu"].upper == worst["mu"].upper)
    return worst["mu"], worst["epsilon"], given


def _persons(facts: Facts, guarantee: Guarantee) -> Iterable[Ground]:
    """Where a person has several records, what counts is what protects the person."""
    words = facts.sources.words
    own = next((group for group in guarantee.groups if group.records == words.records_of_person), None)
    if guarantee.groups and not words.records_of_person and not facts.sources.public_data:
        what = "Nobody has said how many records a person may have: the guarantee is of one record."
        yield Ground("review", what, "Set report.records_of_person, or train with the person as the unit (data.person).")
    if own is None:
        return
    mu = own.mu.upper if own.mu else None
    epsilon = own.epsilon.upper
    known = mu is not None and mu <= words.release_mu and not _above(epsilon, words.release_epsilon)
    if known and guarantee.groups_hold_for == EVERY:
        return
    numbers = f"ε ≤ {own.epsilon.text}" + (f", μ ≤ {own.mu.text}" if own.mu else "")
    right = "" if own.mu else f" An attacker tells two equally likely cases apart up to {own.correct.text} of the time."
    whose = "" if guarantee.groups_hold_for == EVERY else f" (of {guarantee.groups_hold_for})"
    what = f"A person may have {many(own.records, 'record')}, and is protected with {numbers}{whose} only.{right}"
    too_much = mu > words.review_mu if mu is not None else _above(own.correct.upper, _right_at(words.review_mu))
    nothing = mu is None and (epsilon is None or epsilon == inf)
    refused = too_much or nothing or _above(epsilon, words.review_epsilon)
    decision: Decision = "do not release" if refused else "review"
    yield Ground(decision, what, "Train again with the person as the unit: set data.person.")


def _right_at(mu: float) -> float:
    """How often an attacker who has to tell two equally likely cases apart is right at this μ."""
    return 0.5 + gaussian(mu).advantage().upper / 2


def _above(epsilon: float | None, threshold: float | None) -> bool:
    return threshold is not None and (epsilon is None or epsilon > threshold)


def _limits(mu: float, epsilon: float | None) -> str:
    return f"μ ≤ {mu:g}" + _beside(epsilon)


# ---------------------------------------------------------------------- what else leaves, and what else was released


def _leaks(facts: Facts, record: RunRecord) -> Iterable[Ground]:
    sources = facts.sources
    if scores_leak(sources, record) and sources.words.scores != STAY:
        bare = ": the guarantee does not cover them" if facts.guarantee else ""
        what = f"Scores on the clients' records are in the files, computed without noise{bare}."
        next_step = f'Send the model without {score_files(sources)}, and set report.scores to "{STAY}".'
        yield Ground("review", what, next_step)
    kept = sources.personal if kept_models(record) else sources.kept_files if _real(facts) else 0
    if kept:
        what = f"{many(kept, 'personal model')} in this folder have no guarantee: they were trained without noise."
        alone = f"Send {RELEASED} alone; leave" if sends(record) else "Leave"
        yield Ground("review", what, f"{alone} models/personal with its clients.")
    changed = changed_settings(sources, record)
    if changed:
        what = f"{CONFIG} in the folder is not the config of the record: they differ in {named(changed, 'field')}."
        yield Ground("review", what, "Put back the file that this run has written: its hash is signed for too.")
    absent = [name for name in (CONFIG, LOG) if not (sources.folder / name).is_file()]
    if absent:
        what = f"The record was not compared with {' and '.join(absent)}: not in the folder."
        yield Ground("review", what, "Put back what this run has written: a record that was changed may show by it.")
    if sends(record) and not any(each.name == RELEASED for each in sources.files):
        what = f"The released model is not in the folder: {RELEASED} is missing."
        yield Ground("review", what, "Put it back, and make the report again: what is sent must be what is signed for.")
    if facts.guarantee is not None and not rehearsed(record):  # the model of a rehearsal says that it was one
        yield from _model(sources)
    if sources.key_left and not sources.seeded:
        what = "The folder still holds a checkpoint with the secret key of the draws."
        yield Ground("do not release", what, "Run `prifedsync train --resume` on the folder, which removes it.")


def _real(facts: Facts) -> bool:
    """Whether the guarantee is of these files: of other runs a personal model says why it has none."""
    return facts.guarantee is not None and not facts.sources.seeded


def _model(sources: Sources) -> Iterable[Ground]:
    """What the file of the released model says of itself, which goes with it wherever it is sent."""
    path = sources.folder / RELEASED
    if not path.is_file():
        return
    try:
        says = publishing(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        yield Ground("do not release", f"The released model cannot be read: {error}.", "Restore it from a copy.")
        return
    if says.startswith(PUBLISHED) or (sources.seeded and says.startswith(SIMULATED)):
        return
    if says.startswith(REFUSED):
        what = f"The released model says of itself: “{says}”."
        yield Ground("do not release", what, "Put back the model of this run, or restore the record from a copy.")
    else:
        what = "The released model does not say whether it may be published: the record of the run is all that says it."
        yield Ground("review", what, "Put back the file that this run has written.")


def _others(facts: Facts) -> Iterable[Ground]:
    """Earlier releases and tuning are not in a record. On public data they do not matter."""
    sources = facts.sources
    if sources.public_data or facts.clients is None:
        return
    words = sources.words
    silent = [name for name in ("owner", "purpose", "receivers") if not getattr(words, name)]
    if silent:
        what = f"Nobody has said the {', '.join(silent)} of this model."
        yield Ground("review", what, f"Set {', '.join(f'report.{name}' for name in silent)}.")
    yield from _first(_ledgers(facts, facts.clients))
    stated = words.other_releases.strip()
    refuted_by = refuting(words, facts.clients.rows)
    if refuted_by:
        what = f"The owner says that nothing else was released, and other runs are in the ledger of {named(refuted_by)}."
        next_step = "Correct report.other_releases, or leave it out and give the ledger of every client (--receipt)."
        yield Ground("review", what, next_step)
    elif stated and not says_none(words):
        what = f"The owner says of other releases from the same records: “{stated}”. The numbers do not count them."
        yield Ground("review", what, "Add up their cost: μ² adds up over releases from the same records.")
    open_to = [row.name for row in facts.clients.rows if row.spent is None or row.spent.before is None]
    if open_to and (refuted_by or not stated):
        what = f"No ledger was read for {named(open_to)}, so other releases from the same records are not known."
        yield Ground("review", what, "Give their receipts and ledgers (--receipt), or say it in report.other_releases.")
    if words.tuning == "not said":
        what = "Nobody has said whether settings were tried on these records."
        yield Ground("review", what, 'Set report.tuning to "none", "charged" or "not charged".')
    elif words.tuning == "not charged":
        what = "Settings were tried on these records, and that was not charged: the numbers leave it out."
        yield Ground("review", what, "Compose the cost of all trials: T of them cost up to √T times μ.")


def _ledgers(facts: Facts, clients: ClientTable) -> Iterable[Ground]:
    """What owners' ledgers have spent before, together with this run."""
    words = facts.sources.words
    taken = _taken(facts)
    further = "Ask the owner whether these records may be used once more, and who has the earlier releases."
    if clients.uncounted_ledgers:
        files = named(clients.uncounted_ledgers, "file")
        what = f"No receipt says what this run cost in {files}, so other releases in that ledger are not counted."
        yield Ground("review", what, "Give the receipt of this run from the same ledger (--receipt).")
    for row in clients.rows:
        spent = row.spent
        if spent is None or spent.before is None:
            continue
        if spent.left is not None and spent.left <= 0:
            yield Ground("review", f"The budget of {row.name} has nothing left.", further)
        if spent.older:
            what = f"The ledger of {row.name} was exported before its receipt, so later runs may be missing in it."
            yield Ground("review", what, "Ask the owner to export both again, the ledger last.")
        before = spent.before.upper
        if before == 0:
            continue
        if spent.unit == "mu":
            total = _total(taken, row)
            release, review = words.release_mu, words.review_mu
        elif words.release_epsilon is None and words.review_epsilon is None:
            what = f"The ledger of {row.name} has spent ε ≤ {spent.before.text} before, and no threshold of ε is set."
            yield Ground("review", what, "Set report.release_epsilon and report.review_epsilon.")
            continue
        else:
            if spent.delta is not None and facts.guarantee and spent.delta != facts.guarantee.delta:
                what = (
                    f"The ledger of {row.name} counts ε at δ = {small(spent.delta)}, and this run at "
                    f"δ = {small(facts.guarantee.delta)}: the thresholds are about the latter."
                )
                yield Ground("review", what, "Judge by μ, or ask for the ε of all runs at one δ.")
            total = spent.total.upper if spent.total else None
            release, review = _or_infinite(words.release_epsilon), _or_infinite(words.review_epsilon)
        if total is None or total > min(release, review):
            sign = "μ" if spent.unit == "mu" else "ε"
            what = (
                f"With what {row.name} has spent before, this run comes to {sign} ≤ {loss_up(total)}, above the threshold"
            )
            if total is None or total > review:
                yield Ground("do not release", f"{what} for a review, {review:g}.", further)
            else:
                yield Ground("review", f"{what} for release, {release:g}.", further)


def _has_spent(row: ClientRow) -> bool:
    """Whether a ledger counts μ of other runs."""
    spent = row.spent
    return spent is not None and spent.unit == "mu" and spent.before is not None and spent.before.upper != 0


def _taken(facts: Facts) -> dict[str, float | None]:
    """μ of each client for the slots that it took."""
    clients = facts.record.clients if facts.record else ()
    return {each.name: each.taken["mu"]["upper"] for each in clients if each.taken}


def _total(taken: Mapping[str, float | None], row: ClientRow) -> float | None:
    """μ of this run together with what a client's ledger has spent before; None without a bound."""
    own = largest([row.mu.upper if row.mu else None, taken.get(row.name)])
    before = row.spent.before.upper if row.spent and row.spent.before else None
    return None if before is None or own is None else hypot(before, own)


def _or_infinite(threshold: float | None) -> float:
    return inf if threshold is None else threshold


def _conditions(facts: Facts) -> Iterable[Ground]:
    """What the guarantee needs and does not have, where no ground above has said it."""
    said_above = {DRAWS, KEY, SLOTS, SCORES} | (set() if facts.sources.public_data else {TUNING})
    for each in facts.conditions:
        if each.state == "broken" and each.what not in said_above:
            what = f"The guarantee needs what is not so here: {each.what} {each.here}"
            yield Ground("review", what, "Read what would void the guarantee, and judge without the numbers that need it.")


def _would_change(facts: Facts, decision: Decision) -> Iterable[str]:
    if decision != "release":
        yield "All grounds above would have to be removed for the verdict to be release."
    if decision != "do not release":
        yield "An audit that measures more than the guarantee allows would make it: do not release."
        yield "A release from the same records that is not counted here would make the guarantee larger."
    if not facts.audits:
        yield "No audit was given: a lower bound that was measured would stand beside the claim."
