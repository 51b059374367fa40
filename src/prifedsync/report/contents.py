"""What a report says of one run: numbers and sentences, and no page. It reads files and imports no torch."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from .. import __version__
from ..files import RECORD
from ..record import RunRecord
from ..values import BadValue
from .attacks import Attack, attacks_of, note_of
from .audits import Audited, audits_of
from .clients import ClientTable, clients_of
from .graphs import Curve, Deltas, Progress, curve_of, deltas_of, progress_of
from .guarantee import Guarantee, guarantee_of
from .items import Item, Known, items_of, open_items
from .leaving import Leaving, carried, in_one_place, leaving_of, nominal, rehearsed, trusted
from .plans import Plans
from .reproducing import Reproducing, reproducing_of
from .sources import FileHash, Sources, sources_of
from .utility import Rounds, Utility, rounds_of, utility_of
from .verdict import Facts, Verdict, verdict_of
from .voiding import Condition, conditions_of

VERSION = 1  # of report.json
PERSONS = "The unit is a person with all records at a client."  # a notice, and no warning
MASKED = "Uploads were masked in pairs: the server learns sums only."  # the same, where nothing more is said
SIGNERS = ("data owner", "privacy officer", "researcher")


@dataclass(frozen=True)
class RunFacts:
    """What the run was, for the head of a report. `data`: the source of the records.

    clients  None where nobody knows yet how many there are
    nominal  numbers of records are chosen ones, and not how many there are
    """

    finished: bool
    rounds_planned: int | None
    rounds_done: int
    clients: int | None
    unit: str
    simulation: bool
    public_data: bool
    between_machines: bool
    rehearsal: bool
    masked: bool
    overlapping: int
    nominal: bool
    data: str
    model: str
    rule: str
    date: str
    notices: tuple[str, ...]


@dataclass(frozen=True)
class Signatures:
    """Lines to sign, and what is signed for. `written`: the date of the record, or while there is none of the config."""

    lines: tuple[str, ...]
    files: tuple[FileHash, ...]
    extras: tuple[FileHash, ...]
    personal_models: int
    written: str


@dataclass(frozen=True)
class Report:
    """All of a report. A part that is None has nothing to say of this run."""

    title: str
    folder: str
    run: RunFacts
    words: Mapping[str, Any]
    verdict: Verdict
    guarantee: Guarantee | None
    no_guarantee: str
    attacks: tuple[Attack, ...]
    attacks_note: str
    curve: Curve | None
    progress: Progress | None
    deltas: Deltas | None
    leaving: Leaving | None
    conditions: tuple[Condition, ...]
    clients: ClientTable | None
    audits: tuple[Audited, ...]
    utility: Utility | None
    rounds: Rounds | None
    reproducing: Reproducing | None
    items: tuple[Item, ...]
    warnings: tuple[str, ...]
    signatures: Signatures
    made_with: str = __version__
    report_version: int = VERSION

    def as_json(self) -> dict[str, Any]:
        """The same as JSON has it: report.json."""
        found: dict[str, Any] = _plain(self)
        return found

    def text(self) -> str:
        """The same as the text of a file, with a line for each part."""
        parts = [f" {json.dumps(name)}: {_compact(value)}" for name, value in self.as_json().items()]
        return "{\n" + ",\n".join(parts) + "\n}\n"


def report_of(
    folder: Path,
    *,
    words: Sequence[str] = (),
    policies: Iterable[Path] = (),
    receipts: Iterable[Path] = (),
    audits: Iterable[Path] = (),
) -> Report:
    """The report of the run in this folder.

    words     "report.name=…": what the run's config does not say
    policies  of owners, in TOML
    receipts  what `prifedsync ledger export` has written: receipts of this run, and whole ledgers
    audits    what `prifedsync audit … --json` has printed
    """
    folder = Path(folder)
    try:
        report = _report(sources_of(folder, words, policies, receipts, audits))
        report.text().encode()  # what cannot be written is refused before anything is
        return report
    except BadValue:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError) as error:
        remedy = "restore the file from a copy"
        raise BadValue("record", folder / RECORD, f"cannot be read: {error!r}", remedy) from error


def _report(sources: Sources) -> Report:
    record = sources.record
    if record is None:
        return _unfinished(sources)
    plans = Plans.of(record.clients)
    guarantee = guarantee_of(sources, record, plans)
    attacks = attacks_of(record.guarantee, plans, record.unit) if record.guarantee and guarantee else ()
    clients = clients_of(sources, record)
    audits = audits_of(sources.audits, record.guarantee, plans)
    conditions = conditions_of(sources, record, guarantee)
    verdict = verdict_of(Facts(sources, record, plans, guarantee, clients, audits, conditions))
    leaving = leaving_of(sources, record)
    utility = utility_of(sources, record)
    known = Known(sources, record, guarantee, attacks, clients, audits, leaving, utility, verdict)
    return Report(
        title=_title(sources),
        folder=sources.folder.resolve().name,
        run=_facts(sources, record),
        words=dataclasses.asdict(sources.words),
        verdict=verdict,
        guarantee=guarantee,
        no_guarantee="" if guarantee else record.sentence,
        attacks=attacks,
        attacks_note=note_of(guarantee) if guarantee else "",
        curve=curve_of(record, plans, sources.audits) if guarantee else None,
        progress=progress_of(sources, record, plans) if guarantee else None,
        deltas=deltas_of(record, plans) if guarantee else None,
        leaving=leaving,
        conditions=conditions,
        clients=clients,
        audits=audits,
        utility=utility,
        rounds=rounds_of(sources, record),
        reproducing=reproducing_of(sources, record),
        items=items_of(known),
        warnings=record.warnings,
        signatures=_signatures(sources),
    )


def _unfinished(sources: Sources) -> Report:
    """What can be said of a run that has no record: how far it is, and that nothing may leave."""
    nothing = Plans((), True, None)
    verdict = verdict_of(Facts(sources, None, nothing, None, None, (), ()))
    return Report(
        title=_title(sources),
        folder=sources.folder.resolve().name,
        run=_facts(sources, None),
        words=dataclasses.asdict(sources.words),
        verdict=verdict,
        guarantee=None,
        no_guarantee="the run is not finished, so no guarantee is stated",
        attacks=(),
        attacks_note="",
        curve=None,
        progress=None,
        deltas=None,
        leaving=None,
        conditions=(),
        clients=None,
        audits=(),
        utility=None,
        rounds=rounds_of(sources, None),
        reproducing=None,
        items=open_items(),
        warnings=(),
        signatures=_signatures(sources),
    )


def _title(sources: Sources) -> str:
    return sources.words.name or f"{sources.config['model']['name']} on {sources.config['data']['source']}"


def _facts(sources: Sources, record: RunRecord | None) -> RunFacts:
    config = sources.config
    rounds = config.get("rounds")
    copies = int((record.guarantee or {}).get("copies", 1)) if record else _holders(sources)
    return RunFacts(
        finished=record is not None,
        rounds_planned=rounds if isinstance(rounds, int) else None,
        rounds_done=sources.rounds_done,
        clients=len(record.clients) if record else int(config["data"]["clients"]) if sources.public_data else None,
        unit=_unit(sources, record),
        simulation=sources.seeded,
        public_data=sources.public_data,
        between_machines=bool(record and record.deployment and not rehearsed(record)),
        rehearsal=bool(record and rehearsed(record)),
        masked=bool(config["privacy"].get("masks")),
        overlapping=copies,
        nominal=bool(record and nominal(record)),
        data=config["data"]["source"],
        model=config["model"]["name"],
        rule=config["rule"]["name"],
        date=sources.words.date or sources.date,
        notices=tuple(_notices(sources, record, copies)),
    )


def _unit(sources: Sources, record: RunRecord | None) -> str:
    if record is not None:
        return record.unit
    return "person" if sources.config["data"].get("person") else "record"


def _holders(sources: Sources) -> int:
    """How many clients may hold one person, by the config alone. How many records overlap, only a record says."""
    data = sources.config["data"]
    return int(data.get("person_clients", 1)) if data.get("person") else 1


def _notices(sources: Sources, record: RunRecord | None, copies: int) -> Iterable[str]:
    """What a reader must know of the kind of run before anything else."""
    unit = _unit(sources, record)
    if record is None:
        yield "This run is not finished."
    if sources.seeded:
        yield "This run is a simulation: its draws are seeded."
    if copies > 1:
        counted = ", and the numbers count that" if record else ""
        yield f"Clients overlap: up to {copies} of them may hold the same {unit}{counted}."
    elif record is None and sources.config["data"].get("overlap"):
        yield f"Clients overlap: several of them may hold the same {unit}."
    if unit == "person":
        yield PERSONS
    if sources.config["privacy"].get("masks"):
        yield MASKED + (
            " Where all parties are on one machine, whoever runs it has all keys."
            if record is None
            else " All parties were on one machine, so whoever ran it has all keys."
            if rehearsed(record)
            else ""
            if record.deployment
            else " All clients were in one process, so masks were simulated."
        )
    if record is None:
        return
    if in_one_place(record):
        yield trusted(record)
    if rehearsed(record):
        yield "This was a rehearsal on one machine. No owner has charged it."
    elif record.deployment:
        yield carried(record.deployment)


def _signatures(sources: Sources) -> Signatures:
    extras = (*sources.policies, *sources.exports, *sources.audits)
    return Signatures(
        lines=SIGNERS,
        files=sources.files,
        extras=tuple(FileHash(each.name, each.sha256, 0) for each in extras),
        personal_models=sources.personal,
        written=sources.date,
    )


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    """Dataclasses as tables, and what is not finite as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
