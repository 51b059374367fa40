"""Workloads: a config, made-up records of the right shape (the time does not depend on them), and numbers of clients."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch

from ..config import Config, load
from ..data import Client, Federation, Records, Task
from ..planning import rule_of
from ..values import BadValue

Kind = Literal["cpu", "cuda"]
CLASSES = 10
DEFAULT = "mnist-paper"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A preset of the benchmark. Its config is the TOML file of the same name in this folder."""

    name: str
    about: str
    shape: tuple[int, ...]
    records: int  # per client
    clients: dict[Kind, int]  # number of clients in a round
    population: dict[Kind, int] | None = None  # number of clients they are drawn from; None: the same number
    cpu_steps: int | None = None  # local steps on a CPU, if a whole round would take too long

    def config(self, kind: Kind, device: str | None, overrides: Sequence[str]) -> Config:
        """The config for this machine. The user's overrides take precedence."""
        for text in overrides:
            table = text.partition("=")[0].partition(".")[0].strip()
            if table in ("data", "clients"):
                rule = "cannot be set here: the benchmark makes up its own records and clients, which are all alike"
                raise BadValue("override", text, rule, "set the number of clients with --clients")
        machine = [f"privacy.randomness={'system' if find_spec('cryptography') else 'seeded'}"]
        machine += [f"performance.memory_gib={_half_of_memory():.1f}"]  # with less, many clients would measure the disk
        if kind == "cpu" and self.cpu_steps:
            machine += [f"local.local_steps={self.cpu_steps}"]
        file = Path(__file__).with_name(f"{self.name}.toml")
        config = load(file, [*machine, *overrides], device=device)
        if config.privacy.mechanism != "noisy-steps":
            rule = "has no noisy steps to time"
            raise BadValue("privacy.mechanism", config.privacy.mechanism, rule, "leave it out")
        if not rule_of(config).noisy_gradients(config.local.local_steps):
            rule = "has no noisy steps to time"
            raise BadValue("rule.name", config.rule.name, rule, "set rule.publish=true")
        return config

    def federation(self, clients: int) -> Federation:
        """This many clients with made-up records. All have the same number of records."""
        draw = torch.Generator().manual_seed(0)
        x = torch.randn(clients, self.records, *self.shape, generator=draw)
        y = torch.randint(0, CLASSES, (clients, self.records), generator=draw)
        none = Records(x[0, :0], y[0, :0])
        names = [f"client-{i:05}" for i in range(clients)]
        members = tuple(Client(name, Records(x[i], y[i]), none) for i, name in enumerate(names))
        return Federation(members, Task("classes", CLASSES))


PRESETS = {
    workload.name: workload
    for workload in (
        Workload(
            name="mnist-paper", about="the paper's MNIST net", shape=(1, 28, 28), records=600,
            clients={"cpu": 2, "cuda": 100}, cpu_steps=4,
        ),
        Workload(
            name="cifar-paper", about="the paper's CIFAR-10 net", shape=(3, 32, 32), records=500,
            clients={"cpu": 2, "cuda": 100}, cpu_steps=4,
        ),
        Workload(
            name="pfl-cifar10", about="pfl-research's CIFAR-10 benchmark", shape=(3, 32, 32), records=50,
            clients={"cpu": 2, "cuda": 50}, population={"cpu": 10, "cuda": 1000},
        ),
        Workload(
            name="mlp", about="a small MLP", shape=(64,), records=100, clients={"cpu": 10, "cuda": 100},
        ),
        Workload(
            name="general", about="the MNIST net of layers without a fast rule", shape=(1, 28, 28), records=600,
            clients={"cpu": 2, "cuda": 100}, cpu_steps=2,
        ),
    )
}  # fmt: skip


def workload(name: str | None) -> Workload:
    """The preset of that name; None stands for the default one."""
    name = DEFAULT if name is None else name
    if name not in PRESETS:
        near = get_close_matches(name, PRESETS, 1, 0)[0]
        remedy = f"did you mean {near}? presets: {', '.join(PRESETS)}"
        raise BadValue("preset", name, "is not a preset of bench", remedy)
    return PRESETS[name]


def _half_of_memory() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**31
