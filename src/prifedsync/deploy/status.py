"""How a run on real machines is doing: a small file that the server writes, and `deploy status` reads."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, NoReturn, cast, get_args

from ..files import write_file
from ..values import BadValue
from .places import ProjectPlaces, ServerPlaces

Phase = Literal["waiting for clients", "training", "finished", "stopped by an error", "ended"]
Node = Literal["online", "offline", "not registered"]
Reaction = Literal["", "asked", "sent", "absent", "refused", "lost"]  # "": not asked in this round
MOST_BYTES = 2**26  # of the file
LAST_TIME = 2.0**36  # seconds, in the year 4147: later ones have no date everywhere


@dataclass(frozen=True, kw_only=True)
class ClientStatus:
    """One client of the roster, as the server knows it."""

    name: str
    node: Node = "not registered"  # its SuperNode
    answer: Reaction = ""  # in this round
    reason: str = ""  # why it refused or was lost
    late: bool = False  # its answer is awaited for longer than usual
    since: float | None = None  # unix time when it was asked in this round
    answered: int = 0  # rounds
    last: float | None = None  # unix time of its last answer
    shown: Mapping[str, float | None] | None = None  # metric → score; None: its owner lets none leave


@dataclass(frozen=True, kw_only=True)
class Status:
    """A run at one moment."""

    run: str
    phase: Phase
    round: int  # that is being taken, from 1 on; 0 before the first
    rounds: int
    begun: float  # unix time
    changed: float  # unix time when this was written
    error: str = ""
    clients: tuple[ClientStatus, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def is_late(now: float, asked: float | None, answer: Reaction, question: float) -> bool:
    """Whether an answer is awaited for longer than the time after which a question is sent again (waiting.question)."""
    return answer == "asked" and asked is not None and now - asked > question


def write(path: Path, status: Status) -> None:
    """Replace the file: whoever reads it finds one whole status."""
    write_file(path, json.dumps(status.as_json(), allow_nan=False).encode())


def place_of(folder: Path) -> Path:
    """The status file of a server folder, or of a project."""
    try:
        for places in (ServerPlaces(folder), ProjectPlaces(folder).server):
            if places.status.is_file() or places.settings.is_file():
                return places.status
    except PermissionError as error:
        raise BadValue("folder", folder, f"cannot be entered ({error.strerror})", "look as the server's user") from None
    raise BadValue("folder", folder, "is no project and no server's folder", "`prifedsync deploy init DIR` makes a project")


def read(path: Path) -> Status:
    """The status in a file. Whatever is wrong with it is one `BadValue`."""
    if not path.is_file():
        raise BadValue("status", path, "is not there: no server has been started here yet", "start the server")
    try:
        return _status_of(_parsed(path))
    except OSError as error:
        raise BadValue("status", path, f"cannot be read ({error.strerror})", "read it as the server's user") from None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        rule = f"is not a status that this version writes ({error})"
        raise BadValue("status", path, rule, "start the server again, and it is written anew") from None


# ---------------------------------------------------------------------- reading


def _parsed(path: Path) -> Any:
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    return json.loads(content, parse_constant=_no_number)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _status_of(data: Any) -> Status:
    found = _table(data, Status)
    clients = found.pop("clients")
    if not isinstance(clients, list):
        raise ValueError("clients is no list")
    _check_texts(found, ("run", "error"))
    _check_whole(found, ("round", "rounds"))
    _check_times(found, ("begun", "changed"))
    _check_choice(found, "phase", get_args(Phase))
    return Status(**found, clients=tuple(_client_of(client) for client in clients))


def _client_of(data: Any) -> ClientStatus:
    found = _table(data, ClientStatus)
    _check_texts(found, ("name", "reason"))
    _check_whole(found, ("answered",))
    _check_times(found, [name for name in ("since", "last") if found[name] is not None])
    _check_choice(found, "node", get_args(Node))
    _check_choice(found, "answer", get_args(Reaction))
    if not isinstance(found["late"], bool):
        raise ValueError("late is neither true nor false")
    _check_shown(found["shown"])
    return ClientStatus(**found)


def _table(data: Any, kind: type[Any]) -> dict[str, Any]:
    """A table with exactly the fields of this class."""
    names = {field.name for field in fields(kind)}
    if not isinstance(data, dict) or data.keys() != names:
        raise ValueError(f"it does not have the fields of a {kind.__name__}")
    return cast(dict[str, Any], data)


def _check_texts(found: Mapping[str, Any], names: Iterable[str]) -> None:
    for name in names:
        if not isinstance(found[name], str):
            raise ValueError(f"{name} is no text")


def _check_whole(found: Mapping[str, Any], names: Iterable[str]) -> None:
    for name in names:
        if isinstance(found[name], bool) or not isinstance(found[name], int) or found[name] < 0:
            raise ValueError(f"{name} is no count")


def _check_times(found: Mapping[str, Any], names: Iterable[str]) -> None:
    for name in names:
        if not _is_number(found[name]) or not 0 <= found[name] < LAST_TIME:
            raise ValueError(f"{name} is no time")


def _check_choice(found: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> None:
    if found[name] not in choices:
        raise ValueError(f"{name} is none of {choices}")


def _check_shown(shown: Any) -> None:
    if shown is None:
        return
    if not isinstance(shown, dict) or not all(value is None or _is_number(value) for value in shown.values()):
        raise ValueError("shown has no scores")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
