"""A trained model with the public rules of its records: raw rows in, answers out."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .. import models
from ..data.preprocessing import Preprocessing
from ..named import one_line
from ..values import BadValue
from .answers import Answers
from .rows import Given, encoded

if TYPE_CHECKING:
    from ..config import Config

SAME_MODULE = "give the module that the run was trained with"
TOGETHER = 1024  # records that a model answers at once


@dataclass(frozen=True, eq=False)
class Predictor:
    """A module that is ready to be used, and the rules that turn raw rows into its records."""

    module: nn.Module
    preprocessing: Preprocessing
    config: Config

    def answers(self, rows: Given) -> Answers:
        """One answer for each row: a prediction, or the reason why the row is refused."""
        records = encoded(rows, self.preprocessing)
        return Answers.of(self.outputs(records.x), records, self.preprocessing.label)

    def outputs(self, x: Tensor) -> Tensor:
        """What the module answers to records [n, …]: [n, outputs]."""
        count = self.preprocessing.label.task.outputs
        if not len(x):
            return torch.empty(0, count)
        dtype = _dtype(self.module.parameters())
        try:
            with torch.no_grad():
                pieces = [self.module(piece) for piece in (x.to(dtype) if x.is_floating_point() else x).split(TOGETHER)]
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            rule = f"fails on these records: {one_line(error)}"
            raise BadValue("model", type(self.module).__name__, rule, SAME_MODULE) from error
        outputs: Tensor = torch.cat(pieces)
        if outputs.numel() != len(x) * count:
            rule = f"must answer {count} numbers for each record, and answers a shape of {tuple(outputs.shape[1:])}"
            raise BadValue("model", type(self.module).__name__, rule, SAME_MODULE)
        return outputs.reshape(len(x), count)


def ready(module: nn.Module, state: Mapping[str, Tensor], features: str) -> nn.Module:
    """A copy of the module with these weights, in eval mode on the CPU. Fixed features are computed in its forward."""
    own = copy.deepcopy(module)
    empty = any(parameter.is_meta for parameter in own.parameters())  # it takes the tensors of the state as its own
    if not empty:
        own.to(device="cpu", dtype=_dtype(state.values()))
    own.load_state_dict(state, assign=empty)
    if features != "none":
        own.register_forward_pre_hook(WithFeatures(features))
    return own.eval()


def _dtype(values: Iterable[Tensor]) -> torch.dtype:
    """The precision of the weights."""
    return next((value.dtype for value in values if value.is_floating_point()), torch.float32)


@dataclass(frozen=True)
class WithFeatures:
    """Gives a module the fixed features of the records that it is called with, as in training."""

    name: str

    def __call__(self, module: nn.Module, given: tuple[Tensor, ...]) -> Tensor:
        (x,) = given
        transform = models.features(self.name, x.shape[1:])
        return x if transform is None else transform(x)
