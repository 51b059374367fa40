"""How good are settings that are chosen without looking at the data? `python benchmarks/settings.py docs/results/settings`.

Each federation is trained at each target with the chosen settings and at every point of a grid over learning rate, rounds
and clip norm. The best point of the grid is found with the test records: no user can do that without leaking them.

A grid of thousands of runs is simulated: `simulated` takes all grid points and seeds through the rounds at once. It does
what the engine does with full batches, one step a round and FedAvg; `tests/test_settings.py` compares the two.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prifedsync import Config, Federation
from prifedsync.accounting import NoisySteps, PrivacyPlan, Target, calibrated
from prifedsync.config import from_mapping
from prifedsync.data import Client, Records, Task
from prifedsync.run import prepare, train
from prifedsync.run.recording import versions

TARGETS = {
    "μ = 0.3": Target("mu", 0.3), "ε = 1": Target("epsilon", 1.0), "μ = 1": Target("mu", 1.0), "μ = 3": Target("mu", 3.0)
}  # fmt: skip
RATES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
ROUNDS = (10, 30, 100)
CLIPS = (0.1, 0.3, 1.0, 3.0)
AUTO = {
    "rounds": "auto", "local": {"learning_rate": "auto", "batch": "auto"}, "privacy": {"clip_norm": "auto"}
}  # fmt: skip
QUICK = {"compare": [], "evaluate_every": 0, "performance": {"device": "cpu", "threads": 1}}
SEEDS = 24  # one half chooses the best point of the grid, the other half is what is reported
MOST_RECORDS = 60_000  # times seeds: a large federation varies little, and has fewer
ENGINE_SEEDS = 3  # runs of the engine itself with the chosen settings
TESTED = 200  # test records of each client of a made-up federation
TINY = 3  # records of the client that is added
ALLOWED = 1.5  # points behind the best of the grid


# Federations


@dataclass(frozen=True)
class Made:
    """A made-up federation: a mixture of Gaussians, scaled to [−1, 1] by a public range."""

    sizes: tuple[int, ...]  # training records of the clients
    features: int
    classes: int
    apart: float  # the distance between the means of two classes, in standard deviations
    rare: float = 0.0  # the share of the second class; 0: classes are alike in size

    def clients(self, seed: int) -> Federation:
        """Another seed gives other records of the same law."""
        law = np.random.default_rng(12345)
        means = law.normal(size=(self.classes, self.features))
        means *= self.apart / np.linalg.norm(means[0] - means[1])
        mixing = np.eye(self.features) + 0.3 * law.normal(size=(self.features, self.features)) / np.sqrt(self.features)
        share = np.full(self.classes, 1 / self.classes) if not self.rare else np.array([1 - self.rare, self.rare])
        draw = np.random.default_rng([seed, 1])

        def records(count: int) -> Records:
            y = draw.choice(self.classes, size=count, p=share)
            x = (means[y] + draw.normal(size=(count, self.features))) @ mixing.T
            x = np.clip(x / 4, -1, 1)  # the public range of every column is [−4, 4]
            return Records(torch.tensor(x, dtype=torch.float32), torch.from_numpy(y))

        def client(name: str, count: int) -> Client:
            return Client(name, records(count), records(TESTED))

        return Federation(tuple(client(f"c{i}", n) for i, n in enumerate(self.sizes)), Task("classes", self.classes))


MADE = {
    "small": Made((50,) * 5, 8, 2, 2.0),
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
    """The released models [S, D, k, G] of G settings: R rounds of one clipped and noised full-batch step from zero."""
    draw = torch.Generator().manual_seed(seed)
    seeds, _, inputs = at.x.shape
    outputs = at.y.shape[2]
    weights = torch.zeros(seeds, inputs, outputs, len(rates))
    mean = torch.zeros_like(weights)
    bound = clips / at.x.norm(dim=2)[:, :, None, None]  # of the error of an answer, [S, N, 1, G]
    averaged = int(averaging * rounds)  # of the last global models
    for number in range(rounds):
        logits = (at.x @ weights.flatten(2)).unflatten(2, (outputs, -1))  # [S, N, k, G]
        answers = logits.softmax(2) if at.classes else logits.sigmoid()
        off = answers - at.y[..., None]
        size = off.square().sum(2, keepdim=True).sqrt()  # a record's gradient has this norm, times that of its inputs
        kept = off * ((bound / size).clamp(max=1) * at.weight[:, None, None])
        gradient = (at.x.transpose(1, 2) @ kept.flatten(2)).unflatten(2, (outputs, -1))
        drawn = torch.randn(gradient.shape, generator=draw)
        weights = weights - rates * (gradient + noise * at.spread * clips * drawn)
        if number >= rounds - averaged:
            mean += weights / averaged
    return mean if averaged else weights


def accuracies(at: Problem, models: Tensor) -> Tensor:
    """[S, G], on all clients' test records together."""
    found = []
    for (x, y), each in zip(at.tests, models, strict=True):
        logits = torch.einsum("nd,dkg->nkg", x, each)
        answers = logits.argmax(1) if at.classes else (logits[:, 0] > 0).to(y.dtype)
        found.append((answers == y[:, None]).float().mean(0))
    return torch.stack(found)


# What is compared


def config_of(name: str, target: Target, seed: int) -> Config:
    """A federation at a target, with all settings chosen."""
    data = KNOWN.get(name) or {"data": {"source": "python:clients", "classes": MADE[name].classes}}
    privacy = {**AUTO["privacy"], "randomness": "seeded", "target": {target.kind: target.value}}
    return from_mapping({**data, **AUTO, "privacy": privacy, "seed": seed, **QUICK})


def federation(name: str, seed: int) -> Federation:
    """The records with their fixed features."""
    config = config_of(name, TARGETS["μ = 1"], seed)
    return prepare(config, MADE[name].clients(seed) if name in MADE else None).held


def with_tiny_client(each: Federation) -> Federation:
    """Three records of the first client's become a client of their own, without test records."""
    first, *others = each.clients
    tiny = Client("tiny", Records(first.train.x[:TINY], first.train.y[:TINY]), Records(first.test.x[:0], first.test.y[:0]))
    rest = replace(first, train=Records(first.train.x[TINY:], first.train.y[TINY:]))
    return replace(each, clients=(rest, *others, tiny))


def noise_of(target: Target, rounds: int) -> float:
    """The noise multiplier of all clients: with full batches it does not depend on their sizes."""
    steps = NoisySteps(noise_multiplier=1.0, records=100, batch="full", local_steps=1)
    return calibrated(PrivacyPlan(mechanism=steps, rounds=rounds), target).mechanism.noise_multiplier


def chosen(name: str, target: Target, each: Federation) -> tuple[float, int, float, tuple[str, ...]]:
    """Learning rate, rounds and clip norm by the rule, and its warnings."""
    prepared = prepare(config_of(name, target, 0), each if name in MADE else None)
    settled = prepared.config
    return settled.local.learning_rate, settled.rounds, settled.privacy.clip_norm, prepared.settings.warnings


def best_of_grid(at: Problem, target: Target) -> tuple[tuple[float, int, float], Tensor]:
    """The settings with the best mean over the first half of the seeds, and their accuracy for the other half."""
    points = [(rate, clip) for rate, clip in product(RATES, CLIPS)]
    rates = torch.tensor([rate for rate, _ in points])
    clips = torch.tensor([clip for _, clip in points])
    found = []
    for rounds in ROUNDS:
        scores = accuracies(at, simulated(at, rates, clips, noise_of(target, rounds), rounds, seed=rounds))
        half = len(scores) // 2
        at_best = int(scores[:half].mean(0).argmax())
        rate, clip = points[at_best]
        found.append((float(scores[:half, at_best].mean()), (rate, rounds, clip), scores[half:, at_best]))
    _, settings, scores = max(found, key=lambda each: each[0])
    return settings, scores


def at_settings(at: Problem, target: Target, rate: float, rounds: int, clip: float) -> Tensor:
    """The accuracy of one choice, for each seed that did not choose the best of the grid. Draws are always the same."""
    one = (torch.tensor([rate]), torch.tensor([clip]))
    return accuracies(at, simulated(at, *one, noise_of(target, rounds), rounds, seed=1))[len(at.x) // 2 :, 0]


def by_engine(name: str, target: Target, seeds: int) -> list[float]:
    """The accuracy of real runs with the chosen settings."""
    scores = []
    for seed in range(seeds):
        clients = MADE[name].clients(seed) if name in MADE else None
        result = train(config_of(name, target, seed), clients=clients, progress=False)
        scores.append(float(result.record.scores["released"].pooled.mean or 0.0))
    return scores


def rows_of(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each target."""
    torch.set_num_threads(1)
    first = federation(name, 0)
    records = sum(len(client.train) for client in first.clients)
    seeds = min(options.seeds, max(4, MOST_RECORDS // records))
    held = [first, *(federation(name, seed) for seed in range(1, seeds))]
    bias = KNOWN.get(name, {}).get("model", {}).get("features") != "hog"
    at = problem(held, bias)
    compared = with_and_without_tiny_client(name, options.seeds, bias)
    rows = []
    for label, target in TARGETS.items():
        begun = time.perf_counter()
        rate, rounds, clip, warnings = chosen(name, target, held[0])
        best, best_scores = best_of_grid(at, target)
        mine = at_settings(at, target, rate, rounds, clip)
        row = {
            "federation": name,
            "records": records,
            "seeds": seeds,
            "clients": len(held[0].clients),
            "inputs": at.x.shape[2],
            "target": label,
            "best": dict(zip(("learning_rate", "rounds", "clip_norm"), best, strict=True)),
            "best_accuracy": _percent(best_scores),
            "auto": {"learning_rate": rate, "rounds": rounds, "clip_norm": clip},
            "auto_accuracy": _percent(mine),
            **{key: _percent(at_settings(each, target, rate, rounds, clip)) for key, each in compared.items()},
            "warnings": list(warnings),
        }
        if options.engine:
            row["engine_accuracy"] = [100 * score for score in by_engine(name, target, options.engine)]
        rows.append(row)
        print(_line(row), f"{time.perf_counter() - begun:.0f} s", flush=True)
    return rows


def with_and_without_tiny_client(name: str, seeds: int, bias: bool) -> dict[str, Problem]:
    """The federation under all seeds, without a tiny client and with it. There is no grid here, so seeds cost little."""
    held = [federation(name, seed) for seed in range(seeds)]
    tiny = [with_tiny_client(each) for each in held]
    return {
        "without_tiny_client": problem(held, bias),
        "tiny_client": problem(tiny, bias),
        "tiny_client_weighed_alike": problem(tiny, bias, equal=True),
    }


def _percent(scores: Tensor) -> list[float]:
    return [round(100 * score, 3) for score in scores.tolist()]


# The page


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def _settings(settings: dict[str, float]) -> str:
    return f"{settings['learning_rate']:g}, {settings['rounds']}, {settings['clip_norm']:g}"


def _line(row: dict[str, Any]) -> str:
    best, mine = row["best_accuracy"], row["auto_accuracy"]
    engine = row.get("engine_accuracy")
    cells = [
        row["federation"], row["target"], _settings(row["best"]), f"{_mean(best):.1f}", _settings(row["auto"]),
        f"{_mean(mine):.1f}", f"{_mean(mine) - _mean(best):+.1f} ± {_error(row):.1f}", f"{statistics.stdev(mine):.1f}",
        f"{_mean(engine):.1f}" if engine else "–", "yes" if row["warnings"] else "",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _error(row: dict[str, Any]) -> float:
    """The standard error of the mean difference: both sides have the same seeds."""
    differences = [mine - best for mine, best in zip(row["auto_accuracy"], row["best_accuracy"], strict=True)]
    return statistics.stdev(differences) / math.sqrt(len(differences))


def _tiny_line(row: dict[str, Any]) -> str:
    mine = row["without_tiny_client"]
    spread = statistics.stdev(mine)
    weighed, alike = (_mean(row[key]) - _mean(mine) for key in ("tiny_client", "tiny_client_weighed_alike"))
    return f"| {row['federation']} | {row['target']} | {_mean(mine):.1f} | {spread:.1f} | {weighed:+.1f} | {alike:+.1f} |"


def page(report: dict[str, Any]) -> str:
    """The result as Markdown."""
    rows = report["rows"]
    behind = [_mean(row["best_accuracy"]) - _mean(row["auto_accuracy"]) for row in rows]
    unclear = sum(gap + 2 * _error(row) > ALLOWED for row, gap in zip(rows, behind, strict=True))
    far = [row for row, gap in zip(rows, behind, strict=True) if gap > ALLOWED]
    moved = [abs(_mean(row["tiny_client"]) - _mean(row["without_tiny_client"])) for row in rows]
    within = sum(move < statistics.stdev(row["without_tiny_client"]) for move, row in zip(moved, rows, strict=True))
    missed = "; ".join(f"{row['federation']} at {row['target']}" for row in far) or "none"
    text = (Path(__file__).parent / "settings.md").read_text(encoding="utf-8")
    sizes = {row["federation"]: row for row in rows}
    federations = "\n".join(
        f"| {name} | {row['clients']} | {row['records']} | {row['inputs']} | {row['seeds']} |"
        for name, row in sizes.items()
    )
    return text.format(
        command=report["command"], seconds=f"{report['seconds']:.0f}", machine=report["machine"],
        versions=", ".join(f"{name} {version}" for name, version in report["versions"].items()),
        seeds=report["seeds"], points=len(RATES) * len(ROUNDS) * len(CLIPS), rates=_listed(RATES), rounds=_listed(ROUNDS),
        clips=_listed(CLIPS), federations=federations, rows="\n".join(map(_line, rows)), count=len(rows),
        met=len(rows) - len(far), missed=missed, unclear=unclear, mean=f"{-_mean(behind):+.1f}",
        largest=f"{-max(behind):+.1f}", tiny="\n".join(map(_tiny_line, rows)), within=within, engine=report["engine"],
    )  # fmt: skip


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="path of the results without its ending: .json and .md are written")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--engine", type=int, default=ENGINE_SEEDS, help="seeds that are trained by the engine too")
    parser.add_argument("--jobs", type=int, default=2, help="federations at a time")
    parser.add_argument("--federations", nargs="*", default=[*KNOWN, *MADE])
    options = parser.parse_args()
    begun = time.perf_counter()
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        several = list(pool.map(rows_of, options.federations, [options] * len(options.federations)))
    rows = [row for each in several for row in each]
    report = {
        "command": f"python benchmarks/settings.py OUT --seeds {options.seeds}",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": versions(),
        "seeds": options.seeds,
        "engine": options.engine,
        "seconds": time.perf_counter() - begun,
        "rows": rows,
    }
    options.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    options.out.with_suffix(".md").write_text(page(report), encoding="utf-8")


if __name__ == "__main__":
    main()
