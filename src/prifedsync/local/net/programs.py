"""How the clipped sums of a stack of clients are computed: gradient method, batch width, precision of the sum."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

GradMethod = Literal["bookkeeping", "vmap", "loop"]
ROWS = 4  # many kernels treat all rows alike if their number is a multiple of this
ALIGNED = 16  # nearly all kernels do, if inputs and outputs are multiples of this too


class Program(NamedTuple):
    """All of it is public: a batch is padded to `width` rows whatever its size, and a larger one is taken in pieces."""

    grad_method: GradMethod
    width: int  # records of each client that are processed together, padding included
    sums: torch.dtype  # what clipped gradients are accumulated in
    aligned: int = 1  # inputs and outputs of linear layers are padded with zeros to multiples of this
    most_rows: int = 1  # of one person, where units are persons

    def __str__(self) -> str:
        padded = "" if self.aligned == 1 else f", padded to multiples of {self.aligned}"
        return self.grad_method + padded
