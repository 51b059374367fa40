"""Data sets that come with scikit-learn, scaled by public constants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..values import BadValue
from .array_encoding import ArrayEncoding
from .encoding import Encoding, Ranged
from .federation import Records, Task
from .labels import Label

if TYPE_CHECKING:
    from ..config import DataConfig

# Round numbers near the smallest and the largest value of each feature in the published description of the data set (UCI
# Breast Cancer Wisconsin, Diagnostic), in the order of its columns. The few values outside are clamped.
BREAST_CANCER_RANGES: dict[str, tuple[float, float]] = {
    "mean radius": (5, 30),
    "mean texture": (5, 40),
    "mean perimeter": (40, 200),
    "mean area": (100, 2500),
    "mean smoothness": (0.05, 0.17),
    "mean compactness": (0, 0.35),
    "mean concavity": (0, 0.45),
    "mean concave points": (0, 0.2),
    "mean symmetry": (0.1, 0.3),
    "mean fractal dimension": (0.05, 0.1),
    "radius error": (0.1, 3),
    "texture error": (0.3, 5),
    "perimeter error": (0.5, 22),
    "area error": (5, 550),
    "smoothness error": (0, 0.03),
    "compactness error": (0, 0.14),
    "concavity error": (0, 0.4),
    "concave points error": (0, 0.05),
    "symmetry error": (0, 0.08),
    "fractal dimension error": (0, 0.03),
    "worst radius": (5, 40),
    "worst texture": (10, 50),
    "worst perimeter": (50, 250),
    "worst area": (150, 4300),
    "worst smoothness": (0.07, 0.23),
    "worst compactness": (0, 1.1),
    "worst concavity": (0, 1.3),
    "worst concave points": (0, 0.3),
    "worst symmetry": (0.15, 0.7),
    "worst fractal dimension": (0.05, 0.21),
}


DIGITS = ArrayEncoding(divisor=16)  # white, by the description of the data set
BREAST_CANCER = Encoding(
    tuple(Ranged(name, span) for name, span in BREAST_CANCER_RANGES.items()), Label("target", Task("binary", 2))
)
ENCODINGS: dict[str, Encoding | ArrayEncoding] = {"digits": DIGITS, "breast-cancer": BREAST_CANCER}


def digits() -> tuple[Records, Task]:
    """1,797 handwritten digits as images of shape (1, 8, 8) in [0, 1], ten classes."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # slow, and not always needed

    bunch = load_digits()
    images = torch.from_numpy(DIGITS.encoded(DIGITS.filled(bunch.images)))
    return Records(images.unsqueeze(1), torch.from_numpy(bunch.target).to(torch.int64)), Task("classes", 10)


def breast_cancer() -> tuple[Records, Task]:
    """569 breast masses with 30 measured features in [−1, 1]; malignant is 0 and benign 1, as in scikit-learn."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    if bunch.feature_names.tolist() != list(BREAST_CANCER_RANGES):
        rule = "does not have the expected columns"
        raise BadValue("data.source", "breast-cancer", rule, "use scikit-learn 1.5 or later")
    table = dict(zip(BREAST_CANCER.names, bunch.data.T.tolist(), strict=True))
    x = torch.from_numpy(BREAST_CANCER.encode(table).checked())
    return Records(x, torch.from_numpy(bunch.target).to(torch.float32)), BREAST_CANCER.label.task


EMBEDDED = {"digits": digits, "breast-cancer": breast_cancer}


def embedded(config: DataConfig) -> tuple[Records, Task]:
    """The records of `data.source`."""
    records, task = EMBEDDED[config.source]()
    refuse_descriptions(config, task)
    return records, task


def refuse_descriptions(config: DataConfig, task: Task) -> None:
    """Refuse settings that describe the user's own data: a known data set does not read them."""
    for name in ("client_column", "label_values", "columns", "ranges", "missing", "categories"):
        if value := getattr(config, name):
            shown = list(value) if not isinstance(value, str) else repr(value)
            rule = f"is not read by data.source = {config.source}"
            remedy = 'leave it out, or set data.source = "csv" for your own data'
            raise BadValue(f"data.{name}", shown, rule, remedy)
    if config.classes not in (0, task.classes):
        rule = f"must be 0 or {task.classes} for data.source = {config.source}"
        raise BadValue("data.classes", config.classes, rule, "leave it out")
    # "classes" is the default: the user may not have set it
    if config.task not in ("classes", task.kind):
        rule = f"must be {task.kind} for data.source = {config.source}"
        raise BadValue("data.task", config.task, rule, "leave it out")
