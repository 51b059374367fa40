"""Where client states live: in memory up to a limit, beyond that in one file.

The file is a safetensors file with two places for each client. A state is always written to the place that the last
checkpoint does not point at, so whatever happens while writing, the last checkpoint is whole. Clients that never took part
take no space: the file is sparse. A state's checksum is taken when it is written to the file, and compared whenever it is
read from there.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .files import checksum, damaged
from .values import BadValue

_NAMES = {torch.float32: ("F32", np.float32), torch.float64: ("F64", np.float64)}


class Place(NamedTuple):
    """Which of a client's two places holds its state, and the checksum of what was written there."""

    at: int
    checksum: str


def noted(places: Mapping[int, Place]) -> dict[str, Place]:
    """What `Store.flush` returned, for JSON."""
    return {str(client): place for client, place in places.items()}


def places_of(saved: Mapping[Any, Sequence[Any]]) -> dict[int, Place]:
    """The same, read back."""
    return {int(client): Place(*place) for client, place in saved.items()}


def room(clients: int, rows: int, like: Tensor, memory: float, path: Path | None) -> Store:
    """Where so many vectors like this one of all clients are kept: on a GPU where they fit, else within `memory` bytes."""
    size = clients * rows * like.nbytes
    if like.device.type == "cuda" and 2 * size < torch.cuda.mem_get_info(like.device)[0]:  # leaves room to work
        return Resident(clients, rows, len(like), like.dtype, like.device, path)
    return Store(clients, rows, len(like), like.dtype, memory, path)


class Store:
    """States [rows, width], one a client; None until one is written."""

    def __init__(
        self, clients: int, rows: int, width: int, dtype: torch.dtype, limit: float, path: Path | None = None
    ) -> None:
        self.clients, self.shape, self.dtype, self.limit = clients, (rows, width), dtype, limit
        self.committed: dict[int, Place] = {}  # client → its place in the last checkpoint
        self._written: dict[int, Place] = {}  # client → its place since then
        self._cache: OrderedDict[int, Tensor] = OrderedDict()  # least recently used first
        self._dirty: set[int] = set()
        self._path, self._file = path, -1
        self._bytes = rows * width * dtype.itemsize

    def read(self, client: int) -> Tensor | None:
        """The client's state; the caller may not change it in place."""
        if client in self._cache:
            self._cache.move_to_end(client)
            return self._cache[client]
        place = self._written.get(client, self.committed.get(client))
        if place is None:
            return None
        raw = self._read_file(client, place)
        self._keep(client, torch.from_numpy(np.frombuffer(raw, dtype=_NAMES[self.dtype][1]).reshape(self.shape).copy()))
        return self._cache[client]

    def write(self, client: int, state: Tensor) -> None:
        assert state.shape == self.shape, (state.shape, self.shape)
        self._dirty.add(client)
        self._keep(client, state)

    def fill(self, clients: Sequence[int], state: Tensor) -> None:
        """The same state for all of these."""
        for client in clients:
            self.write(client, state)

    def gather(self, clients: Sequence[int]) -> Tensor:
        """The states of these clients [rows, C, width]; all of them must have one, and are written anew afterwards."""
        return torch.stack([self._held(client) for client in clients], 1)

    def rows(self, clients: Sequence[int], row: int) -> Tensor:
        """One row of these clients' states [C, width], as `gather`."""
        return torch.stack([self._held(client)[row] for client in clients])

    def scatter(self, clients: Sequence[int], rows: Sequence[Tensor]) -> None:
        """New states of these clients, given row by row [C, width]."""
        for c, client in enumerate(clients):
            self.write(client, torch.stack([row[c] for row in rows]))

    def restore(self, committed: dict[int, Place]) -> None:
        """Go on from a checkpoint that names these places. All states are read once, and damaged ones refused."""
        self.committed = dict(committed)
        for client, place in self.committed.items():
            self._read_file(client, place)

    def flush(self) -> dict[int, Place]:
        """Write what changed; returns where everything is now, for the manifest."""
        for client in sorted(self._dirty):
            self._put(client, self._held(client))
        self._dirty.clear()
        if self._file >= 0:
            os.fsync(self._file)
        return self.committed | self._written

    def commit(self) -> None:
        """The manifest names the new places: the old ones are free."""
        self.committed |= self._written
        self._written.clear()

    def close(self) -> None:
        if self._file >= 0:
            self._closing()
            self._file = -1

    def _held(self, client: int) -> Tensor:
        state = self.read(client)
        assert state is not None, client
        return state

    def _keep(self, client: int, state: Tensor) -> None:
        self._cache[client] = state.cpu()
        self._cache.move_to_end(client)
        while len(self._cache) > 1 and len(self._cache) * self._bytes > self.limit:
            oldest = next(iter(self._cache))
            if oldest in self._dirty:
                self._put(oldest, self._cache[oldest])  # a full disk refuses here, and nothing is forgotten
                self._dirty.discard(oldest)
            del self._cache[oldest]

    def _put(self, client: int, state: Tensor) -> None:
        at = self._free(client)
        raw = memoryview(state.cpu().contiguous().numpy().data).cast("B")
        write_all(self._open(), raw, self._offset(client, at))
        self._written[client] = Place(at, checksum(raw))

    def _free(self, client: int) -> int:
        """The place that the last checkpoint does not name."""
        last = self.committed.get(client)
        return 0 if last is None else 1 - last.at

    def _read_file(self, client: int, place: Place) -> bytes:
        raw = read_all(self._open(), self._bytes, self._offset(client, place.at))
        if checksum(raw) != place.checksum:
            raise damaged(self._path)
        return raw

    def _offset(self, client: int, place: int) -> int:
        return self._start + (2 * client + place) * self._bytes

    @property
    def _start(self) -> int:
        return len(self._opening())

    def _header(self) -> bytes:
        size = 2 * self.clients * self._bytes
        entry = {"dtype": _NAMES[self.dtype][0], "shape": [self.clients, 2, *self.shape], "data_offsets": [0, size]}
        text = json.dumps({"__metadata__": {"holds": "client states, two places each"}, "states": entry}).encode()
        return text + b" " * (-len(text) % 8)

    def _open(self) -> int:
        if self._file < 0:
            if self._path is None:
                file, name = tempfile.mkstemp(prefix="prifedsync-")
                os.unlink(name)  # gone with the process
            else:
                file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            self._closing = weakref.finalize(self, os.close, file)  # a deleted file takes space while it is open
            if self.committed:
                self._check_whole(file)
            else:
                self._make(file)
            self._file = file
        return self._file

    def _check_whole(self, file: int) -> None:
        """Refuse a file that cannot hold what the last checkpoint names."""
        if os.fstat(file).st_size < self._start + 2 * self.clients * self._bytes:
            raise BadValue("checkpoint", self._path, "is not there, or not all of it", "start the run again")
        if os.pread(file, self._start, 0) != self._opening():
            raise damaged(self._path)

    def _make(self, file: int) -> None:
        """A new file. No checkpoint names a state in an older one: it is what a run left that was killed here."""
        os.ftruncate(file, 0)
        write_all(file, memoryview(self._opening()), 0)
        os.ftruncate(file, self._start + 2 * self.clients * self._bytes)

    def _opening(self) -> bytes:
        header = self._header()
        return len(header).to_bytes(8, "little") + header


class Resident(Store):
    """All states in one tensor on a device, where a group of clients is one lookup; the file is for checkpoints alone."""

    def __init__(
        self, clients: int, rows: int, width: int, dtype: torch.dtype, device: torch.device, path: Path | None = None
    ) -> None:
        super().__init__(clients, rows, width, dtype, math.inf, path)
        self._all = torch.empty(rows, clients, width, dtype=dtype, device=device)

    def fill(self, clients: Sequence[int], state: Tensor) -> None:
        if clients:
            self._all[:, self._places(clients)] = state.unsqueeze(1)
            self._cache |= {client: self._all[:, client] for client in clients}
            self._dirty |= set(clients)

    def gather(self, clients: Sequence[int]) -> Tensor:
        assert all(client in self._cache for client in clients), "a state must be read or filled before"
        run = _one_run(clients)
        return self._all[:, run] if run else self._all.index_select(1, self._places(clients))

    def rows(self, clients: Sequence[int], row: int) -> Tensor:
        run = _one_run(clients)
        return self._all[row, run] if run else self._all[row].index_select(0, self._places(clients))

    def scatter(self, clients: Sequence[int], rows: Sequence[Tensor]) -> None:
        run, places = _one_run(clients), self._places(clients)
        for held, row in zip(self._all, rows, strict=True):
            if run:
                held[run].copy_(row)
            else:
                held.index_copy_(0, places, row)
        self._dirty |= set(clients)

    def _places(self, clients: Sequence[int]) -> Tensor:
        return torch.tensor(clients).to(self._all.device, non_blocking=True)

    def _keep(self, client: int, state: Tensor) -> None:
        self._all[:, client] = state
        self._cache[client] = self._all[:, client]  # a view


def _one_run(clients: Sequence[int]) -> slice | None:
    """The clients as a slice, if they follow each other."""
    run = slice(clients[0], clients[0] + len(clients))
    return run if list(clients) == list(range(run.start, run.stop)) else None


def write_all(file: int, content: memoryview, offset: int) -> None:
    """A nearly full disk writes less than it was given before it refuses."""
    done = 0
    while done < len(content):
        done += os.pwrite(file, content[done:], offset + done)


def read_all(file: int, size: int, offset: int) -> bytes:
    """One call reads at most 2 GiB; less than asked for where the file ends."""
    content = b""
    while len(content) < size:
        more = os.pread(file, size - len(content), offset + len(content))
        if not more:
            break
        content = content + more if content else more
    return content
