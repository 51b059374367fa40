"""Local private training: draws, batches, per-sample clipping, noise, optimisers, output perturbation."""

from .batches import UnnoisedSteps
from .draws import Draws, Key, RecordedDraws, SeededDraws, SystemDraws
from .job import Job, Phase
from .net import CLIP_MARGIN, Arithmetic, GradMethod, LayerRule, LayerRules, Net, Outer, Program, clip_margin
from .optimisers import Optimiser, Schedule, Update

__all__ = [
    "CLIP_MARGIN",
    "Arithmetic",
    "Draws",
    "GradMethod",
    "Job",
    "Key",
    "LayerRule",
    "LayerRules",
    "Net",
    "Optimiser",
    "Outer",
    "Phase",
    "Program",
    "RecordedDraws",
    "Schedule",
    "SeededDraws",
    "SystemDraws",
    "UnnoisedSteps",
    "Update",
    "clip_margin",
]
