"""Wall time: variants take turns, because the speed of a shared machine varies, and medians are compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Variant:
    """Something to time: `run` does a round, which counts as `iterations` iterations of all clients."""

    run: Callable[[], object]
    iterations: float
    most: int | None = None  # maximum number of timed rounds, if one takes long


@dataclass(frozen=True)
class Spread:
    """Milliseconds of one iteration of all clients: the median, the quartiles, and the minimum."""

    median: float
    low: float
    high: float
    fastest: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        twice = values if len(values) > 1 else [*values, *values]  # a single value has no quartiles
        low, median, high = statistics.quantiles(twice, n=4, method="inclusive")
        return cls(median, low, high, min(values), len(values))


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Wall time of one call, including the work of the device."""
    _wait(device)
    begun = time.perf_counter()
    run()
    _wait(device)
    return time.perf_counter() - begun


def take_turns(
    variants: Mapping[str, Variant], device: torch.device, limit: float, least: int, most: int,
    told: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, Spread]:  # fmt: skip
    """Run all variants in turns until `limit` seconds are over: each at least `least` and at most `most` times."""
    seen: dict[str, list[float]] = {name: [] for name in variants}
    begun = time.perf_counter()
    for turn in range(most):
        spent = time.perf_counter() - begun
        if turn >= least and spent >= limit:
            break
        expected = max(least, min(most, round(turn * limit / spent))) if turn else least
        told(turn, expected)
        for name, variant in variants.items():
            if variant.most is None or turn < variant.most:
                seen[name].append(1e3 * seconds(variant.run, device) / variant.iterations)
    return {name: Spread.of(values) for name, values in seen.items()}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
