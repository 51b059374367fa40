"""What a report is made from: the files of a run folder, and what owners and auditors add. Never data."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from ..accounting.statement import CURVE_LEVELS, finite
from ..config import PUBLIC, Config, ReportConfig, load
from ..config.layering import merged, override
from ..config.reading import values
from ..files import CONFIG, EVENTS, LOG, PREPROCESSING, RECORD
from ..record import RunRecord
from ..values import BadValue
from .plans import Plans

MODELS = "models"
GLOBAL = "global.safetensors"
STAY = "stay with the owners"  # of scores, in the owner's words
PUBLISHED = "may be published"  # so a model's file says that it is covered
REFUSED = ("not private", "do not publish", "a simulation")  # so one says that it is not
MOST_HASHED = 200  # personal models of which a report has the hash
Line = Mapping[str, Any]
REMEDY = "restore the file from a copy"
COMPUTED = {  # of a guarantee: what follows from the plans → in words
    "worst_case_participation": "what holds if others choose who takes part",
    "curve": "the trade-off curve",
}


@dataclass(frozen=True)
class FileHash:
    """A file of the run, by its name in the folder, and the SHA-256 of its bytes."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True)
class Extra:
    """A file that was given beside the run folder, and what it holds."""

    name: str
    sha256: str
    holds: Mapping[str, Any]


@dataclass(frozen=True)
class Sources:
    """Everything that a report reads.

    record    None while the run is not finished
    config    the config as a record has it
    words     the owner's words for the report
    lines     of the log of rounds
    exports   what `prifedsync ledger export` wrote: whole ledgers, and receipts of single runs
    """

    folder: Path
    record: RunRecord | None
    config: Mapping[str, Any]
    words: ReportConfig
    lines: tuple[Line, ...]
    preprocessing: Mapping[str, Any] | None
    files: tuple[FileHash, ...]
    personal: int
    policies: tuple[Extra, ...] = ()
    exports: tuple[Extra, ...] = ()
    audits: tuple[Extra, ...] = ()

    @property
    def seeded(self) -> bool:
        """Whether the draws can be made again by whoever knows the seed: all that are not from the operating system."""
        return bool(self.config["privacy"]["randomness"] != "system")

    @property
    def public_data(self) -> bool:
        """Whether the records are a public data set."""
        return self.config["data"]["source"] in PUBLIC

    @property
    def receipts(self) -> tuple[Extra, ...]:
        """What single runs were charged."""
        return tuple(each for each in self.exports if "charged" in each.holds)

    @property
    def ledgers(self) -> tuple[Extra, ...]:
        """Whole ledgers: the budget and all entries."""
        return tuple(each for each in self.exports if "budget" in each.holds)

    @property
    def unfinished(self) -> bool:
        """Whether the run has no record yet."""
        return self.record is None

    @property
    def key_left(self) -> bool:
        """Whether the folder still holds the secret key of the draws."""
        return (self.folder / "checkpoint").exists()

    @property
    def has_events(self) -> bool:
        """Whether the folder holds what TensorBoard shows: scores after rounds."""
        return (self.folder / EVENTS).exists()

    @property
    def between_machines(self) -> bool:
        """Whether the log has answers of owners, as that of a run between machines has."""
        return any("answers" in line for line in self.lines)

    @property
    def logged_scores(self) -> bool:
        """Whether the log has scores."""
        said = (line.get(model) for line in self.lines for model in ("personal", "released"))
        return any(isinstance(each, Mapping) and each.get("mean") is not None for each in said)

    @cached_property
    def kept_files(self) -> int:
        """How many personal models in the folder do not say of themselves that they may be published."""
        return sum(not _published(path) for path in _personal(self.folder))

    @cached_property
    def rounds_done(self) -> int:
        """The last round in the log. Without a log a run that is finished has done those of its config."""
        done = 0 if self.record is None else int(self.config["rounds"])
        return max((int(line["round"]) for line in self.lines), default=done)

    @cached_property
    def date(self) -> str:
        """When the record was written, or where there is none the config."""
        path = self.folder / (RECORD if self.record else CONFIG)
        return datetime.fromtimestamp(path.stat().st_mtime, UTC).strftime("%Y-%m-%d")


def sources_of(
    folder: Path,
    words: Sequence[str] = (),
    policies: Iterable[Path] = (),
    exports: Iterable[Path] = (),
    audits: Iterable[Path] = (),
) -> Sources:
    """Read a run folder. `words`: "report.name=…" for what the config of the run does not say."""
    record = _record(folder / RECORD)
    config = record.config if record else _config_of(folder)
    return Sources(
        folder=folder,
        record=record,
        config=config,
        words=_words(config, words),
        lines=_lines(folder / LOG, finished=record is not None),
        preprocessing=_preprocessing(folder / PREPROCESSING),
        files=tuple(_hashes(folder)),
        personal=len(_personal(folder)),
        policies=tuple(_policy(path) for path in policies),
        exports=tuple(_export(path) for path in exports),
        audits=tuple(_extra(path, "audit") for path in audits),
    )


def _record(path: Path) -> RunRecord | None:
    """The record, if the run is finished."""
    if not path.is_file():
        return None
    record = RunRecord.read(path)
    if not record.clients:
        raise BadValue("record", path, "has no clients", REMEDY)
    return _completed(record)


def _completed(record: RunRecord) -> RunRecord:
    """What a guarantee in an old record does not have follows from the plans, if these are few; else there is no bound."""
    said = record.guarantee
    absent = [name for name in COMPUTED if said is not None and name not in said]
    if said is None or not absent:
        return record
    plans = Plans.of(record.clients)
    known = plans.every and bool(plans.plans)
    levels = np.array(CURVE_LEVELS)
    made = plans.worst_case if known else ()
    worst = {
        "epsilon": {"upper": finite(max((f.epsilon(said["delta"]).upper for f in made), default=inf))},
        "mu": {"upper": finite(max((f.mu(said["mu"]["alpha_min"]).upper for f in made), default=inf))},
    }
    beta = plans.curve(levels) if known else np.zeros_like(levels)
    found = {
        "worst_case_participation": worst,
        "curve": [list(point) for point in zip(CURVE_LEVELS, beta.tolist(), strict=True)],
    }
    how = "computed again from its plans" if known else "taken to have no bound"
    note = f"not in this record, and so {how}: {', '.join(COMPUTED[name] for name in absent)}"
    return replace(record, guarantee={**found, **said}, warnings=(*record.warnings, note))


def _config_of(folder: Path) -> Mapping[str, Any]:
    """The config of a run that has no record."""
    path = folder / CONFIG
    if not path.is_file():
        raise BadValue("run", folder, "is not a run folder", f"it has neither {RECORD} nor {CONFIG}")
    return load(path).for_the_record()


def _words(config: Mapping[str, Any], given: Sequence[str]) -> ReportConfig:
    """What the run's config says, under what is said now. Older records have no words."""
    layers = [override(text, Config) for text in given]
    foreign = sorted(name for layer in layers for name in layer if name != "report")
    if foreign:
        rule = "is not one of the owner's words"
        raise BadValue("set", foreign[0], rule, "only fields of [report] can be set: the run is over")
    words = merged({"report": dict(config.get("report", {}))}, *layers)["report"]
    said: dict[str, Any] = values(ReportConfig, words, "report", Config)
    said = {name: value.strip() if isinstance(value, str) else value for name, value in said.items()}
    return ReportConfig(**said)  # spaces say nothing


def _lines(path: Path, finished: bool) -> tuple[Line, ...]:
    """The log of rounds. While a run lasts, its last line may not be whole yet."""
    if not path.is_file():
        return ()
    content = path.read_bytes()
    lines = content.split(b"\n")
    last = lines.pop()
    if last and finished:
        raise BadValue("rounds", path, "ends in the middle of a line", REMEDY)
    return tuple(_line(path, number, text) for number, text in enumerate(lines, start=1))


def _line(path: Path, number: int, text: bytes) -> Line:
    try:
        found = dict(json.loads(text))
        json.dumps(found, allow_nan=False)  # a page cannot have NaN, nor what is infinite
        int(found["round"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise BadValue("rounds", path, f"cannot be read: line {number} is damaged", REMEDY) from None
    return found


def _preprocessing(path: Path) -> Mapping[str, Any] | None:
    """The public rules. A report says their columns, or their shape."""
    if not path.is_file():
        return None
    found = _json(path, "preprocessing")
    for name in ("columns", "shape"):
        if not isinstance(found.get(name, []), list):
            raise BadValue("preprocessing", path, f"cannot be read: {name} must be a list", REMEDY)
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # half of a letter, which no file can hold
        raise BadValue("preprocessing", path, f"cannot be read: {error}", REMEDY) from None
    return found


def _hashes(folder: Path) -> Iterable[FileHash]:
    """The files that an officer signs for: config, record and models."""
    paths = [folder / name for name in (RECORD, CONFIG, PREPROCESSING, LOG)]
    paths.append(folder / MODELS / GLOBAL)
    paths += _personal(folder)[:MOST_HASHED]
    for path in paths:
        if path.is_file():
            content = path.read_bytes()
            yield FileHash(path.relative_to(folder).as_posix(), hashlib.sha256(content).hexdigest(), len(content))


def _personal(folder: Path) -> list[Path]:
    return sorted((folder / MODELS / "personal").glob("*.safetensors"))


def publishing(path: Path) -> str:
    """What the file of a model says about its publication; "" where it says nothing. What is no model raises an error."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    ends = [part["data_offsets"][1] for name, part in header.items() if name != "__metadata__"]
    if not ends or 8 + size + max(ends) != len(content):
        raise ValueError("it is not whole")
    return str(header.get("__metadata__", {}).get("publishing", ""))


def _published(path: Path) -> bool:
    try:
        return publishing(path).startswith(PUBLISHED)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return False


def _extra(path: Path, kind: str) -> Extra:
    """A file in TOML if it is a policy, otherwise in JSON."""
    found = _toml(path, kind) if kind == "policy" else _json(path, kind)
    return Extra(path.name, hashlib.sha256(path.read_bytes()).hexdigest(), found)


def _policy(path: Path) -> Extra:
    found = _extra(path, "policy")
    source = found.holds.get("source", {})
    if not isinstance(source, dict) or not isinstance(source.get("name", ""), str):
        raise BadValue("policy", path, "has no source with a name", "name a TOML file of an owner")
    return found


def _export(path: Path) -> Extra:
    found = _extra(path, "receipt")
    remedy = "name a file that `prifedsync ledger export` wrote"
    if not {"charged", "budget"} & set(found.holds):
        raise BadValue("receipt", path, "is neither a receipt nor the export of a ledger", remedy)
    try:
        json.dumps(found.holds, allow_nan=False)  # NaN is above no threshold
    except ValueError as error:
        raise BadValue("receipt", path, f"cannot be read: {error}", remedy) from None
    return found


def _toml(path: Path, kind: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadValue(kind, path, f"cannot be read: {error}", "name a TOML file of an owner") from None


def _json(path: Path, kind: str) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise BadValue(kind, path, f"cannot be read: {error}", "name a JSON file") from None
