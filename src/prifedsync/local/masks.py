"""Masks: what a client sends looks uniform to whoever does not know all its partners' secrets, and sums stay exact.

Each pair of clients has a secret stream of words for each slot. The client whose name sorts first adds it to its message,
the other subtracts it, modulo 2³². In the sum over a slot's list all streams cancel.

    identity       a long-term Ed25519 key. The others' policies pin its public half, and never take it from the server.
    run key        an X25519 key, new in each run, signed by the identity
    root           of a pair: HKDF-SHA256 of their X25519 secret, over the run, both names and both keys. It is replaced by
                   its hash once a round, and nothing leads back.
    slot           (plan, round, attempt, list of clients): a message is for one slot, and a slot gets one message
    stream         ChaCha20 under a keyed hash (BLAKE2b) of the slot; the key is the root of the slot's round

**What is assumed.** X25519, Ed25519, HKDF-SHA256, BLAKE2b and ChaCha20 are not broken; the pinned identities are those of
the clients they name; each value that is masked carries fresh noise of its owner's own, and is computed from nothing but
the owner's records and what everybody has seen. **What follows.** Let t others collude with the server. Whatever it asks
of whom, it learns of a client's message no more than the sum over the client's own list, less what the t sent. If clients
are told different lists or plans, their streams do not cancel: that costs the sum, and protects them all the more.

There is no way to ask for a stream or a root. A server that could have the masks of "somebody who dropped out" would say so
of whoever it likes, and read the message that it has. A client that is lost costs an attempt.

A `Peer` lives in memory, and cannot be copied, saved or used in a forked process: two of them would answer one slot with
two messages. If a client is restarted, all clients need new ones, under the name of a new run. **A new run must not use
noise again**: a server that can make clients restart would ask for the same round with another list. So draws are bound to
the slot with its list, or the rounds of the new run begin after the last slot of the old one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from threading import Lock
from typing import NamedTuple, NoReturn

import numpy as np

from ..values import BadValue, whole
from .pairs import (
    KEY_BYTES,
    Introduction,
    Named,
    Slot,
    add_streams,
    agreed,
    first_root,
    new_identity,
    next_root,
    public_identity,
    public_key,
    stream_key,
)
from .words import words_of

__all__ = ["Introduction", "Peer", "Slot", "new_identity", "public_identity"]

MOST_AHEAD = 100_000  # rounds that roots are moved on at once, so that one question cannot keep a client busy for hours


class Answered(NamedTuple):
    """The last slot that was answered, and the bytes that were sent."""

    slot: Slot
    message: bytes


class Peer:
    """One client's side of the masks in one run: its keys, its policy, and the one message of each slot.

    `identities` are the pinned public identities by name, the client's own among them. `least` is the least number of
    clients in a list; the guarantee counts on `least` − t of them. Every refusal is a `BadValue` that depends on public
    values only, and changes nothing.
    """

    def __init__(self, name: str, identity: bytes, run: bytes, identities: Mapping[str, bytes], least: int) -> None:
        _check_pinned(name, identity, identities)
        self.name = name
        self.run = run
        self.least = whole("least_clients", least, 2, len(identities), remedy="a client alone in a list is not masked")
        self._pinned = dict(identities)
        self._secret: bytes | None = os.urandom(KEY_BYTES)
        self._introduction = _introduced(name, identity, run, self._secret)
        self._roots: dict[str, bytes] = {}
        self._round = 0  # of the roots
        self._answered: Answered | None = None
        self._lock = Lock()  # two answers to one slot must not be made side by side
        self._process = os.getpid()  # nor in a forked process, which has a copy of all this

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Peer cannot be copied: the copy would answer a slot a second time")

    @property
    def introduction(self) -> Introduction:
        """What the others must be given before the first slot."""
        return self._introduction

    def meet(self, introductions: Iterable[Introduction]) -> None:
        """Agree on a root with each of them, once in a run; afterwards the secret run key is gone.

        Only who is met can be in a list. One's own introduction is passed over.
        """
        self._check_process()
        with self._lock:
            if self._secret is None:
                raise BadValue("introductions", "a second time", "can be given once in a run", "begin a new run")
            roots: dict[str, bytes] = {}
            mine = Named(self.name, self._introduction.key)
            for each in introductions:
                if each == self._introduction:
                    continue
                self._check_introduction(each, roots)
                roots[each.name] = first_root(agreed(self._secret, each.key), self.run, mine, Named(each.name, each.key))
            self._roots = roots
            self._secret = None

    def answered(self, slot: Slot) -> bytes | None:
        """The stored message of this slot, or None if it may be answered now; refused if it must not be.

        Ask before anything is computed or drawn for a slot.
        """
        self._check_process()
        last = self._answered
        if last is not None and slot == last.slot:
            return last.message
        self._check_list(slot)
        self._check_order(slot)
        return None

    def masked(self, slot: Slot, values: np.ndarray) -> bytes:
        """The message of a slot: integers (int64), which carry fresh noise, and the streams shared with all in the list.

        A slot that was answered gets the stored bytes again, whatever the values.
        """
        self._check_process()  # before the lock, which a fork may have copied while it was held
        with self._lock:
            stored = self.answered(slot)
            if stored is not None:
                return stored
            words = words_of(values)
            roots = self._roots_in(slot.round)
            keys = {name: stream_key(roots[name], slot) for name in slot.clients if name != self.name}
            after = [key for name, key in keys.items() if self.name < name]
            before = [key for name, key in keys.items() if name < self.name]
            add_streams(words, after, before)
            self._roots = roots
            self._round = slot.round
            self._answered = Answered(slot, words.tobytes())
            return self._answered.message

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise TypeError("a Peer cannot be used in a forked process: the copy would answer a slot a second time")

    def _roots_in(self, round: int) -> dict[str, bytes]:
        roots = self._roots
        for _ in range(self._round, round):
            roots = {name: next_root(root) for name, root in roots.items()}
        return roots

    def _check_introduction(self, given: Introduction, met: Mapping[str, bytes]) -> None:
        if given.name not in self._pinned or given.name == self.name:
            remedy = "only clients whose identities are pinned can take part"
            raise BadValue("introduction.name", given.name, "is not the name of another pinned client", remedy)
        if given.name in met:
            remedy = "give one for each client"
            raise BadValue("introduction.name", given.name, "has two introductions", remedy)
        if given.run != self.run:
            remedy = "all clients must be told the same run"
            raise BadValue("introduction.run", given.run.hex(), f"is not this run, {self.run.hex()}", remedy)
        _check_signature(given, self._pinned[given.name])

    def _check_list(self, slot: Slot) -> None:
        names = slot.clients
        if list(names) != sorted(set(names)):
            raise BadValue("slot.clients", names, "must be sorted, each name once", "sort the names")
        if self.name not in names:
            raise BadValue("slot.clients", names, f"must name {self.name}, who is asked", "ask those who are in the list")
        strangers = [name for name in names if name != self.name and name not in self._roots]
        if strangers:
            remedy = "begin a new run if they are to take part"
            raise BadValue("slot.clients", names, f"names clients that {self.name} has not met: {strangers}", remedy)
        if len(names) < self.least:
            remedy = "wait for more clients"
            raise BadValue("slot.clients", f"{len(names)} clients", f"must be at least {self.least}", remedy)

    def _check_order(self, slot: Slot) -> None:
        last = self._answered
        if last is not None and slot.number <= last.slot.number:
            rule = f"must come after {last.slot.number}, which was answered; a slot has one plan, one list and one message"
            raise BadValue("slot", slot.number, rule, "take the next attempt")
        if slot.round > self._round + MOST_AHEAD:
            remedy = "begin a new run"
            raise BadValue("slot.round", slot.round, f"must be at most {MOST_AHEAD} rounds after {self._round}", remedy)


def _introduced(name: str, identity: bytes, run: bytes, secret: bytes) -> Introduction:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    unsigned = Introduction(name, run, public_key(secret), b"")
    signature = Ed25519PrivateKey.from_private_bytes(identity).sign(unsigned.signed())
    return Introduction(name, run, unsigned.key, signature)


def _check_signature(given: Introduction, pinned: bytes) -> None:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(pinned).verify(given.signature, given.signed())
    except InvalidSignature:
        rule = f"is not signed by the pinned identity of {given.name}"
        remedy = "ask the client for its introduction again, or for its new identity by another way than the server"
        raise BadValue("introduction", given.key.hex(), rule, remedy) from None


def _check_pinned(name: str, identity: bytes, identities: Mapping[str, bytes]) -> None:
    try:
        own = public_identity(identity)
    except ImportError:
        raise BadValue("privacy.masks", "true", "needs the package cryptography", "install it") from None
    if identities.get(name) != own:
        raise BadValue("identities", name, "must have this client's own public identity", "pin all clients, oneself too")
    if any(len(each) != KEY_BYTES for each in identities.values()):
        raise BadValue("identities", sorted(identities), f"must have {KEY_BYTES} bytes each", "pin public_identity(…)")
    if len(set(identities.values())) < len(identities):
        rule = "must be different: one that has two names would count as two clients"
        raise BadValue("identities", sorted(identities), rule, "pin an identity of its own for each client")
