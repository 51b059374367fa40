"""How good answers are: accuracy, AUC, F1, root mean squared error, and metrics of the user's own.

Outputs are [N, outputs] of a model, y [N] the labels. A metric of one's own is a function of the two that returns a number,
or None where the score is undefined; `Metric` says more about it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from .. import named
from ..values import BadValue

ANY_TASK = ("classes", "binary", "regression")
LABELS = ("classes", "binary")
GIVEN_METRIC = "python:metric"  # a metric of the config's that was given from Python
RETURNS = "return a number, or None where the score is undefined"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """How the outputs of a model are scored.

    name             what the score is called.
    of               a function of (outputs, y) for N records. It returns the score of all records, or None if the score is
                     undefined. It is given tensors on the CPU.
    mean             set it if `of` returns one value for each record, [N] on the device of the outputs. The score is
                     their mean.
    root             the score is the square root of that mean.
    lower_is_better  set it if a smaller score is better, as for an error.
    tasks            the kinds of task that the metric is for.
    two_classes      set it if the metric is undefined for more than two classes.
    undefined        the reason that is given where `of` returns None.
    """

    name: str
    of: Callable[[Tensor, Tensor], Any]
    mean: bool = False
    root: bool = False
    lower_is_better: bool = False
    tasks: tuple[str, ...] = ANY_TASK
    two_classes: bool = False
    undefined: str = "the metric returned no number"

    def __call__(self, outputs: Tensor, y: Tensor) -> Any:
        """The value of `of`. So a config can name a metric in the same way as a function."""
        return self.of(outputs, y)

    def check(self, task: str, outputs: int) -> None:
        """Refuse a metric that is not for this task."""
        if task not in self.tasks:
            remedy = 'metrics = ["auto"] chooses one that fits'
            raise BadValue("metrics", self.name, f"does not go with data.task = {task}", remedy)
        if self.two_classes and outputs > 2:
            raise BadValue("metrics", self.name, f"needs two classes, not {outputs}", "use accuracy or f1")


# ---------------------------------------------------------------------- the built-in ones


def right(outputs: Tensor, y: Tensor) -> Tensor:
    """Which records are guessed right: [N], ones and zeros. Their mean is the accuracy."""
    guesses = guessed_class(outputs) if outputs.dim() == 2 and outputs.shape[1] > 1 else (outputs.reshape(y.shape) > 0)
    return (guesses.to(y.dtype) == y).double()


def guessed_class(outputs: Tensor) -> Tensor:
    return outputs.argmax(1)


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs.reshape(y.shape) - y).double().square()


def auc(outputs: Tensor, y: Tensor) -> float | None:
    """Area under the ROC curve of a binary score; undefined where a class is absent.

    It is the share of pairs of a positive and a negative record in which the positive one has the higher score; a tie
    counts one half. Counted by ranks, where records of one score share their mean rank.
    """
    score = one_score(outputs, y).double()
    positive = y > 0.5
    ups = int(positive.sum())
    downs = len(positive) - ups
    if not ups or not downs:
        return None
    _, places, counts = torch.unique(score, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1).double() / 2)[places]
    return float((ranks[positive].sum() - ups * (ups + 1) / 2) / (ups * downs))


def f1(outputs: Tensor, y: Tensor) -> float | None:
    """F1 of the positive class; the mean over the classes present where there are more than two."""
    if outputs.dim() == 2 and outputs.shape[1] > 2:
        guesses = guessed_class(outputs)
        values = [_f1(guesses == label, y == label) for label in y.unique()]
    else:
        values = [_f1(one_score(outputs, y) > 0, y > 0.5)]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def one_score(outputs: Tensor, y: Tensor) -> Tensor:
    """One logit a record, or the difference of two."""
    two = outputs.dim() == 2 and outputs.shape[1] == 2
    return outputs[:, 1] - outputs[:, 0] if two else outputs.reshape(y.shape)


def _f1(guessed: Tensor, true: Tensor) -> float | None:
    total = int(guessed.sum()) + int(true.sum())
    return 2 * int((guessed & true).sum()) / total if total else None


ACCURACY = Metric(name="accuracy", of=right, mean=True, tasks=LABELS)
AUC = Metric(name="auc", of=auc, tasks=LABELS, two_classes=True, undefined="one class only")
F1 = Metric(name="f1", of=f1, tasks=LABELS, undefined="no positive record, and none guessed")
RMSE = Metric(name="rmse", of=squared_error, mean=True, root=True, lower_is_better=True, tasks=("regression",))
METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in (ACCURACY, AUC, F1, RMSE)})


# ---------------------------------------------------------------------- which one


def metric_of(name: str, task: str, given: Metric | Callable[[Tensor, Tensor], Any] | None = None) -> Metric:
    """The metric that the config names; `given`: the one that it calls "python:metric"."""
    if given is not None and name != GIVEN_METRIC:
        shown = _declared("metrics", given).name
        rule = f'is given from Python, and the config says "{name}"'
        raise BadValue("metrics", shown, rule, "leave out one of the two")
    if name == "auto":
        return RMSE if task == "regression" else ACCURACY
    if name in METRICS:
        return METRICS[name]
    if name != GIVEN_METRIC:
        return _declared(name, named.function("metrics", name))
    if given is None:
        raise BadValue("metrics", name, "was given from Python when this run began", "give it again: metrics=[…]")
    return _declared(name, given)


def metrics_of(
    names: Sequence[str], task: str, given: Sequence[Metric | Callable[[Tensor, Tensor], Any]] = ()
) -> tuple[Metric, ...]:
    """The metrics that the config names, in its order; `given`: those that it calls "python:metric", in this order."""
    waiting = list(given)
    found = []
    for name in names:
        found.append(metric_of(name, task, waiting.pop(0) if name == GIVEN_METRIC and waiting else None))
    if waiting:
        rule = f"is given from Python, and the config says {list(names)}"
        raise BadValue("metrics", _declared("metrics", waiting[0]).name, rule, "give as many as the run began with")
    for metric in found:
        if sum(other.name == metric.name for other in found) > 1:
            raise BadValue("metrics", metric.name, "is named more than once", "name each metric once")
    return tuple(found)


def _declared(name: str, given: Any) -> Metric:
    """A metric as it is; a function as a metric of all records, for any task, of which more is better."""
    if isinstance(given, Metric):
        return given
    if not callable(given):
        raise BadValue("metrics", name, f"must be a function or a Metric, and is a {type(given).__name__}", RETURNS)
    return Metric(name=getattr(given, "__name__", type(given).__name__), of=given)


# ---------------------------------------------------------------------- scores


def scores(metric: Metric, outputs: Tensor, y: Tensor, sizes: Sequence[int]) -> Tensor:
    """One score for each run of `sizes` records: [C], NaN where there is nothing to score or a model that diverged.

    Means stay on their device, so that nobody waits for them; the others are taken on the CPU, run by run.
    """
    finite = torch.isfinite(outputs).reshape(len(y), -1).all(1)
    if metric.mean:
        counts = torch.tensor(sizes).to(y.device, non_blocking=True)
        values = torch.where(finite, each_record(metric, outputs, y), math.nan)
        means = torch.segment_reduce(values, "sum", lengths=counts, unsafe=True) / counts  # unsafe: without a wait
        return means.sqrt() if metric.root else means
    runs = zip(*(values.cpu().split(list(sizes)) for values in (outputs, y, finite)), strict=True)
    found = [_of_all(metric, out, y) if len(y) and ok.all() else math.nan for out, y, ok in runs]
    return torch.tensor(found, dtype=torch.float64)


def each_record(metric: Metric, outputs: Tensor, y: Tensor) -> Tensor:
    """One value for each record, double."""
    values = _asked(metric, outputs, y)
    if not isinstance(values, Tensor) or values.shape != (len(y),):
        shown = f"a tensor of shape {tuple(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
        rule = f"returned {shown} for {len(y)} records"
        raise BadValue("metrics", metric.name, rule, "return one number for each record, or leave `mean` out")
    return values.double()


def _of_all(metric: Metric, outputs: Tensor, y: Tensor) -> float:
    """The score of these records; NaN where it is undefined."""
    score = _asked(metric, outputs, y)
    found = math.nan if score is None else _number(score)
    if found is None:
        raise BadValue("metrics", metric.name, f"returned {score!r}, which is no number", RETURNS)
    return found


def _number(score: Any) -> float | None:
    """The value as a float, be it a number, or a tensor or array of one; None: it is something else."""
    if isinstance(score, (str, bytes)):
        return None
    try:
        return float(score)
    except (TypeError, ValueError, RuntimeError):
        return None


def _asked(metric: Metric, outputs: Tensor, y: Tensor) -> Any:
    try:
        return metric.of(outputs, y)
    except BadValue:
        raise
    except Exception as error:
        rule = f"raised {named.one_line(error)} for {len(y)} records"
        raise BadValue("metrics", metric.name, rule, f"call it by itself to see where; {RETURNS}") from error
