"""The 24 items that an officer expects, each filled from the record, a policy, a ledger, an audit or the owner's words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from ..accounting.statement import down, up
from ..config import ReportConfig
from ..record import RunRecord
from .attacks import Attack
from .audits import NOT_TIED, Audited
from .clients import ClientTable
from .guarantee import Guarantee
from .leaving import Leaving
from .sources import Sources
from .utility import Utility
from .verdict import Verdict
from .wording import many, named, percent, small

Status = Literal["filled", "open", "not applicable"]
From = Literal["record", "policy", "ledger", "owner's words", "audit", ""]
NOT_SAID = "not said"
NOT_RECORDED = "not in this record"
UNFINISHED = "the run is not finished"
REHEARSED = "a rehearsal on one machine: whoever ran it could read all records"
TRUST = 10  # the item that says so
MOST_LISTED = 20  # clients in an item
SYMBOLS = {"mu": "μ", "epsilon": "ε"}
BASELINES = ("alone", "non-private")  # models without noise that a score is judged against


@dataclass(frozen=True)
class Item:
    """One item: its number and source in the officer's list, and what this run has for it."""

    number: int
    title: str
    source: str
    status: Status
    text: str
    taken_from: From


@dataclass(frozen=True)
class Known:
    """Everything that items are made from."""

    sources: Sources
    record: RunRecord
    guarantee: Guarantee | None
    attacks: tuple[Attack, ...]
    clients: ClientTable
    audits: tuple[Audited, ...]
    leaving: Leaving
    utility: Utility
    verdict: Verdict

    @property
    def words(self) -> ReportConfig:
        """The owner's words."""
        return self.sources.words


Filled = tuple[Status, str, From]
TITLES = (  # in their order: title, source
    ("name, owner, purpose, sector, law and date", "registry 1"),
    ("kind of product, and who may receive it", "registry 1, NIST 4.2"),
    ("the guarantee: μ with its range, then ε at δ, and the parameters behind them", "NIST 2.3, 2.5, registry 2"),
    ("how large that is", "NIST 2.2"),
    ("unit of privacy in real-world words, and figures for several records", "NIST 2.4, registry 2"),
    ("neighbours, and what is public by that choice", "NIST 2.4, registry 3"),
    ("two hypotheses that an attacker would tell apart", "NIST 2.4"),
    ("data domain, and quantities that are not protected", "registry 3"),
    ("other releases from the same records, and what is left of the budget", "NIST 2.2, 2.6, 4.1"),
    ("who is trusted for what, and what is left if that fails", "NIST 4.2, registry 2 and 3"),
    ("fixed or interactive, and who chose the rounds", "NIST 4.1, registry 2"),
    ("mechanism: clipping, noise, sampling, steps, rounds, participation; library and version", "NIST 3.1, registry 3"),
    ("accounting method, its assumptions, its bracket", "registry 3"),
    ("post-processing", "registry 3"),
    ("preprocessing, exploration and tuning, and whether tuning was charged", "registry 3"),
    ("implementation hazards: floating point, timing, error messages, randomness", "NIST 4.3, registry 3"),
    ("tests and audit: the lower bound beside the claim", "NIST 3"),
    ("utility with an interval, against non-private and alone, and for the smallest client", "NIST 3.2, 3.3"),
    ("where raw data lie, who has access, and keys", "NIST 4.4, registry 3"),
    ("data minimisation: which columns, and why", "NIST 4.5"),
    ("attacks by all means reasonably likely", "EDPB 28/2024, SACRO-ML"),
    ("who chose ε or μ, and why", "registry 3"),
    ("verdict with reason and next step", "SACRO-ML"),
    ("signatures, and hashes of record and models", "SACRO-ML"),
)


def items_of(known: Known) -> tuple[Item, ...]:
    """All items of a finished run."""
    return tuple(
        Item(number, title, source, *fill(known))
        for number, ((title, source), fill) in enumerate(zip(TITLES, FILLS, strict=True), start=1)
    )


def open_items() -> tuple[Item, ...]:
    """The same of a run that is not finished."""
    return tuple(
        Item(number, title, source, "open", UNFINISHED, "") for number, (title, source) in enumerate(TITLES, start=1)
    )


# ---------------------------------------------------------------------- the owner's words


def _said(parts: Iterable[tuple[str, str]]) -> Filled:
    """Filled if everything is said; what is missing is named."""
    every = list(parts)
    said = [f"{name}: {value}" for name, value in every if value]
    missing = [name for name, value in every if not value]
    text = "; ".join([*said, *([f"{NOT_SAID}: {', '.join(missing)}"] if missing else [])])
    return "open" if missing else "filled", text, "owner's words" if said else ""


def _names(known: Known) -> Filled:
    words = known.words
    return _said(
        [
            ("name", words.name), ("owner", words.owner), ("purpose", words.purpose), ("sector", words.sector),
            ("region", words.region), ("law", words.law), ("date", words.date),
        ]
    )  # fmt: skip


def _receivers(known: Known) -> Filled:
    kind = f"a machine learning model ({known.record.config['model']['name']}, {known.record.parameters:,} parameters)"
    if not known.words.receivers:
        return "open", f"{kind}; who may receive it is {NOT_SAID}", "record"
    return "filled", f"{kind}; it may be received by: {known.words.receivers}", "owner's words"


def _chosen(known: Known) -> Filled:
    return _said([("chosen by", known.words.chosen_by), ("reason", known.words.reason)])


def _columns(known: Known) -> Filled:
    rules = known.sources.preprocessing or {}
    columns = [str(each.get("name", each)) if isinstance(each, dict) else str(each) for each in rules.get("columns", ())]
    shape = "×".join(map(str, rules.get("shape", ())))
    used = f"{many(len(columns), 'column')}: {named(columns)}" if columns else f"arrays of shape {shape}" if shape else ""
    why = known.words.columns
    text = "; ".join(filter(None, [used, f"why: {why}" if why else f"why is {NOT_SAID}"]))
    return "filled" if why else "open", text, "owner's words" if why else "record"


# ---------------------------------------------------------------------- the guarantee


def _none(known: Known) -> Filled:
    return "filled", known.record.sentence, "record"


def _numbers(known: Known) -> Filled:
    guarantee = known.guarantee
    if guarantee is None:
        return _none(known)
    text = (
        f"μ ≤ {guarantee.mu.text} for α from {small(guarantee.alpha_min)} to 1 − {small(guarantee.alpha_min)}; "
        f"ε ≤ {guarantee.epsilon.text} at δ = {small(guarantee.delta)}; the curve and the plans are in the record"
    )
    if guarantee.delta_warning:
        text += f". Warning: {guarantee.delta_warning}"
    return "filled", text, "record"


def _judged(known: Known) -> Filled:
    return ("filled", known.guarantee.judgement, "record") if known.guarantee else _none(known)


def _unit(known: Known) -> Filled:
    guarantee = known.guarantee
    if guarantee is None:
        return _none(known)
    if guarantee.unit == "person":
        rows = known.sources.config["data"].get("rows_per_person")
        return "filled", f"a person with all records at a client, up to {rows}", "record"
    groups = "; ".join(
        f"{group.records} records: ε ≤ {group.epsilon.text}" + (f", μ ≤ {group.mu.text}" if group.mu else "")
        for group in guarantee.groups
    )
    stated = known.words.records_of_person
    if not stated:
        return "open", f"one record; how many a person may have is {NOT_SAID}. Together, {groups}", "record"
    return "filled", f"one record; a person has at most {stated}. Together, {groups}", "owner's words"


def _neighbours(known: Known) -> Filled:
    guarantee = known.guarantee
    if guarantee is None:
        return _none(known)
    unit = guarantee.unit
    public = f"the number of {unit}s of each client" if guarantee.neighbours == "replace" else "nominal numbers only"
    return "filled", f"two data sets differ in {guarantee.adjacency}; public by that choice: {public}", "record"


def _hypotheses(known: Known) -> Filled:
    if known.guarantee is None:
        return _none(known)
    first, second = known.guarantee.hypotheses
    return "filled", f"{first} Or: {second}", "record"


def _domain(known: Known) -> Filled:
    bare = [each.what for each in known.leaving.releases if each.covered_by != "the guarantee"]
    text = f"not protected: {'; '.join(bare)}"
    who = known.words.population
    if not who:
        return "open", f"whom the records are about is {NOT_SAID}; {text}", "record"
    return "filled", f"{who}; {text}", "owner's words"


def _attacks(known: Known) -> Filled:
    if not known.attacks:
        return _none(known)
    names = ", ".join(attack.name for attack in known.attacks)
    rates = "; ".join(f"{rate.base_text}: {rate.at_most.text}" for rate in known.attacks[0].rates)
    return "filled", f"{names}: right without the model, and at most with it: {rates}", "record"


def _accounting(known: Known) -> Filled:
    said = known.record.guarantee
    if said is None:
        return _none(known)
    ends = [said["epsilon"][end] for end in ("lower", "upper")]
    bracket = "no upper bound" if ends[1] is None else f"ε is between {down(ends[0], 6)} and {up(ends[1], 6)}"
    return (
        "filled",
        "numerical composition of privacy loss distributions, as a certified bracket; upper ends are printed. Assumed: "
        f"noise, batches and coins are independent of the records, and batches and noise are secret. {bracket}",
        "record",
    )


# ---------------------------------------------------------------------- the run


def _others(known: Known) -> Filled:
    rows = known.clients.rows
    read = [row for row in rows if row.spent is not None]
    if read:
        return _from_ledgers(known)
    if known.words.other_releases:
        return "filled", known.words.other_releases, "owner's words"
    if known.sources.public_data:
        return "not applicable", "the records are a public data set", "record"
    return "open", f"no ledger was read for {many(known.clients.without_ledger, 'client')}", ""


def _from_ledgers(known: Known) -> Filled:
    """A receipt alone says what this run was charged. Other runs, and what is left, are in the whole ledger."""
    rows = known.clients.rows
    whole = [(row.name, row.spent) for row in rows if row.spent and row.spent.before and row.spent.left is not None]
    parts = [
        f"{name}: {SYMBOLS.get(spent.unit, spent.unit)} ≤ {spent.before.text} spent or reserved by other runs, "
        f"{down(spent.left)} left of the budget"
        for name, spent in whole[:MOST_LISTED]
        if spent.before is not None and spent.left is not None
    ]
    if len(whole) > MOST_LISTED:
        parts.append(f"{many(len(whole) - MOST_LISTED, 'client')} not listed here")
    missing = len(rows) - len(whole)
    if missing:
        parts.append(f"what other runs have spent, and what is left, is not known for {many(missing, 'client')}")
    if known.words.other_releases:
        parts.append(f"the owner says: {known.words.other_releases}")
    return "open" if missing else "filled", "; ".join(parts), "ledger"


def _trust(known: Known) -> Filled:
    deployment = known.record.deployment
    rehearsal = bool((deployment or {}).get("rehearsal"))
    if rehearsal:
        text = f"{REHEARSED}. Readers of the model are not trusted"
    elif deployment is None:
        text = "whoever ran the process is trusted with all records. Readers of the model are not trusted"
    else:
        text = (
            "each owner trusts its own machine, its copy of the program and its system's randomness. The server, other "
            "clients and readers are not trusted"
        )
    guarantee = known.guarantee
    if guarantee is None:
        return "filled", f"{text}. There is no guarantee to fall back on", "record"
    masks = "If masks fail, the number against everybody is left. " if known.record.config["privacy"].get("masks") else ""
    return "filled", f"{text}. {masks}If the randomness is not secret, nothing is left", "record"


def _fixed(known: Known) -> Filled:
    rounds = f"{many(int(known.record.config['rounds']), 'round')}, fixed in the config before training"
    deployment = known.record.deployment
    who = "every client takes part in every round"
    if deployment and deployment["participation"] == "server":
        who = "the server decides who takes part"
    elif known.record.config["participation"] < 1:
        who = "each client's own coin decides whether it takes part"
    return "filled", f"not interactive: {rounds}; {who}", "record"


def _mechanism(known: Known) -> Filled:
    config = known.record.config
    privacy = config["privacy"]
    local = config["local"]
    noise = sorted({row.noise_multiplier for row in known.clients.rows if row.noise_multiplier is not None})
    if not noise:
        return "filled", f"no noise; rule {config['rule']['name']}, {config['rounds']} rounds", "record"
    spread = f"{noise[0]:.6g}" if len(noise) == 1 else f"{noise[0]:.6g} to {noise[-1]:.6g}"
    versions = ", ".join(f"{name} {version}" for name, version in known.record.versions.items())
    return (
        "filled",
        f"{privacy['mechanism']}: clip norm {privacy['clip_norm']:g}, noise multiplier {spread}, batch {local['batch']} "
        f"({local['sampling']}), {many(local['local_steps'], 'local step')}, {many(config['rounds'], 'round')}, "
        f"participation {percent(config['participation'])}, rule {config['rule']['name']}; {versions}; "
        f"{known.record.device}",
        "record",
    )


def _post_processing(known: Known) -> Filled:
    """Older records have not all of these fields: what one does not have is not guessed."""
    config = known.record.config
    server = config.get("server")
    rate = config.get("server_rate")
    share = config.get("averaging")
    found = {
        "weight of an upload": config.get("merge"),
        "step of the server": server.get("optimiser") if isinstance(server, dict) else None,
        "rate of the server": None if rate is None else f"{rate:g}",
        "share of the last global models that is averaged": None if share is None else percent(share),
        "rule": config["rule"]["name"],
    }
    text = "; ".join(f"{name}: {NOT_RECORDED if value is None else value}" for name, value in found.items())
    return "open" if None in found.values() else "filled", text, "record"


def _preparing(known: Known) -> Filled:
    words = known.words
    rules = "raw rows become records by the public rules in preprocessing.json"
    tuning = "" if words.tuning == "not said" else words.tuning
    status, text, taken_from = _said([("exploration", words.exploration), ("tuning", tuning)])
    return status, f"{rules}; {text}", taken_from or "record"


def _hazards(known: Known) -> Filled:
    how = "seeded: a simulation" if known.sources.seeded else "from the operating system, secret"
    replies = (
        "replies leave at times that do not depend on records, unless they are late"
        if known.record.deployment
        else "timings may depend on records and are not covered"
    )
    return (
        "filled",
        f"floating point: noise in double precision, rounded to a public grid; randomness: {how}; timing: {replies}; error "
        "messages: a bad record is refused before training",
        "record",
    )


def _audited(known: Known) -> Filled:
    if not known.audits:
        return "open", "no audit was given", ""
    compared = any(audit.compared or audit.broken for audit in known.audits)
    said = " ".join([*(audit.sentence for audit in known.audits), NOT_TIED])
    return "filled" if compared else "open", said, "audit"


def _utility(known: Known) -> Filled:
    first = known.utility.metric
    scores = [each for each in known.utility.scores if each.metric == first and each.mean is not None]
    if not scores:
        return "open", "not measured", ""
    parts = []
    for each in scores:
        ends = f" ({each.interval.low:.3f}–{each.interval.high:.3f})" if each.interval else ""
        mean = "–" if each.mean is None else f"{each.mean:.3f}"
        parts.append(f"{each.name} {mean}{ends}")
    smallest = known.utility.smallest
    if smallest:
        value = smallest.scores.get(known.utility.in_use)
        parts.append(f"smallest client {smallest.client} {'–' if value is None else f'{value:.3f}'}")
    parts.append("per group: not measured")
    models = {each.model for each in scores}
    beside = [name for name in BASELINES if name in models]
    used = known.utility.in_use in models
    missing = [] if used else [f"the score of the {known.utility.in_use} model"]
    if not beside:
        missing.append(f"a model to compare with ({' or '.join(BASELINES)})")
    if missing:
        parts.append(f"missing: {', '.join(missing)}")
    return "open" if missing else "filled", f"{known.utility.metric}: {'; '.join(parts)}", "record"


def _raw_data(known: Known) -> Filled:
    policies = known.sources.policies
    words = known.words
    if words.data_location and words.data_access:
        return "filled", f"{words.data_location}; access: {words.data_access}", "owner's words"
    if policies:
        owners = [f"{each.holds.get('client', '?')} (source {_source_of(each.holds)})" for each in policies]
        place = words.data_location or f"with their owners, behind a daemon: {named(owners)}"
        access = words.data_access and f"access, and keys: {words.data_access}"
        text = f"{place}; {access or f'who has access besides, and to keys, is {NOT_SAID}'}"
        return "filled" if access else "open", text, "policy"
    return _said([("place", words.data_location), ("access, and keys", words.data_access)])


def _source_of(policy: object) -> str:
    source = policy.get("source", {}) if isinstance(policy, dict) else {}
    return str(source.get("name", "?"))


def _verdict(known: Known) -> Filled:
    verdict = known.verdict
    return "filled", f"{verdict.decision}: {verdict.reason} Next: {verdict.next_step}", "record"


def _signatures(known: Known) -> Filled:
    return "open", "hashes are with the signature lines; names and signatures are to be filled in", "record"


FILLS: tuple[Callable[[Known], Filled], ...] = (
    _names, _receivers, _numbers, _judged, _unit, _neighbours, _hypotheses, _domain, _others, _trust, _fixed, _mechanism,
    _accounting, _post_processing, _preparing, _hazards, _audited, _utility, _raw_data, _columns, _attacks, _chosen,
    _verdict, _signatures,
)  # fmt: skip
