"""The benchmark itself: it prepares the variants of one workload, times them in turns, and returns the times.

A time is that of one local iteration: one step of every client in the round. For a slow rival fewer clients are timed, and
the time is scaled. That is exact, because its clients share nothing.
"""

from __future__ import annotations

import gc
import platform
import random
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..config import Config
from ..events import Working
from ..local import Draws, SeededDraws, SystemDraws
from ..planning import check_numbers
from ..rules import Server
from ..run import Prepared, prepare
from ..values import BadValue, number, whole
from . import rivals
from .timing import Spread, Variant, seconds, take_turns
from .workloads import Kind, Workload, workload

WARM = 2  # warm-up rounds, for compilers, caches and allocators
LEAST = 3  # minimum number of timed rounds of each variant
MOST = 40  # maximum number of timed rounds of each variant
LIMIT: dict[Kind, float] = {"cpu": 25.0, "cuda": 40.0}  # seconds of timed rounds, unless LEAST rounds take longer
RIVAL_CLIENTS: dict[Kind, int] = {"cpu": 2, "cuda": 4}
REFERENCE_WORK = 3e7  # maximum records per batch × parameters for the reference: a step takes a few seconds then
REFERENCE_ROUNDS = 2
MOST_CLIENTS = 10**9

Watch = Callable[[Working], None]


class Rounds:
    """Rounds of this package. Each call runs one round, with clients drawn from all clients."""

    def __init__(self, prepared: Prepared, clients: int) -> None:
        config = prepared.config
        draws: Draws = SystemDraws() if config.privacy.randomness == "system" else SeededDraws(config.seed)
        expected = clients / len(prepared.jobs)  # the share of all clients that trains in a round
        self.cohort = prepared.cohort(draws, share=expected)
        self.aggregator = prepared.aggregator()
        self.start = Server(self.cohort.start)
        self.clients = clients
        self.random = random.Random(0)
        self.round = 0

    def __call__(self) -> None:
        chosen = sorted(self.random.sample(range(len(self.cohort.names)), self.clients))
        offered = self.aggregator.helpers(self.start)
        names = tuple(self.cohort.names[i] for i in chosen)
        self.cohort.train(self.round, replace(offered, names=names))
        self.round += 1


def measure(
    preset: str | None = None,
    *,
    device: str | None = None,
    clients: Sequence[int] = (),
    overrides: Sequence[str] = (),
    limit: float | None = None,
    watch: Watch = lambda event: None,
) -> dict[str, Any]:
    """Time a preset. The result is what `bench --json` prints.

    clients: the number of clients in a round. Rivals are timed for the first number, the others show the scaling.
    limit: seconds of timed rounds.
    """
    work = workload(preset)
    kind = _kind(work.config("cpu", device, overrides).performance.device)
    config = work.config(kind, device, overrides)
    check_numbers(config)
    most = min(MOST, config.rounds - WARM - 1)  # clients refuse more rounds than are planned
    if most < LEAST:
        remedy = f"plan at least {LEAST + WARM + 1} rounds"
        raise BadValue("rounds", config.rounds, "is too small to time a run", remedy)
    counts = [whole("clients", n, 1, MOST_CLIENTS) for n in clients] or [work.clients[kind]]
    limit = LIMIT[kind] if limit is None else number("seconds", limit, 0)
    try:
        times = _compared(work, config, kind, counts[0], limit, most, watch)
        own = {key: times[key] for key in ("clients", "iteration_ms", "client_step_ms")}
        own["peak_memory_mib"] = times["peak_memory_mib"] if kind == "cuda" else None
        scaling = [own, *(_scaled(work, config, kind, n, limit / 4, most, watch) for n in counts[1:])]
    except torch.OutOfMemoryError:
        rule = "needs more memory than the device has"
        remedy = "choose a smaller number with --clients"
        raise BadValue("clients", max(counts), rule, remedy) from None
    return times | {"scaling": sorted(scaling, key=lambda each: int(each["clients"]))}


def _kind(asked: str) -> Kind:
    return "cuda" if asked != "cpu" and torch.cuda.is_available() else "cpu"


def _compared(
    work: Workload, config: Config, kind: Kind, clients: int, limit: float, most: int, watch: Watch
) -> dict[str, Any]:
    """The times for one number of clients: ours with and without privacy, and those of the rivals."""
    prepared, private, first, peak = _private(work, config, kind, clients, watch)
    steps = config.local.local_steps
    timed = min(clients, RIVAL_CLIENTS[kind])
    ours = float(steps)
    scaled = steps * timed / clients
    open_config = prepared.config.changed(**{"privacy.mechanism": "none"})
    runs = {
        "iteration_ms": Variant(private, ours),
        "nonprivate_ms": Variant(Rounds(prepare(open_config, prepared.federation), clients), ours),
    }
    loops = {
        "opacus_ms": rivals.opacus(prepared, timed, "hooks"),
        "opacus_ghost_ms": rivals.opacus(prepared, timed, "ghost"),
        "plain_loop_ms": rivals.plain(prepared, timed),
    }
    runs |= {name: Variant(loop, scaled) for name, loop in loops.items() if loop}
    for name in list(runs)[1:]:  # the first has been warmed up
        watch(Working(f"warming up {name.removesuffix('_ms')}", 0, WARM))
        for _ in range(WARM):
            runs[name].run()
    if rivals.batch_of(prepared) * prepared.net.count <= REFERENCE_WORK:
        runs["reference_ms"] = Variant(_reference(prepared), 1 / clients, REFERENCE_ROUNDS)
    device = prepared.net.device

    def told(done: int, of: int) -> None:
        watch(Working("timing", done, of))

    spreads = take_turns(runs, device, limit, LEAST, most, told)
    return {
        **_what(work, prepared, clients),
        **_times(spreads, steps, clients),
        "first_round_s": first,
        "peak_memory_mib": peak,
        "opacus_clients": timed if loops["opacus_ms"] else None,
        "plain_loop_clients": timed,
        "repetitions": spreads["iteration_ms"].count,
        "spread": {name: [spread.low, spread.high] for name, spread in spreads.items()},
        "fastest": {name: spread.fastest for name, spread in spreads.items()},
        "notes": _notes(work, config, kind, clients, timed, spreads),
        **_machine(device),
    }


def _private(
    work: Workload, config: Config, kind: Kind, clients: int, watch: Watch
) -> tuple[Prepared, Rounds, float, float | None]:
    """Our private rounds after the warm-up, the seconds of the first round, and the peak memory (MiB)."""
    watch(Working(f"preparing {clients} clients", 0, WARM + 1))
    population = max(clients, work.population[kind]) if work.population else clients
    config = config.changed(participation=1.0)  # every client that is asked takes part
    prepared = prepare(config, work.federation(population))
    private = Rounds(prepared, clients)
    device = prepared.net.device
    if kind == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    first = seconds(private, device)
    for done in range(WARM):
        watch(Working("warming up", done + 1, WARM + 1))
        private()
    return prepared, private, first, _peak(device)


def _scaled(
    work: Workload, config: Config, kind: Kind, clients: int, limit: float, most: int, watch: Watch
) -> dict[str, Any]:
    """The time of our private iteration for another number of clients."""
    gc.collect()  # frees the memory of the variants before
    if kind == "cuda":
        torch.cuda.empty_cache()
    prepared, private, _, peak = _private(work, config, kind, clients, watch)
    text = f"timing {clients} clients"
    spread = take_turns(
        {"": Variant(private, config.local.local_steps)}, prepared.net.device, limit, LEAST, most,
        lambda done, of: watch(Working(text, done, of)),
    )[""]  # fmt: skip
    return {
        "clients": clients,
        "iteration_ms": spread.median,
        "client_step_ms": spread.median / clients,
        "peak_memory_mib": peak if kind == "cuda" else None,  # the peak of a process cannot fall
    }


def _reference(prepared: Prepared) -> Rounds:
    """One step of one client with the reference engine, one record at a time."""
    slow = {"performance.engine": "reference", "performance.dtype": "float32", "local.local_steps": 1}
    federation = replace(prepared.held, clients=prepared.held.clients[:1])
    return Rounds(prepare(prepared.config.changed(**slow), federation), 1)


# ---------------------------------------------------------------------- the result


def _what(work: Workload, prepared: Prepared, clients: int) -> dict[str, Any]:
    config = prepared.config
    noisy = prepared.jobs[0].noisy
    assert noisy is not None  # `Workload.config` refuses other jobs
    return {
        "preset": work.name,
        "about": work.about,
        "clients": clients,
        "everybody": len(prepared.jobs),  # published results have this name
        "records": work.records,
        "local_steps": config.local.local_steps,
        "batch": rivals.batch_of(prepared),
        "sampling": config.local.sampling,
        "optimiser": config.local.optimiser,
        "clip_norm": noisy.clip_norm,
        "noise_multiplier": noisy.noise_multiplier,
        "parameters": prepared.net.count,
        "gradients": prepared.net.gradients,
        "arithmetic": prepared.net.arithmetic,
        "draws": config.privacy.randomness,
    }


def _times(spreads: dict[str, Spread], steps: int, clients: int) -> dict[str, Any]:
    ms = {name: spread.median for name, spread in spreads.items()}
    ours = ms["iteration_ms"]
    times: dict[str, Any] = {
        "iteration_ms": ours,
        "round_ms": ours * steps,
        "client_step_ms": ours / clients,
        "nonprivate_ms": ms["nonprivate_ms"],
        "private_over_nonprivate": ours / ms["nonprivate_ms"],
    }
    for rival in ("opacus", "opacus_ghost", "plain_loop", "reference"):
        theirs = ms.get(f"{rival}_ms")
        times[f"{rival}_ms"] = theirs
        times[f"speedup_over_{rival}"] = None if theirs is None else theirs / ours
    return times


def _notes(work: Workload, config: Config, kind: Kind, clients: int, timed: int, spreads: dict[str, Spread]) -> list[str]:
    notes = []
    if kind == "cpu" and work.cpu_steps == config.local.local_steps:
        notes.append(f"rounds have {work.cpu_steps} local steps, so that this takes a minute; real rounds have more")
    if timed < clients:
        notes.append(f"the rivals train client by client: they were timed with {timed} clients and scaled to {clients}")
    if "opacus_ms" not in spreads:
        notes.append("Opacus is not installed")
    if config.local.sampling == "poisson":
        notes.append("ours uses Poisson batches, the rivals use batches of their expected size")
    if "reference_ms" in spreads:
        notes.append(f"the reference was timed with one step of one client and scaled to {clients}")
    if config.privacy.randomness == "seeded":
        notes.append("draws are seeded; secret draws take another time")
    return notes


def _machine(device: torch.device) -> dict[str, Any]:
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            "prifedsync": __version__,
            "torch": torch.__version__,
            "opacus": _version("opacus"),
            "triton": _version("triton"),
            "cuda": torch.version.cuda,
        },
    }


def _peak(device: torch.device) -> float:
    """The peak memory in MiB: allocated on the device, or resident in the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    per_mib = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / per_mib


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    if sys.modules.get(package, ...) is None:  # importing it is blocked
        return None
    try:
        return version(package)
    except PackageNotFoundError:
        return getattr(sys.modules.get(package), "__version__", None)  # a source tree on the path
