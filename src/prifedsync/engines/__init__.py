"""How clients are executed. Engines are imported when they are asked for: who carries an owner's answers needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .built_in import ENGINES, Cohort, Performance, Reference, Vectorised

__all__ = ["ENGINES", "Cohort", "Performance", "Reference", "Vectorised"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import built_in

    return getattr(built_in, name)
