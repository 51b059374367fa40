"""TensorBoard events, if asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..config import Config
from ..files import EVENTS
from ..scores import Score
from ..values import BadValue


def events_of(folder: Path | None, config: Config) -> Callable[[str, Score, int], None]:
    """TensorBoard events, if asked for."""
    if not config.performance.tensorboard:
        return lambda name, score, round: None
    if folder is None:
        raise BadValue("performance.tensorboard", True, "needs a run folder", "give out = a folder")
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise BadValue(
            "performance.tensorboard", True, "needs the package tensorboard", "pip install prifedsync[tensorboard]"
        ) from None
    writer = SummaryWriter(str(folder / EVENTS))

    def write(name: str, score: Score, round: int) -> None:
        for kind in ("mean", "worst"):
            value = getattr(score, kind)
            if value is not None:
                writer.add_scalar(f"{name}/{kind}", value, round)
        writer.flush()

    return write
