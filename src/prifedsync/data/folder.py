"""Which files there are: one a client in a folder, or one for all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..values import BadValue

if TYPE_CHECKING:
    from ..config import DataConfig


def files(config: DataConfig, ending: str) -> dict[str, Path] | Path:
    """The file of each client by name if `data.path` is a folder, otherwise the one file."""
    path = Path(config.path)
    remedy = "give a folder with one file a client, or one file, with data.path or --data"
    if not config.path:
        raise BadValue("data.path", '""', f"must be given for data.source = {config.source}", remedy)
    if path.is_file():
        return path
    if not path.is_dir():
        raise BadValue("data.path", config.path, "does not exist", remedy)
    found = sorted(f for f in path.iterdir() if f.suffix.lower() == ending and f.is_file() and not f.name.startswith("."))
    if not found:
        raise BadValue("data.path", config.path, f"holds no {ending} file", remedy)
    if config.client_column:
        if len(found) == 1:  # --data may name the folder of the one file
            return found[0]
        rule = f"is for one file with all clients, and {config.path} holds {len(found)}"
        raise BadValue("data.client_column", repr(config.client_column), rule, "leave it out, or give one file")
    if config.partition == "column":
        rule = "needs a column that names the client, and data.client_column is empty"
        raise BadValue("data.partition", "column", rule, "name the column; one file a client needs no partition")
    clients: dict[str, Path] = {}
    for file in found:
        if file.stem in clients:
            raise BadValue(
                "client name", repr(file.stem), f"is there twice: {clients[file.stem].name}, {file.name}", "rename one"
            )
        clients[file.stem] = file
    return clients


def unreadable(path: Path, why: str, remedy: str = "") -> BadValue:
    """The refusal of a file that is not what its name says."""
    return BadValue("file", path.name, f"cannot be read: {why}", remedy)
