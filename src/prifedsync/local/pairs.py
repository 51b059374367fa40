"""What two clients share where messages are masked: how public values are encoded, how keys are agreed on, and the streams
of words that follow from them. `masks.py` says what these are for and what is assumed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..values import BadValue, whole
from .words import WORD

KEY_BYTES = 32  # of every key, public or secret, and of a root
BLOCK = 2**15  # words of a stream that are made at once: they and the words they are added to stay in the cache
ZEROS = bytes(WORD.itemsize * BLOCK)  # the cipher encrypts zeros to give its stream


# ---------------------------------------------------------------------- encodings


def framed(*parts: bytes) -> bytes:
    """The parts one after another, each behind its length: two different sequences never give the same bytes."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def _named(name: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise BadValue("name", ascii(name), "must be valid Unicode text", "use another name") from None


def _counted(value: int) -> bytes:
    return value.to_bytes(8, "little")


@dataclass(frozen=True)
class Slot:
    """What one message is for: public values, which the server names and everybody in the list must agree on."""

    plan: bytes  # a digest of what the run does
    round: int
    attempt: int
    clients: tuple[str, ...]  # sorted

    def __post_init__(self) -> None:
        object.__setattr__(self, "plan", bytes(self.plan))
        object.__setattr__(self, "round", whole("slot.round", self.round, 0, 2**63 - 1))
        object.__setattr__(self, "attempt", whole("slot.attempt", self.attempt, 0, 2**63 - 1))
        object.__setattr__(self, "clients", tuple(self.clients))  # nobody may change the list of an answered slot

    @property
    def number(self) -> tuple[int, int]:
        return self.round, self.attempt

    def encoded(self) -> bytes:
        return framed(b"slot", self.plan, _counted(self.round), _counted(self.attempt), *map(_named, self.clients))


@dataclass(frozen=True)
class Introduction:
    """A client's run key, signed by its identity. The server passes it on."""

    name: str
    run: bytes
    key: bytes
    signature: bytes

    def signed(self) -> bytes:
        return framed(b"introduction", self.run, _named(self.name), self.key)


# ---------------------------------------------------------------------- keys


def new_identity() -> bytes:
    """A secret identity, of 32 bytes from the operating system."""
    return os.urandom(KEY_BYTES)


def public_identity(identity: bytes) -> bytes:
    """What the others pin."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(identity).public_key().public_bytes_raw()


def public_key(secret: bytes) -> bytes:
    """The public half of a run key (X25519)."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def agreed(secret: bytes, key: bytes) -> bytes:
    """The secret that two run keys have in common (RFC 7748). A key of small order, which makes it zero, is refused."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    try:
        return X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:
        rule = "must be an X25519 key of 32 bytes, and not one of small order"
        raise BadValue("key", key.hex(), rule, "the client must send the key that it made") from None


def derived(secret: bytes, salt: bytes, info: bytes, length: int = KEY_BYTES) -> bytes:
    """HKDF-SHA256 (RFC 5869)."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), length, salt, info).derive(secret)


class Named(NamedTuple):
    """A client's name and its public run key."""

    name: str
    key: bytes


def first_root(secret: bytes, run: bytes, one: Named, other: Named) -> bytes:
    """The root of a pair in round 0: the same for both of them.

    X25519 ignores the top bit of a key, so two keys can have one secret. Names and key bytes keep their roots apart.
    """
    first, second = sorted((one, other))
    info = framed(b"root", run, _named(first.name), first.key, _named(second.name), second.key)
    return derived(secret, b"prifedsync masks", info)


def next_root(root: bytes) -> bytes:
    """The root of the next round."""
    return hashlib.blake2b(key=root, digest_size=KEY_BYTES, person=b"next root").digest()


# ---------------------------------------------------------------------- streams


def stream_key(root: bytes, slot: Slot) -> bytes:
    """The ChaCha20 key of a pair's stream in a slot, from the root of the slot's round."""
    return hashlib.blake2b(slot.encoded(), key=root, digest_size=KEY_BYTES, person=b"stream").digest()


def add_streams(words: np.ndarray, added: Iterable[bytes], subtracted: Iterable[bytes]) -> None:
    """Add and subtract the streams of these keys in place, modulo 2³². A key must not be used a second time."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    signed: list[tuple[np.ufunc, bytes]] = [(np.add, key) for key in added]
    signed += [(np.subtract, key) for key in subtracted]
    streams = [(change, Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()) for change, key in signed]
    buffer = np.empty(BLOCK, WORD)
    for start in range(0, len(words), BLOCK):
        block = words[start : start + BLOCK]
        made = buffer[: len(block)]
        for change, encryptor in streams:
            encryptor.update_into(memoryview(ZEROS)[: made.nbytes], made.view(np.uint8).data)
            change(block, made, out=block)
