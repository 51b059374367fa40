"""The messages of one attempt at a round, added up as they come."""

from __future__ import annotations

import torch
from torch import Tensor


class Messages:
    """Messages as they are: integers, whose sum does not depend on their order."""

    def __init__(self, count: int, device: torch.device) -> None:
        self._total = torch.zeros(count, dtype=torch.int64, device=device)

    def add(self, client: str, words: Tensor) -> None:
        """The message of one client, int64 [P]."""
        self._total += words

    @property
    def total(self) -> Tensor:
        """The sum of all of them, int64 [P]."""
        return self._total
