"""Which colour should fill a crop outside the image, black or the mean? `python benchmarks/crops.py OUT.json --data DIR`.

The row of Table 3 with the least noise (p = 1, σ = 0.5) is run with 16 clients and the same draws, in one process for each
colour. It takes about 40 minutes on two cores. docs/reproduction.md has the result.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

CLIENTS = 16
ROUNDS = 150
SPAN = 50  # rounds in each line of the result


def personal(black: bool, folder: Path, clients: int, rounds: int) -> list[float]:
    """The mean accuracy of the clients' own models after each round."""
    from prifedsync import data
    from prifedsync.config import load
    from prifedsync.engines import vectorised
    from prifedsync.local.augment import crop_flip
    from prifedsync.run import trace

    torch.set_num_threads(1)
    settings = [f"data.clients={clients}", f"rounds={rounds}", "privacy.noise_multiplier=1.0"]
    config = load("cifar-paper", settings, data=folder, device="cpu")
    if black:
        records = torch.cat([client.train.x for client in data.load(config.data, config.seed).clients])
        darkest = records.amin((0, 2, 3))[:, None, None]  # zero is the mean colour
        vectorised.crop_flip = lambda x, moves: crop_flip(x - darkest, moves) + darkest
    with tempfile.TemporaryDirectory() as work:
        return [line["personal"]["mean"] for line in trace(config, work).rounds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        settings = (options.data, options.clients, options.rounds)
        both = [pool.submit(personal, black, *settings) for black in (False, True)]
        mean, black = (each.result() for each in both)
    options.out.write_text(json.dumps({"mean colour": mean, "black": black}) + "\n", encoding="utf-8")
    print("rounds | mean colour | black")
    for low in range(0, options.rounds, SPAN):
        shown = [f"{100 * statistics.fmean(each[low : low + SPAN]):.2f}" for each in (mean, black)]
        print(f"{low + 1} to {min(low + SPAN, options.rounds)} | {' | '.join(shown)}")


if __name__ == "__main__":
    main()
