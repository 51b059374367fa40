"""What the documents show is what happens: README code runs, links lead somewhere, tables name real things."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_python_blocks_run(tmp_path):
    code = "\n".join(body for language, body in BLOCKS if language == "python")
    assert "guarantee" in code
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


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_tests_and_sources_named_in_documents_exist(page):
    for name in re.findall(r"`((?:tests|src|docs|benchmarks)/[\w/.-]+\.\w+)`", page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), name
