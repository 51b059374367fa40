"""Resident memory and time of federations with many clients: `python benchmarks/memory.py`.

Each workload runs in a process of its own, since the peak memory is that of a process.
"""

from __future__ import annotations

import json
import platform
import resource
import subprocess
import sys
import time

WORKLOADS = {
    "2,000 clients, the paper's MNIST net, Adam, p = .01, 10 rounds": {
        "clients": 2000, "records": 40, "shape": (1, 28, 28), "participation": 0.01, "rounds": 10, "model": "mnist-cnn",
        "optimiser": "adam", "batch": 16, "learning_rate": 0.001,
    },
    "10,000 clients, the digits model, p = 1, 3 rounds": {
        "clients": 10_000, "records": 20, "shape": (128,), "participation": 1.0, "rounds": 3, "model": "softmax",
        "optimiser": "sgd", "batch": "full", "learning_rate": 1.0,
    },
}  # fmt: skip


def run(workload: dict[str, object]) -> dict[str, float]:
    """Train on synthetic records, and return the time and the peak of resident memory."""
    import torch

    import prifedsync
    from prifedsync.data import Client, Federation, Records, Task

    draw = torch.Generator().manual_seed(0)

    def records(count: int) -> Records:
        x = torch.randn(count, *workload["shape"], generator=draw)
        return Records(x, torch.randint(0, 10, (count,), generator=draw))

    names = [f"client-{i:05}" for i in range(workload["clients"])]
    clients = tuple(Client(name, records(workload["records"]), records(5)) for name in names)
    federation = Federation(clients, Task("classes", 10))
    config = {
        "rounds": workload["rounds"], "participation": workload["participation"], "averaging": 0.0, "evaluate_every": 0,
        "model": {"name": workload["model"]},
        "local": {key: workload[key] for key in ("optimiser", "batch", "learning_rate")} | {"local_steps": 1},
        "privacy": {"noise_multiplier": 1.0, "randomness": "seeded"},
    }  # fmt: skip
    begun = time.perf_counter()
    result = prifedsync.train(config, clients=federation)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    uploads = sum(client.rounds_taken for client in result.record.clients)
    return {
        "peak_gib": round(peak / 2**30, 2), "seconds": round(time.perf_counter() - begun, 1),
        "training_seconds": round(result.record.timings["train"], 1), "uploads": uploads,
        "parameters": result.record.parameters,
    }  # fmt: skip


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(run(WORKLOADS[sys.argv[1]])))
        return
    print(f"{platform.platform()}, Python {platform.python_version()}")
    print("| workload | peak resident GiB | seconds, all | training | uploads | parameters |\n|---|---|---|---|---|---|")
    for name in WORKLOADS:
        done = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, check=True)
        measured = json.loads(done.stdout)
        cells = (measured[key] for key in ("peak_gib", "seconds", "training_seconds", "uploads", "parameters"))
        print(f"| {name} | {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
