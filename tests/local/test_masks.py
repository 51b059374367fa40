"""Masked messages: hand-worked values, exact sums, the policy of a peer, and what is left of a round when it is over."""

import copy
import gc
import hashlib
import hmac
import os
import pickle
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from prifedsync.local import masks
from prifedsync.local.masks import Introduction, Peer, Slot, new_identity, public_identity
from prifedsync.local.pairs import (
    BLOCK,
    Named,
    add_streams,
    agreed,
    derived,
    first_root,
    framed,
    next_root,
    public_key,
    stream_key,
)
from prifedsync.local.words import WORD, summed
from prifedsync.values import BadValue

from .masked import PLAN, circle, looks_uniform, root_in

MANY = 60_000


def slot(names, round=0, attempt=0, plan=PLAN):
    return Slot(plan, round, attempt, tuple(sorted(names)))


def some(count, seed=0):
    return np.random.default_rng(seed).integers(-(2**20), 2**20, count)


# ---------------------------------------------------------------------- values that others worked out

ALICE = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")  # RFC 7748, 6.1
BOB = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
BOTH = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"


def test_an_agreement_of_rfc_7748():
    assert public_key(ALICE).hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert agreed(ALICE, public_key(BOB)).hex() == BOTH
    assert agreed(BOB, public_key(ALICE)).hex() == BOTH


def test_a_derivation_of_rfc_5869():
    okm = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    assert derived(b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA)), 42).hex() == okm


STREAM = (  # RFC 8439, A.1: key and nonce zero, blocks 0 and 1
    "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
    "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
)


def test_a_stream_of_rfc_8439():
    words = np.zeros(32, WORD)
    add_streams(words, [bytes(32)], [])
    assert words.tobytes().hex() == STREAM
    add_streams(words, [], [bytes(32)])
    assert not words.any()


def test_a_long_stream_goes_on_from_block_to_block():
    """The words of a stream do not repeat, and do not depend on how many are wanted."""
    long = np.zeros(2 * BLOCK + 5, WORD)
    short = np.zeros(BLOCK + 1, WORD)
    for words in (long, short):
        add_streams(words, [b"k" * 32], [])
    assert np.array_equal(long[: BLOCK + 1], short)
    assert not np.array_equal(long[:BLOCK], long[BLOCK : 2 * BLOCK])
    assert len(np.unique(long)) > 2 * BLOCK - 50  # of 2³²: fewer than one pair is expected to meet


# ---------------------------------------------------------------------- a message worked out by hand


def test_values_are_not_changed():
    values = some(100)
    before = values.copy()
    peers = circle("ab")
    peers["a"].masked(slot("ab"), values)
    assert np.array_equal(values, before)


def hashed(key, content, person):
    return hashlib.blake2b(content, key=key, digest_size=32, person=person).digest()


def test_a_message_from_first_principles(monkeypatch):
    """Bob's message in round 2 of a run with Alice and Carol, with nothing but hashes, and the streams' signs."""
    secrets = {"alice": ALICE, "bob": BOB, "carol": bytes(range(32))}
    identities = {name: new_identity() for name in secrets}
    pinned = {name: public_identity(each) for name, each in identities.items()}
    peers = {}
    for name, secret in secrets.items():
        monkeypatch.setattr(masks.os, "urandom", lambda count, secret=secret: secret)
        peers[name] = Peer(name, identities[name], b"the run", pinned, 3)
    for peer in peers.values():
        peer.meet([each.introduction for each in peers.values()])
    asked = slot(secrets, round=2, attempt=1)

    def long(value):
        return value.to_bytes(8, "little")

    def stream(first, second):
        keys = [public_key(secrets[first]), public_key(secrets[second])]
        parts = [b"root", b"the run", first.encode(), keys[0], second.encode(), keys[1]]
        info = b"".join(long(len(part)) + part for part in parts)
        extracted = hmac.digest(b"prifedsync masks", agreed(secrets[first], keys[1]), "sha256")
        root = hmac.digest(extracted, info + b"\x01", "sha256")
        for _ in range(2):
            root = hashed(root, b"", b"next root")
        named = b"".join(long(len(name)) + name.encode() for name in ("alice", "bob", "carol"))
        content = long(4) + b"slot" + long(4) + b"plan" + long(8) + long(2) + long(8) + long(1) + named
        words = np.zeros(7, WORD)
        add_streams(words, [hashed(root, content, b"stream")], [])
        return words.astype(object)

    values = np.array([0, 1, -1, 5, 2**31, -(2**31), 2**33 + 9])
    words = (values.astype(object) - stream("alice", "bob") + stream("bob", "carol")) % 2**32
    assert peers["bob"].masked(asked, values) == words.astype(WORD).tobytes()
    words = (values.astype(object) + stream("alice", "bob") + stream("alice", "carol")) % 2**32
    assert peers["alice"].masked(asked, values) == words.astype(WORD).tobytes()


# ---------------------------------------------------------------------- masks cancel


@pytest.mark.parametrize("count", range(2, 11))
def test_masks_cancel_to_the_last_bit(count):
    """Random lists, rounds and attempts."""
    dice = random.Random(count)
    names = [f"client {dice.randrange(10**6)} {'é' * (i % 3)}" for i in range(count)]
    peers = circle(names)
    number = (0, 0)
    for turn in range(4):
        chosen = names if turn == 0 else dice.sample(names, dice.randint(2, count))
        asked = slot(chosen, *number)
        values = {name: some(1000, seed=(turn, place)) for place, name in enumerate(chosen)}
        messages = [peers[name].masked(asked, values[name]) for name in chosen]
        assert np.array_equal(summed(messages), sum(values.values()))
        number = (number[0] + dice.randint(1, 3), dice.randint(0, 2)) if turn % 2 else (number[0], number[1] + 1)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_missing_message_leaves_uniform_words(count):
    names = "abcde"[:count]
    peers = circle(names)
    messages = [peers[name].masked(slot(names), np.zeros(MANY, np.int64)) for name in names]
    assert not summed(messages).any()
    for missing in range(count):
        assert looks_uniform(summed(messages[:missing] + messages[missing + 1 :]))
    assert not looks_uniform(summed(messages))
    assert not looks_uniform(some(MANY))  # the test can fail


def test_a_hundred_partners_take_less_than_a_second():
    """Processor time of one thread for 1.2 million words; an idle core needs 0.12 s."""
    peer = circle([f"{number:03}" for number in range(101)], meeting=["050"])["050"]
    asked = slot(peer._pinned)
    begun = time.process_time()
    peer.masked(asked, np.zeros(1_200_000, np.int64))
    assert time.process_time() - begun < 1


DIFFERENCES = {
    "round": slot("abc", round=1),
    "attempt": slot("abc", attempt=1),
    "plan": slot("abc", plan=b"another"),
    "list": slot("abcd"),
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_who_disagrees_on_a_slot_gets_uniform_words(what):
    peers = circle("abcd")
    messages = [peers[name].masked(slot("abc"), np.zeros(MANY, np.int64)) for name in "ab"]
    messages.append(peers["c"].masked(DIFFERENCES[what], np.zeros(MANY, np.int64)))
    assert looks_uniform(summed(messages))


def test_streams_of_two_slots_and_of_two_runs_have_nothing_in_common():
    zeros = np.zeros(MANY, np.int64)
    sent = []
    for run in (b"one", b"two"):
        peer = circle("ab", run=run)["a"]
        sent += [peer.masked(slot("ab", round, attempt), zeros) for round, attempt in ((0, 0), (0, 1), (3, 0))]
    words = [np.frombuffer(message, WORD) for message in sent]
    for place, one in enumerate(words):
        for other in words[:place]:
            assert looks_uniform(one - other)


# ---------------------------------------------------------------------- introductions


class Strangers:
    """Two clients that have not met: everybody's identities, and a peer of each."""

    def __init__(self):
        self.identities = {name: new_identity() for name in "abc"}
        self.pinned = {name: public_identity(each) for name, each in self.identities.items()}
        self.a = self.peer("a")
        self.b = self.peer("b")

    def peer(self, name, run=b"run", identity=None, least=2):
        return Peer(name, identity or self.identities[name], run, self.pinned, least)


def resigned(given, identity):
    """The same introduction under another signature."""
    return replace(given, signature=Ed25519PrivateKey.from_private_bytes(identity).sign(given.signed()))


@pytest.fixture
def strangers():
    return Strangers()


def forged(strangers):
    given = strangers.b.introduction
    own = strangers.identities["b"]
    return {
        "another key": (replace(given, key=public_key(ALICE)), "is not signed by the pinned identity of b"),
        "another name": (replace(given, name="c"), "is not signed by the pinned identity of c"),
        "another's signature": (resigned(given, strangers.identities["c"]), "is not signed by the pinned identity of b"),
        "no signature": (replace(given, signature=b""), "is not signed by the pinned identity of b"),
        "another run": (strangers.peer("b", run=b"old").introduction, "is not this run"),
        "another run, said to be this one": (
            replace(strangers.peer("b", run=b"old").introduction, run=b"run"),
            "is not signed by the pinned identity of b",
        ),
        "a stranger": (replace(given, name="d"), "is not the name of another pinned client"),
        "oneself": (strangers.peer("a").introduction, "is not the name of another pinned client"),
        "a short key": (resigned(replace(given, key=given.key[:31]), own), "must be an X25519 key of 32 bytes"),
    }


@pytest.mark.parametrize("what", forged(Strangers()))
def test_an_introduction_that_must_not_be_believed(strangers, what):
    given, reason = forged(strangers)[what]
    with pytest.raises(BadValue, match=reason):
        strangers.a.meet([given])
    with pytest.raises(BadValue, match="has not met"):
        strangers.a.masked(slot("ab"), some(3))
    strangers.a.meet([strangers.b.introduction])  # a refusal changes nothing
    strangers.a.masked(slot("ab"), some(3))


SMALL_ORDER = [  # points of order 1, 2, 4 and 8, each as it is, and some beyond the prime or with the top bit set
    "00" * 32,
    "01" + "00" * 31,
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ec" + "ff" * 30 + "7f",
    "ed" + "ff" * 30 + "7f",
    "ee" + "ff" * 30 + "7f",
    "00" * 31 + "80",
    "01" + "00" * 30 + "80",
]


@pytest.mark.parametrize("key", SMALL_ORDER)
def test_a_key_of_small_order_is_refused(strangers, key):
    """Its owner would know the shared secret without knowing anything: it is zero."""
    given = resigned(replace(strangers.b.introduction, key=bytes.fromhex(key)), strangers.identities["b"])
    with pytest.raises(BadValue, match="not one of small order"):
        strangers.a.meet([given])


def test_one_introduction_for_each_client(strangers):
    with pytest.raises(BadValue, match="b has two introductions"):
        strangers.a.meet([strangers.b.introduction, strangers.peer("b").introduction])
    strangers.a.meet([strangers.a.introduction, strangers.b.introduction])
    with pytest.raises(BadValue, match="can be given once in a run"):
        strangers.a.meet([strangers.peer("c").introduction])


def test_run_keys_are_fresh(strangers):
    assert strangers.peer("b").introduction.key != strangers.b.introduction.key


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda pinned: {**pinned, "a": pinned["b"]}, "must have this client's own public identity"),
        (lambda pinned: {"b": pinned["b"]}, "must have this client's own public identity"),
        (lambda pinned: {**pinned, "c": pinned["b"]}, "one that has two names would count as two clients"),
        (lambda pinned: {**pinned, "c": pinned["c"][:31]}, "must have 32 bytes each"),
    ],
)
def test_identities_that_cannot_be_pinned(strangers, change, reason):
    with pytest.raises(BadValue, match=reason):
        Peer("a", strangers.identities["a"], b"run", change(strangers.pinned), 2)


@pytest.mark.parametrize("least", [0, 1, 4, 2.5])
def test_a_list_has_at_least_two_and_at_most_all(strangers, least):
    with pytest.raises(BadValue, match=r"least_clients = \S+ must be a whole number of at least 2 and at most 3"):
        strangers.peer("a", least=least)


# ---------------------------------------------------------------------- lists and slots


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (("a", "b"), "2 clients must be at least 3"),
        (("a", "c", "b"), "must be sorted, each name once"),
        (("a", "b", "b"), "must be sorted, each name once"),
        (("b", "c", "d"), "must name a, who is asked"),
        (("a", "b", "x"), r"has not met: \['x'\]"),
    ],
)
def test_a_list_that_is_refused(names, reason):
    peer = circle("abcd", least=3)["a"]
    asked = Slot(PLAN, 0, 0, names)
    for ask in (peer.answered, lambda asked: peer.masked(asked, some(3))):
        with pytest.raises(BadValue, match=reason):
            ask(asked)
    assert peer.answered(slot("abc")) is None  # a refusal changes nothing


def test_a_slot_has_one_message():
    peer = circle("abcd")["a"]
    sent = peer.masked(slot("abc", 1, 1), some(9))
    assert peer.answered(slot("abc", 1, 1)) == sent
    assert peer.masked(slot("abc", 1, 1), some(9, seed=5)) == sent
    assert peer.masked(slot("abc", 1, 1), some(2)) == sent
    for asked in (slot("abd", 1, 1), slot("abc", 1, 1, b"other"), slot("abc", 1, 0), slot("abc", 0, 7), slot("abd", 0, 0)):
        for ask in (peer.answered, lambda asked: peer.masked(asked, some(9))):
            with pytest.raises(BadValue, match=r"must come after \(1, 1\), which was answered"):
                ask(asked)
    assert peer.masked(slot("abc", 1, 1), some(9)) == sent
    assert peer.masked(slot("abc", 1, 2), some(9)) != sent


def test_a_slot_that_is_asked_for_twice_at_once_has_one_message(monkeypatch):
    """The second question comes while the first is being answered."""
    peer = circle("ab")["a"]
    busy = Event()

    def slowly(*given):
        busy.set()
        time.sleep(0.05)
        add_streams(*given)

    monkeypatch.setattr(masks, "add_streams", slowly)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(peer.masked, slot("ab"), some(5, seed=1))
        assert busy.wait(10)
        second = peer.masked(slot("ab"), some(5, seed=2))
    assert second == first.result()


def test_the_list_of_an_answered_slot_cannot_be_changed():
    names = ["a", "b", "c"]
    peer = circle("abcd")["a"]
    asked = Slot(PLAN, 0, 0, names)
    peer.masked(asked, some(3))
    names[2] = "d"
    assert asked.clients == ("a", "b", "c")


def test_a_round_far_ahead_is_refused():
    peer = circle("ab")["a"]
    with pytest.raises(BadValue, match=r"slot.round = 100001 must be at most 100000 rounds after 0"):
        peer.answered(slot("ab", 100_001))
    for round, attempt in ((-1, 0), (0, -1), (2**63, 0)):
        with pytest.raises(BadValue, match="must be a whole number of at least 0"):
            slot("ab", round, attempt)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_peer_cannot_be_copied(copied):
    with pytest.raises(TypeError, match="the copy would answer a slot a second time"):
        copied(circle("ab")["a"])


# ---------------------------------------------------------------------- what is over is over


def held(thing):
    """All bytes that can be reached from a thing."""
    seen = {}
    left = [thing]
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, type) or callable(each):
            continue
        seen[id(each)] = each
        left += gc.get_referents(each)
        left += list(vars(each).values()) if hasattr(each, "__dict__") else []
    return {bytes(each) for each in seen.values() if isinstance(each, (bytes, bytearray))}


def test_a_round_that_is_over_cannot_be_unmasked():
    """Whoever gets a client's state after round r cannot make its streams of round r − 1."""
    peers = circle("abc")
    peer = peers["a"]
    old = {round: {name: root_in(peer, name, round) for name in "bc"} for round in range(4)}
    peer.masked(slot("abc", 2), some(50))
    assert old[2]["b"] in held(peer)  # of the round that is on: attempts may follow
    message = peer.masked(slot("abc", 3), some(50))
    state = held(peer)
    assert message in state
    assert old[3]["b"] in state
    streams = {stream_key(root, slot("abc", round)) for round in range(3) for root in old[round].values()}
    secrets = {each for each in state if len(each) <= 64}
    made = {next_root(each) for each in secrets}
    assert not streams & ({stream_key(each, slot("abc", round)) for round in range(3) for each in secrets | made} | state)
    assert not {root for round in range(3) for root in old[round].values()} & (secrets | made)


def test_the_secret_run_key_is_gone_after_the_meeting(strangers):
    secret = strangers.a._secret
    assert public_key(secret) == strangers.a.introduction.key
    assert secret in held(strangers.a)
    strangers.a.meet([strangers.b.introduction])
    assert secret not in held(strangers.a)


def test_identities_do_not_stay_in_a_peer(strangers):
    assert strangers.identities["a"] not in held(strangers.a)


# ---------------------------------------------------------------------- encodings


def parts_of(content):
    """What was framed, read back."""
    parts = []
    while content:
        size = int.from_bytes(content[:8], "little")
        assert len(content) >= 8 + size
        parts.append(content[8 : 8 + size])
        content = content[8 + size :]
    return parts


PARTS = st.lists(st.binary(max_size=20) | st.just(framed(b"a", b"b")))
NAMES = st.text(max_size=5).filter(lambda name: not any(0xD800 <= ord(c) <= 0xDFFF for c in name))
COUNTS = st.integers(0, 300) | st.integers(0, 2**63 - 1)
SLOTS = st.builds(Slot, st.binary(max_size=9), COUNTS, COUNTS, st.lists(NAMES, max_size=4).map(tuple))


@given(PARTS)
def test_frames_can_be_read_back(parts):
    assert parts_of(framed(*parts)) == parts


@given(SLOTS)
def test_a_slot_can_be_read_back(one):
    """So two different slots never give the same bytes."""
    label, plan, round, attempt, *names = parts_of(one.encoded())
    numbers = [int.from_bytes(each, "little") for each in (round, attempt)]
    assert label == b"slot"
    assert Slot(plan, *numbers, tuple(name.decode() for name in names)) == one


@given(SLOTS, SLOTS)
def test_two_slots_have_two_streams(one, other):
    assert (stream_key(b"r" * 32, one) == stream_key(b"r" * 32, other)) == (one == other)


@given(NAMES, st.binary(max_size=9), st.binary(max_size=9))
def test_an_introduction_can_be_read_back(name, run, key):
    assert parts_of(Introduction(name, run, key, b"").signed()) == [b"introduction", run, name.encode(), key]


def test_a_name_that_cannot_be_encoded_is_refused():
    with pytest.raises(BadValue, match="must be valid Unicode text"):
        Slot(PLAN, 0, 0, ("a", "\ud800")).encoded()


def test_a_root_is_of_run_names_and_keys():
    """Change any of them, or let names and keys change places: another root."""
    a, b = Named("a", b"1" * 32), Named("b", b"2" * 32)
    root = first_root(b"s" * 32, b"run", a, b)
    assert root == first_root(b"s" * 32, b"run", b, a)  # the same for both of them
    flipped = b"2" * 31 + bytes([0x32 | 0x80])
    others = [
        first_root(b"t" * 32, b"run", a, b),
        first_root(b"s" * 32, b"ran", a, b),
        first_root(b"s" * 32, b"run", a, Named("c", b.key)),
        first_root(b"s" * 32, b"run", a, Named("b", flipped)),
        first_root(b"s" * 32, b"run", Named("a", b.key), Named("b", a.key)),
        first_root(b"s" * 32, b"run", Named("", b"a" + a.key), b),
        next_root(root),
    ]
    assert len({root, *others}) == len(others) + 1


# ---------------------------------------------------------------------- a hostile server

EVERYBODY = "abcde"
NUMBERS = st.tuples(st.integers(0, 3), st.integers(0, 2))  # round and attempt
LISTS = st.lists(st.sampled_from("abcdex"), max_size=6) | st.sets(st.sampled_from(EVERYBODY), min_size=2).map(sorted)


class HostileServer(RuleBasedStateMachine):
    """Whatever a server asks, in whatever order: one message for a slot, no short list, and slots that grow."""

    @initialize(least=st.integers(2, 5))
    def begin(self, least):
        self.least = least
        self.peer = circle(EVERYBODY, least=least)["b"]
        self.sent = {}
        self.order = []

    @rule(number=NUMBERS, names=LISTS, plan=st.sampled_from([b"p", b"q"]), seed=st.integers(0))
    def ask(self, number, names, plan, seed):
        asked = Slot(plan, *number, tuple(names))
        try:
            message = self.peer.masked(asked, some(4, seed=seed))
        except BadValue:
            return
        known = self.sent.setdefault(asked.number, (asked, message))
        assert known == (asked, message)
        if asked.number not in self.order:
            self.order.append(asked.number)

    @invariant()
    def keeps_its_policy(self):
        if not hasattr(self, "sent"):
            return
        assert self.order == sorted(self.order)
        for asked, _ in self.sent.values():
            assert len(set(asked.clients)) >= self.least
            assert set(asked.clients) <= set(EVERYBODY)
            assert "b" in asked.clients


HostileServer.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestHostileServer = HostileServer.TestCase


# ---------------------------------------------------------------------- one Peer, one process, one meeting


def _refused_as_forked(use):
    try:
        use()
    except TypeError as error:
        return "forked process" in str(error)
    return False


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_copy_refuses_everything():
    """It has the roots and the counters of its parent, and would answer a slot again with other values."""
    peers = circle("ab")
    new = Peer("a", identity := new_identity(), b"run", {"a": public_identity(identity), "b": bytes(32)}, 2)
    asked = slot("ab")
    uses = [lambda: peers["a"].masked(asked, some(3)), lambda: peers["a"].answered(asked), lambda: new.meet([])]
    child = os.fork()
    if child == 0:
        try:
            os._exit(sum(_refused_as_forked(use) for use in uses))
        finally:
            os._exit(100)  # the child ends here, whatever happens
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(uses)
    assert peers["a"].masked(asked, some(3)) == peers["a"].answered(asked)


def test_two_meetings_at_once_are_one_after_the_other():
    """The second would put other roots in place of the first."""
    peers = circle("ab", meeting="b")
    begun = Event()

    def introductions():
        begun.set()
        time.sleep(0.3)
        yield peers["b"].introduction

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(peers["a"].meet, introductions())
        assert begun.wait(5)
        second = threads.submit(peers["a"].meet, [])
        with pytest.raises(BadValue, match="once in a run"):
            second.result(5)
        first.result(5)
    assert list(peers["a"]._roots) == ["b"]
