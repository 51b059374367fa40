"""The order of rooms: a room imports only rooms above it, and some packages only where they belong."""

import ast

import pytest
from scripts.rooms import BEGIN, END, PACKAGE, PAGE, SOURCE, edges, imports_of, reduced, room_of, written

# A room imports rooms that stand on an earlier line, and nobody else. Rooms on one line do not know each other.
ORDER = (
    ("values", "limits"),
    ("files", "named"),
    ("store",),
    ("fdp",),
    ("accounting",),
    ("config", "scores"),
    ("joining",),
    ("record",),
    ("events",),
    ("report", "terminal"),
    ("data", "models", "metrics"),
    ("predicting",),
    ("rules",),
    ("local",),
    ("sync",),
    ("server",),
    ("planning",),
    ("settings",),
    ("asking",),
    ("engines",),
    ("owner",),
    ("run",),
    ("experiments", "deploy"),
    ("audit", "bench"),
    ("cli",),
)
LINE = {room: line for line, rooms in enumerate(ORDER) for room in rooms}
OUTSIDE = {  # third-party package → the rooms, or folders in rooms, that may import it
    "torch": {
        "store",
        "data",
        "models",
        "metrics",
        "predicting",
        "local",
        "rules",
        "sync",
        "server",
        "asking",
        "engines",
        "owner",
        "run",
        "experiments",
        "deploy",
        "audit",
        "bench",
    },
    "matplotlib": {"report"},
    "plotly": {"report"},
    "flwr": {"engines/flower"},
    "opacus": {"bench"},
    "pooch": {"data"},
    "typer": {"cli"},
    "rich": {"terminal"},
    "click": {"cli"},
    "triton": {"local"},
    "cryptography": {"local", "owner", "deploy", "engines/flower"},
    "sklearn": {"data"},
}
BANNED_NAMES = {"utils", "common", "helpers", "base", "core", "misc"}


def folders_of(path):
    """The room of a file, and the folders in it that the file lies in."""
    parts = path.relative_to(SOURCE).parts
    return {room_of(path), *("/".join(parts[:depth]) for depth in range(2, len(parts)))}


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
            assert folders_of(path) & OUTSIDE[name], f"{path.name}: {room} may not import {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_the_package_itself_is_asked_for_its_version_alone(path):
    """What it opens for users lies in rooms; to take it from there would go around their order."""
    if room_of(path) == PACKAGE:
        return
    dots = len(path.relative_to(SOURCE).parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        whole = isinstance(node, ast.ImportFrom) and (
            (node.level == dots and node.module is None) or (node.level == 0 and node.module == SOURCE.name)
        )
        names = {alias.name for alias in node.names} if whole else set()
        assert names <= {"__version__", *LINE}, f"{path.name} imports {names} from the package"


def test_no_room_is_a_drawer():
    names = {part.removesuffix(".py") for path in FILES for part in path.relative_to(SOURCE).parts}
    assert not names & BANNED_NAMES


def test_the_check_itself_sees_a_wrong_import():
    wrong = "from ..accounting import PrivacyPlan\nimport torch\nfrom prifedsync.cli import main\n"
    seen = imports_of(wrong, SOURCE / "fdp" / "law.py")
    assert {("room", "accounting"), ("outside", "torch"), ("room", "cli")} <= seen


def test_a_package_may_belong_to_one_folder_of_a_room():
    assert folders_of(SOURCE / "engines" / "flower" / "site.py") == {"engines", "engines/flower"}
    assert folders_of(SOURCE / "engines" / "owners.py") == {"engines"}
    assert folders_of(SOURCE / "values.py") == {"values"}
    importers = {path for path in FILES if ("outside", "flwr") in imports_of(path.read_text(encoding="utf-8"), path)}
    assert {path.parent for path in importers} == {SOURCE / "engines" / "flower"}
    for name, places in OUTSIDE.items():
        assert all((SOURCE / place).is_dir() or (SOURCE / f"{place}.py").is_file() for place in places), name


def test_all_ways_to_import_are_seen():
    text = """
import prifedsync.fdp.law
from prifedsync import run, train
from prifedsync.local import Job
from .. import __version__, rules
from ..data.table import read
from . import neighbour
from .neighbour import thing
import torch.nn
"""
    seen = imports_of(text, SOURCE / "audit" / "step.py")
    rooms = {"fdp", "run", "local", "rules", "data", PACKAGE}
    assert seen == {("room", name) for name in rooms} | {("outside", "torch")}
    top = imports_of("from .fdp import law\nfrom . import values, nothing_of_this_name", SOURCE / "cli.py")
    assert top == {("room", "fdp"), ("room", "values"), ("room", PACKAGE)}


def test_the_graph_has_direct_edges_only():
    graph = {("cli", "run"), ("run", "fdp"), ("cli", "fdp"), ("cli", "report")}
    assert reduced(graph) == graph - {("cli", "fdp")}
    ring = {("a", "b"), ("b", "a"), ("b", "c"), ("a", "c")}
    assert reduced(ring) in (ring - {("a", "c")}, ring - {("b", "c")})


def test_the_page_shows_the_rooms_as_they_are():
    page = PAGE.read_text(encoding="utf-8")
    assert page == written(page), "docs/design.md shows other rooms than there are: run make rooms"
    shown = page.split(BEGIN)[1].split(END)[0]
    assert shown.count("-->") == len(reduced(edges())) > 10
    first = next(line for line in shown.splitlines() if "-->" in line)
    stale = page.replace(f"{first}\n", "")
    assert stale != page
    assert written(stale) == page
