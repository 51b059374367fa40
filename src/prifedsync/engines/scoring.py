"""How good a model is on a client's test records. Scores are un-noised: research output, not a release.

Many clients' models are scored together: their weights stacked [C, P], their test records padded [C, T].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from ..metrics import Metric, scores

MOST_TOGETHER = 400_000  # records scored when every client's model meets everybody's records; beyond, a sample of them
# What models and their activations may take at once. On a CPU a stack that outgrows the caches is slower than its models
# one after another, most of all with convolutions; one of fewer than FEWEST models does not earn what stacking costs.
CPU_BYTES, GPU_BYTES = 2**25, 2**31
FEWEST = 4


def _on_host(found: list[Tensor]) -> list[float | None]:
    values = torch.cat(found).tolist() if found else []  # the only transfer from the device
    return [value if math.isfinite(value) else None for value in values]


# ---------------------------------------------------------------------- models


class Scorer:
    """The clients' test records, and one metric.

    Test sets are often drawn from one pool: a record that several clients have lies here once, and whoever answers
    everybody's records answers it once."""

    def __init__(self, net: Net, tests: Sequence[tuple[Tensor, Tensor]], metric: Metric, seed: int = 0) -> None:
        self.net, self.metric = net, metric
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

    def own(self, model: Callable[[int], Tensor], clients: Sequence[int]) -> list[float | None]:
        """Each of these clients' models on its own test records; `model` gives the weights by the client's number."""
        found, order = [], []
        truth, places = self.y.split(self.sizes), self.places.split(self.sizes)
        for group in self._groups(clients):
            answers = self._answers([model(i) for i in group], [places[i] for i in group])
            y = torch.cat([truth[i] for i in group])
            found.append(scores(self.metric, torch.cat(answers), y, [self.sizes[i] for i in group]))
            order += group
        score = dict(zip(order, _on_host(found), strict=True))
        return [score.get(i) for i in clients]

    def each(self, weights: Tensor) -> list[float | None]:
        """One model on every client's test records."""
        if not len(self.x):
            return [None] * len(self.sizes)
        with torch.no_grad(), self.net.exact():
            outputs = self._one_model(weights, self.x)[self.places]
        return _on_host([scores(self.metric, outputs, self.y, self.sizes)])

    def pooled(self, models: Iterable[Tensor]) -> list[float | None]:
        """Each model on all test records together, or on a fixed sample where there are very many."""
        if not len(self.x):
            return [None for _ in models]
        places, at = self.places[self.sample].unique(return_inverse=True)
        found, y, waiting = [], self.y[self.sample], iter(models)
        while group := list(islice(waiting, self._together(len(places)))):
            outputs = torch.cat([answers[at] for answers in self._answers(group, [places] * len(group))])
            found.append(scores(self.metric, outputs, y.repeat(len(group)), [len(y)] * len(group)))
        return _on_host(found)

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
