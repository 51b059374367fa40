"""Every random choice of a run: batches, noise, dropout, the participation coin.

A draw is named by its key (client, round, step, purpose, part), never by its place in a sequence: how clients are stacked,
how a round is cut into chunks and where a run was resumed cannot change what is drawn, and two clients cannot share noise.

    SystemDraws    secret: ChaCha20 under a 256-bit key from the operating system. What a guarantee is about.
    SeededDraws    reproducible: Philox under a key derived from the seed. A simulation: whoever knows the seed can subtract
                   the noise.
    RecordedDraws  keeps what was drawn, and can play it back: parity tests and audits.
Normals are made in double precision. A generator that makes them in single precision from 24 random bits never exceeds
5.8 standard deviations, and a missing tail is a leak.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ..fdp import BadValue

KEY_BYTES = 32
BLOCK = 2**17  # values drawn from one stream; longer draws are made of several, in parallel


class Key(NamedTuple):
    """What a draw is for."""

    client: str
    round: int
    step: int
    purpose: str
    part: int = 0

    def encoded(self, block: int) -> bytes:
        return f"{self.round}|{self.step}|{self.part}|{block}|{self.purpose}|{self.client}".encode()


class Draws(Protocol):
    """Where random numbers come from."""

    def uniform(self, key: Key, count: int) -> Tensor: ...  # float64 in (0, 1)
    def normal(self, key: Key, count: int) -> Tensor: ...  # float64


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    """One pool a process: a forked one has none of its parent's threads."""
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="draws")


def _in_blocks(draw: Callable[[int, int], np.ndarray], count: int) -> Tensor:
    sizes = [min(BLOCK, count - start) for start in range(0, count, BLOCK)]
    if len(sizes) <= 1:
        return torch.from_numpy(draw(0, count))
    return torch.from_numpy(np.concatenate(list(_threads(os.getpid()).map(draw, range(len(sizes)), sizes))))


def _in_unit(words: np.ndarray) -> np.ndarray:
    """64 random bits → a double strictly between 0 and 1: the middles of 2^52 cells, of which none is rounded to an end."""
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


@dataclass(frozen=True)
class SystemDraws:
    """Secret draws. The key is all there is to keep: with it a run can be resumed, and its noise subtracted."""

    secret: bytes = field(default_factory=lambda: os.urandom(KEY_BYTES), repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise BadValue("secret", f"{len(self.secret)} bytes", f"must have {KEY_BYTES} bytes")
        try:
            import cryptography  # noqa: F401
        except ImportError:
            raise BadValue(
                "privacy.randomness", "system", "needs the package cryptography", 'install it, or say "seeded" to simulate'
            ) from None

    def uniform(self, key: Key, count: int) -> Tensor:
        return _in_blocks(lambda block, size: self._uniform(key, block, size), count)

    def normal(self, key: Key, count: int) -> Tensor:
        return _in_blocks(lambda block, size: self._normal(key, block, size), count)

    def _uniform(self, key: Key, block: int, count: int) -> np.ndarray:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        stream_key = hashlib.blake2b(key.encoded(block), key=self.secret, digest_size=KEY_BYTES).digest()
        stream = Cipher(algorithms.ChaCha20(stream_key, bytes(16)), mode=None).encryptor()
        words = np.frombuffer(stream.update(bytes(8 * count)), dtype=np.uint64)
        return _in_unit(words)

    def _normal(self, key: Key, block: int, count: int) -> np.ndarray:
        """Box and Muller 1958, in double precision."""
        half = (count + 1) // 2
        flat = self._uniform(key, block, 2 * half)
        radius, angle = np.sqrt(-2 * np.log(flat[:half])), 2 * math.pi * flat[half:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


@dataclass(frozen=True)
class SeededDraws:
    """Draws that a seed determines: for simulations on public data and for tests."""

    seed: int

    def uniform(self, key: Key, count: int) -> Tensor:
        return _in_blocks(lambda block, size: _in_unit(self._stream(key, block).bit_generator.random_raw(size)), count)

    def normal(self, key: Key, count: int) -> Tensor:
        return _in_blocks(lambda block, size: self._stream(key, block).standard_normal(size), count)

    def _stream(self, key: Key, block: int) -> np.random.Generator:
        digest = hashlib.blake2b(key.encoded(block), key=f"seed {self.seed}".encode(), digest_size=16).digest()
        return np.random.Generator(np.random.Philox(key=np.frombuffer(digest, dtype=np.uint64)))


@dataclass
class RecordedDraws:
    """Keeps all draws by key; without a source it plays them back. A key drawn twice is an error: noise must be fresh."""

    source: Draws | None
    tape: dict[tuple[str, Key], Tensor] = field(default_factory=dict)
    asked: list[tuple[str, Key]] = field(default_factory=list)

    def uniform(self, key: Key, count: int) -> Tensor:
        return self._draw("uniform", key, count)

    def normal(self, key: Key, count: int) -> Tensor:
        return self._draw("normal", key, count)

    def replay(self) -> RecordedDraws:
        """The same draws again, for another engine."""
        return RecordedDraws(None, self.tape)

    def _draw(self, kind: str, key: Key, count: int) -> Tensor:
        name = (kind, key)
        if name in self.asked:
            raise ValueError(f"{key} was drawn twice")
        self.asked.append(name)
        if self.source is not None:
            self.tape[name] = getattr(self.source, kind)(key, count)
        if name not in self.tape or len(self.tape[name]) != count:
            raise ValueError(f"{key} with {count} values is not on the tape")
        return self.tape[name]
