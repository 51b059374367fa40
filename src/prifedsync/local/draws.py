"""Every random choice of a run: batches, noise, dropout, the participation coin.

A draw is named by its key (client, round, step, purpose, part), never by its place in a sequence: how clients are stacked,
how a round is cut into chunks and where a run was resumed cannot change what is drawn, and two clients cannot share noise.

    SystemDraws    secret: ChaCha20 under a 256-bit key from the operating system. What a guarantee is about.
    SeededDraws    reproducible: SFC64 begun with a digest of seed and key. A simulation: whoever knows the seed can
                   subtract the noise.
    RecordedDraws  keeps what was drawn, and can play it back: parity tests and audits.

Secret draws are bound to what they are used for (`bound`): the same noise under another gradient would cancel when the two
results are subtracted, so whatever decides a gradient also decides the key its noise is drawn under.

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

from ..values import BadValue

KEY_BYTES = 32
VERSION = 3  # of what a key stands for: under another one a run is not resumed
BLOCK = 2**17  # values drawn from one stream; longer draws are made of several, in parallel
ZEROS = bytes(8 * BLOCK)  # what is encrypted to get a stream
ONE = np.uint64(0x3FF0000000000000)  # the double 1.0


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
    """Where random numbers come from. Whoever asked may change what he gets: it is a tensor of its own."""

    def uniform(self, key: Key, count: int) -> Tensor: ...  # float64 in (0, 1)
    def normal(self, key: Key, count: int) -> Tensor: ...  # float64

    def bound(self, context: bytes) -> Draws:
        """Draws for this context alone. Draws that are the same in every context return themselves."""


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    """One pool a process: a forked one has none of its parent's threads."""
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="draws")


def _in_blocks(draw: Callable[[int, np.ndarray], object], count: int) -> Tensor:
    """An array that `draw` fills block by block, given the number of each."""
    values = np.empty(count)
    blocks = [values[start : start + BLOCK] for start in range(0, count, BLOCK)]
    if len(blocks) > 1:
        list(_threads(os.getpid()).map(draw, range(len(blocks)), blocks))  # a list, so that a thread's error is raised here
    else:
        draw(0, values)
    return torch.from_numpy(values)


def _in_unit(words: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """64 random bits → a double strictly between 0 and 1: the middles of 2^52 cells, of which none is rounded to an end.

    The words are used up: 52 bits of each become the fraction of a double in [1, 2), from which 1 − 2⁻⁵³ is taken exactly.
    """
    np.right_shift(words, 12, out=words)
    np.bitwise_or(words, ONE, out=words)
    return np.subtract(words.view(np.float64), 1 - 2.0**-53, out=out)


def _stream_key(secret: bytes, client: str, round: int, purpose: str) -> bytes:
    """Of what is drawn on a device (`device/streams.py`); begins like no key that is drawn from here."""
    return hashlib.blake2b(f"stream|{round}|{purpose}|{client}".encode(), key=secret, digest_size=KEY_BYTES).digest()


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

    def stream(self, client: str, round: int, purpose: str) -> bytes:
        return _stream_key(self.secret, client, round, purpose)

    def bound(self, context: bytes) -> SystemDraws:
        """Draws under a key of their own: nobody who lacks the secret can relate those of two contexts."""
        return SystemDraws(hashlib.blake2b(context, key=self.secret, digest_size=KEY_BYTES, person=b"bound").digest())

    def uniform(self, key: Key, count: int) -> Tensor:
        return _in_blocks(lambda block, into: _in_unit(self._bits(key, block, 8 * len(into)).view(np.uint64), into), count)

    def normal(self, key: Key, count: int) -> Tensor:
        """Box and Muller 1958, in double precision: two values from 52 random bits for a radius and 52 for an angle.

        Not in the threads above: torch would make threads of its own for each of them, and be slow ever after.
        """
        pairs = (count + 1) // 2
        values = self.uniform(key, 2 * pairs)
        for radius, angle in values.view(2, pairs).split(BLOCK, 1):  # so much at a time as stays in the cache; in place
            radius.log_().mul_(-2).sqrt_()
            cosine = angle.mul_(2 * math.pi).cos()
            angle.sin_().mul_(radius)
            radius.mul_(cosine)
        return values[:count]

    def _bits(self, key: Key, block: int, count: int) -> np.ndarray:
        """That many bytes of a stream of its own."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        stream_key = hashlib.blake2b(key.encoded(block), key=self.secret, digest_size=KEY_BYTES).digest()
        stream = Cipher(algorithms.ChaCha20(stream_key, bytes(16)), mode=None).encryptor()
        bits = np.empty(count, dtype=np.uint8)
        stream.update_into(memoryview(ZEROS)[:count], bits.data)
        return bits


@dataclass(frozen=True)
class SeededDraws:
    """Draws that a seed determines: for simulations on public data and for tests."""

    seed: int

    def stream(self, client: str, round: int, purpose: str) -> bytes:
        return _stream_key(f"seed {self.seed}".encode(), client, round, purpose)

    def bound(self, context: bytes) -> SeededDraws:
        """The same draws: a seed is public and protects nothing, and a simulation must repeat on any machine."""
        return self

    def uniform(self, key: Key, count: int) -> Tensor:
        return _in_blocks(lambda block, into: _in_unit(self._stream(key, block).random_raw(len(into)), into), count)

    def normal(self, key: Key, count: int) -> Tensor:
        return _in_blocks(
            lambda block, into: np.random.Generator(self._stream(key, block)).standard_normal(out=into), count
        )

    def _stream(self, key: Key, block: int) -> np.random.SFC64:
        digest = hashlib.blake2b(key.encoded(block), key=f"seed {self.seed}".encode(), digest_size=KEY_BYTES).digest()
        return np.random.SFC64(int.from_bytes(digest, "little"))


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

    def bound(self, context: bytes) -> RecordedDraws:
        """The same tape: it plays back what it was given."""
        return self

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
        return self.tape[name].clone()
