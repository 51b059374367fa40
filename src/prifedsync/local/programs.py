"""How the clipped sums of a stack of clients are taken: by which way, of how many rows, added up in what."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

Way = Literal["layers", "general", "loop"]
ROWS = 4  # many kernels treat all rows alike where they come in multiples of this
ALIGNED = 16  # and nearly all where inputs and outputs come in multiples of this


class Program(NamedTuple):
    """All of it is public: a batch is padded to `width` rows whatever its size, and larger ones are taken in pieces."""

    way: Way
    width: int  # records of each client that are looked at together, padding included
    sums: torch.dtype  # what clipped vectors are added up in
    aligned: int = 1  # inputs and outputs of linear layers are padded with zeros to multiples of this

    def __str__(self) -> str:
        return self.way if self.aligned == 1 else f"{self.way}, padded to multiples of {self.aligned}"
