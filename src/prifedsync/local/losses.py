"""One loss a record, by the kind of target."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def classes(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of [B, classes] logits."""
    return F.cross_entropy(outputs, y, reduction="none")


def binary(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of one logit a record, [B, 1] or [B]."""
    return F.binary_cross_entropy_with_logits(outputs.reshape(y.shape), y, reduction="none")


def regression(outputs: Tensor, y: Tensor) -> Tensor:
    """Half the squared error."""
    return 0.5 * (outputs.reshape(y.shape) - y) ** 2


BY_TASK = {"classes": classes, "binary": binary, "regression": regression}
