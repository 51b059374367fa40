"""Local private training: draws, batches, per-record clipping, noise, optimisers, output perturbation."""

from .batches import OpenSteps
from .draws import Draws, Key, RecordedDraws, SeededDraws, SystemDraws
from .job import CLIP_MARGIN, Job
from .net import Net
from .optimisers import Optimiser, Schedule

__all__ = [
    "CLIP_MARGIN",
    "Draws",
    "Job",
    "Key",
    "Net",
    "OpenSteps",
    "Optimiser",
    "RecordedDraws",
    "Schedule",
    "SeededDraws",
    "SystemDraws",
]
