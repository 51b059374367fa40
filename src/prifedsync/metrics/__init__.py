"""How good answers are: metrics, and scores with bootstrap intervals."""

from .measuring import differences, measured
from .metric import ACCURACY, AUC, F1, GIVEN_METRIC, METRICS, RMSE, Metric, metric_of, metrics_of, scores

__all__ = [
    "ACCURACY",
    "AUC",
    "F1",
    "GIVEN_METRIC",
    "METRICS",
    "RMSE",
    "Metric",
    "differences",
    "measured",
    "metric_of",
    "metrics_of",
    "scores",
]
