"""The policy of an owner of records: what may be computed from them, for whom, and how much in all.

`read` takes it from a TOML file. A policy that exists is valid, and so are the permissions of the files that `read` saw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, overload

from ..config import to_toml
from ..config.declaring import field
from ..config.fields import DataConfig
from ..config.layering import check_depth, file_values, merged, override
from ..config.reading import values
from ..limits import LEAST_CLIP, LEAST_NOISE, MOST_CLIP, MOST_NOISE, MOST_RECORDS, MOST_STEPS
from .permissions import check_private
from .policy_checks import check

EXAMPLE: dict[str, Any] = {  # what `prifedsync owner new` writes where nothing else is given
    "client": "hospital-a",
    "source": {"name": "hospital-a/admissions", "records": 1000},
    "data": {
        "source": "csv",
        "path": "records.csv",
        "clients": 1,
        "partition": "iid",
        "test_fraction": 0.0,
        "classes": 2,
        "ranges": {"*": (0.0, 1.0)},
    },
    "budget": {"mu": 1.0},
    "limits": {"models": ("softmax",)},
}


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """The records that the ledger is about. All of it is public."""

    name: str = field("", "lasting name of the data source: the ledger is kept under it, whatever rows come and go")
    records: int = field(1, "public nominal number of records, or of persons, to train on", 1, MOST_RECORDS)
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
    parameters: int = field(10_000_000, "most parameters of a model", 1, 10**10)
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

    where_fields_are: ClassVar[str] = "prifedsync owner new FILE writes a policy with all fields"

    client: str = field("", "this owner's name in a roster")
    users: tuple[str, ...] = field((), "users who may ask; none: the daemon's own user alone")
    source: SourceConfig = field(SourceConfig)
    data: DataConfig = field(DataConfig)
    budget: BudgetConfig = field(BudgetConfig)
    limits: LimitsConfig = field(LimitsConfig)
    masks: MasksConfig = field(MasksConfig)
    replies: RepliesConfig = field(RepliesConfig)
    files: FilesConfig = field(FilesConfig)
    folder: Path = Path()  # of the policy file, and so no field of it

    def __post_init__(self) -> None:
        """Check all values here, where each has its full dotted name."""
        given = {name: value for name, value in vars(self).items() if name != "folder"}
        for name, value in values(Policy, given, "", Policy).items():
            object.__setattr__(self, name, value)
        check(self)

    @overload
    def path(self, name: Literal["ledger", "log", "socket"]) -> Path: ...

    @overload
    def path(self, name: Literal["anchor", "identity"]) -> Path | None: ...

    def path(self, name: Literal["ledger", "log", "socket", "anchor", "identity"]) -> Path | None:
        """Where a file of the owner lies; None where the policy names none."""
        named: str = self.masks.identity if name == "identity" else getattr(self.files, name)
        return self.folder / named if named else None

    def secrets(self) -> dict[str, Path]:
        """The files that nobody else may read, by their fields."""
        paths = {
            "files.ledger": self.path("ledger"),
            "files.anchor": self.path("anchor"),
            "files.log": self.path("log"),
            "masks.identity": self.path("identity"),
        }
        return {name: path for name, path in paths.items() if path is not None}


def read(path: str | Path) -> Policy:
    """The policy in this file. Refused, too, if other users may read or change it, the ledger, its anchor or the key."""
    path = Path(path)
    found = file_values(str(path), path, "policy")
    check_private("policy", path)
    policy = from_mapping(found, path.resolve().parent)
    for name, secret in policy.secrets().items():
        if secret.exists():
            check_private(name, secret)
    return policy


def from_mapping(mapping: Mapping[str, Any], folder: Path = Path()) -> Policy:
    """The policy of nested mappings as `tomllib` makes them; what is not given has its default."""
    check_depth("policy", mapping)
    return Policy(**values(Policy, mapping, "", Policy), folder=folder)


def example(overrides: Sequence[str] = ()) -> str:
    """A policy file with all fields, each documented, under "key=value" overrides."""
    replaced: dict[str, Any] = {"budget": {}} if any(text.startswith("budget.epsilon=") for text in overrides) else {}
    given = merged({**EXAMPLE, **replaced}, *(override(text, Policy) for text in overrides))
    return to_toml(from_mapping(given), documented=True)
