"""The public rules for records that are arrays: how raw values become what a model is trained on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..values import number
from .scale import EVERY, constant_of, range_of, scaled

if TYPE_CHECKING:
    from ..config import DataConfig


@dataclass(frozen=True, kw_only=True)
class ArrayEncoding:
    """What is done to each value of an array. None of it is fitted to records.

    tokens   values are whole numbers for an embedding, and stay as they are.
    missing  the constant that replaces NaN.
    span     the public range: values are clamped to it, and it is scaled to [−1, 1].
    divisor  the number that values are divided by.
    mean     one number for each channel, subtracted after that.
    std      one number for each channel, divided by at last.
    """

    tokens: bool = False
    missing: float | None = None
    span: tuple[float, float] | None = None
    divisor: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @staticmethod
    def of(config: DataConfig) -> ArrayEncoding:
        """The rules that the config sets for all values of an array."""
        return ArrayEncoding(missing=constant_of(config.missing, EVERY), span=range_of(config.ranges, EVERY))

    def filled(self, x: np.ndarray) -> np.ndarray:
        """The raw values [n, …] as floats, with NaN replaced if there is a constant; tokens as whole numbers."""
        if self.tokens:
            return x.astype(np.int64)
        values = x.astype(np.float64 if x.dtype.itemsize > 4 or self.span else np.float32)
        return values if self.missing is None else np.where(np.isnan(values), self.missing, values)

    def encoded(self, filled: np.ndarray) -> np.ndarray:
        """The record [n, …] of filled values in single precision. What does not fit becomes infinite."""
        if self.tokens:
            return filled
        with np.errstate(over="ignore"):
            values = (filled if self.span is None else scaled(filled, self.span)).astype(np.float32)
        if self.divisor != 1:
            values = values / np.float32(self.divisor)
        if self.mean:
            values = (values - _by_channel(self.mean)) / _by_channel(self.std)
        return values

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ArrayEncoding:
        """The rules that `as_json` wrote."""
        missing = data["missing"]
        return ArrayEncoding(
            tokens=data["tokens"] is True,
            missing=None if missing is None else number("missing", missing, -math.inf),
            span=None if data["span"] is None else range_of({EVERY: tuple(data["span"])}, EVERY),
            divisor=number("divisor", data["divisor"], 0, ends="(]"),
            mean=tuple(number("mean", value, -math.inf) for value in data["mean"]),
            std=tuple(number("std", value, 0, ends="(]") for value in data["std"]),
        )


def _by_channel(numbers: tuple[float, ...]) -> np.ndarray:
    """One number for each channel of images [n, channels, height, width]."""
    return np.array(numbers, dtype=np.float32).reshape(-1, 1, 1)
