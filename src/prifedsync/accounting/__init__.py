"""Plans, guarantees, calibration and budgets, client by client. No torch."""

from ..fdp import Neighbours
from .calibrate import CannotMeet, Target, calibrated
from .calibrator import Calibrator
from .mechanisms import Mechanism, NoisySteps, OutputPerturbation, Sampling
from .plan import PrivacyPlan, strong, weak
from .spending import BudgetSpent, FixedMechanism, GaussianFilter, RenyiFilter
from .statement import Statement

__all__ = [
    "BudgetSpent",
    "Calibrator",
    "CannotMeet",
    "FixedMechanism",
    "GaussianFilter",
    "Mechanism",
    "Neighbours",
    "NoisySteps",
    "OutputPerturbation",
    "PrivacyPlan",
    "RenyiFilter",
    "Sampling",
    "Statement",
    "Target",
    "calibrated",
    "strong",
    "weak",
]
