"""Time and memory of the accounting, compared with dp-accounting and prv-accountant in the same run.

    make bench            prints a table; --json FILE also writes it

The speed of a machine varies, so compare the ratios, not the seconds. Each time is the best of three, without caches.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

warnings.filterwarnings("ignore")
DELTA = 1e-5


def best(work: Callable[[], object], times: int = 3) -> tuple[float, object]:
    """The shortest time of some calls, and the answer of the last."""
    seconds = float("inf")
    answer = None
    for _ in range(times):
        start = time.perf_counter()
        answer = work()
        seconds = min(seconds, time.perf_counter() - start)
    return seconds, answer


def cold_account() -> tuple[float, float]:
    """Seconds and peak MiB of `prifedsync account` on Table 1's largest row, start-up included."""
    row = "--records 600 --batch 16 --noise-multiplier 2 --local-steps 38 --rounds 386 --participation .25"
    options = [*row.split(), "--sampling", "fixed", "--clients", "100", "--json"]
    command = [sys.executable, "-m", "prifedsync.cli", "account", *options]
    seconds, _ = best(lambda: subprocess.run(command, check=True, capture_output=True))
    return seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def ours(noise: float, rate: float, steps: int, tolerance: float = 1e-4) -> tuple[float, tuple[float, float]]:
    from prifedsync.fdp import Neighbours, compose, poisson_gaussian

    def run() -> tuple[float, float]:
        step = poisson_gaussian(noise, rate, Neighbours.ADD_REMOVE)
        return compose((step, steps), tolerance=tolerance).epsilon(DELTA)

    return best(run)


def dp_accounting(noise: float, rate: float, steps: int) -> tuple[float, float]:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    event = SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps)

    def run() -> float:
        return PLDAccountant(value_discretization_interval=1e-4).compose(event).get_epsilon(DELTA)

    return best(run)


def prv(noise: float, rate: float, steps: int) -> tuple[float, tuple[float, float, float]]:
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    def run() -> tuple[float, float, float]:
        mechanism = PoissonSubsampledGaussianMechanism(noise_multiplier=noise, sampling_probability=rate)
        accountant = PRVAccountant(prvs=mechanism, max_self_compositions=steps, eps_error=0.01, delta_error=1e-10)
        return accountant.compute_epsilon(DELTA, [steps])

    return best(run, times=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cold, memory = cold_account()
    print(f"account, Table 1's largest row, cold start, all brackets: {cold:.2f} s, peak {memory:.0f} MiB")
    rows = compared()
    million, bound = ours(2.0, 0.001, 10**6)
    print(f"\na million steps: {million:.2f} s, bracket {bound[1] - bound[0]:.1e} in ε")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process (all three accountants): {peak:.0f} MiB")
    if options.json:
        versions = {name: version(name) for name in ("prifedsync", "numpy", "scipy", "dp-accounting", "prv-accountant")}
        report = {
            "command": "python benchmarks/accounting.py --json FILE",
            "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}",
            "versions": versions,
            "account_cold_seconds": cold,
            "account_peak_mib": memory,
            "million_steps": {"seconds": million, "epsilon": bound},
            "rows": rows,
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def compared() -> list[dict[str, object]]:
    """The three accountants on a few mechanisms, printed line by line."""
    rows: list[dict[str, object]] = []
    heads = ("ours s", "bracket", "dp-acc. s", "prv s", "× dp-acc.", "× prv")
    print("\n" + f"{'mechanism (add/remove)':34} " + " ".join(f"{head:>10}" for head in heads))
    for noise, rate, steps in ((1.0, 16 / 600, 3534), (1.0, 16 / 600, 14668), (2.0, 0.01, 1000), (0.8, 0.004, 100_000)):
        seconds, bound = ours(noise, rate, steps)
        dp_seconds, dp_epsilon = dp_accounting(noise, rate, steps)
        prv_seconds, prv_epsilon = prv(noise, rate, steps)
        width = bound[1] - bound[0]
        name = f"noise {noise:g}, rate {rate:.4g}, {steps} steps"
        print(
            f"{name:34} {seconds:10.3f} {width:10.1e} {dp_seconds:10.3f} {prv_seconds:10.3f} {dp_seconds / seconds:10.1f} "
            f"{prv_seconds / seconds:10.1f}"
        )
        rows.append(
            {"noise_multiplier": noise, "rate": rate, "steps": steps, "seconds": seconds, "epsilon": bound,
             "dp_accounting": {"seconds": dp_seconds, "epsilon": dp_epsilon},
             "prv_accountant": {"seconds": prv_seconds, "epsilon": prv_epsilon}}
        )  # fmt: skip
    return rows


if __name__ == "__main__":
    main()
