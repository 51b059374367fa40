"""Digests of tensors: keys are derived from them, and a resumed run is compared by them.

On the host a digest is BLAKE2b. On a GPU, copying the weights to the host in every round would take longer than hashing
them. So the GPU computes a keyed multilinear hash (Lemire and Kaser 2014, "Strongly universal string hashing is fast"):
k_0 + Σ k_i·x_i mod 2^64 over each block of words x, of which the high 32 bits are kept. The words k_i come from a stream of
the run's secret. Two vectors that differ have the same ROWS values for a block with probability 2^(−32·ROWS). These values
stay secret: they only enter the derivation of keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

from .device import streams

SIZE = 32  # bytes
PIECE = 2**22  # entries that are copied to the host at once
BLOCK = 2**14  # words that share one sum
ROWS = 4  # independent sums of a block
AT_ONCE = 2**9  # blocks whose products are held in memory together


def of(parts: Iterable[Tensor | bytes | str]) -> bytes:
    """The digest of a sequence of tensors, bytes and text; different sequences have different digests."""
    digest = hashlib.blake2b(digest_size=SIZE)
    for part in parts:
        if isinstance(part, Tensor):
            digest.update(_prefixed(f"{part.dtype} {tuple(part.shape)}".encode()))
            for piece in _flat(part).split(PIECE):
                digest.update(piece.cpu().contiguous().view(torch.uint8).numpy().data)
        else:
            digest.update(_prefixed(part.encode() if isinstance(part, str) else part))
    return digest.digest()


def _prefixed(content: bytes) -> bytes:
    return len(content).to_bytes(8, "little") + content


def _flat(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().resolve_conj().resolve_neg()
    tensor = tensor.to_dense() if tensor.layout != torch.strided else tensor
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)


class OnDevice:
    """Digests of float vectors where they lie; only ROWS words a block travel to the host."""

    def __init__(self, key: bytes, device: torch.device) -> None:
        words = torch.frombuffer(bytearray(key), dtype=torch.int32).to(device)
        nonces = torch.zeros(1, ROWS, 2, dtype=torch.int32, device=device)
        nonces[0, :, 0] = torch.arange(ROWS, device=device)
        drawn = streams.words(words.unsqueeze(0), nonces, 2 * (BLOCK + 1))[0].contiguous()
        multipliers = drawn.view(torch.int64)  # [ROWS, BLOCK + 1]
        self._first = multipliers[:, :1].contiguous()
        self._rest = multipliers[:, 1:].unsqueeze(1).contiguous()  # [ROWS, 1, BLOCK]

    def __call__(self, vectors: Tensor) -> list[bytes]:
        """The digest of each row [C, P]; the host waits once for all of them."""
        sums = torch.stack([self._sums(vector) for vector in vectors]).cpu()
        return [of([f"{vectors.dtype} {vectors.shape[1]}", each]) for each in sums]

    def _sums(self, vector: Tensor) -> Tensor:
        words = vector.contiguous().view(torch.int32)
        missing = -len(words) % BLOCK  # zeros change no sum, and the length is part of the digest
        blocks = torch.nn.functional.pad(words, (0, missing)).view(-1, BLOCK).long()
        return torch.cat([(self._rest * some).sum(2) + self._first for some in blocks.split(AT_ONCE)], 1) >> 32
