"""The engines that a config can name."""

from __future__ import annotations

from .cohort import Cohort, Performance
from .reference import Reference
from .vectorised import Vectorised

ENGINES: dict[str, type[Cohort]] = {"vectorised": Vectorised, "reference": Reference}

__all__ = ["ENGINES", "Cohort", "Performance", "Reference", "Vectorised"]
