"""Every random choice of a run: batches, noise, dropout, the participation coin.

A draw has a key (client, round, step, purpose, part), not a place in a sequence. So the draw does not depend on how clients
are stacked, how a round is cut into chunks, or where a run was resumed. Two clients never share noise.

    SystemDraws    secret: ChaCha20 with a 256-bit key from the operating system. The guarantee needs these.
    SeededDraws    reproducible: SFC64, seeded by a digest of seed and key. A run with these is a simulation: anyone who
                   knows the seed can subtract the noise.
    RecordedDraws  records the draws of another source, and replays them: for parity tests and audits.

Secret draws are bound to the context they are used in (`bound`). If the same noise were added to two different gradients,
it would cancel when one result is subtracted from the other. So everything that decides a gradient also decides the key of
its noise.

Normals have double precision. A generator that makes them in single precision from 24 random bits never exceeds 5.8
standard deviations, and the missing tail is a leak.
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

from ..values import BadValue

KEY_BYTES = 32
VERSION = 3  # of the draws that a key gives; a run of another version is not resumed
BLOCK = 2**17  # values from one stream; a longer draw uses several streams in parallel
ZEROS = bytes(8 * BLOCK)  # the cipher encrypts zeros to give its stream
ONE = np.uint64(0x3FF0000000000000)  # the double 1.0


class Key(NamedTuple):
    """What a draw is used for."""

    client: str
    round: int
    step: int
    purpose: str
    part: int = 0

    def encoded(self, block: int) -> bytes:
        return f"{self.round}|{self.step}|{self.part}|{block}|{self.purpose}|{self.client}".encode()


class Draws(Protocol):
    """A source of random numbers. The caller may change the tensor that it gets."""

    def uniform(self, key: Key, count: int) -> Tensor: ...  # float64 in (0, 1)
    def normal(self, key: Key, count: int) -> Tensor: ...  # float64

    def bound(self, context: bytes) -> Draws:
        """Draws for this context only. A source whose draws are the same in every context returns itself."""


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    """The thread pool of a process. A forked process has none of its parent's threads, so it needs its own."""
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="draws")


def _in_blocks(draw: Callable[[int, np.ndarray], object], count: int) -> Tensor:
    """A tensor that `draw` fills block by block; it is called with the number of a block and the block."""
    values = np.empty(count)
    blocks = [values[start : start + BLOCK] for start in range(0, count, BLOCK)]
    if len(blocks) > 1:
        list(_threads(os.getpid()).map(draw, range(len(blocks)), blocks))  # list() raises an error of a thread here
    else:
        draw(0, values)
    return torch.from_numpy(values)


def _in_unit(words: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Doubles strictly between 0 and 1, from 64 random bits each: midpoints of 2^52 cells, none of which rounds to 0 or 1.

    The words are overwritten: 52 bits of each become the fraction of a double in [1, 2), and subtracting 1 − 2⁻⁵³ is exact.
    """
    np.right_shift(words, 12, out=words)
    np.bitwise_or(words, ONE, out=words)
    return np.subtract(words.view(np.float64), 1 - 2.0**-53, out=out)


def _stream_key(secret: bytes, client: str, round: int, purpose: str) -> bytes:
    """The key of a stream on a device (`device/streams.py`). No `Key` is encoded with its prefix."""
    content = f"stream|{round}|{purpose}|{client}".encode()
    return hashlib.blake2b(content, key=secret, digest_size=KEY_BYTES).digest()


@dataclass(frozen=True)
class SystemDraws:
    """Secret draws. Whoever has the key can resume the run, and can subtract its noise."""

    secret: bytes = field(default_factory=lambda: os.urandom(KEY_BYTES), repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            remedy = "leave it out, then the operating system draws it"
            rule = f"must have {KEY_BYTES} bytes"
            raise BadValue("secret", f"{len(self.secret)} bytes", rule, remedy)
        try:
            import cryptography  # noqa: F401
        except ImportError:
            remedy = 'install it, or set "seeded" for a simulation'
            rule = "needs the package cryptography"
            raise BadValue("privacy.randomness", "system", rule, remedy) from None

    def stream(self, client: str, round: int, purpose: str) -> bytes:
        return _stream_key(self.secret, client, round, purpose)

    def bound(self, context: bytes) -> SystemDraws:
        """Draws with a key of their own: without the secret, nobody can relate the draws of two contexts."""
        digest = hashlib.blake2b(context, key=self.secret, digest_size=KEY_BYTES, person=b"bound").digest()
        return SystemDraws(digest)

    def uniform(self, key: Key, count: int) -> Tensor:
        def draw(block: int, into: np.ndarray) -> object:
            words = self._bits(key, block, 8 * len(into)).view(np.uint64)
            return _in_unit(words, into)

        return _in_blocks(draw, count)

    def normal(self, key: Key, count: int) -> Tensor:
        """Box and Muller 1958, in double precision: a pair of values from 52 random bits of radius and 52 of angle.

        This does not run in the thread pool: torch would start threads of its own in each of them, and stay slow.
        """
        pairs = (count + 1) // 2
        values = self.uniform(key, 2 * pairs)
        for radius, angle in values.view(2, pairs).split(BLOCK, 1):  # in place, and small enough for the cache
            radius.log_().mul_(-2).sqrt_()
            cosine = angle.mul_(2 * math.pi).cos()
            angle.sin_().mul_(radius)
            radius.mul_(cosine)
        return values[:count]

    def _bits(self, key: Key, block: int, count: int) -> np.ndarray:
        """The first `count` bytes of the stream of this key and block."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        stream_key = hashlib.blake2b(key.encoded(block), key=self.secret, digest_size=KEY_BYTES).digest()
        stream = Cipher(algorithms.ChaCha20(stream_key, bytes(16)), mode=None).encryptor()
        bits = np.empty(count, dtype=np.uint8)
        stream.update_into(memoryview(ZEROS)[:count], bits.data)
        return bits


@dataclass(frozen=True)
class SeededDraws:
    """Draws that depend on the seed only: for simulations on public data and for tests."""

    seed: int

    def stream(self, client: str, round: int, purpose: str) -> bytes:
        return _stream_key(f"seed {self.seed}".encode(), client, round, purpose)

    def bound(self, context: bytes) -> SeededDraws:
        """The same draws: a seed is public and protects nothing, and a simulation must be repeatable on any machine."""
        return self

    def uniform(self, key: Key, count: int) -> Tensor:
        def draw(block: int, into: np.ndarray) -> object:
            return _in_unit(self._stream(key, block).random_raw(len(into)), into)

        return _in_blocks(draw, count)

    def normal(self, key: Key, count: int) -> Tensor:
        def draw(block: int, into: np.ndarray) -> object:
            return np.random.Generator(self._stream(key, block)).standard_normal(out=into)

        return _in_blocks(draw, count)

    def _stream(self, key: Key, block: int) -> np.random.SFC64:
        seed = f"seed {self.seed}".encode()
        digest = hashlib.blake2b(key.encoded(block), key=seed, digest_size=KEY_BYTES).digest()
        return np.random.SFC64(int.from_bytes(digest, "little"))


@dataclass
class RecordedDraws:
    """Records all draws by key; without a source it replays them. Drawing a key twice is an error: noise must be fresh."""

    source: Draws | None
    tape: dict[tuple[str, Key], Tensor] = field(default_factory=dict)
    asked: list[tuple[str, Key]] = field(default_factory=list)

    def uniform(self, key: Key, count: int) -> Tensor:
        return self._draw("uniform", key, count)

    def normal(self, key: Key, count: int) -> Tensor:
        return self._draw("normal", key, count)

    def bound(self, context: bytes) -> RecordedDraws:
        """The same tape: a replay does not depend on the context."""
        return self

    def replay(self) -> RecordedDraws:
        """A replay of these draws, for another engine."""
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
        return self.tape[name].clone()
