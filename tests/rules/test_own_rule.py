"""The rule of docs/rules.md, put into a copy of the package as that page says, and trained."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
PART = PAGE[PAGE.index("## A rule of your own") :]
(FILE,) = re.findall(r"`(rules/\w+\.py)`:\n\n```python\n", PART)
SOURCE, TRIED = re.findall(r"```python\n(.*?)```", PART, flags=re.DOTALL)
(CHANGES,) = re.findall(r"```diff\n(.*?)```", PART, flags=re.DOTALL)

MORE = """
import torch

from prifedsync.rules import RULES

def trained(name, *more):
    changes = ["rounds=1", "local.local_steps=3", f"rule.name={name}", "compare=[]", *more]
    return prifedsync.train(load("digits", changes))

def moved(result):
    return torch.stack([result.engine.own(i) - result.engine.start for i in range(10)])

free, leashed = moved(trained("fedavg")), moved(trained("leash", "rule.strength=0.05"))
print("free", *free.norm(dim=1).tolist())
print("leashed", *leashed.norm(dim=1).tolist())
slack = moved(trained("leash", "rule.strength=0.0"))
print("slack", torch.equal(slack, free))
one = moved(trained("leash", "rule.strength=0.0", 'clients."client-03".strength=0.05'))
print("one", *[i for i in range(10) if not torch.equal(one[i], free[i])])

class Twice(RULES["leash"]):
    def upload_steps(self, local_steps):
        return 2 * local_steps

once = result.record.clients[0]
RULES["leash"] = Twice
twice = prifedsync.train(load("digits", changes)).record.clients[0]
print("counts", once.noisy_queries, once.plan["local_steps"], twice.noisy_queries, twice.plan["local_steps"])
print("noise", once.plan["noise_multiplier"], twice.plan["noise_multiplier"])
print("mu", once.planned["mu"]["upper"], twice.planned["mu"]["upper"])
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A folder with the package in it, changed as the page says."""
    folder = tmp_path_factory.mktemp("own")
    shutil.copytree(ROOT / "src/prifedsync", folder / "prifedsync", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "prifedsync" / FILE).write_text(SOURCE, encoding="utf-8")
    for name, hunk in re.findall(r"^--- src/(\S+)\n(.*?)(?=^---|\Z)", CHANGES, flags=re.DOTALL | re.MULTILINE):
        before, after = ("\n".join(line[1:] for line in hunk.splitlines() if line[0] in kept) for kept in (" -", " +"))
        text = (folder / name).read_text(encoding="utf-8")
        assert text.count(before) == 1, f"{name} has no such line any more: {before}"
        (folder / name).write_text(text.replace(before, after), encoding="utf-8")
    return folder


def run(folder, *words):
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, cwd=folder, timeout=180, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def said(package):
    """What the page's example prints, then what this file asks of the same rule: first word → the rest."""
    printed = run(package, "-c", TRIED + MORE)
    for shown in re.findall(r"#→ (.+)", TRIED):
        assert shown in printed
    return {line.split()[0]: line.split()[1:] for line in printed.splitlines() if line}


def test_it_stands_in_the_table(package):
    rows = json.loads(run(package, "-m", "prifedsync.cli", "rules", "--json"))["rules"]
    assert rows[-1]["name"] == "leash"
    assert rows[-1]["about"].startswith("A leash:")
    assert rows[-1]["fields"] == ["strength", "delivery"]


def test_its_pull_holds_the_models_back(said):
    free, leashed = (list(map(float, said[name])) for name in ("free", "leashed"))
    assert len(free) == 10
    assert all(0 < held < 0.95 * far for held, far in zip(leashed, free, strict=True))


def test_without_strength_it_is_fedavg_and_strength_is_the_clients_own(said):
    assert said["slack"] == ["True"]
    assert said["one"] == ["3"]


def test_what_it_says_it_takes_is_counted_and_noised_for(said):
    assert said["counts"] == ["6", "3", "12", "6"]
    once, twice = map(float, said["noise"])
    assert twice / once == pytest.approx(2**0.5, rel=2e-3)  # full batches: μ = 2√(KR)/noise
    assert all(0.99 < float(mu) <= 1 for mu in said["mu"])
