"""Nets, and fixed features that are computed from each record before training."""

from .features import features
from .gradients import output_gradient
from .layer_rules import layer_rules
from .nets import GIVEN_MODEL, build

__all__ = ["GIVEN_MODEL", "build", "features", "layer_rules", "output_gradient"]
