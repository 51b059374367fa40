"""Everything that left each client, and everything that was written: by kind, with who sees it and what covers it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..files import EVENTS, LOG, RECORD
from ..record import KEPT, NOTHING_LEAVES, ClientRecord, RunRecord
from .sources import GLOBAL, Sources
from .wording import many

Cover = Literal["the guarantee", "the guarantee of the algorithm only", "nothing", "public"]
ON_ONE_MACHINE = "a rehearsal on one machine: whoever ran it could read all records"
EACH = "one for each round or attempt that a client took part in"


@dataclass(frozen=True)
class Release:
    """One kind of thing that left. `amount`: how much, in words; `seen_by`: who has it.

    covered_by  what protects it: of a simulation the guarantee is of the algorithm only; "public" depends on no record
    """

    what: str
    amount: str
    seen_by: str
    covered_by: Cover
    note: str


@dataclass(frozen=True)
class Leaving:
    """What left, and what stayed. `values` are the numbers in one upload; uploads of each client are in its row."""

    releases: tuple[Release, ...]
    stays: tuple[str, ...]
    values: int
    uploads: int
    where: str


def leaving_of(sources: Sources, record: RunRecord) -> Leaving:
    """Of a finished run."""
    uploads = sum(uploads_of(record, client) for client in record.clients)
    return Leaving(
        releases=tuple(_releases(sources, record, uploads)),
        stays=tuple(_stays(sources, record)),
        values=record.parameters,
        uploads=uploads,
        where=_where(record),
    )


def nominal(record: RunRecord) -> bool:
    """Whether numbers of records are chosen ones, and hide how many there are."""
    return bool(record.config["privacy"].get("neighbours") == "add-remove")


def sends(record: RunRecord) -> bool:
    """Whether clients send anything."""
    return record.sentence != NOTHING_LEAVES


def uploads_of(record: RunRecord, client: ClientRecord) -> int:
    """How often a client has sent something. Where several hold one record, its slots are those of the busiest of them."""
    if not sends(record):
        return 0
    return client.noisy_queries // queries_per_round(client.plan) if client.plan else client.slots_taken


def queries_per_round(plan: Mapping[str, Any]) -> int:
    """The noisy queries of one slot of a plan."""
    return int(plan.get("local_steps", 1))


def has_scores(record: RunRecord) -> bool:
    """Whether scores on the clients' test records are in the record."""
    found = [both for models in record.by_metric.values() for both in models.values()]
    return any(both.own.mean is not None or both.pooled.mean is not None for both in found)


def scores_leak(sources: Sources, record: RunRecord) -> bool:
    """Whether there are scores, or other numbers without noise, that say something about private records."""
    if sources.public_data:
        return False
    own = (score.value for client in record.clients for by in client.scores.values() for score in by.values())
    return has_scores(record) or bool(record.statistics) or sources.logged_scores or any(each is not None for each in own)


def score_files(sources: Sources) -> str:
    """The files of a run that have scores."""
    events = f", {EVENTS}/" if sources.has_events else ""
    return f"{RECORD}, {LOG}{events} and this report"


def kept_models(record: RunRecord) -> bool:
    """Whether the clients' own models are trained without noise."""
    return KEPT in record.personal_models


def rehearsed(record: RunRecord) -> bool:
    """Whether all parties were on one machine, to try the run out."""
    return record.rehearsed


def in_one_place(record: RunRecord) -> bool:
    """Whether all parties were in one process or on one machine."""
    return record.deployment is None or record.rehearsed


def trusted(record: RunRecord) -> str:
    """Who had all records of such a run. The guarantee cannot be against it."""
    if record.rehearsed:
        return "All parties were on one machine. Whoever ran it had all records that were used, and is trusted."
    return "All clients were in one process. Whoever ran it had all records, and is trusted."


def carried(deployment: Mapping[str, Any]) -> str:
    """Where the parties were, and what carried their messages."""
    how = "rehearsed on one machine" if deployment.get("rehearsal") else "between machines"
    return f"The run was {how}, carried by {deployment['carrier']}."


def covered(sources: Sources, record: RunRecord) -> Cover:
    """What protects a release with noise."""
    if record.guarantee is None:
        return "nothing"
    return "the guarantee of the algorithm only" if sources.seeded else "the guarantee"


def unprotected(leaving: Leaving) -> str:
    """Everything that left and that no guarantee covers."""
    return "; ".join(each.what for each in leaving.releases if each.covered_by != "the guarantee")


def _where(record: RunRecord) -> str:
    if record.deployment is None:
        return f"{trusted(record)} Nothing was sent over a network."
    if record.rehearsed:
        return f"{carried(record.deployment)} {trusted(record)}"
    return carried(record.deployment)


def _releases(sources: Sources, record: RunRecord, uploads: int) -> Iterable[Release]:
    protected = covered(sources, record)
    if uploads:
        seen = "the server, as sums over clients" if record.masked else "the server, each by itself"
        amount = f"{many(uploads, 'upload')} of {many(record.parameters, 'number')}"
        note = "masked in pairs: the server learns only the sum" if record.masked else ""
        yield Release(_updates(record), amount, seen, protected, note)
        yield Release(
            "global models, one after each round", f"{many(sources.rounds_done, 'model')}", "every client", protected, ""
        )
        note = "the seed is public, so its noise can be subtracted" if sources.seeded and record.guarantee else ""
        yield Release(f"the released model, {GLOBAL}", "1 file", "whoever receives it", protected, note)
    yield from _personal(sources, record)
    yield from _scores(sources, record)
    yield from _public(record)


def _updates(record: RunRecord) -> str:
    if record.guarantee is None:
        return f"updates of clients without noise, {EACH}"
    if record.config["privacy"]["mechanism"].startswith("output-"):
        return f"updates of clients with noise added once, {EACH}"
    return f"updates of clients from noisy steps, {EACH}"


def _personal(sources: Sources, record: RunRecord) -> Iterable[Release]:
    if not sources.personal:
        return
    kept = kept_models(record)
    protected: Cover = "nothing" if kept else covered(sources, record)
    seen = "the clients alone, if the folder stays where it is" if kept else "whoever receives them"
    yield Release("personal models", f"{many(sources.personal, 'file')}", seen, protected, record.personal_models)


def _scores(sources: Sources, record: RunRecord) -> Iterable[Release]:
    if has_scores(record):
        metrics = ", ".join(record.metrics)
        data = "a public data set" if sources.public_data else "the clients' test records"
        yield Release(
            f"scores ({metrics}) on {data}", "in record.json, rounds.jsonl and this report", "whoever receives these files",
            "public" if sources.public_data else "nothing", "computed without noise",
        )  # fmt: skip
    if sources.has_events:
        yield _events(sources, record)
    if record.statistics:
        yield Release(
            "shares of labels, and how many gradients are clipped", "in record.json and this report",
            "whoever receives these files", "public" if sources.public_data else "nothing", "no noise; of simulations only",
        )  # fmt: skip
    if record.timings:
        bare: Cover = "public" if sources.public_data else "nothing"
        yield Release("timings", "in record.json and this report", "whoever receives these files", bare, "no noise")


def _events(sources: Sources, record: RunRecord) -> Release:
    """What TensorBoard shows. Its files are named after the machine, and have the time of each score."""
    scored = has_scores(record) or sources.logged_scores
    said = f"scores ({', '.join(record.metrics)}) after rounds: the mean over clients, and the worst client's"
    bare: Cover = "public" if sources.public_data else "nothing"
    return Release(
        f"TensorBoard events: {said}" if scored else "TensorBoard events", f"in {EVENTS}/", "whoever receives these files",
        bare, "no noise; with times, and with the name of the machine",
    )  # fmt: skip


def _public(record: RunRecord) -> Iterable[Release]:
    names = many(len(record.clients), "client")
    yield Release("the roster: names, plans and configuration", names, "everybody", "public", "chosen before training")
    sizes = [client for client in record.clients if client.records is not None]
    if sizes:
        how = "nominal numbers" if nominal(record) else "true numbers"
        yield Release(f"numbers of training {record.unit}s", many(len(sizes), "number"), "everybody", "public", how)
    yield Release(
        "which client took part in which round", "one bit for each client and round", "the server", "public",
        "decided by a coin that does not depend on records" if record.config["participation"] < 1 else "",
    )  # fmt: skip
    if record.deployment:
        yield _answers(record.deployment)


def _answers(deployment: Mapping[str, Any]) -> Release:
    counts = deployment["answers"].values()
    refused = sum(each["refused"] for each in counts)
    lost = sum(each["lost"] for each in counts)
    amount = f"{many(refused, 'refusal')}, {many(lost, 'lost answer')}"
    note = (
        "refusals are from a fixed list; why an answer was lost is what the server has observed, and may quote the text of "
        "an error"
    )
    return Release("refusals and lost answers, with reasons", amount, "the server", "public", note)


def _stays(sources: Sources, record: RunRecord) -> Iterable[str]:
    yield "the records" + (", with whoever ran all clients" if in_one_place(record) else "")
    drawn = "noise and batches" if record.guarantee else "batches"
    yield f"the draws of {drawn}" + (", which the public seed gives away" if sources.seeded else "")
    if kept_models(record):
        yield "what clients keep: personal models trained without noise"
    if record.masked:
        yield "each client's own upload before it is masked"
