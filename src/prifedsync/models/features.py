"""Fixed features by name; they cost no privacy, since nothing in them is learnt from records."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from ..values import BadValue
from .hog import Hog


def features(name: str, shape: Sequence[int]) -> Callable[[Tensor], Tensor] | None:
    """What turns records [n, *shape] into what the model is given, once before training; None leaves them as they are."""
    if name == "none":
        return None
    if name == "hog":
        return Hog.of(tuple(shape))
    raise BadValue("model.features", repr(name), "must be none or hog")
