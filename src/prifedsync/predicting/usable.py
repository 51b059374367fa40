"""What a finished run can do, in memory or from its folder: answer raw rows, and be scored on other records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from difflib import get_close_matches

import numpy as np

from ..metrics import Metric
from ..values import BadValue
from .answers import Answers
from .evaluating import Evaluation, Wanted, evaluation
from .predictor import Predictor
from .rows import Given

MOST_NAMES = 12  # that a refusal lists
GLOBAL = "global"  # names the released model; any other name is a client's


def check_client(name: str, clients: Sequence[str]) -> None:
    """Refuse a name that is not a client's, with the one that may have been meant."""
    if name not in clients:
        near = get_close_matches(name, [*clients, GLOBAL], 1)
        remedy = f"did you mean {near[0]}?" if near else f"the clients are {listed(clients)}"
        raise BadValue("model", repr(name), f'must be "{GLOBAL}" or the name of a client', remedy)


def listed(names: Sequence[str]) -> str:
    """The first of the names; one that is not printable as Python writes it, since it may be somebody else's."""
    shown = [name if name.isprintable() else repr(name) for name in names[:MOST_NAMES]]
    return ", ".join(shown) + " …" * (len(names) > MOST_NAMES)


class Usable(ABC):
    """Rows may be the path of a CSV file, a data frame (anything with `.columns` and `frame[name]`), a mapping of column
    name → values, or an array. They hold raw values, as in the tables or arrays that were trained on. An array has the
    columns of a table in the order of `.columns`; for a run on arrays it has their shape (n, …).

    `model` is "global", the released model, or the name of a client.
    """

    @abstractmethod
    def predictor(self, model: str = GLOBAL) -> Predictor:
        """The released global model, or a client's own, with the rules of its records."""

    def own_metrics(self) -> Sequence[Metric] | None:
        """The metrics of the run, where they are in memory; None if their names in the config are all there is."""
        return None

    def answers(self, rows: Given, model: str = GLOBAL) -> Answers:
        """One answer for each row: a prediction with its probabilities, or the reason why the row is refused."""
        return self.predictor(model).answers(rows)

    def predict(self, rows: Given, model: str = GLOBAL) -> np.ndarray:
        """A label (its text, or the number of the class) or a number for each row: [n]. A row without one is refused."""
        return np.array(self.answers(rows, model).checked().predictions)

    def predict_proba(self, rows: Given, model: str = GLOBAL) -> np.ndarray:
        """The probability of each label, in the order of the labels: [n, labels]. A row without one is refused."""
        return self.answers(rows, model).checked().shares()

    def evaluate(self, data: Given, model: str = GLOBAL, metrics: Wanted = None) -> Evaluation:
        """The model's scores on labelled records: a file or folder, a data frame with the label, or (x, y).

        metrics: one or several, names or `Metric`s; by default those of the run. Scores have bootstrap intervals.
        """
        return evaluation(self.predictor(model), data, model, self.own_metrics() if metrics is None else metrics)
