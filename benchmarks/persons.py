"""What a person as the unit costs: rows a second of the clipped sum, by record and by person, in one process.

    python benchmarks/persons.py [--device cpu|cuda]

Every model sees the same rows. Persons have 1 to 30 of them, drawn once. The best of several repetitions counts.
"""

import argparse
import time

import torch
from torch import nn

from prifedsync.accounting import NoisySteps, PrivacyPlan
from prifedsync.engines import Performance, Vectorised
from prifedsync.local import Job, Net, Optimiser, SeededDraws, losses
from prifedsync.rules import FedAvg

CLIENTS = 4
PERSONS = 200  # of each client
MOST = 32
REPEATED = 5
MODELS = {
    "softmax 64 → 10": (lambda: nn.Linear(64, 10), (64,)),
    "mlp 64 → 64 → 10": (lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), (64,)),
    "mlp 200 → 256 → 10": (lambda: nn.Sequential(nn.Linear(200, 256), nn.ReLU(), nn.Linear(256, 10)), (200,)),
    "conv 16 of 5 × 5, 28 × 28": (
        lambda: nn.Sequential(nn.Conv2d(1, 16, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(2304, 10)), (1, 28, 28),
    ),
}  # fmt: skip


def job(name: str, net: Net, units: int, rows: int) -> Job:
    steps = NoisySteps(
        noise_multiplier=1.0, records=units, batch="full", local_steps=1, rows_per_unit=rows, clip_margin=0.1
    )
    plan = PrivacyPlan(mechanism=steps, rounds=1000, unit="person" if rows > 1 else "record")
    return Job(client=name, plan=plan, optimiser=Optimiser(learning_rate=0.1))


def seconds(engine: Vectorised) -> float:
    """One step of all clients, noise left out."""
    weights = engine.start.expand(CLIENTS, -1).clone()
    best = float("inf")
    for _ in range(REPEATED):
        begun = time.perf_counter()
        engine.batch_sums(0, 0, engine.clients, weights)
        if engine.net.device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begun)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    draw = torch.Generator().manual_seed(0)
    counts = [torch.randint(1, 31, (PERSONS,), generator=draw) for _ in range(CLIENTS)]
    persons = [torch.repeat_interleave(torch.arange(PERSONS), own) for own in counts]
    total = sum(map(len, persons))
    print(f"{device}, {torch.get_num_threads()} threads, {CLIENTS} clients with {PERSONS} persons, {total} rows")
    print("| model | method | records: rows/s | persons: rows/s | persons ÷ records, time |\n|---|---|---|---|---|")
    for name, (make, shape) in MODELS.items():
        torch.manual_seed(0)
        records = [(torch.randn(len(own), *shape, generator=draw), torch.randint(0, 10, (len(own),), generator=draw))
                   for own in persons]  # fmt: skip
        net = Net(make(), losses.BY_TASK["classes"], *(part[:4] for part in records[0]), torch.float32, device)
        how = Performance(compile="off")
        plain = [job(f"client {i}", net, len(own), 1) for i, own in enumerate(persons)]
        grouped = [job(f"client {i}", net, PERSONS, MOST) for i in range(CLIENTS)]
        whose = {"persons": persons, "rows_per_person": MOST}
        by_record = seconds(Vectorised(net, plain, records, FedAvg(), SeededDraws(0), performance=how))
        by_person = seconds(Vectorised(net, grouped, records, FedAvg(), SeededDraws(0), performance=how, **whose))
        speeds = f"{total / by_record:,.0f} | {total / by_person:,.0f} | {by_person / by_record:.2f}"
        print(f"| {name} | {net.grad_method} | {speeds} |", flush=True)


if __name__ == "__main__":
    main()
