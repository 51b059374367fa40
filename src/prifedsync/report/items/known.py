"""What items are filled from, and what fills one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ...config import ReportConfig
from ...record import RunRecord
from ..attacks import Attack
from ..audits import Audited
from ..clients import ClientTable
from ..guarantee import Guarantee
from ..leaving import Leaving
from ..sources import Sources
from ..utility import Utility
from ..verdict import Verdict

Status = Literal["filled", "open", "not applicable"]
From = Literal["record", "policy", "ledger", "owner's words", "audit", ""]
Filled = tuple[Status, str, From]
NOT_SAID = "not said"


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


def as_said(parts: Iterable[tuple[str, str]]) -> Filled:
    """Filled if everything is said; what is missing is named."""
    every = list(parts)
    said = [f"{name}: {value}" for name, value in every if value]
    missing = [name for name, value in every if not value]
    text = "; ".join([*said, *([f"{NOT_SAID}: {', '.join(missing)}"] if missing else [])])
    return "open" if missing else "filled", text, "owner's words" if said else ""
