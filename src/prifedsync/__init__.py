"""PriFedSync: federated learning with record-level privacy, stated and proved as f-differential privacy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import Config
    from .data import Description, Federation
    from .local import LayerRule, Outer, Update
    from .metrics import Metric
    from .predicting import SavedRun, open_run
    from .rules import Rule
    from .run import Result, resume, train
    from .values import BadValue

__version__ = "0.1.0"
__all__ = [
    "BadValue",
    "Config",
    "Description",
    "Federation",
    "LayerRule",
    "Metric",
    "Outer",
    "Result",
    "Rule",
    "SavedRun",
    "Update",
    "__version__",
    "open_run",
    "resume",
    "train",
]

# Imported when they are asked for: most need torch, and accounting must start fast without it.
_ROOMS = {
    "BadValue": "values",
    "Config": "config",
    "Description": "data",
    "Federation": "data",
    "LayerRule": "local",
    "Metric": "metrics",
    "Outer": "local",
    "Result": "run",
    "Rule": "rules",
    "SavedRun": "predicting",
    "Update": "local",
    "open_run": "predicting",
    "resume": "run",
    "train": "run",
}


def __getattr__(name: str) -> Any:
    """A public name, from the room that defines it."""
    if name in _ROOMS:
        return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
