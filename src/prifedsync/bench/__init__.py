"""Benchmarks: the time of a private step, against no privacy, Opacus, a plain loop and the reference, in one run."""

from .measuring import measure
from .workloads import PRESETS, Workload

__all__ = ["PRESETS", "Workload", "measure"]
