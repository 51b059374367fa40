"""The graph of rooms: which room of the package imports which other one.

`python scripts/rooms.py` reads the imports of src/prifedsync and writes the graph into docs/design.md, between two marker
comments. `tests/test_rooms.py` uses the same functions, and fails if the page is out of date.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "prifedsync"
PAGE = ROOT / "docs" / "design.md"
BEGIN = "<!-- rooms:begin -->"
END = "<!-- rooms:end -->"
PACKAGE = "__init__"  # the package itself: every room may ask for its version, and it opens rooms for users

Edge = tuple[str, str]  # the importing room, the imported room


def room_of(path: Path) -> str:
    """The first folder of a file inside the package, or the file itself if it lies in none."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(text: str, path: Path) -> set[Edge]:
    """('room', name) for imports inside the package, ('outside', name) for others."""
    found = set()
    for name in _imported(ast.parse(text), path):
        parts = name.split(".")
        if parts[0] != SOURCE.name:
            found.add(("outside", parts[0]))
        else:
            known = len(parts) > 1 and ((SOURCE / parts[1]).is_dir() or (SOURCE / f"{parts[1]}.py").exists())
            found.add(("room", parts[1] if known else PACKAGE))
    return found


def _imported(tree: ast.AST, path: Path) -> Iterator[str]:
    """The full names of all that a file imports, except from its own room by relative imports."""
    depth = len(path.relative_to(SOURCE).parts)  # as many dots lead to the package itself
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level in (0, depth):
            start = [SOURCE.name] if node.level else []
            module = [*start, node.module] if node.module else start
            # from prifedsync import run: the name may be a room, or a name of the package
            ends = [[alias.name] for alias in node.names] if module == [SOURCE.name] else [[]]
            yield from (".".join([*module, *end]) for end in ends)


def edges() -> set[Edge]:
    """Every import of one room by another."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        room = room_of(path)
        names = {name for kind, name in imports_of(path.read_text(encoding="utf-8"), path) if kind == "room"}
        found |= {(room, name) for name in names if PACKAGE not in (room, name) and name != room}
    return found


def reduced(graph: set[Edge]) -> set[Edge]:
    """The graph without edges that follow from others; who reaches whom stays the same."""
    kept = set(graph)
    for edge in sorted(graph):
        without = kept - {edge}
        if edge[1] in _reached(without, edge[0]):
            kept = without
    return kept


def _reached(graph: set[Edge], start: str) -> set[str]:
    found: set[str] = set()
    ahead = [start]
    while ahead:
        room = ahead.pop()
        new = {name for importer, name in graph if importer == room} - found
        found |= new
        ahead += new
    return found


def mermaid(graph: set[Edge]) -> str:
    """The graph as Mermaid text, from the room that imports to the room that is imported."""
    arrows = [f"    {importer} --> {imported}" for importer, imported in sorted(graph)]
    return "\n".join(["```mermaid", "graph TD", *arrows, "```"])


def written(page: str) -> str:
    """The page with the graph as it is now between the markers."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{mermaid(reduced(edges()))}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
