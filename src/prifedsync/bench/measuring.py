"""The bench itself: prepares the variants of one workload, lets them take turns, and says what it found.

A time is that of one local iteration of all clients of a round: one step of each. Where a rival is slow, fewer of its
clients are timed and the time is scaled; they do not share anything, so it is the same.
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
from ..rules import Server
from ..run import Prepared, prepare
from ..values import BadValue, number, whole
from . import rivals
from .timing import Spread, Variant, seconds, take_turns
from .workloads import Kind, Workload, workload

WARM = 2  # rounds before anything is timed: compilers, caches and allocators settle
LEAST, MOST = 3, 40  # timed rounds of each variant
LIMIT: dict[Kind, float] = {"cpu": 25.0, "cuda": 40.0}  # seconds of timed rounds, unless LEAST takes longer
RIVAL_CLIENTS: dict[Kind, int] = {"cpu": 2, "cuda": 4}
REFERENCE_WORK = 3e7  # records of a batch times parameters: up to there a step of the reference takes a few seconds
REFERENCE_ROUNDS = 2
MOST_CLIENTS = 10**9

Watch = Callable[[Working], None]


class Rounds:
    """Our own rounds, each with clients drawn from all there are; made to be called again and again."""

    def __init__(self, prepared: Prepared, clients: int) -> None:
        config = prepared.config
        draws: Draws = SystemDraws() if config.privacy.randomness == "system" else SeededDraws(config.seed)
        self.cohort = prepared.cohort(draws, share=clients / len(prepared.jobs))  # room for as many as are expected
        self.aggregator = prepared.aggregator()
        self.start = Server(self.cohort.start)
        self.clients = clients
        self.random = random.Random(0)
        self.round = 0

    def __call__(self) -> None:
        chosen = sorted(self.random.sample(range(len(self.cohort.names)), self.clients))
        offered = self.aggregator.helpers(self.start)
        self.cohort.train(self.round, replace(offered, names=tuple(self.cohort.names[i] for i in chosen)))
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
    """Time a preset; what is found is what `bench --json` prints.

    clients: how many train in a round. The first number is compared with the rivals, the others are timed for scaling.
    limit: seconds of timed rounds.
    """
    work = workload(preset)
    kind = _kind(work.config("cpu", device, overrides).performance.device)
    config = work.config(kind, device, overrides)
    most = min(MOST, config.rounds - WARM - 1)  # beyond the rounds planned, clients refuse
    if most < LEAST:
        raise BadValue("rounds", config.rounds, "are too few to time", f"plan at least {LEAST + WARM + 1}")
    counts = [whole("clients", n, 1, MOST_CLIENTS) for n in clients] or [work.clients[kind]]
    limit = LIMIT[kind] if limit is None else number("seconds", limit, 0)
    try:
        found = _compared(work, config, kind, counts[0], limit, most, watch)
        own = {key: found[key] for key in ("clients", "iteration_ms", "client_step_ms")}
        own["peak_memory_mib"] = found["peak_memory_mib"] if kind == "cuda" else None
        scaling = [own, *(_scaled(work, config, kind, n, limit / 4, most, watch) for n in counts[1:])]
    except torch.OutOfMemoryError:
        raise BadValue("clients", max(counts), "do not fit into the device's memory", "give fewer --clients") from None
    return found | {"scaling": sorted(scaling, key=lambda each: int(each["clients"]))}


def _kind(asked: str) -> Kind:
    return "cuda" if asked != "cpu" and torch.cuda.is_available() else "cpu"


def _compared(
    work: Workload, config: Config, kind: Kind, clients: int, limit: float, most: int, watch: Watch
) -> dict[str, Any]:
    """Everything about one number of clients: ours, with and without privacy, and the rivals, in turn."""
    prepared, private, first, peak = _private(work, config, kind, clients, watch)
    steps, timed = config.local.local_steps, min(clients, RIVAL_CLIENTS[kind])
    ours, scaled = float(steps), steps * timed / clients
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
    for name in list(runs)[1:]:  # the first is warm
        watch(Working(f"warming up {name.removesuffix('_ms')}", 0, WARM))
        for _ in range(WARM):
            runs[name].run()
    if rivals.batch_of(prepared) * prepared.net.count <= REFERENCE_WORK:
        runs["reference_ms"] = Variant(_reference(prepared), 1 / clients, REFERENCE_ROUNDS)
    device = prepared.net.device
    spreads = take_turns(runs, device, limit, LEAST, most, lambda done, of: watch(Working("timing", done, of)))
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
    """Our private rounds, warm; the seconds of the first one, and the most memory they took (MiB)."""
    watch(Working(f"preparing {clients} clients", 0, WARM + 1))
    everybody = max(clients, work.everybody[kind]) if work.everybody else clients
    config = config.changed(participation=1.0)  # whoever is asked takes part
    prepared = prepare(config, work.federation(everybody))
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
    """Our private iteration for another number of clients."""
    gc.collect()  # what was timed before must not take this one's memory
    if kind == "cuda":
        torch.cuda.empty_cache()
    prepared, private, _, peak = _private(work, config, kind, clients, watch)
    told = f"timing {clients} clients"
    spread = take_turns(
        {"": Variant(private, config.local.local_steps)}, prepared.net.device, limit, LEAST, most,
        lambda done, of: watch(Working(told, done, of)),
    )[""]  # fmt: skip
    return {
        "clients": clients,
        "iteration_ms": spread.median,
        "client_step_ms": spread.median / clients,
        "peak_memory_mib": peak if kind == "cuda" else None,  # of a process it can only grow
    }


def _reference(prepared: Prepared) -> Rounds:
    """One step of one client, one record at a time."""
    slow = {"performance.engine": "reference", "performance.dtype": "float32", "local.local_steps": 1}
    federation = replace(prepared.held, clients=prepared.held.clients[:1])
    return Rounds(prepare(prepared.config.changed(**slow), federation), 1)


# ---------------------------------------------------------------------- what is said


def _what(work: Workload, prepared: Prepared, clients: int) -> dict[str, Any]:
    config, noisy = prepared.config, prepared.jobs[0].noisy
    assert noisy is not None  # the workload has no other jobs
    return {
        "preset": work.name,
        "about": work.about,
        "clients": clients,
        "everybody": len(prepared.jobs),
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
    found: dict[str, Any] = {
        "iteration_ms": ours,
        "round_ms": ours * steps,
        "client_step_ms": ours / clients,
        "nonprivate_ms": ms["nonprivate_ms"],
        "private_over_nonprivate": ours / ms["nonprivate_ms"],
    }
    for rival in ("opacus", "opacus_ghost", "plain_loop", "reference"):
        theirs = ms.get(f"{rival}_ms")
        found |= {f"{rival}_ms": theirs, f"speedup_over_{rival}": None if theirs is None else theirs / ours}
    return found


def _notes(work: Workload, config: Config, kind: Kind, clients: int, timed: int, spreads: dict[str, Spread]) -> list[str]:
    notes = []
    if kind == "cpu" and work.cpu_steps == config.local.local_steps:
        notes.append(f"{work.cpu_steps} local steps a round, to be done in a minute; a real round has more")
    if timed < clients:
        notes.append(f"what trains client by client was timed on {timed} clients and scaled to {clients}")
    if "opacus_ms" not in spreads:
        notes.append("Opacus is not installed")
    if config.local.sampling == "poisson":
        notes.append("ours draws Poisson batches, the rivals batches of their expected size")
    if "reference_ms" in spreads:
        notes.append(f"the reference was timed on one step of one client and scaled to {clients}")
    if config.privacy.randomness == "seeded":
        notes.append("draws are seeded: secret ones take another time")
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
    """MiB: allocated on the device, or resident in the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    if sys.modules.get(package, ...) is None:  # installed, and not to be imported
        return None
    try:
        return version(package)
    except PackageNotFoundError:
        return getattr(sys.modules.get(package), "__version__", None)  # a source tree on the path
