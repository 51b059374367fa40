"""Does a record's gradient depend on the other records in the batch? The programs that are used, and a search for a change.

    python benchmarks/hostile_rows.py OUT [--device cpu|cuda] [--arithmetic tf32] [--trials N] [--threads N] [--control]

It writes OUT/invariance-DEVICE-….json and prints the tables. A trial is a pair of neighbouring data sets of 2 to 60 hostile
rows, with its own weights (`prifedsync.audit.rows`). The clipped sum must not move further than the plan accounts for.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.local.zoo import CASES

from prifedsync import models
from prifedsync.accounting import Neighbours, NoisySteps
from prifedsync.audit.rows import SIZES, hostile_pairs, moved
from prifedsync.audit.subject import PLAIN, Subject
from prifedsync.config import ModelConfig
from prifedsync.engines import Vectorised
from prifedsync.local import Net, Program, SeededDraws, losses

ARITHMETIC = {"cpu": ("float32", "float64"), "cuda": ("float32", "tf32", "bf16", "float64")}
CLIENTS = (1, 2, 10)
WIDTHS = (2, 5, 10, 16, 17, 30, 50, 64)
CLIPS = {torch.float32: (1e-7, 0.1, 1.0), torch.float64: (1e-12, 1e-7, 1.0)}  # the first is so small that rounding matters
AT_ONCE = 100  # pairs of data sets in one call
UNCHECKED = 57  # rows of a batch without the probe


def net_of(module, task, x, y, arithmetic, device):
    dtype = torch.float64 if arithmetic == "float64" else torch.float32
    x = x.to(dtype) if x.is_floating_point() else x
    return Net(module, losses.BY_TASK[task], x, y, dtype, device, arithmetic=arithmetic)


def nets():
    """Name, module, task, records and targets of all nets in the tests' zoo, and of the package's own models."""
    for name, case in CASES.items():
        yield name, case.module(), case.task, *case.records(6, seed=1)
    dice = torch.Generator().manual_seed(0)
    for name, shape, outputs in (
        ("softmax", (30,), 2), ("softmax", (64,), 10), ("softmax", (13,), 3), ("mlp", (34,), 2), ("mlp", (64,), 10),
        ("mnist-cnn", (1, 28, 28), 10), ("cifar-cnn", (3, 32, 32), 10),
    ):  # fmt: skip
        module = models.build(ModelConfig(name=name, zero_init=False), shape, outputs, 0)
        x = torch.randn(6, *shape, generator=dice)
        yield f"{name} {shape} {outputs}", module, "classes", x, torch.randint(0, outputs, (6,), generator=dice)


def programs(device, every):
    """The program that each net uses at each size."""
    rows = []
    for name, module, task, x, y in nets():
        for arithmetic in every:
            net = net_of(module, task, x, y, arithmetic, device)
            began = time.perf_counter()
            large = net.count > 10**5
            sizes = [(c, w) for c in CLIENTS for w in WIDTHS if not large or (c < 3 and w in (10, 16, 30))]
            used = Counter(str(net.program(clients, width)) for clients, width in sizes)
            seconds = (time.perf_counter() - began) / len(sizes)
            row = {"net": name, "arithmetic": arithmetic, "programs": dict(used), "seconds_each": round(seconds, 3)}
            rows.append(row)
    return rows


def searched():
    """The nets to search: one of every kind of layer, so small that only rounding matters."""
    torch.manual_seed(0)
    dice = torch.Generator().manual_seed(0)
    x = torch.randn(8, 30, generator=dice)
    yield "linear 30 → 1", nn.Linear(30, 1), "regression", x, torch.randn(8, generator=dice)
    yield "linear 13 → 3", nn.Linear(13, 3), "classes", x[:, :13], torch.arange(8) % 3
    mlp = nn.Sequential(nn.Linear(30, 17), nn.Tanh(), nn.Linear(17, 1))
    yield "mlp 30 → 17 → 1", mlp, "regression", x, torch.randn(8, generator=dice)
    for name in ("conv2d stride padding groups", "sequence", "called twice"):
        case = CASES[name]
        yield name, case.module(), case.task, *case.records(8, seed=1)


def unchecked(net):
    """Replace the program of the net by one without the probe: an odd number of rows and no padding."""
    net.program = lambda clients, width, sums=None: Program(net.grad_method, UNCHECKED, sums or net.sum_dtype)


def search(device, every, trials, control):
    """How far one record moved a sum at most, in clip norms, and how far the plan accounts for."""
    rows = []
    each = list(searched())
    for arithmetic in every:
        for name, module, task, x, y in each:
            net = net_of(module, task, x, y, arithmetic, device)
            if control:
                unchecked(net)
            worst = 0.0
            margin = 0.0
            done = 0
            dice = torch.Generator().manual_seed(1)
            while done < trials / len(each):
                clips = CLIPS[net.dtype]
                clip = clips[(done // AT_ONCE) % len(clips)]
                steps = NoisySteps(noise_multiplier=1, records=SIZES[1], batch="full", local_steps=1, clip_norm=clip)
                margin = net.margin_for(steps, Neighbours.ADD_REMOVE)
                steps = NoisySteps(**{**vars(steps), "clip_margin": margin})
                subject = Subject(net, x, y, steps, PLAIN, Vectorised, Neighbours.ADD_REMOVE, SeededDraws(0))
                pairs = hostile_pairs(subject, AT_ONCE, dice)
                worst = max(worst, float(moved(subject, pairs).max()))
                done += AT_ONCE
            row = {"net": name, "arithmetic": arithmetic, "trials": done, "moved": worst, "accounted": 1 + margin}
            rows.append(row | {"program": net.gradients})
            print(row, flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=ARITHMETIC, default="cpu")
    parser.add_argument("--arithmetic", default="", help="only this one; all by default")
    parser.add_argument("--trials", type=int, default=10**5, help="number of trials for each arithmetic")
    parser.add_argument("--control", action="store_true", help="search without the probe, to see what it prevents")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    every = [options.arithmetic] if options.arithmetic else ARITHMETIC[options.device]
    where = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor() or platform.machine()
    result = {
        "device": where, "torch": torch.__version__, "threads": torch.get_num_threads(),
        "command": "python " + " ".join(["benchmarks/hostile_rows.py", *sys.argv[1:]]),
        "programs": programs(options.device, every),
        "search": search(options.device, every, options.trials, options.control),
    }  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    name = "-".join(
        [
            "control" if options.control else "invariance",
            options.device,
            *filter(None, [options.arithmetic]),
            str(torch.get_num_threads()),
        ]
    )
    (options.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    used = Counter()
    for row in result["programs"]:
        used.update(row["programs"])
    print(f"{where}, torch {torch.__version__}: {dict(used)}")
    for row in result["search"]:
        distance = f"moved {row['moved']:.9f} of {row['accounted']:.6f}"
        print(f"{row['arithmetic']:8} {row['net']:30} {distance}, {row['program']}")
    over = [row for row in result["search"] if row["moved"] > row["accounted"]]
    print(f"{len(over)} searches moved a sum further than the plan accounts for")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
