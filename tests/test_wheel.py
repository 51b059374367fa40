"""The wheel, built from this tree and installed in an empty environment, runs; its metadata names every import."""

import ast
import json
import os
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        check=True,
        capture_output=True,
        timeout=300,
    )
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_package_and_its_types(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for needed in ("py.typed", "cli/train.py", "terminal/view.py", "fdp/law.py", "accounting/plan.py"):
        assert f"prifedsync/{needed}" in names
    for file in (ROOT / "src/prifedsync/deploy/texts").iterdir():
        assert f"prifedsync/deploy/texts/{file.name}" in names
    assert "prifedsync/deploy/example.toml" in names
    for file in ("report.css", "report.js"):
        assert f"prifedsync/report/html/assets/{file}" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith("tests") for name in names)


def test_the_wheel_runs_in_an_empty_environment_without_torch(wheel, tmp_path):
    """Accounting needs numpy, scipy and the command line alone; torch, the heaviest of the requirements, is left out."""
    place = tmp_path / "empty"
    venv.create(place, with_pip=True)
    python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*install, "numpy", "scipy", "typer", "rich"], check=True, timeout=300)
    subprocess.run([*install, "--no-deps", str(wheel)], check=True, timeout=300)
    words = "account --records 600 --batch 16 --noise-multiplier 2 --local-steps 38 --rounds 93 --sampling fixed --json"
    done = subprocess.run(
        [str(python.parent / "prifedsync"), *words.split()],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert 13.877 <= json.loads(done.stdout)["epsilon"]["upper"] <= 13.878


def test_every_package_imported_is_required(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    required = {
        line.split(":")[1].strip().split(">")[0].split("<")[0].lower() for line in lines if line.startswith("Requires-Dist")
    }
    imported = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                imported.add(node.module.split(".")[0])
    third_party = imported - set(sys.stdlib_module_names) - {"prifedsync"}
    owners = packages_distributions()
    missing = {name for name in third_party if not {owner.lower() for owner in owners.get(name, [])} & required}
    assert missing <= {"click", "triton"}  # the one comes with typer, whose types it is; the other with torch for GPUs
