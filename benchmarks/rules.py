"""All personalisation rules at the same μ: `python benchmarks/rules.py digits OUT` on two cores in a few minutes, and
`python benchmarks/rules.py mnist OUT --data DIR` with mnist.npz in DIR on a GPU. docs/results/rules.md has the results.

Each run is written to OUT/WORKLOAD-SEED.json when it ends. `--seeds 0` runs one seed, so that several processes can run at
the same time. `tables` instead of a workload prints the results in OUT as Markdown.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

VARIANTS: dict[str, list[str]] = {
    "fedavg": [],
    "interpolate": [],
    "fedprox": [],
    "mean-regularised": [],
    "pfedme": [],
    "mixture": [],
    "attentive": [],
    "apfl": [],
    "apfl, published": ["rule.publish=true"],
    "ditto": [],
    "ditto, published": ["rule.publish=true"],
    "alone": [],
    "alone, published": ["rule.publish=true"],
}
# One setting for each rule: for the digits chosen with seed 10, for MNIST without any trial.
OWN: dict[str, dict[str, list[str]]] = {
    "digits": {
        "fedprox": ["rule.strength=0.05"],
        "mean-regularised": ["rule.strength=0.05"],
        "pfedme": ["rule.strength=0.05", "rule.inner_steps=5", "local.local_steps=1"],
        "mixture": ["rule.strength=0.01"],
        "attentive": ["rule.strength=0.05", "rule.mixing=0.5"],
        "ditto": ["rule.strength=0.01"],
    },
    "mnist": {
        "fedprox": ["rule.strength=1"],
        "mean-regularised": ["rule.strength=1"],
        "pfedme": ["rule.strength=1", "rule.inner_steps=19", "local.local_steps=2"],
        "mixture": ["rule.strength=5"],
        "attentive": ["rule.strength=1", "rule.mixing=0.5"],
        "ditto": ["rule.strength=0.1"],
    },
}
BASE = {
    "digits": ("digits", ["local.local_steps=5", "local.learning_rate=5", "compare=[]", "evaluate_every=0"]),
    "mnist": (
        None,
        [
            "rounds=15", "averaging=0.5", "model.name=mnist-cnn", "model.features=none", "model.dropout=false",
            "local.optimiser=adam", "local.learning_rate=0.001", "local.local_steps=38", "local.batch=16",
            "local.sampling=fixed", "privacy.clip_norm=1", "privacy.target.mu=2.6", "privacy.randomness=seeded",
            "performance.compile=on", "compare=[]", "evaluate_every=0",
        ],
    ),
}  # fmt: skip
SEEDS = (0, 1, 2)


def paper_clients(path: Path, seed: int) -> dict[str, tuple[np.ndarray, ...]]:
    """The paper's non-IID MNIST: four of 400 shards of sorted labels per client, and 200 test images with its labels."""
    arrays = np.load(path / "mnist.npz", allow_pickle=False)
    images = arrays["train_images"]
    labels = arrays["train_labels"].astype(np.int64)
    test = arrays["test_images"]
    truth = arrays["test_labels"].astype(np.int64)
    generator = np.random.default_rng(seed)
    shards = generator.permutation(400).reshape(100, 4)
    order = np.argsort(labels, kind="stable").reshape(400, -1)

    def pixels(raw: np.ndarray) -> np.ndarray:
        return ((raw[:, None].astype(np.float32) / 255 - 0.1307) / 0.3081).astype(np.float32)

    clients = {}
    for i, own in enumerate(shards):
        places = order[own].ravel()
        seen = np.flatnonzero(np.isin(truth, np.unique(labels[places])))
        drawn = generator.choice(seen, 200, replace=False)
        clients[f"client {i}"] = (pixels(images[places]), labels[places], pixels(test[drawn]), truth[drawn])
    return clients


def measured(workload: str, variant: str, seed: int, private: bool, clients: Any) -> dict[str, Any]:
    from prifedsync import run
    from prifedsync.config import load

    preset, base = BASE[workload]
    rule = variant.partition(",")[0]
    overrides = [*base, f"seed={seed}", f"rule.name={rule}", *VARIANTS[variant], *OWN[workload].get(rule, [])]
    if clients is not None:
        overrides += ["data.source=python:clients", "data.classes=10"]
    begun = time.perf_counter()
    config = load(preset, overrides)
    config = config if private else config.changed(**{"privacy.mechanism": "none"})
    record = run.train(config, clients=clients).record
    personal = record.scores["personal"]
    released = record.scores.get("released")  # None if clients send nothing
    return {
        "variant": variant,
        "private": private,
        "seed": seed,
        "mu": record.guarantee["mu"]["upper"] if record.guarantee else None,
        "noise_multiplier": record.clients[0].plan["noise_multiplier"] if record.clients[0].plan else None,
        "noisy_gradients": record.clients[0].noisy_queries,
        "personal_mean": personal.own.mean,
        "personal_worst": personal.own.worst,
        "global_mean": released and released.pooled.mean,
        "global_worst": released and released.own.worst,
        "publishing": record.personal_models,
        "seconds": time.perf_counter() - begun,
        "device": record.device,
        "versions": dict(record.versions),
    }


def tables(folder: Path) -> None:
    for workload in BASE:
        files = sorted(folder.glob(f"{workload}-*.json"))
        runs = [run for file in files for run in json.loads(file.read_text(encoding="utf-8"))]
        if not runs:
            continue
        print(f"\n{workload}: {len(files)} seeds, {runs[0]['device']}, torch {runs[0]['versions']['torch']}\n")
        heads = ["rule", "μ ≤", "noise multiplier", "noisy gradients", "personal", "worst client", "global, all records"]
        print(f"| {' | '.join([*heads, 'global, worst client', 'personal without privacy', 'global without privacy'])} |")
        print("|---" * 10 + "|")
        for variant in VARIANTS:
            mine = [run for run in runs if run["variant"] == variant and run["private"]]
            open_ones = [run for run in runs if run["variant"] == variant and not run["private"]]
            if mine:
                first = mine[0]
                cells = ["–" if first[key] is None else f"{first[key]:.4g}" for key in ("mu", "noise_multiplier")]
                cells += [str(first["noisy_gradients"])]
                private_scores = ("personal_mean", "personal_worst", "global_mean", "global_worst")
                cells += [_percent(mine, key) for key in private_scores]
                cells += [_percent(open_ones, key) for key in ("personal_mean", "global_mean")]
                print(f"| {variant} | {' | '.join(cells)} |")


def _percent(runs: list[dict[str, Any]], key: str) -> str:
    values = [100 * run[key] for run in runs if run[key] is not None]
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=[*BASE, "tables"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, default=Path())
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    without = "seeds that also run without privacy"
    parser.add_argument("--open-seeds", type=int, nargs="*", default=list(SEEDS), help=without)
    parser.add_argument("--rules", nargs="*", default=list(VARIANTS), help="run only these rules")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds if options.workload != "tables" else ():
        one_seed(options, seed)
    tables(options.out)


def one_seed(options: argparse.Namespace, seed: int) -> None:
    """Run all rules with one seed, and write each run when it ends."""
    clients = paper_clients(options.data, seed) if options.workload == "mnist" else None
    path = options.out / f"{options.workload}-{seed}.json"
    runs = []
    for private in (True, False) if seed in options.open_seeds else (True,):
        for variant in options.rules:
            if not private and "published" in variant:  # without noise, publishing is not safe
                continue
            last = measured(options.workload, variant, seed, private, clients)
            runs.append(last)
            path.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
            print(seed, variant, private, f"{last['personal_mean']:.3f}", f"{last['seconds']:.1f} s", flush=True)


if __name__ == "__main__":
    main()
