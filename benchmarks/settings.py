"""How good are settings that are chosen without looking at the data? `python benchmarks/settings.py docs/results/settings`.

Each federation is trained at each target with the chosen settings and at every point of a grid over learning rate, rounds
and clip norm. The best point of the grid is found with the test records: no user can do that without leaking them.

A grid of thousands of runs is simulated: `simulated` takes all grid points and seeds through the rounds at once. It does
what the engine does with full batches, one step a round and FedAvg; `tests/test_settings.py` compares the two.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prifedsync import Config, Federation
from prifedsync.config import from_mapping
from prifedsync.data import Client, Records, Task
from prifedsync.run import prepare

TARGETS: dict[str, dict[str, float]] = {"μ = 0.3": {"mu": 0.3}, "ε = 1": {"epsilon": 1}, "μ = 1": {"mu": 1}, "μ = 3": {"mu": 3}}
RATES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
ROUNDS = (10, 30, 100, 300)
CLIPS = (0.1, 0.3, 1.0, 3.0)
SEEDS = 12
TINY = 3  # records of the client that is added


# Federations


@dataclass(frozen=True)
class Made:
    """A made-up federation: a mixture of Gaussians, scaled to [−1, 1] by a public range."""

    sizes: tuple[int, ...]  # of the clients, with the records held out
    features: int
    classes: int
    apart: float  # the distance between the means of two classes, in standard deviations
    rare: float = 0.0  # the share of the second class; 0: classes are alike in size
    groups: int = 0  # columns of text with four values each, of which each becomes four inputs

    def clients(self, seed: int) -> Federation:
        """Another seed gives other records of the same law."""
        law = np.random.default_rng(12345)
        means = law.normal(size=(self.classes, self.features))
        means *= self.apart / np.linalg.norm(means[0] - means[1])
        mixing = np.eye(self.features) + 0.3 * law.normal(size=(self.features, self.features)) / np.sqrt(self.features)
        odds = law.dirichlet(np.full(4, 1.0), size=(self.classes, self.groups)) if self.groups else None
        share = np.full(self.classes, 1 / self.classes) if not self.rare else np.array([1 - self.rare, self.rare])
        draw = np.random.default_rng([seed, 1])

        def records(count: int) -> Records:
            y = draw.choice(self.classes, size=count, p=share)
            x = (means[y] + draw.normal(size=(count, self.features))) @ mixing.T
            x = np.clip(x / 4, -1, 1)  # the public range of every column is [−4, 4]
            hot = [np.eye(4)[[draw.choice(4, p=odds[c, g]) for c in y]] for g in range(self.groups)] if odds is not None else []
            return Records(torch.tensor(np.concatenate([x, *hot], 1), dtype=torch.float32), torch.from_numpy(y))

        def client(name: str, count: int) -> Client:
            held_out = count // 5
            return Client(name, records(count - held_out), records(held_out))

        return Federation(tuple(client(f"c{i}", n) for i, n in enumerate(self.sizes)), Task("classes", self.classes))


MADE = {
    "small": Made((60,) * 5, 8, 2, 2.0),
    "large": Made((1000,) * 20, 20, 3, 2.5),
    "unequal": Made((25, 25, 40, 60, 100, 150, 250, 400, 700, 1500), 15, 2, 2.0),
    "many features": Made((300,) * 10, 200, 2, 3.0),
    "few features": Made((200,) * 6, 3, 2, 2.5),
    "rare class": Made((300,) * 8, 12, 2, 3.0, rare=0.1),
}
KNOWN: dict[str, dict[str, Any]] = {
    "breast-cancer": {
        "data": {"source": "breast-cancer", "clients": 5, "partition": "iid", "task": "binary"},
        "model": {"name": "linear"},
    },
    "digits": {"data": {"source": "digits"}, "model": {"features": "hog"}},
    "digits, pixels": {"data": {"source": "digits"}},
}


@dataclass(frozen=True)
class Problem:
    """A federation as tensors, with the inputs that the model's one layer sees: S seeds, N records, D inputs."""

    x: Tensor  # [S, N, D]
    y: Tensor  # [S, N, k]: one-hot classes; of a binary task one column
    weight: Tensor  # [N]: what a record's clipped gradient counts for, by the weight of its client in the mean
    spread: float  # of the mean's noise, over noise_multiplier × clip_norm
    tests: list[tuple[Tensor, Tensor]]  # by seed
    classes: bool


def problem(federations: Sequence[Federation], bias: bool, equal: bool = False) -> Problem:
    """The same federation under several seeds. The server weighs clients by their records, or all alike."""
    sizes = [len(client.train) for client in federations[0].clients]
    total, m = sum(sizes), len(sizes)
    share = [1 / m if equal else n / total for n in sizes]
    task = federations[0].task

    def inputs(x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return torch.cat([flat, torch.ones(len(flat), 1)], 1) if bias else flat

    def outputs(y: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(y, task.classes).float() if task.kind == "classes" else y[:, None]

    def together(federation: Federation, part: str) -> tuple[Tensor, Tensor]:
        parts = [getattr(client, part) for client in federation.clients]
        return inputs(torch.cat([r.x for r in parts])), torch.cat([r.y for r in parts])

    trained = [together(each, "train") for each in federations]
    return Problem(
        x=torch.stack([x for x, _ in trained]),
        y=torch.stack([outputs(y) for _, y in trained]),
        weight=torch.cat([torch.full((n,), w / n) for w, n in zip(share, sizes, strict=True)]),
        spread=sum((w / n) ** 2 for w, n in zip(share, sizes, strict=True)) ** 0.5,
        tests=[together(each, "test") for each in federations],
        classes=task.kind == "classes",
    )


# The simulator


def simulated(
    at: Problem, rates: Tensor, clips: Tensor, noise: float, rounds: int, averaging: float = 0.5, seed: int = 0
) -> Tensor:
    """The released models [S, D, G, k] of G settings: R rounds of one clipped and noised full-batch step from zero."""
    draw = torch.Generator(at.x.device).manual_seed(seed)
    seeds, _, inputs = at.x.shape
    outputs = at.y.shape[2]
    weights = torch.zeros(seeds, inputs, len(rates), outputs, device=at.x.device)
    mean = torch.zeros_like(weights)
    norms = at.x.norm(dim=2)[:, :, None, None]  # [S, N, 1, 1]
    rate = rates[:, None]
    clip = clips[:, None]
    averaged = int(averaging * rounds)  # of the last global models
    for number in range(rounds):
        logits = (at.x @ weights.flatten(2)).unflatten(2, (-1, outputs))  # [S, N, G, k]
        answers = logits.softmax(3) if at.classes else logits.sigmoid()
        off = answers - at.y[:, :, None]
        size = off.norm(dim=3, keepdim=True) * norms  # of one record's gradient, an outer product
        kept = off * (clip / size.clamp(min=1e-12)).clamp(max=1) * at.weight[:, None, None]
        gradient = (at.x.transpose(1, 2) @ kept.flatten(2)).unflatten(2, (-1, outputs))
        drawn = torch.randn(gradient.shape, generator=draw, device=at.x.device)
        weights = weights - rate * (gradient + noise * at.spread * clip * drawn)
        if number >= rounds - averaged:
            mean += weights / averaged
    return mean if averaged else weights


def accuracies(at: Problem, models: Tensor) -> Tensor:
    """[S, G], on all clients' test records together."""
    found = []
    for (x, y), each in zip(at.tests, models, strict=True):
        logits = torch.einsum("nd,dgk->ngk", x.to(each.device), each)
        answers = logits.argmax(2) if at.classes else (logits[:, :, 0] > 0).to(y.dtype)
        found.append((answers == y.to(each.device)[:, None]).float().mean(0))
    return torch.stack(found)
