"""Attacks on what the engines really do, not on what they say."""

from .check import Check, StepAudit
from .configured import audit_config
from .step import audit_step

__all__ = ["Check", "StepAudit", "audit_config", "audit_step"]
