"""Random numbers made on the device that uses them: ChaCha20 (RFC 8439), counter by counter.

A stream belongs to one client, one round and one purpose; its key is 32 bytes that `Draws` derive. Within a stream a word
is named by a nonce (the step, and a part: a record or a parameter) and a counter, so that neither stacking nor chunking nor
a resumed run can change it, and nothing is ever drawn in sequence. Seeded and secret draws differ in the key alone.

Plain tensor code, which runs anywhere; on a GPU with Triton the same numbers come from `kernels.py`.
Axis letters: C clients, N nonces.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

NORMALS = 14  # made of one block: seven pairs of two words each, and two words that lengthen their radii
_CONSTANTS = tuple(int.from_bytes(b"expand 32-byte k"[i : i + 4], "little") for i in (0, 4, 8, 12))
_QUARTERS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))  # columns, then diagonals
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


@runtime_checkable
class Streams(Protocol):
    """Draws that can be expanded on a device."""

    def stream(self, client: str, round: int, purpose: str) -> bytes: ...  # 32 bytes


def keys(
    draws: Sequence[Streams], clients: Sequence[str], round: int, purposes: Sequence[str], device: torch.device
) -> Tensor:
    """The stream keys of these clients, each from its own draws, purpose by purpose, as int32 [purposes, C, 8]."""
    members = list(zip(draws, clients, strict=True))
    raw = b"".join(own.stream(client, round, purpose) for purpose in purposes for own, client in members)
    found = np.frombuffer(raw, dtype="<i4").reshape(len(purposes), len(clients), 8)
    return torch.from_numpy(found.copy()).to(device, non_blocking=True)


def words(keys: Tensor, nonces: Tensor, count: int) -> Tensor:
    """The first words under each key [C, 8] and nonce [C, N, 2], as int32 [C, N, count]."""
    blocks = -(-count // 16)
    if keys.is_cuda and kernels_there():
        from . import kernels

        return kernels.words(keys, nonces, blocks)[..., :count]
    counters = torch.arange(blocks, dtype=torch.int32, device=keys.device)
    return _chacha20(keys[:, None, None], nonces.unsqueeze(2), counters).flatten(2)[..., :count]


def uniforms(keys: Tensor, nonces: Tensor, count: int) -> Tensor:
    """Doubles strictly between 0 and 1 [C, N, count]: the middles of 2^52 cells."""
    low, high = words(keys, nonces, 2 * count).unflatten(2, (-1, 2)).unbind(3)
    return ((_unsigned(high) << 20 | _unsigned(low) >> 12).double() + 0.5) * 2.0**-52


def normals(keys: Tensor, nonces: Tensor, count: int) -> Tensor:
    """Standard normals in double precision [C, N, count], by Box and Muller 1958.

    A pair has 73 bits of its own: 49 for the radius, which reaches 8.3, and 24 for the angle. Radius and angle's functions
    are singles, their product is a double and exact, so that the normals lie far denser than any grid they are rounded to.
    """
    blocks = -(-count // NORMALS)
    counters = torch.arange(blocks, dtype=torch.int32, device=keys.device)
    word = [_unsigned(w) for w in _chacha20(keys[:, None, None], nonces.unsqueeze(2), counters).unbind(-1)]
    found = [value for pair in range(NORMALS // 2) for value in _pair(word, pair)]
    return torch.stack(found, 2).flatten(2)[..., :count]


def _pair(word: list[Tensor], pair: int) -> tuple[Tensor, Tensor]:
    first, second = word[2 * pair], word[2 * pair + 1]
    if pair < 6:
        more = word[14 + pair // 3] >> 9 * (pair % 3) & 511
    else:
        more = (word[14] >> 27) << 4 | word[15] >> 27 & 15
    bits = (first << 9 | more) << 8 | second & 255  # 49
    low, high = ((v.double() + 0.5) * 2.0**-49 for v in (bits, 2**49 - 1 - bits))  # u and 1 − u, each exact where small
    logarithm = torch.where(low < 0.5, torch.log(low.float()), torch.log1p(-high.float()))
    radius = torch.sqrt(-2 * logarithm).double()
    angle = ((second >> 8 & 2**22 - 1).float() + 0.5) * (math.pi / 2**23)  # in one quarter; two bits choose the quarter
    x, y = radius * torch.cos(angle).double(), radius * torch.sin(angle).double()
    return torch.where((second >> 30 & 1) > 0, -x, x), torch.where((second >> 31) > 0, -y, y)


def _chacha20(keys: Tensor, nonces: Tensor, counters: Tensor) -> Tensor:
    """The blocks of these counters: [..., 8], [..., 2], [...] → int32 [..., 16]."""
    shape = torch.broadcast_shapes(keys.shape[:-1], nonces.shape[:-1], counters.shape)
    zero = torch.zeros(shape, dtype=torch.int32, device=keys.device)
    start = [zero + value for value in _CONSTANTS]
    start += [zero + keys[..., i] for i in range(8)]
    start += [zero + counters, zero + nonces[..., 0], zero + nonces[..., 1], zero]
    state = list(start)
    for _ in range(10):
        for a, b, c, d in (*_QUARTERS, *_DIAGONALS):
            for one, two, three, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                state[one] = state[one] + state[two]
                mixed = state[three] ^ state[one]
                state[three] = mixed << turn | mixed >> (32 - turn) & (1 << turn) - 1
    return torch.stack([one + two for one, two in zip(state, start, strict=True)], -1)


def _unsigned(word: Tensor) -> Tensor:
    return word.long() & 0xFFFFFFFF


def kernels_there() -> bool:
    """Whether the GPU's own kernels can be made here."""
    from importlib.util import find_spec

    return find_spec("triton") is not None
