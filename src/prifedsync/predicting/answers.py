"""What a model answers, row by row: a prediction with its probabilities, or why the row is refused."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..data.labels import Label
from ..values import NOT_GIVEN, BadValue
from .rows import Accepted

NOT_FINITE = "has an answer that is not a finite number: this model cannot judge it"


@dataclass(frozen=True, eq=False)
class Answers:
    """One answer for each row, in the order of the rows.

    label          the rules of what is predicted.
    numbers        [n]: the number of the class, or the predicted number in the label's own unit. NaN for a refused row.
    probabilities  [n, classes]: NaN for a refused row. None for a regression.
    refused        row number from 0 → why the row has no answer.
    """

    label: Label
    numbers: np.ndarray
    probabilities: np.ndarray | None
    refused: Mapping[int, BadValue]

    @staticmethod
    def of(outputs: Tensor, records: Accepted, label: Label) -> Answers:
        """The answers from a model's outputs [answered, outputs] to the rows that were not refused."""
        finite = outputs.isfinite().all(1).numpy()
        rows = records.rows[finite]
        refused = dict(records.refused)
        for row in records.rows[~finite].tolist():
            refused[row] = BadValue(records.place(row), NOT_GIVEN, NOT_FINITE)
        numbers = np.full(records.count, np.nan)
        outputs = outputs[torch.from_numpy(finite)].double()
        if label.task.kind == "regression":
            numbers[rows] = label.in_its_unit(outputs[:, 0].numpy())
            return Answers(label, numbers, None, refused)
        shares = _probabilities(outputs)
        probabilities = np.full((records.count, shares.shape[1]), np.nan)
        probabilities[rows] = shares.numpy()
        numbers[rows] = _classes(outputs).numpy()
        return Answers(label, numbers, probabilities, refused)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def answered(self) -> int:
        """How many rows have an answer."""
        return len(self) - len(self.refused)

    @property
    def predictions(self) -> list[str | int | float | None]:
        """A label, a class number or a number for each row; None for a refused row."""
        if self.label.task.kind == "regression":
            return [None if np.isnan(number) else float(number) for number in self.numbers]
        names = self.label.values or range(self.label.task.classes)
        return [None if np.isnan(number) else names[int(number)] for number in self.numbers]

    def checked(self) -> Answers:
        """The answers, if there is one for every row. Otherwise the first refusal is raised."""
        if self.refused:
            first = self.refused[min(self.refused)]
            others = f"{first.remedy}; `answers` answers the other rows".removeprefix("; ")
            raise BadValue(first.field, first.value, first.rule, others)
        return self

    def shares(self) -> np.ndarray:
        """The probabilities, if there are any."""
        if self.probabilities is None:
            rule = "do not exist for a regression, which predicts a number"
            raise BadValue("probabilities", NOT_GIVEN, rule, "use predict")
        return self.probabilities

    def as_csv(self) -> str:
        """A line for each row: prediction, one p_LABEL for each class, and `refused` if a row is refused."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        classes = [] if self.probabilities is None else [f"p_{name}" for name in self.label.texts]
        writer.writerow(["prediction", *classes, *(["refused"] if self.refused else [])])
        writer.writerows(self._lines(len(classes)))
        return text.getvalue()

    def _lines(self, classes: int) -> Iterator[Sequence[object]]:
        shares = np.empty((len(self), 0)) if self.probabilities is None else self.probabilities
        for row, (prediction, each) in enumerate(zip(self.predictions, shares.tolist(), strict=True)):
            reason = self.refused.get(row)
            if reason is not None:
                yield [""] * (1 + classes) + [str(reason)]
                continue
            shown = f"{prediction:.9g}" if isinstance(prediction, float) else prediction
            yield [shown, *(f"{share:.6f}" for share in each), *([""] if self.refused else [])]


def _classes(outputs: Tensor) -> Tensor:
    """The most probable class; with one output, the second class where it is above zero."""
    return outputs.argmax(1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).long()


def _probabilities(outputs: Tensor) -> Tensor:
    """The probability of each class: [n, classes]. One output is the log-odds of the second class."""
    if outputs.shape[1] > 1:
        return outputs.softmax(1)
    return torch.cat([(-outputs).sigmoid(), outputs.sigmoid()], dim=1)
