"""Run folders for tests: trained once with little noise, then given weights that answers can be worked out with by hand."""

import random
from pathlib import Path

import torch
from safetensors.torch import save_file

import prifedsync

COLUMNS = ("age", "sex", "weight")
DATA = {
    "source": "csv",
    "label": "ill",
    "task": "binary",
    "label_values": ["no", "yes"],
    "columns": list(COLUMNS),
    "ranges": {"age": [0, 100], "weight": [40, 140]},
    "categories": {"sex": ["f", "m"]},
    "missing": {"weight": 90},
}
PRIVATE = {"noise_multiplier": 5.0}


def table(path, rows=40, seed=0, label=lambda age: "yes" if age > 50 else "no", name="ill", extra=()):
    """A CSV file of made-up patients; more columns may follow."""
    draw = random.Random(f"{path.name} {seed}")
    lines = [",".join([*COLUMNS, name, *(column for column, _ in extra)])]
    for i in range(rows):
        age = draw.randint(1, 99)
        cells = [age, draw.choice("fm"), draw.randint(41, 139), label(age), *(value(i) for _, value in extra)]
        lines.append(",".join(map(str, cells)))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def tables(folder, names=("north", "south"), **how):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        table(folder / f"{name}.csv", **how)
    return folder


def trained(folder, data=None, out="run", **config):
    """A run of two rounds on two tables; returns its folder."""
    given = {"rounds": 2, "privacy": PRIVATE, "data": DATA | {"path": str(folder / "tables")} | (data or {})}
    prifedsync.train(given | config, out=folder / out)
    return folder / out


def with_weights(folder, weight, bias, name="global"):
    """Give a linear model of the folder these weights."""
    state = {"1.weight": torch.tensor(weight, dtype=torch.float32), "1.bias": torch.tensor(bias, dtype=torch.float32)}
    save_file(state, Path(folder) / "models" / f"{name}.safetensors")


class Frame:
    """A data frame as this package sees one."""

    def __init__(self, **columns):
        self.columns = list(columns)
        self.held = columns

    def __getitem__(self, name):
        return self.held[name]
