"""The use of trained models: raw rows in, answers and scores out. It needs a run folder and none of its records."""

from .answers import Answers
from .evaluating import Evaluation, Part
from .predictor import Predictor
from .saved import SavedRun, open_run
from .usable import Usable

__all__ = [
    "Answers",
    "Evaluation",
    "Part",
    "Predictor",
    "SavedRun",
    "Usable",
    "open_run",
]
