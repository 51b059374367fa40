"""The policy of an owner of records: what may be computed from them, for whom, and how much in all."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, overload

from ..config.declaring import field
from ..config.fields import DataConfig
from ..config.reading import values
from ..limits import LEAST_CLIP, LEAST_NOISE, MOST_CLIP, MOST_NOISE, MOST_RECORDS, MOST_STEPS
from ..values import BadValue


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """The records that the ledger is about. All of it is public."""

    name: str = field("", "lasting name of the data source: the ledger is kept under it, whatever rows come and go")
    records: int = field(1, "public nominal number of records, or of persons", 1, MOST_RECORDS)
    unit: Literal["record", "person"] = field(
        "record", "what the budget protects: a record, or a person with all its records"
    )
    neighbours: Literal["replace", "add-remove"] = field(
        "replace", "adjacency relation of all plans: one unit replaced, or one added or removed"
    )
    holders: int = field(1, "largest number of owners that may hold the same unit", 1)


@dataclass(frozen=True, kw_only=True)
class BudgetConfig:
    """What all runs together may spend. Set mu, or epsilon and delta."""

    mu: float | None = field(None, "largest mu over all runs", 0, 1e3, "(]")
    epsilon: float | None = field(None, "largest epsilon over all runs, at delta", 0, 1e3, "(]")
    delta: float = field(1e-5, "the delta of epsilon", 0, 1, "()")


@dataclass(frozen=True, kw_only=True)
class LimitsConfig:
    """What a single run may ask for."""

    least_noise: float = field(1.0, "least noise_multiplier of a plan", LEAST_NOISE, MOST_NOISE)
    clip_norm: float = field(10.0, "largest clip norm of a plan", LEAST_CLIP, MOST_CLIP)
    local_steps: int = field(100, "most local steps in a round (K)", 1, MOST_STEPS)
    rounds: int = field(1000, "most rounds of a run, spare attempts included (R)", 1, MOST_STEPS)
    days: float = field(90.0, "a run is closed so many days after it was enrolled", 0, ends="(]")
    models: tuple[str, ...] = field((), 'models that may be trained: architectures, or installed "module:function"')
    rules: tuple[str, ...] = field(("fedavg",), 'rules that may be used: built-in ones, or installed "module:Rule"')
    participants: int = field(2, "least number of clients in a roster, and in the sum of a masked round", 1)


@dataclass(frozen=True, kw_only=True)
class MasksConfig:
    """Masked sums: this owner's identity, and the identities of the others."""

    required: bool = field(False, "refuse runs without masks")
    identity: str = field("", "file with this owner's secret identity; `prifedsync owner key` makes it")
    peers: Mapping[str, str] = field(dict, "public identities of the other clients by name, as their owners gave them")


@dataclass(frozen=True, kw_only=True)
class RepliesConfig:
    """What leaves besides noise, and when."""

    seconds: float = field(10.0, "a reply leaves so many seconds after its question, whatever the training took", 0, 86400)
    metrics: bool = field(False, "let scores on this owner's test records leave: they have no noise, and no guarantee")


@dataclass(frozen=True, kw_only=True)
class FilesConfig:
    """Files of the owner; a relative path starts at the folder of the policy."""

    ledger: str = field("ledger.db", "the ledger")
    anchor: str = field("", "a second file with the head of the ledger, on another disk or machine")
    log: str = field("owner.log", "diagnostics for the owner alone")
    socket: str = field("owner.sock", "the Unix socket of the daemon")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """All of a policy file. What it says is public, except where its files lie."""

    client: str = field("", "this owner's name in a roster")
    users: tuple[str, ...] = field((), "users who may ask; none: the daemon's own user alone")
    source: SourceConfig = field(SourceConfig)
    data: DataConfig = field(DataConfig)
    budget: BudgetConfig = field(BudgetConfig)
    limits: LimitsConfig = field(LimitsConfig)
    masks: MasksConfig = field(MasksConfig)
    replies: RepliesConfig = field(RepliesConfig)
    files: FilesConfig = field(FilesConfig)
    folder: Path = Path()  # of the policy file; not a field of it

    @overload
    def path(self, name: Literal["ledger", "log", "socket"]) -> Path: ...

    @overload
    def path(self, name: Literal["anchor", "identity"]) -> Path | None: ...

    def path(self, name: Literal["ledger", "log", "socket", "anchor", "identity"]) -> Path | None:
        """Where a file of the owner lies; None where the policy names none."""
        named: str = self.masks.identity if name == "identity" else getattr(self.files, name)
        return self.folder / named if named else None


def read(path: str | Path) -> Policy:
    """The policy in this file."""
    path = Path(path)
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise BadValue("policy", path, f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BadValue("policy", path, f"is not TOML: {error}") from None
    return Policy(**values(Policy, found, "", Policy), folder=path.resolve().parent)
