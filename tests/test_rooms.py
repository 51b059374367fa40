"""The order of rooms: a room imports only rooms above it, and some packages only where they belong."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "prifedsync"

# A room imports rooms that stand on an earlier line, and nobody else. Rooms on one line do not know each other.
ORDER = (
    ("values",),
    ("files", "named"),
    ("fdp",),
    ("accounting",),
    ("config",),
    ("record",),
    ("events",),
    ("report", "terminal"),
    ("data", "models", "metrics"),
    ("rules",),
    ("local",),
    ("sync",),
    ("server",),
    ("planning",),
    ("engines", "owner"),
    ("run",),
    ("experiments",),
    ("audit", "bench"),
    ("cli",),
)
LINE = {room: line for line, rooms in enumerate(ORDER) for room in rooms}
PACKAGE = "__init__"  # the package itself: its version, for all; it opens `run` for its users
OUTSIDE = {  # third-party package → the rooms that may import it
    "torch": {
        "data",
        "models",
        "metrics",
        "local",
        "rules",
        "sync",
        "server",
        "engines",
        "owner",
        "run",
        "experiments",
        "audit",
        "bench",
    },
    "matplotlib": {"report"},
    "plotly": {"report"},
    "flwr": {"engines"},
    "opacus": {"bench"},
    "pooch": {"data"},
    "typer": {"cli"},
    "rich": {"terminal"},
}
BANNED_NAMES = {"utils", "common", "helpers", "base", "core", "misc"}


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(text: str, path: Path) -> set[tuple[str, str]]:
    """('room', name) for imports inside the package, ('outside', name) for others."""
    found = set()
    depth = len(path.relative_to(SOURCE).parts)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        elif isinstance(node, ast.ImportFrom):
            if node.level == depth:  # relative to the package itself
                targets = [node.module.split(".")[0]] if node.module else [alias.name for alias in node.names]
                found |= {
                    ("room", t if (SOURCE / t).is_dir() or (SOURCE / f"{t}.py").exists() else "__init__") for t in targets
                }
            continue
        else:
            continue
        for name in names:
            parts = name.split(".")
            inside = parts[0] == "prifedsync"
            found.add(("room", parts[1] if len(parts) > 1 else "__init__") if inside else ("outside", parts[0]))
    return found


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_follow_the_order_of_rooms(path):
    room = room_of(path)
    assert room == PACKAGE or room in LINE, f"{room} is not a room of docs/design.md"
    for kind, name in imports_of(path.read_text(encoding="utf-8"), path):
        if kind == "room":
            assert PACKAGE in (room, name) or name == room or LINE[name] < LINE[room], (
                f"{path.name}: {room} may not import {name}"
            )
        elif name in OUTSIDE:
            assert room in OUTSIDE[name], f"{path.name}: {room} may not import {name}"


def test_no_room_is_a_drawer():
    names = {part.removesuffix(".py") for path in FILES for part in path.relative_to(SOURCE).parts}
    assert not names & BANNED_NAMES


def test_the_check_itself_sees_a_wrong_import():
    wrong = "from ..accounting import PrivacyPlan\nimport torch\nfrom prifedsync.cli import main\n"
    seen = imports_of(wrong, SOURCE / "fdp" / "law.py")
    assert {("room", "accounting"), ("outside", "torch"), ("room", "cli")} <= seen
