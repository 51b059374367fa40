"""Items about the run: other releases, trust, mechanism, hazards, audits, utility and verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...accounting.budget import SIGN
from ...accounting.statement import down
from ...config import ReportConfig
from ..audits import NOT_TIED
from ..clients import refuting, says_none
from ..leaving import ON_ONE_MACHINE
from ..utility import Scored
from ..wording import many, mean_between, named, percent, score
from .known import Filled, Known

NOT_RECORDED = "not in this record"
MOST_LISTED = 20  # clients in an item
BASELINES = ("alone", "non-private")  # models without noise that a score is judged against
PER_GROUP = "scores per group, which are not measured"


# ---------------------------------------------------------------------- other releases


def others(known: Known) -> Filled:
    """Item 9."""
    if any(row.spent is not None for row in known.clients.rows):
        return _from_ledgers(known)
    if known.words.other_releases:
        return "filled", _owner_says(known.words), "owner's words"
    if known.sources.public_data:
        return "not applicable", "the records are a public data set", "record"
    return "open", f"no ledger was read for {many(known.clients.without_ledger, 'client')}", ""


def _owner_says(words: ReportConfig) -> str:
    said = words.other_releases.strip()
    if says_none(words):
        return "the owner says that nothing else was released from the same records"
    return f"the owner says of other releases from the same records: {said}"


def _from_ledgers(known: Known) -> Filled:
    """A receipt alone says what this run was charged. Other runs, and what is left, are in the whole ledger."""
    rows = known.clients.rows
    whole = [(row.name, row.spent) for row in rows if row.spent and row.spent.before and row.spent.left is not None]
    parts = [
        f"client {name}: {SIGN.get(spent.unit, spent.unit)} ≤ {spent.before.text} spent or reserved by other runs, "
        f"{down(spent.left)} left of the budget"
        for name, spent in whole[:MOST_LISTED]
        if spent.before is not None and spent.left is not None
    ]
    if len(whole) > MOST_LISTED:
        parts.append(f"{many(len(whole) - MOST_LISTED, 'client')} not listed here")
    missing = len(rows) - len(whole)
    if missing:
        parts.append(f"what other runs have spent, and what is left, is not known for {many(missing, 'client')}")
    refuted_by = refuting(known.words, rows)
    if refuted_by:
        parts.append(f"the owner says that nothing else was released, which is not so by the ledger of {named(refuted_by)}")
    elif known.words.other_releases:
        parts.append(_owner_says(known.words))
    return "open" if missing else "filled", "; ".join(parts), "ledger"


# ---------------------------------------------------------------------- trust, rounds and mechanism


def trust(known: Known) -> Filled:
    """Item 10."""
    text = _trusted(known)
    if known.guarantee is None:
        return "filled", f"{text}. There is no guarantee to fall back on", "record"
    masks = "If masks fail, the number against everybody is left. " if known.record.masked else ""
    return "filled", f"{text}. {masks}If the randomness is not secret, nothing is left", "record"


def _trusted(known: Known) -> str:
    if known.record.rehearsed:
        return f"{ON_ONE_MACHINE}. Readers of the model are not trusted"
    if known.record.deployment is None:
        return "whoever ran the process is trusted with all records. Readers of the model are not trusted"
    return (
        "each owner trusts its own machine, its copy of the program and its system's randomness. The server, other clients "
        "and readers are not trusted"
    )


def fixed(known: Known) -> Filled:
    """Item 11."""
    config = known.record.config
    rounds = f"{many(int(config['rounds']), 'round')}, fixed before training"
    by = known.words.rounds_chosen_by
    if "rounds" in config.get("chosen", ()):
        return "filled", f"not interactive: {rounds}, chosen by the library from public numbers; {_who(known)}", "record"
    if by:
        return "filled", f"not interactive: {rounds}, chosen by: {by}; {_who(known)}", "owner's words"
    text = f"not interactive: {rounds}, as the config says. Who chose that number is not said; {_who(known)}"
    return "open", text, "record"


def _who(known: Known) -> str:
    """Who decides who takes part in a round."""
    if known.record.server_chose:
        return "the server decides who takes part"
    if known.record.config["participation"] < 1:
        return "each client's own coin decides whether it takes part"
    return "every client is asked in every round"


def mechanism(known: Known) -> Filled:
    """Item 12."""
    config = known.record.config
    noise = sorted({row.noise_multiplier for row in known.clients.rows if row.noise_multiplier is not None})
    if not noise:
        return "filled", f"no noise; rule {config['rule']['name']}, {many(int(config['rounds']), 'round')}", "record"
    versions = ", ".join(f"{name} {version}" for name, version in known.record.versions.items())
    drawn = ", ".join(_mechanism(known, noise))
    return "filled", f"{config['privacy']['mechanism']}: {drawn}; {versions}; {known.record.device}", "record"


def _mechanism(known: Known, noise: list[float]) -> Iterable[str]:
    config = known.record.config
    privacy = config["privacy"]
    local = config["local"]
    yield f"clip norm {privacy['clip_norm']:g}"
    yield f"noise multiplier {noise[0]:.6g}" + (f" to {noise[-1]:.6g}" if len(noise) > 1 else "")
    yield _batches(local, known.record.unit)
    yield many(local["local_steps"], "local step")
    yield many(int(config["rounds"]), "round")
    attempts = int(privacy.get("attempts", 0))
    if attempts:
        yield f"up to {many(attempts, 'spare attempt')}, each of which is charged as a round is"
    yield _participation(known)
    yield f"rule {config['rule']['name']}"
    if config.get("clients"):
        yield "other values for some clients, as the config says"


def _batches(local: Mapping[str, Any], unit: str) -> str:
    """A full batch is not sampled."""
    if local["batch"] == "full":
        return f"all {unit}s in each batch"
    size = many(local["batch"], unit)
    return (
        f"batches of {size} on average (Poisson)" if local["sampling"] == "poisson" else f"batches of {size} (fixed size)"
    )


def _participation(known: Known) -> str:
    record = known.record
    if record.server_chose:
        share = (record.deployment or {}).get("share", 1.0)
        return f"{percent(share)} of the clients asked in a round, by the server's choice, and every round charged"
    return f"participation {percent(record.config['participation'])}"


def post_processing(known: Known) -> Filled:
    """Item 14. Older records have not all of these fields: what one does not have is not guessed."""
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


def hazards(known: Known) -> Filled:
    """Item 16."""
    timing = (
        "replies leave at times that do not depend on records, unless they are late"
        if known.record.deployment
        else "timings may depend on records and are not covered"
    )
    parts = [_noise(known), f"timing: {timing}", "error messages: a bad record is refused before training"]
    return "filled", "; ".join(parts), "record"


def _noise(known: Known) -> str:
    if known.record.guarantee is None:
        return "floating point and randomness: no noise is drawn, so nothing rests on them"
    how = "seeded: a simulation" if known.sources.seeded else "from the operating system, secret"
    return f"floating point: noise is rounded to a public grid, coarser than the gaps between numbers; randomness: {how}"


# ---------------------------------------------------------------------- what was measured, and what follows


def audited(known: Known) -> Filled:
    """Item 17."""
    if not known.audits:
        return "open", "no audit was given", ""
    compared = any(audit.compared or audit.broken for audit in known.audits)
    said = " ".join([*(audit.sentence for audit in known.audits), NOT_TIED])
    return "filled" if compared else "open", said, "audit"


def utility(known: Known) -> Filled:
    """Item 18. It stays open: nothing here knows groups of persons."""
    found = known.utility
    scores = [each for each in found.scores if each.metric == found.metric and each.mean is not None]
    if not scores:
        return "open", "not measured", ""
    parts = [f"{each.name} {mean_between(each.mean, each.interval)}" for each in scores]
    smallest = found.smallest
    if smallest and found.in_use in smallest.scores:
        parts.append(f"smallest client {smallest.client} {score(smallest.scores[found.in_use])}")
    missing = [*_unscored(known, scores), PER_GROUP]
    return "open", f"{found.metric}: {'; '.join(parts)}; missing: {', '.join(missing)}", "record"


def _unscored(known: Known, scores: Iterable[Scored]) -> Iterable[str]:
    models = {each.model for each in scores}
    if known.utility.in_use not in models:
        yield f"the score of the {known.utility.in_use} model"
    if not models & {*BASELINES}:
        yield f"a model to compare with ({' or '.join(BASELINES)})"


def verdict(known: Known) -> Filled:
    """Item 23."""
    found = known.verdict
    return "filled", f"{found.decision}: {found.reason} Next: {found.next_step}", "record"


def signatures(known: Known) -> Filled:
    """Item 24."""
    return "open", "hashes are with the signature lines; names and signatures are to be filled in", "record"
