"""The files of records: a folder with one file per client, or one file for all clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..values import BadValue

if TYPE_CHECKING:
    from ..config import DataConfig


HIDDEN = (".", "~$")  # also the lock files of LibreOffice and Excel, which lie beside an open table
TABLES = {".xlsx", ".xls", ".xlsm", ".xlsb", ".ods", ".tsv", ".parquet", ".feather", ".sav", ".dta", ".sas7bdat", ".gz"}
MOST_NAMES = 4  # of files that a message lists


def files(config: DataConfig, ending: str) -> dict[str, Path] | Path:
    """The file of each client by its name if `data.path` is a folder, otherwise the one file."""
    path = Path(config.path)
    remedy = "name a file, or a folder with one file per client, with data.path or --data"
    if not config.path:
        raise BadValue("data.path", '""', f"must be set for data.source = {config.source}", remedy)
    if path.is_file():
        return path
    if not path.is_dir():
        raise BadValue("data.path", config.path, "does not exist", remedy)
    visible = [file for file in sorted(path.iterdir()) if file.is_file() and not file.name.startswith(HIDDEN)]
    of_kind = [file for file in visible if file.suffix.lower() == ending]
    _check_others(config, visible, of_kind, ending)
    if not of_kind:
        raise BadValue("data.path", config.path, f"holds no {ending} file", remedy)
    if config.client_column:
        if len(of_kind) == 1:  # --data may name the folder of the one file
            return of_kind[0]
        rule = f"is for one file with all clients, but {config.path} holds {len(of_kind)} files"
        remedy = "leave it out, or name one file"
        raise BadValue("data.client_column", repr(config.client_column), rule, remedy)
    if config.partition == "column":
        rule = "needs a column that names the client, but data.client_column is empty"
        remedy = "set data.client_column; one file per client needs no partition"
        raise BadValue("data.partition", "column", rule, remedy)
    return _by_client(of_kind)


def _check_others(config: DataConfig, visible: list[Path], of_kind: list[Path], ending: str) -> None:
    """Refuse tables of another format: a client would be left out without a word. One that was saved again is not read."""
    read = {file.stem for file in of_kind}
    others = [file.name for file in visible if file.suffix.lower() in TABLES and file.stem.removesuffix(".csv") not in read]
    if others and ending == ".csv":
        rule = (
            f"holds {', '.join(others[:MOST_NAMES])}{' …' if len(others) > MOST_NAMES else ''}, and only CSV files are read"
        )
        remedy = 'save the table as "CSV UTF-8", or take the file away'
        raise BadValue("data.path", config.path, rule, remedy)


def _by_client(files: list[Path]) -> dict[str, Path]:
    clients: dict[str, Path] = {}
    for file in files:
        if file.stem in clients:
            rule = f"is the name of two files: {clients[file.stem].name}, {file.name}"
            raise BadValue("client name", repr(file.stem), rule, "rename one of them")
        clients[file.stem] = file
    return clients


def refuse_duplicates(files: Mapping[str, tuple[str, bytes]]) -> None:
    """Refuse two files with the same records. `files` is client → the file's name and a digest of its records."""
    seen: dict[bytes, str] = {}
    for client, (name, digest) in files.items():
        if digest in seen:
            rule = f"holds the same records as {seen[digest]}: each record would leak through both clients"
            raise BadValue(f"client {client!r}, file", name, rule, "take one of the two files away")
        seen[digest] = name


def unreadable(path: Path, why: str, remedy: str = "") -> BadValue:
    """The error for a file that is not what its name says."""
    return BadValue("file", path.name, f"cannot be read: {why}", remedy)
