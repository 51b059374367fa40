"""The rule of docs/rules.md: a file outside the package, trained from Python and from the command line."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
PART = PAGE[PAGE.index("## A rule of your own") :]
(FILE,) = re.findall(r"`(\w+\.py)`:\n\n```python\n", PART)
SOURCE, TRIED = re.findall(r"```python\n(.*?)```", PART, flags=re.DOTALL)
(SHELL,) = re.findall(r"```sh\nprifedsync (.*?)```", PART, flags=re.DOTALL)

MORE = """
from dataclasses import dataclass

import torch

def trained(rule, *more):
    return prifedsync.train(load("digits", ["rounds=1", "local.local_steps=3", "compare=[]", *more]), rule=rule)

def moved(result):
    return torch.stack([result.engine.own(i) - result.engine.start for i in range(10)])

free, leashed = moved(trained(None)), moved(trained(Leash, "rule.strength=0.05"))
print("free", *free.norm(dim=1).tolist())
print("leashed", *leashed.norm(dim=1).tolist())
print("loose", *moved(trained(Leash(slack=1e6), "rule.strength=0.05")).norm(dim=1).tolist())
print("prox", *moved(trained(None, "rule.name=fedprox", "rule.strength=0.05")).norm(dim=1).tolist())
slack = moved(trained(Leash(), "rule.strength=0.0"))
print("slack", torch.equal(slack, free))
one = moved(trained(Leash(), "rule.strength=0.0", 'clients."client-03".strength=0.05'))
print("one", *[i for i in range(10) if not torch.equal(one[i], free[i])])
by_name = moved(trained(None, "rule.name=leash:Leash", "rule.strength=0.05", "rule.slack=0.3"))
print("same", torch.equal(by_name, moved(trained(Leash(slack=0.3), "rule.strength=0.05"))), torch.equal(by_name, leashed))

@dataclass(frozen=True)
class Twice(Leash):
    name = "twice"

    def upload_steps(self, local_steps):
        return 2 * local_steps

once = result.record.clients[0]
twice = prifedsync.train(config, rule=Twice(slack=0.5)).record.clients[0]
print("counts", once.noisy_queries, once.plan["local_steps"], twice.noisy_queries, twice.plan["local_steps"])
print("noise", once.plan["noise_multiplier"], twice.plan["noise_multiplier"])
print("mu", once.planned["mu"]["upper"], twice.planned["mu"]["upper"])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the page's file in it, and nothing else."""
    folder = tmp_path_factory.mktemp("own")
    (folder / FILE).write_text(SOURCE, encoding="utf-8")
    return folder


def run(folder, *words):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(folder)])}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, cwd=folder, timeout=180, env=environment
    )


@pytest.fixture(scope="module")
def said(folder):
    """What the page's example prints, then what this file asks of the same rule: first word → the rest."""
    done = run(folder, "-c", TRIED + MORE)
    assert done.returncode == 0, done.stderr
    for shown in re.findall(r"#→ (.+)", TRIED):
        assert shown in done.stdout
    return {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line}


def test_the_pages_command_trains_it(folder):
    done = run(folder, "-m", "prifedsync.cli", *shlex.split(SHELL), "--set", "compare=[]", "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["config"]["rule"] == {
        "name": "leash.py:Leash",
        "mixing": 0.1,
        "strength": 0.05,
        "delivery": "pull",
        "slack": 0.5,
    }


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("rule.slack=0", "prifedsync: rule.slack = 0 must be a number above 0"),
        ("rule.slak=1", "prifedsync: rule.slak = 1 is not a field of rule leash; did you mean rule.slack?"),
    ],
)
def test_a_bad_field_of_it_is_refused_in_one_line(folder, override, line):
    done = run(folder, "-m", "prifedsync.cli", *shlex.split(SHELL), "--set", override, "--out", "refused")
    assert done.returncode == 2
    assert done.stderr.startswith(line)
    assert len(done.stderr.splitlines()) == 1


def test_its_pull_holds_the_models_back(said):
    free, leashed = (list(map(float, said[name])) for name in ("free", "leashed"))
    assert len(free) == 10
    assert all(0 < held < 0.95 * far for held, far in zip(leashed, free, strict=True))


def test_its_own_field_decides_how_much(said):
    loose, prox, leashed = (list(map(float, said[name])) for name in ("loose", "prox", "leashed"))
    assert loose == pytest.approx(prox, rel=1e-6)  # a leash without end is fedprox
    assert all(held > far for held, far in zip(leashed, loose, strict=True))
    assert said["same"] == ["True", "False"]


def test_without_strength_it_is_fedavg_and_strength_is_the_clients_own(said):
    assert said["slack"] == ["True"]
    assert said["one"] == ["3"]


def test_what_it_says_it_takes_is_counted_and_noised_for(said):
    assert said["counts"] == ["6", "3", "12", "6"]
    once, twice = map(float, said["noise"])
    assert twice / once == pytest.approx(2**0.5, rel=2e-3)  # full batches: μ = 2√(KR)/noise
    assert all(0.99 < float(mu) <= 1 for mu in said["mu"])
