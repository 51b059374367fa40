"""Where client states live: in memory up to a limit, beyond that in one file.

The file is a safetensors file with two places for each client. A state is always written to the place that the last
checkpoint does not point at, so whatever happens while writing, the last checkpoint is whole. Clients that never took part
take no space: the file is sparse.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..fdp import BadValue

_NAMES = {torch.float32: ("F32", np.float32), torch.float64: ("F64", np.float64)}


class Store:
    """States [rows, width], one a client; None until one is written."""

    def __init__(
        self, clients: int, rows: int, width: int, dtype: torch.dtype, limit: float, path: Path | None = None
    ) -> None:
        self.clients, self.shape, self.dtype, self.limit = clients, (rows, width), dtype, limit
        self.committed: dict[int, int] = {}  # client → its place in the last checkpoint
        self._written: dict[int, int] = {}  # client → its place since then
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
        raw = os.pread(self._open(), self._bytes, self._offset(client, place))
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

    def flush(self) -> dict[int, int]:
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
        place = self._written.get(client, 1 - self.committed.get(client, 1))
        raw = memoryview(state.cpu().contiguous().numpy().data).cast("B")
        offset, done = self._offset(client, place), 0
        while done < len(raw):  # a nearly full disk writes less than it was given before it refuses
            done += os.pwrite(self._open(), raw[done:], offset + done)
        self._written[client] = place

    def _offset(self, client: int, place: int) -> int:
        return self._start + (2 * client + place) * self._bytes

    @property
    def _start(self) -> int:
        return 8 + len(self._header())

    def _header(self) -> bytes:
        size = 2 * self.clients * self._bytes
        entry = {"dtype": _NAMES[self.dtype][0], "shape": [self.clients, 2, *self.shape], "data_offsets": [0, size]}
        text = json.dumps({"__metadata__": {"holds": "client states, two places each"}, "states": entry}).encode()
        return text + b" " * (-len(text) % 8)

    def _open(self) -> int:
        if self._file < 0:
            if self._path is None:
                self._file, name = tempfile.mkstemp(prefix="prifedsync-")
                os.unlink(name)  # gone with the process
            else:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            self._closing = weakref.finalize(self, os.close, self._file)  # a deleted file takes space while it is open
            header, size = self._header(), os.fstat(self._file).st_size
            whole = self._start + 2 * self.clients * self._bytes
            if self.committed and size < whole:
                raise BadValue("checkpoint", self._path, "is not there, or not all of it", "start the run again")
            if size == 0:
                os.pwrite(self._file, len(header).to_bytes(8, "little") + header, 0)
            elif os.pread(self._file, len(header), 8) != header:
                raise BadValue("checkpoint", self._path, "holds states of another run", "resume with the config it has")
            if size < whole:  # new, or killed before it had its size
                os.ftruncate(self._file, whole)
        return self._file


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
