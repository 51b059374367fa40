"""Plans, guarantees, calibration and budgets, client by client. No torch."""

from ..fdp import Neighbours
from .budget import Budget, Cost
from .calibrate import CannotMeet, Target, calibrated
from .calibrator import Calibrator
from .mechanisms import Mechanism, NoisySteps, OutputPerturbation, Sampling
from .plan import PrivacyPlan, strong, weak
from .spending import BudgetSpent, FixedMechanism, GaussianFilter, RenyiFilter
from .statement import Statement
from .views import Crowd, NoClaim, View

__all__ = [
    "Budget",
    "BudgetSpent",
    "Calibrator",
    "CannotMeet",
    "Cost",
    "Crowd",
    "FixedMechanism",
    "GaussianFilter",
    "Mechanism",
    "Neighbours",
    "NoClaim",
    "NoisySteps",
    "OutputPerturbation",
    "PrivacyPlan",
    "RenyiFilter",
    "Sampling",
    "Statement",
    "Target",
    "View",
    "calibrated",
    "strong",
    "weak",
]
