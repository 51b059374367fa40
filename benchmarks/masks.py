"""Accuracy with own noise and with masks: `python benchmarks/masks.py OUT --source digits`, or mnist with `--data`.

Each row is a target μ. With own noise it holds against everybody together; with masks it holds against the server and t
clients, and the noise is the least that meets it. All runs of a source share one recipe: one full-batch step a round.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from prifedsync import train
from prifedsync.accounting.statement import up
from prifedsync.config import Config, from_mapping
from prifedsync.run.recording import device_name, versions

MUS = (0.05, 0.1, 0.2, 0.5, 1.0)
RATES = {"digits": 20.0, "mnist": 100.0}  # learning rates, one for all noise; the seeds that chose them are not reported
CLIENTS = {"digits": 10, "mnist": 100}
OWN = "own noise"


@dataclass(frozen=True)
class Cell:
    """One run: which noise, for which target."""

    source: str
    mu: float
    colluders: int | None  # None: own noise, no masks
    seed: int
    rate: float | str
    path: str
    device: str


def config_of(cell: Cell) -> Config:
    """The recipe with this cell's target."""
    target: dict[str, Any] = {"mu": cell.mu}
    if cell.colluders is not None:
        target = {"coalition": {"mu": cell.mu, "colluders": cell.colluders}}
    data = {"source": cell.source, "clients": CLIENTS[cell.source], "partition": "shards", "shards_per_client": 4}
    if cell.source == "mnist":
        data |= {"path": cell.path, "test_records": 200}
    return from_mapping(
        {
            "rounds": 30,
            "averaging": 0.5,
            "seed": cell.seed,
            "compare": [],
            "evaluate_every": 0,
            "data": data,
            "model": {"name": "softmax", "features": "hog"},
            "local": {"learning_rate": cell.rate, "local_steps": 1, "batch": "full"},
            "privacy": {
                "clip_norm": 0.5,
                "masks": cell.colluders is not None,
                "randomness": "seeded",
                "target": target,
            },
            "performance": {"device": cell.device, "threads": 1},
        }
    )


def measured(cell: Cell) -> dict[str, Any]:
    """The accuracy of the released model on all clients' test records, and what the run guarantees against everybody."""
    record = train(config_of(cell)).record
    assert record.guarantee is not None
    return {
        "mu": cell.mu,
        "colluders": cell.colluders,
        "seed": cell.seed,
        "accuracy": record.scores["released"].pooled.mean,
        "mu_everybody": record.guarantee["mu"]["upper"],
        "noise_multiplier": max(client.plan["noise_multiplier"] for client in record.clients if client.plan),
    }


def coalitions(clients: int) -> list[int | None]:
    """Own noise, then all but one other, half, a tenth and nobody."""
    return [None, clients - 2, clients // 2, clients // 10, 0]


def page(report: dict[str, Any]) -> str:
    """The table as Markdown: mean accuracy and its spread over seeds, in percent, and μ against everybody."""
    cells: dict[tuple[float, int | None], list[dict[str, Any]]] = {}
    for run in report["runs"]:
        cells.setdefault((run["mu"], run["colluders"]), []).append(run)
    columns = coalitions(report["clients"])
    head = ["μ", *(OWN if t is None else f"masks, t = {t}" for t in columns)]
    lines = [_line(head), _line(["---"] * len(head))]
    for mu in MUS:
        lines.append(_line([f"{mu:g}", *(_shown(cells[mu, t]) for t in columns)]))
    return "\n".join(lines) + "\n"


def _shown(runs: Sequence[dict[str, Any]]) -> str:
    accuracies = [100 * run["accuracy"] for run in runs]
    everybody = max(run["mu_everybody"] for run in runs)
    return f"{statistics.mean(accuracies):.1f} ± {statistics.stdev(accuracies):.1f} ({up(everybody, 3)})"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="path of the results without its ending: .json and .md are written")
    parser.add_argument("--source", choices=RATES, default="digits")
    parser.add_argument("--data", default="", help="folder of MNIST")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=10)
    parser.add_argument("--rate", default=None, help='learning rate in place of the recipe\'s, or "auto"')
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    options = parser.parse_args()
    source = options.source
    rate: float | str = RATES[source] if options.rate is None else options.rate
    rate = rate if rate == "auto" else float(rate)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    cells = [
        Cell(source, mu, t, seed, rate, options.data, options.device)
        for seed, mu, t in product(seeds, MUS, coalitions(CLIENTS[source]))
    ]
    begun = time.perf_counter()
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        runs = list(pool.map(measured, cells))
    report = {
        "command": f"python benchmarks/masks.py OUT --source {source} --device {options.device} --seeds {options.seeds}"
        + (f" --rate {options.rate}" if options.rate else ""),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {device_name(torch.device(options.device))}",
        "versions": versions(),
        "clients": CLIENTS[source],
        "learning_rate": rate,
        "seconds": time.perf_counter() - begun,
        "runs": runs,
    }
    options.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    table = page(report)
    options.out.with_suffix(".md").write_text(table, encoding="utf-8")
    print(table)


if __name__ == "__main__":
    main()
