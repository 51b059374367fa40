"""The digest of a module's code: the same in every process, and another for whatever computes something else."""

import functools
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from prifedsync.local import behaviour

SCRIPT = """
import importlib, sys, torch
from prifedsync.local import behaviour
folder, modules, hooks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sys.path.insert(0, folder)
for _ in range(hooks):
    torch.nn.Linear(1, 1).register_forward_hook(print)
for at in range(modules):
    module = importlib.import_module(f"theirs_{at}").Net({"b", "a", "c"})
    print(behaviour.of(module).hex())
"""
THEIRS = """
import torch
from torch import nn
from beside_{at} import twice

SCALE = {scale}

def helper(x):
    return SCALE * twice(x)

class Settings:
    def __init__(self, power):
        self.power = power

SETTINGS = Settings({power})

class Base(nn.Module):
    def scaled(self, x):
        return x if x.shape[0] in {{{inside}}} else {factor} * x

class Net(Base):
    def __init__(self, words):
        super().__init__()
        self.words, self.layer = words, nn.Linear(2, 1)
        self.layer.register_forward_hook(lambda module, given, found: found)
        self.register_buffer("fixed", torch.zeros(2), persistent=False)

    def forward(self, x):
        return self.layer(helper(self.scaled(x)) ** SETTINGS.power)
"""
GIVEN = {"scale": 2, "power": 1, "factor": 3, "inside": "5, 7, 9"}
BESIDE = "def twice(x):\n    return 2 * x\n"


def digests_of(folder, modules, hooks, seed):
    """Of modules in files, made by a process of its own."""
    words = [sys.executable, "-c", SCRIPT, str(folder), str(modules), str(hooks)]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": seed})
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_it_is_the_same_in_every_process_and_another_where_code_reads_something_else(tmp_path):
    changes = [{}, {}, {"scale": 3}, {"power": 2}, {"factor": 4}, {"inside": "5, 7, 8"}, {}]
    for at, change in enumerate(changes):
        (tmp_path / f"theirs_{at}.py").write_text(THEIRS.format(at=at, **{**GIVEN, **change}))
        (tmp_path / f"beside_{at}.py").write_text(BESIDE)
    (tmp_path / f"beside_{at}.py").write_text(BESIDE.replace("2 *", "3 *"))
    first = digests_of(tmp_path, len(changes), hooks=0, seed="0")
    assert first[0] == first[1]
    assert len(set(first)) == len(changes) - 1
    # compiled before now, with sets in another order and hooks under other numbers
    assert digests_of(tmp_path, len(changes), hooks=5, seed="1") == first


def scaled(by):
    return lambda x: by * x


class Slotted:
    __slots__ = ("by",)

    def __init__(self, by):
        self.by = by


def module_with(value):
    module = nn.Linear(2, 1)
    module.value = value
    return module


def hooked(hook):
    module = nn.Linear(2, 1)
    module.register_forward_hook(hook)
    return module


def default(by=2):
    return by


def other_default(by=3):
    return by


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (scaled(2), scaled(3)),
        (module_with(2.0), module_with(2)),
        (module_with((1, [2, {"a": 3}])), module_with((1, [2, {"a": 4}]))),
        (module_with(torch.ones(2)), module_with(torch.zeros(2))),
        (module_with(Slotted(1)), module_with(Slotted(2))),
        (module_with(functools.partial(max, 1)), module_with(functools.partial(max, 2))),
        (hooked(scaled(2)), hooked(scaled(3))),
        (nn.Dropout(0.1), nn.Dropout(0.2)),
        (nn.Sequential(nn.ReLU()), nn.Sequential(nn.Tanh())),
        (nn.Linear(2, 1), nn.Linear(2, 1).requires_grad_(False)),
        (default, other_default),
    ],
)
def test_what_differs_has_another_digest(one, other):
    assert behaviour.of(one) == behaviour.of(one)
    assert behaviour.of(one) != behaviour.of(other)


def test_weights_and_mode_are_not_part_of_it():
    """Weights are bound by themselves; whether dropout is on is decided by the engine."""
    assert behaviour.of(nn.Linear(2, 1)) == behaviour.of(nn.Linear(2, 1).eval())


def test_what_refers_to_itself_has_a_digest():
    module = nn.Linear(2, 1)
    module.__dict__["me"] = [module, module]
    assert len(behaviour.of(module)) == 32
