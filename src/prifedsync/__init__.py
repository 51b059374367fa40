"""PriFedSync: federated learning with record-level privacy, stated and proved as f-differential privacy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .run import resume, train

__version__ = "0.1.0"
__all__ = ["__version__", "resume", "train"]


def __getattr__(name: str) -> Any:
    """`train` and `resume` need torch: imported when they are asked for, so that accounting starts fast."""
    if name in ("train", "resume"):
        from . import run

        return getattr(run, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
