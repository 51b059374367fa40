"""The measurements for docs/results/bench-gpu.md: `python benchmarks/gpu.py OUT [part …]` on a machine with a GPU.

Parts are the workloads below, `scaling` and `roofline`; by default all of them run. Each writes OUT/PART.json when it ends.
`tables` prints the results in OUT as Markdown, on any machine.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

WORKLOADS = {
    "mnist-tf32": ("mnist-paper", []),
    "mnist-bf16": ("mnist-paper", ["performance.dtype=bf16"]),
    "mnist-float32": ("mnist-paper", ["performance.dtype=float32"]),
    "mnist-poisson": ("mnist-paper", ["local.sampling=poisson"]),
    "mnist-eager": ("mnist-paper", ["performance.compile=off"]),
    "pfl-cifar10": ("pfl-cifar10", []),
    "cifar-paper": ("cifar-paper", []),
    "general": ("general", []),
    "mlp": ("mlp", []),
}
SCALING = (100, 10, 1000)
SECONDS = 10.0  # of timed rounds for each workload
STEPS = 5  # profiled steps


def scaling() -> dict[str, Any]:
    """The time of an iteration for several numbers of clients."""
    from prifedsync.bench import measure

    times = measure("mnist-paper", device="cuda", clients=SCALING, limit=SECONDS)
    return {key: times[key] for key in ("device", "versions", "scaling")}


def roofline() -> dict[str, Any]:
    """The time of each kernel in one step, and the peak speeds of the device."""
    import torch
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.flop_counter import FlopCounterMode

    from prifedsync.bench.measuring import Rounds
    from prifedsync.bench.workloads import workload
    from prifedsync.run import prepare

    def milliseconds(work: Any, times: int = 20) -> float:
        work()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(times):
            work()
        torch.cuda.synchronize()
        return (time.perf_counter() - begun) / times * 1e3

    speeds: dict[str, Any] = {"device": torch.cuda.get_device_name()}
    x = torch.randn(2**28, device="cuda")
    y = torch.empty(2**28, device="cuda")
    speeds["copy_tb_s"] = 8 * 2**28 / milliseconds(lambda: y.copy_(x)) / 1e9
    for name, dtype in (("tf32", torch.float32), ("bf16", torch.bfloat16)):
        a = torch.randn(8192, 8192, device="cuda", dtype=dtype)
        torch.backends.cuda.matmul.allow_tf32 = True
        speeds[f"{name}_tflop_s"] = 2 * 8192**3 / milliseconds(lambda a=a: a @ a) / 1e9
    torch.backends.cuda.matmul.allow_tf32 = False
    work = workload("mnist-paper")
    for dtype in ("tf32", "bf16"):
        config = work.config("cuda", "cuda", [f"performance.dtype={dtype}"])
        prepared = prepare(config, work.federation(100))
        for mechanism in ("noisy-steps", "none"):
            own = prepared.config.changed(**{"privacy.mechanism": mechanism})
            rounds = Rounds(prepare(own, prepared.federation), 100)
            rounds()
            (stack,) = rounds.cohort._stacks.values()
            with stack.net.exact():
                stack.step.zero_()
                with FlopCounterMode(display=False) as counter:
                    stack._sums_of(*stack._sum_arguments(stack._point(), 0))
                stack._one_step()
                with profile(activities=[ProfilerActivity.CUDA]) as seen:
                    for _ in range(STEPS):
                        stack.step.zero_()
                        stack._one_step()
                    torch.cuda.synchronize()
            kernels = sorted(seen.key_averages(), key=lambda event: -event.device_time_total)
            speeds[f"{dtype} {mechanism}"] = {
                "gflop": counter.get_total_flops() / 1e9,
                "update_gbyte": 28e-9 * stack.capacity * stack.net.count,
                "all_us": sum(event.device_time_total for event in kernels) / STEPS,
                "kernels_us": {event.key[:110]: event.device_time_total / STEPS for event in kernels[:24]},
            }
            del rounds, stack
            gc.collect()
            torch.cuda.empty_cache()
    return speeds


def tables(folder: Path) -> None:
    """Print the results as Markdown, and write all of them to one file."""
    parts = {part: folder / f"{part}.json" for part in (*WORKLOADS, "scaling", "roofline")}
    measured = {part: path for part, path in parts.items() if path.is_file()}
    results = {part: json.loads(path.read_text(encoding="utf-8")) for part, path in measured.items()}
    (folder / "bench-gpu.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    heads = ["", "ours, ms", "no privacy", "private ÷ no privacy", "Opacus", "×", "Opacus, ghost", "plain loop"]
    rows = [f"| {' | '.join([*heads, 'first round', 'memory'])} |", "|---" * 10 + "|"]
    for name in [name for name in WORKLOADS if name in results]:
        result = results[name]
        cells = [result[key] for key in ("iteration_ms", "nonprivate_ms", "private_over_nonprivate", "opacus_ms")]
        cells += [result[key] for key in ("speedup_over_opacus", "opacus_ghost_ms", "plain_loop_ms", "first_round_s")]
        words = ["–" if cell is None else f"{cell:.3g}" for cell in cells]
        what = f"{name}, {result['clients']} clients, round {result['round_ms']:.3g} ms"
        memory = result["peak_memory_mib"] / 1024
        rows.append(f"| {what} | {' | '.join(words)} s | {memory:.1f} GiB |")
    print("\n".join(rows))
    if "scaling" in results:
        print("\n| clients | iteration, ms | a client's step, µs | memory, GiB |\n|---|---|---|---|")
        for row in results["scaling"]["scaling"]:
            memory = row["peak_memory_mib"] / 1024
            step = 1e3 * row["client_step_ms"]
            print(f"| {row['clients']} | {row['iteration_ms']:.3g} | {step:.3g} | {memory:.1f} |")


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    parts = sys.argv[2:] or [*WORKLOADS, "scaling", "roofline"]
    folder.mkdir(parents=True, exist_ok=True)
    if parts == ["tables"]:
        tables(folder)
        return
    from prifedsync.bench import measure

    for part in parts:
        begun = time.perf_counter()
        if part in WORKLOADS:
            preset, overrides = WORKLOADS[part]
            result = measure(preset, device="cuda", overrides=overrides, limit=SECONDS)
        else:
            result = {"scaling": scaling, "roofline": roofline}[part]()
        (folder / f"{part}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"{part}: {time.perf_counter() - begun:.0f} s", flush=True)
        gc.collect()
        import torch

        torch.cuda.empty_cache()
    tables(folder)


if __name__ == "__main__":
    main()
