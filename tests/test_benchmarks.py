"""Benchmarks are run by hand, so what they import from the package is checked here."""

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_a_benchmark_imports_is_there(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    own = [node for node in imports if (node.module or "").startswith("prifedsync")]
    assert own
    for node in own:
        module = import_module(node.module)
        for name in node.names:
            is_package = hasattr(module, "__path__")
            there = hasattr(module, name.name) or (is_package and find_spec(f"{node.module}.{name.name}"))
            assert there, f"line {node.lineno}: {node.module} has no {name.name}"
