"""A module as a function of one flat vector, and the clipped sums of its per-sample gradients."""

from .flat import Loss, Masks
from .layer_rules import LayerRule, LayerRules
from .net import Net
from .per_sample import Outer
from .precision import CLIP_MARGIN, Arithmetic, clip_margin
from .programs import GradMethod, Program

__all__ = [
    "CLIP_MARGIN",
    "Arithmetic",
    "GradMethod",
    "LayerRule",
    "LayerRules",
    "Loss",
    "Masks",
    "Net",
    "Outer",
    "Program",
    "clip_margin",
]
