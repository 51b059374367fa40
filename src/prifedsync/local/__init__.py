"""Local private training: draws, batches, per-record clipping, noise, optimisers, output perturbation."""

from .batches import UnnoisedSteps
from .draws import Draws, Key, RecordedDraws, SeededDraws, SystemDraws
from .job import Job, Phase
from .margins import CLIP_MARGIN, Arithmetic
from .net import Net
from .optimisers import Optimiser, Schedule, Update

__all__ = [
    "CLIP_MARGIN",
    "Arithmetic",
    "Draws",
    "Job",
    "Key",
    "Net",
    "Optimiser",
    "Phase",
    "RecordedDraws",
    "Schedule",
    "SeededDraws",
    "SystemDraws",
    "UnnoisedSteps",
    "Update",
]
