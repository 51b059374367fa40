"""The states of clients: in memory up to a limit, and in one file beyond it.

The file is a safetensors file with two places for each client. A state is always written to the place that the last
checkpoint does not name, so the last checkpoint stays complete whatever happens during a write. The file is sparse, so
clients that never took part use no disk space. A state's checksum is computed when it is written, and compared when it is
read.
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
    """Which of a client's two places holds its state, and the checksum of that state."""

    at: int
    checksum: str


def noted(places: Mapping[int, Place]) -> dict[str, Place]:
    """The places that `Store.flush` returned, as JSON has them."""
    return {str(client): place for client, place in places.items()}


def places_of(saved: Mapping[Any, Sequence[Any]]) -> dict[int, Place]:
    """The places from the JSON that `noted` made."""
    return {int(client): Place(*place) for client, place in saved.items()}


def room(clients: int, rows: int, like: Tensor, memory: float, path: Path | None) -> Store:
    """A store for `rows` vectors per client, each like this one: on the GPU if they fit, else within `memory` bytes."""
    if like.device.type == "cuda":
        size = clients * rows * like.nbytes
        free, _ = torch.cuda.mem_get_info(like.device)
        resident = 2 * size < free  # half of the free memory is left for training
    else:
        resident = False
    if resident:
        return Resident(clients, rows, len(like), like.dtype, like.device, path)
    return Store(clients, rows, len(like), like.dtype, memory, path)


class Store:
    """The state [rows, width] of each client; None until it is written."""

    def __init__(
        self, clients: int, rows: int, width: int, dtype: torch.dtype, limit: float, path: Path | None = None
    ) -> None:
        self.clients = clients
        self.shape = (rows, width)
        self.dtype = dtype
        self.limit = limit
        self.committed: dict[int, Place] = {}  # client → its place in the last checkpoint
        self._written: dict[int, Place] = {}  # client → its place since then
        self._cache: OrderedDict[int, Tensor] = OrderedDict()  # least recently used first
        self._dirty: set[int] = set()
        self._path = path
        self._file = -1  # not open yet
        self._bytes = rows * width * dtype.itemsize

    def read(self, client: int) -> Tensor | None:
        """The state of the client. The caller must not change it in place."""
        if client in self._cache:
            self._cache.move_to_end(client)
            return self._cache[client]
        place = self._written.get(client, self.committed.get(client))
        if place is None:
            return None
        raw = self._read_file(client, place)
        values = np.frombuffer(raw, dtype=_NAMES[self.dtype][1]).reshape(self.shape)
        self._keep(client, torch.from_numpy(values.copy()))
        return self._cache[client]

    def write(self, client: int, state: Tensor) -> None:
        assert state.shape == self.shape, (state.shape, self.shape)
        assert state.dtype == self.dtype, (state.dtype, self.dtype)
        self._dirty.add(client)
        self._keep(client, state)

    def fill(self, clients: Sequence[int], state: Tensor) -> None:
        """Write the same state for all of these clients."""
        for client in clients:
            self.write(client, state)

    def gather(self, clients: Sequence[int]) -> Tensor:
        """The states of these clients [rows, C, width]. Each must have one, and the caller writes new ones afterwards."""
        return torch.stack([self._held(client) for client in clients], 1)

    def rows(self, clients: Sequence[int], row: int) -> Tensor:
        """One row of the states of these clients [C, width]. Each must have a state."""
        return torch.stack([self._held(client)[row] for client in clients])

    def scatter(self, clients: Sequence[int], rows: Sequence[Tensor]) -> None:
        """Write new states of these clients, given as rows [C, width]."""
        for c, client in enumerate(clients):
            self.write(client, torch.stack([row[c] for row in rows]))

    def restore(self, committed: dict[int, Place]) -> None:
        """Continue from a checkpoint that names these places. Every state is read once; a damaged one is refused."""
        self.committed = dict(committed)
        for client, place in self.committed.items():
            self._read_file(client, place)

    def flush(self) -> dict[int, Place]:
        """Write changed states to the file, and return the place of every state for the manifest."""
        for client in sorted(self._dirty):
            self._put(client, self._held(client))
        self._dirty.clear()
        if self._file >= 0:
            os.fsync(self._file)
        return self.committed | self._written

    def commit(self) -> None:
        """The manifest names the new places now, so the old ones are free."""
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
                self._put(oldest, self._cache[oldest])  # raises if the disk is full; the state is still in the cache then
                self._dirty.discard(oldest)
            del self._cache[oldest]

    def _put(self, client: int, state: Tensor) -> None:
        at = self._free(client)
        raw = memoryview(state.cpu().contiguous().numpy().data).cast("B")
        write_all(self._open(), raw, self._offset(client, at))
        self._written[client] = Place(at, checksum(raw))

    def _free(self, client: int) -> int:
        """The place of the client that the last checkpoint does not name."""
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
        shape = [self.clients, 2, *self.shape]
        entry = {"dtype": _NAMES[self.dtype][0], "shape": shape, "data_offsets": [0, size]}
        metadata = {"holds": "client states, two places each"}
        text = json.dumps({"__metadata__": metadata, "states": entry}).encode()
        return text + b" " * (-len(text) % 8)

    def _open(self) -> int:
        if self._file < 0:
            if self._path is None:
                file, name = tempfile.mkstemp(prefix="prifedsync-")
                os.unlink(name)  # the file disappears with the process
            else:
                file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            self._closing = weakref.finalize(self, os.close, file)  # a deleted file uses disk space while it is open
            if self.committed:
                self._check_whole(file)
            else:
                self._make(file)
            self._file = file
        return self._file

    def _check_whole(self, file: int) -> None:
        """Refuse a file that is too short for the states of the last checkpoint, or that has another header."""
        if os.fstat(file).st_size < self._start + 2 * self.clients * self._bytes:
            raise BadValue("checkpoint", self._path, "is missing or incomplete", "start a new run")
        if os.pread(file, self._start, 0) != self._opening():
            raise damaged(self._path)

    def _make(self, file: int) -> None:
        """Make a new file. It replaces one of a killed run, since no checkpoint names a state in it."""
        os.ftruncate(file, 0)
        write_all(file, memoryview(self._opening()), 0)
        os.ftruncate(file, self._start + 2 * self.clients * self._bytes)

    def _opening(self) -> bytes:
        header = self._header()
        return len(header).to_bytes(8, "little") + header


class Resident(Store):
    """All states in one tensor on a device, so that a group of clients is one lookup. The file is for checkpoints only."""

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
        assert all(client in self._cache for client in clients), "a state must be written before it is gathered"
        run = _one_run(clients)
        return self._all[:, run] if run else self._all.index_select(1, self._places(clients))

    def rows(self, clients: Sequence[int], row: int) -> Tensor:
        run = _one_run(clients)
        return self._all[row, run] if run else self._all[row].index_select(0, self._places(clients))

    def scatter(self, clients: Sequence[int], rows: Sequence[Tensor]) -> None:
        run = _one_run(clients)
        places = self._places(clients)
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
    """The clients as a slice, if their numbers are consecutive."""
    run = slice(clients[0], clients[0] + len(clients))
    return run if list(clients) == list(range(run.start, run.stop)) else None


def write_all(file: int, content: memoryview, offset: int) -> None:
    """Write all of the content: one call may write less, for example on a nearly full disk."""
    done = 0
    while done < len(content):
        done += os.pwrite(file, content[done:], offset + done)


def read_all(file: int, size: int, offset: int) -> bytes:
    """Read `size` bytes, or fewer if the file ends before: one call reads at most 2 GiB."""
    content = b""
    while len(content) < size:
        more = os.pread(file, size - len(content), offset + len(content))
        if not more:
            break
        content = content + more if content else more
    return content
