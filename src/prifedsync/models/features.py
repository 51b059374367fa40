"""Fixed features by name. They cost no privacy, since they are not learnt from records."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from ..values import BadValue
from .hog import Hog


def features(name: str, shape: Sequence[int]) -> Callable[[Tensor], Tensor] | None:
    """The function that turns records [n, *shape] into features, once before training. None leaves records as they are."""
    if name == "none":
        return None
    if name == "hog":
        return Hog.of(tuple(shape))
    raise BadValue("model.features", repr(name), "must be none or hog", "choose one of the two")
