"""What the documents show is what happens: code runs, links lead somewhere, tables name real things."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from prifedsync.accounting import NoisySteps, PrivacyPlan
from prifedsync.accounting.statement import up
from prifedsync.config import load

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks(page):
    """Language and body of each piece of code on a page."""
    return re.findall(r"```(\w+)\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)


BLOCKS = blocks("README.md")
RUN = {  # page → a word that is in its code; that of docs/rules.md is run by tests/rules/test_own_rule.py
    "README.md": "guarantee",
    "docs/training.md": "audit_step",
    "docs/pitfalls.md": "fixed_size",
}


def test_every_page_with_python_is_run():
    found = {str(page.relative_to(ROOT)) for page in PAGES if "```python" in page.read_text(encoding="utf-8")}
    assert found == {*RUN, "docs/rules.md"}


@pytest.mark.parametrize("page", RUN)
def test_python_blocks_run(page, tmp_path):
    code = "\n".join(body for language, body in blocks(page) if language == "python")
    assert RUN[page] in code
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 0, done.stderr
    for shown in re.findall(r"#→ (.+)", code):
        assert shown in done.stdout


def test_shell_blocks_run(tmp_path):
    lines = "\n".join(body for language, body in BLOCKS if language == "sh").replace("\\\n", " ").splitlines()
    commands = [shlex.split(line) for line in lines if line.startswith("prifedsync")]
    assert len(commands) >= 3
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", "prifedsync.cli", *command[1:]],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            timeout=120,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
    makes = {line.split()[1].split("#")[0] for line in lines if line.startswith("make ")}
    assert {"demo", "test"} <= makes
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert makes <= set(targets)


@pytest.mark.parametrize("page", ["README.md", "docs/rules.md"])
def test_configs_are_read(page, tmp_path):
    (body,) = (body for language, body in blocks(page) if language == "toml")
    (tmp_path / "shown.toml").write_text(body, encoding="utf-8")
    assert load(tmp_path / "shown.toml", ["privacy.target.mu=1"]).privacy.target.mu == 1


def test_what_rules_cost_is_what_the_accounting_says():
    page = (ROOT / "docs/rules.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:\d?)K = (\d+) \|.*\| ([\d.]+) \| ([\d.]+) \|$", page, flags=re.MULTILINE)
    assert [row[0] for row in rows] == ["38", "76", "114"]
    for steps, epsilon, noise in rows:
        costs = []
        for multiplier in (2.0, float(noise)):
            mechanism = NoisySteps(noise_multiplier=multiplier, records=600, batch=16, local_steps=int(steps))
            costs.append(PrivacyPlan(mechanism=mechanism, rounds=93).guarantee().epsilon(1e-5).upper)
        assert up(costs[0]) == epsilon
        assert 1.997 < costs[1] <= 2


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_tests_and_sources_named_in_documents_exist(page):
    for name in re.findall(r"`((?:tests|src|docs|benchmarks)/[\w/.-]+\.\w+)`", page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), name
