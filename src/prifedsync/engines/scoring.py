"""How good a model is on a client's test records. Scores are un-noised: research output, not a release."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..local import Net

RECORDS_AT_ONCE = 2048
MOST_TOGETHER = 400_000  # records scored when every client's model meets everybody's records; beyond, a sample of them


def accuracy(outputs: Tensor, y: Tensor) -> float:
    guesses = outputs.argmax(1) if outputs.dim() == 2 and outputs.shape[1] > 1 else (outputs.reshape(y.shape) > 0)
    return (guesses.to(y.dtype) == y).double().mean().item()


def auc(outputs: Tensor, y: Tensor) -> float | None:
    """Area under the curve of a binary score; undefined where a class is absent."""
    score, positive = _one_score(outputs, y).double(), y > 0.5
    ups, downs = int(positive.sum()), int((~positive).sum())
    if not ups or not downs:
        return None
    _, places, counts = torch.unique(score, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1) / 2)[places]  # ties share their mean rank
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


def rmse(outputs: Tensor, y: Tensor) -> float:
    return (outputs.reshape(y.shape) - y).double().square().mean().sqrt().item()


Metric = Callable[[Tensor, Tensor], float | None]
METRICS: dict[str, Metric] = {"accuracy": accuracy, "auc": auc, "f1": f1, "rmse": rmse}
LOWER_IS_BETTER = {"rmse"}


class Scorer:
    """The clients' test records, and one metric."""

    def __init__(self, net: Net, tests: Sequence[tuple[Tensor, Tensor]], metric: str, seed: int = 0) -> None:
        self.net, self.metric = net, METRICS[metric]
        self.sizes = [len(x) for x, _ in tests]
        x, y = torch.cat([x for x, _ in tests]), torch.cat([y for _, y in tests])
        self.x = x.to(net.device, net.dtype if x.is_floating_point() else x.dtype)
        self.y = y.to(net.device, net.dtype if y.is_floating_point() else y.dtype)
        self.starts = torch.tensor([0, *self.sizes]).cumsum(0)[:-1].tolist()
        some = max(200, MOST_TOGETHER // len(tests))
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(seed % 2**32))
        self.sample = order[:some].sort().values.to(net.device) if some < len(self.x) else None

    def own(self, weights: Tensor, i: int) -> float | None:
        """The model on client i's own test records."""
        if not self.sizes[i]:
            return None
        here = slice(self.starts[i], self.starts[i] + self.sizes[i])
        return self._score(self._outputs(weights, self.x[here]), self.y[here])

    def each(self, weights: Tensor) -> list[float | None]:
        """One model on every client's test records."""
        if not len(self.x):
            return [None] * len(self.sizes)
        outputs = self._outputs(weights, self.x)
        parts = zip(outputs.split(self.sizes), self.y.split(self.sizes), strict=True)
        return [self._score(out, y) for out, y in parts]

    def everybody(self, weights: Tensor) -> float | None:
        """One model on all test records together, or on a fixed sample where there are very many."""
        x, y = (self.x, self.y) if self.sample is None else (self.x[self.sample], self.y[self.sample])
        return self._score(self._outputs(weights, x), y) if len(x) else None

    def _score(self, outputs: Tensor, y: Tensor) -> float | None:
        """None where there is nothing to score, or a model that diverged."""
        if not len(y) or not bool(torch.isfinite(outputs).all()):
            return None
        return self.metric(outputs, y)

    def _outputs(self, weights: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([self.net.outputs(weights, piece) for piece in x.split(RECORDS_AT_ONCE)])
