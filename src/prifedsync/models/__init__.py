"""Nets, and fixed features that are computed from each record before training."""

from .features import features
from .nets import build

__all__ = ["build", "features"]
