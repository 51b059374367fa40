"""How good answers are: accuracy, AUC, F1, root mean squared error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def right(outputs: Tensor, y: Tensor) -> Tensor:
    """Which records are guessed right: [N], ones and zeros. Their mean is the accuracy."""
    guesses = outputs.argmax(1) if outputs.dim() == 2 and outputs.shape[1] > 1 else (outputs.reshape(y.shape) > 0)
    return (guesses.to(y.dtype) == y).double()


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs.reshape(y.shape) - y).double().square()


def auc(outputs: Tensor, y: Tensor) -> float | None:
    """Area under the curve of a binary score; undefined where a class is absent."""
    score, positive = _one_score(outputs, y).double(), y > 0.5
    ups, downs = int(positive.sum()), int((~positive).sum())
    if not ups or not downs:
        return None
    _, places, counts = torch.unique(score, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1).double() / 2)[places]  # ties share their mean rank
    return float((ranks[positive].sum() - ups * (ups + 1) / 2) / (ups * downs))


def f1(outputs: Tensor, y: Tensor) -> float | None:
    """F1 of the positive class; the mean over the classes present where there are more than two."""
    if outputs.dim() == 2 and outputs.shape[1] > 2:
        guesses = outputs.argmax(1)
        values = [_f1(guesses == label, y == label) for label in y.unique()]
    else:
        values = [_f1(_one_score(outputs, y) > 0, y > 0.5)]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _one_score(outputs: Tensor, y: Tensor) -> Tensor:
    """One logit a record, or the difference of two."""
    two = outputs.dim() == 2 and outputs.shape[1] == 2
    return outputs[:, 1] - outputs[:, 0] if two else outputs.reshape(y.shape)


def _f1(guessed: Tensor, true: Tensor) -> float | None:
    total = int(guessed.sum()) + int(true.sum())
    return 2 * int((guessed & true).sum()) / total if total else None


MEANS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"accuracy": right, "rmse": squared_error}
OF_ALL_RECORDS: dict[str, Callable[[Tensor, Tensor], float | None]] = {"auc": auc, "f1": f1}
LOWER_IS_BETTER = {"rmse"}


def scores(metric: str, outputs: Tensor, y: Tensor, sizes: Sequence[int]) -> Tensor:
    """One score for each run of `sizes` records: [C], NaN where there is nothing to score or a model that diverged.

    Means stay on their device, so that nobody waits for them; the others are taken on the CPU, run by run.
    """
    finite = torch.isfinite(outputs).reshape(len(y), -1).all(1)
    if metric in MEANS:
        counts = torch.tensor(sizes).to(y.device, non_blocking=True)
        values = torch.where(finite, MEANS[metric](outputs, y), math.nan)
        means = torch.segment_reduce(values, "sum", lengths=counts, unsafe=True) / counts  # unsafe: without a wait
        return means.sqrt() if metric == "rmse" else means
    runs = zip(*(values.cpu().split(list(sizes)) for values in (outputs, y, finite)), strict=True)
    found = [OF_ALL_RECORDS[metric](out, y) if len(y) and ok.all() else None for out, y, ok in runs]
    return torch.tensor([math.nan if score is None else score for score in found], dtype=torch.float64)
