"""How good a model is on a client's test records. Scores are un-noised: research output, not a release.

Many clients' models are scored together: their weights stacked [C, P], their test records padded [C, T].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.utils.rnn import pad_sequence
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ..local import Net
from ..metrics import Metric, measured, scores
from ..scores import Measurement, Score, Values

MOST_TOGETHER = 400_000  # records scored when every client's model meets everybody's records; beyond, a sample of them
# What models and their activations may take at once. On a CPU a stack that outgrows the caches is slower than its models
# one after another, most of all with convolutions; one of fewer than FEWEST models does not earn what stacking costs.
CPU_BYTES, GPU_BYTES = 2**25, 2**31
FEWEST = 4


def _on_host(found: list[Tensor]) -> list[Values]:
    """Of scores [C, metrics], one tuple for each client."""
    rows = torch.cat(found).tolist() if found else []  # the only transfer from the device
    return [tuple(value if math.isfinite(value) else None for value in row) for row in rows]


# ---------------------------------------------------------------------- models


class Scorer:
    """The clients' test records, and the metrics of a run.

    groups: the person of each test record, a tensor for each client; None: every record is somebody else's.

    Test sets are often drawn from one pool: a record that several clients have lies here once, and whoever answers
    everybody's records answers it once."""

    def __init__(
        self, net: Net, tests: Sequence[tuple[Tensor, Tensor]], metrics: Sequence[Metric], seed: int = 0,
        groups: Sequence[Tensor] | None = None,
    ) -> None:  # fmt: skip
        self.net = net
        self.metrics = tuple(metrics)
        self.seed = seed
        self.groups = groups
        self.sizes = [len(x) for x, _ in tests]
        x, y = torch.cat([x for x, _ in tests]), torch.cat([y for _, y in tests])
        first, places = _distinct(x)
        self.x = x[first].to(net.device, net.dtype if x.is_floating_point() else x.dtype)
        self.y = y.to(net.device, net.dtype if y.is_floating_point() else y.dtype)
        self.places = places.to(net.device)  # of all test records, client by client, in x
        self.memory = CPU_BYTES if net.device.type == "cpu" else GPU_BYTES
        some = max(200, MOST_TOGETHER // len(tests))
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed % 2**32))
        self.sample = order[:some].sort().values.to(net.device)

    def own(self, model: Callable[[int], Tensor], clients: Sequence[int]) -> list[Values]:
        """Each of these clients' models on its own test records; `model` gives the weights by the client's number."""
        found, order = [], []
        truth = self.y.split(self.sizes)
        for group, answers in self._own_answers(model, clients):
            y = torch.cat([truth[i] for i in group])
            found.append(self._scores(torch.cat(answers), y, [self.sizes[i] for i in group]))
            order += group
        score = dict(zip(order, _on_host(found), strict=True))
        return [score.get(i, self._nothing) for i in clients]

    def each(self, weights: Tensor) -> list[Values]:
        """One model on every client's test records."""
        if not len(self.x):
            return [self._nothing] * len(self.sizes)
        return _on_host([self._scores(self._everywhere(weights), self.y, self.sizes)])

    def measure_own(self, model: Callable[[int], Tensor]) -> tuple[Measurement, ...]:
        """Every client's own model on its own test records, with intervals; one for each metric.

        On all clients' test records each client's model is another one: those scores are `pooled`, and have no intervals.
        """
        answers = {i: one for group, out in self._own_answers(model, range(len(self.sizes)))
                   for i, one in zip(group, out, strict=True)}  # fmt: skip
        outputs = torch.cat([answers[i] for i in sorted(answers)]) if answers else self.y.new_zeros(0, 1)
        return self._measured(outputs)

    def measure_each(self, weights: Tensor) -> tuple[Measurement, ...]:
        """One model on every client's test records and on all of them together, with intervals; one for each metric."""
        return self._measured(self._everywhere(weights) if len(self.x) else self.y.new_zeros(0, 1))

    def over_models(self, found: Sequence[Values]) -> list[Score]:
        """What `pooled` found of many models, one score for each metric."""
        return [
            Score.over([values[at] for values in found], metric.lower_is_better) for at, metric in enumerate(self.metrics)
        ]

    def pooled(self, models: Iterable[Tensor]) -> list[Values]:
        """Each model on all test records together, or on a fixed sample where there are very many."""
        if not len(self.x):
            return [self._nothing for _ in models]
        places, at = self.places[self.sample].unique(return_inverse=True)
        found, y, waiting = [], self.y[self.sample], iter(models)
        while group := list(islice(waiting, self._together(len(places)))):
            outputs = torch.cat([answers[at] for answers in self._answers(group, [places] * len(group))])
            found.append(self._scores(outputs, y.repeat(len(group)), [len(y)] * len(group)))
        return _on_host(found)

    @property
    def _nothing(self) -> Values:
        return (None,) * len(self.metrics)

    def _scores(self, outputs: Tensor, y: Tensor, sizes: Sequence[int]) -> Tensor:
        """Of each run of `sizes` records, [C, metrics]."""
        found = [scores(metric, outputs, y, sizes) for metric in self.metrics]
        device = found[0].device
        return torch.stack([each.to(device) for each in found], 1)

    def _measured(self, outputs: Tensor) -> tuple[Measurement, ...]:
        return measured(self.metrics, outputs, self.y, self.sizes, seed=self.seed, groups=self.groups)

    def _everywhere(self, weights: Tensor) -> Tensor:
        """What one model answers to all test records, client by client."""
        with torch.no_grad(), self.net.exact():
            return self._one_model(weights, self.x)[self.places]

    def _own_answers(
        self, model: Callable[[int], Tensor], clients: Iterable[int]
    ) -> Iterator[tuple[list[int], list[Tensor]]]:
        """Clients that are scored together, and what the model of each answers to its own test records."""
        places = self.places.split(self.sizes)
        for group in self._groups(clients):
            yield group, self._answers([model(i) for i in group], [places[i] for i in group])

    def _groups(self, clients: Iterable[int]) -> Iterator[list[int]]:
        """Clients that are scored together: of like sizes, so that padding at most doubles their records."""
        left = sorted((i for i in clients if self.sizes[i]), key=lambda i: -self.sizes[i])
        while left:
            most = self.sizes[left[0]]
            group = [i for i in left[: self._together(most)] if 2 * self.sizes[i] >= most]
            left = left[len(group) :]
            yield group

    def _together(self, records: int) -> int:
        """How many models are stacked, each with so many records."""
        weights = 2 * self.net.count * self.net.dtype.itemsize  # as they came, and stacked
        fit = self.memory // (weights + records * self._record_bytes)
        return fit if fit >= FEWEST else 1

    def _answers(self, models: Sequence[Tensor], places: Sequence[Tensor]) -> list[Tensor]:
        """What models answer, each to the records at its places: [T, …] a model."""
        with torch.no_grad(), self.net.exact():
            if len(models) == 1 or not self._can_stack:
                return [self._one_model(*each) for each in zip(models, (self.x[of] for of in places), strict=True)]
            if all(of is places[0] for of in places):
                return list(self._stacked(torch.stack(list(models)), self.x[places[0]]))
            padded = self.x[pad_sequence(list(places), batch_first=True)]  # any record will do
            outputs = self._stacked(torch.stack(list(models)), padded)
            return [out[: len(of)] for out, of in zip(outputs, places, strict=True)]

    def _one_model(self, weights: Tensor, x: Tensor) -> Tensor:
        return torch.cat([self.net.outputs(weights, piece) for piece in x.split(max(1, self.memory // self._record_bytes))])

    def _stacked(self, weights: Tensor, x: Tensor) -> Tensor:
        shared = x.dim() == self.x.dim()
        outputs: Tensor = vmap(self.net.outputs, in_dims=(0, None if shared else 0))(weights, x)
        return outputs

    @cached_property
    def _can_stack(self) -> bool:
        """Whether stacked models answer a few records as they do one after another; not every module can be mapped.

        On a GPU convolutions go one after another: the library's kernels for one model are a lot faster than its kernels
        for many, and the host queues them while the round's steps are still running."""
        if self.net.grad_method == "loop" or (self.net.device.type == "cuda" and self.net.convolves):
            return False
        start = self.net.initial()
        spread = torch.randn(2, len(start), generator=torch.Generator().manual_seed(0), dtype=start.dtype)
        weights, x = start + 0.1 * spread.to(start.device), self.x[:3]
        with torch.no_grad():
            truth = torch.stack([self.net.outputs(one, x) for one in weights])
            try:
                seen = [self._stacked(weights, x), self._stacked(weights, x.expand(2, *x.shape))]
            except Exception:  # a module of the user's may fail in any way, and one after another it does not
                return False
        close = 1e5 * torch.finfo(truth.dtype).eps
        return all(
            found.shape == truth.shape and torch.allclose(found, truth, rtol=0, atol=close * float(truth.abs().max()))
            for found in seen
        )

    @cached_property
    def _record_bytes(self) -> int:
        """About what one record takes on its way: the largest tensor made of it, what that was made from, and a copy."""
        weights, one = self.net.initial(), self.x[:1]
        largest = _Largest()
        with torch.no_grad(), largest:
            self.net.outputs(weights, one)
        return 3 * max(one.nbytes, largest.bytes)


def with_pooled(measured: Sequence[Measurement], pooled: Sequence[Score]) -> tuple[Measurement, ...]:
    """The same with these scores on all clients' test records, one for each metric."""
    return tuple(
        replace(each, scores=replace(each.scores, pooled=score)) for each, score in zip(measured, pooled, strict=True)
    )


class _Largest(TorchFunctionMode):
    """While it is open, looks for the largest tensor that is made; views of what there was do not count."""

    bytes = 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {_memory(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and _memory(leaf) not in given]
        self.bytes = max([self.bytes, *(leaf.nbytes for leaf in made)])
        return result


def _distinct(x: Tensor) -> tuple[Tensor, Tensor]:
    """Where each different record first is, and which of them every record is."""
    number: dict[bytes, int] = {}
    first: list[int] = []
    which: list[int] = []
    for at, record in enumerate(x.detach().cpu().contiguous().numpy()):
        digest = blake2b(record.data, digest_size=16).digest()
        if digest not in number:
            number[digest] = len(first)
            first.append(at)
        which.append(number[digest])
    return torch.tensor(first, dtype=torch.long), torch.tensor(which, dtype=torch.long)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
