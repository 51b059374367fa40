"""Attacks on masked messages by a server and the clients that collude with it.

Each attack is carried out twice: against a naive version that is built here, where it succeeds, and against ours. Success
is measured. Every coordinate is a canary, its bit is guessed by the most powerful test, and the guesses give an interval
for μ. One unmasked message has μ = 1, and in a sum of h honest clients the claim is 1/√h.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prifedsync.local import Key, SystemDraws
from prifedsync.local.masks import Peer, Slot, new_identity, public_identity
from prifedsync.local.pairs import add_streams, agreed, derived, public_key, stream_key
from prifedsync.local.words import WORD, summed, words_of
from prifedsync.values import BadValue

from ..local.masked import PLAN, Canaries, circle, looks_uniform, predicted, stripped

COUNT = 200_000
STEPS = 300.0  # of the grid in a standard deviation
CLAIM = predicted(3)  # three honest clients


def slot(names, round=0, attempt=0):
    return Slot(PLAN, round, attempt, tuple(sorted(names)))


def canaries(seed=1, count=COUNT):
    return Canaries(count, STEPS, seed)


class Naive:
    """A client that masks whatever it is asked for: no policy, keys as the server gives them, roots of the secret alone."""

    def __init__(self, name):
        self.name = name
        self.secret = new_identity()
        self.key = public_key(self.secret)
        self.roots = {}

    def meet(self, keys):
        for name, key in keys.items():
            if name != self.name:
                self.roots[name] = derived(agreed(self.secret, key), b"", b"run")

    def stream(self, other, asked):
        words = np.zeros(COUNT, WORD)
        key = stream_key(self.roots[other], asked)
        add_streams(words, *(([key], []) if self.name < other else ([], [key])))
        return words

    def masked(self, asked, values):
        words = words_of(values)
        for other in asked.clients:
            if other != self.name:
                words += self.stream(other, asked)
        return words.tobytes()


def naive_circle(names):
    clients = {name: Naive(name) for name in names}
    for client in clients.values():
        client.meet({other.name: other.key for other in clients.values()})
    return clients


def without(message, *streams):
    """A message with these streams taken off."""
    return (np.frombuffer(message, WORD) - sum(streams)).astype(WORD).tobytes()


def says_nothing(guessed, statistic):
    """No guess is better than chance, and whatever the bits are, the words are uniform."""
    measured = guessed.measured(statistic)
    return 0 in measured and measured.high < 0.1 and all(looks_uniform(statistic[guessed.bits == bit]) for bit in (0, 1))


# ---------------------------------------------------------------------- the claim itself


@pytest.mark.parametrize("colluders", range(4))
def test_the_guarantee_of_real_messages(colluders):
    """Four clients of whom t collude with the server: it strips off what the t know, and adds up the rest."""
    honest = 4 - colluders
    asked = slot("abcd")
    measured = {}
    for times in (1.0, 2 / 3, 1.5):
        peers = circle("abcd", least=4)
        those = [peers[name] for name in "abcd"[honest:]]
        guessed = Canaries(400_000, STEPS, seed=colluders)
        values = {"a": guessed.victim(times)} | {name: guessed.noise(times) for name in "bcd"[: honest - 1]}
        messages = [stripped(peers[name].masked(asked, values[name]), name, asked, those) for name in values]
        total = summed(messages)
        assert np.array_equal(total, sum(values.values()))
        measured[times] = guessed.measured(total)
        for left in range(honest if honest > 1 else 0):  # no smaller sum says anything
            assert says_nothing(guessed, summed(messages[:left] + messages[left + 1 :]))
    assert predicted(honest) in measured[1.0]
    assert predicted(honest) not in measured[2 / 3]
    assert predicted(honest) not in measured[1.5]
    assert 1.5 * predicted(honest) in measured[2 / 3]
    assert predicted(honest) / 1.5 in measured[1.5]


# ---------------------------------------------------------------------- lists


def test_a_short_list_against_a_naive_client():
    """Tell the victim that only a colluder takes part besides it."""
    clients = naive_circle("abcd")
    guessed = canaries()
    asked = slot("ad")
    message = clients["a"].masked(asked, guessed.victim())
    assert 1.0 in guessed.measured(summed([without(message, clients["a"].stream("d", asked))]))


def test_a_short_list():
    """Ours refuses it. With the list it accepts, the colluder gets the claim."""
    peers = circle("abcd", least=4)
    guessed = canaries()
    for names in ("ad", "abd", "abc"):
        with pytest.raises(BadValue, match="must be at least 4"):
            peers["a"].masked(slot(names), guessed.victim())
    with pytest.raises(BadValue, match="must be sorted, each name once"):
        peers["a"].masked(Slot(PLAN, 0, 0, ("a", "d", "d", "d")), guessed.victim())
    asked = slot("abcd")
    values = {"a": guessed.victim(), "b": guessed.noise(), "c": guessed.noise()}
    sent = [stripped(peers[name].masked(asked, values[name]), name, asked, [peers["d"]]) for name in "abc"]
    assert CLAIM in guessed.measured(summed(sent))


def test_invented_clients():
    """Fill the list up with clients that the server made up: they are not pinned, and so they are not met."""
    identities = {name: new_identity() for name in "abcx"}
    pinned = {name: public_identity(identities[name]) for name in "abc"}
    victim = Peer("a", identities["a"], b"run", pinned, 3)
    invented = Peer("x", identities["x"], b"run", {"x": public_identity(identities["x"]), **pinned}, 2)
    with pytest.raises(BadValue, match="x is not the name of another pinned client"):
        victim.meet([invented.introduction])


def test_other_lists_for_others():
    """Tell the others that the victim does not take part: its streams stay in its message, and it says nothing."""
    asked = {"a": slot("abcd"), "b": slot("bcd"), "c": slot("bcd")}
    for make in (naive_circle, circle):
        guessed = canaries()
        clients = make("abcd")
        values = {"a": guessed.victim(), "b": guessed.noise(), "c": guessed.noise()}
        messages = {name: clients[name].masked(asked[name], values[name]) for name in values}
        if make is naive_circle:
            sent = [without(messages[name], clients[name].stream("d", asked[name])) for name in values]
        else:
            sent = [stripped(messages[name], name, asked[name], [clients["d"]]) for name in values]
        assert says_nothing(guessed, summed(sent))
        assert says_nothing(guessed, summed(sent[:1]))


# ---------------------------------------------------------------------- asking again


def honest_sum(peers, asked, values, colluder):
    """What the coalition gets of one slot: the sum of what the honest clients in the list sent."""
    names = [name for name in asked.clients if name != colluder]
    sent = [stripped(peers[name].masked(asked, values[name]), name, asked, [peers[colluder]]) for name in names]
    return summed(sent)


def test_asking_again_without_the_victim_against_a_naive_client():
    """Ask the same round again without the victim. If the others use their noise again, the difference is its message."""
    clients = naive_circle("abcd")
    guessed = canaries()
    values = {"a": guessed.victim(), "b": guessed.noise(), "c": guessed.noise()}
    sums = []
    for names in ("abcd", "bcd"):
        asked = slot(names)  # streams are bound to the list, which does not help
        honest = [name for name in names if name != "d"]
        sent = [without(clients[name].masked(asked, values[name]), clients[name].stream("d", asked)) for name in honest]
        sums.append(summed(sent))
    assert np.array_equal(sums[0] - sums[1], values["a"])
    assert 1.0 in guessed.measured(sums[0] - sums[1])


def test_asking_again_without_the_victim():
    """Ours has one message for a slot. The next attempt has noise of its own, and the victim is not in it."""
    peers = circle("abcd", least=3)
    guessed = canaries()
    first = {name: guessed.noise() for name in "bc"} | {"a": guessed.victim()}
    total = honest_sum(peers, slot("abcd"), first, "d")
    for name in "bc":
        with pytest.raises(BadValue, match=r"must come after \(0, 0\), which was answered"):
            peers[name].masked(slot("bcd"), first[name])
    again = honest_sum(peers, slot("abcd"), {name: guessed.noise() for name in "abc"}, "d")
    assert np.array_equal(again, total)  # the stored messages, whatever the noise
    second = honest_sum(peers, slot("bcd", attempt=1), {name: guessed.noise() for name in "bc"}, "d")
    assert CLAIM in guessed.measured(total)
    assert 1 / math.sqrt(5) in guessed.measured(total - second)  # the difference has more noise
    assert 0 in guessed.measured(second)


def test_another_attempt_with_the_victim_is_another_query():
    """Two slots of the victim are two queries, and have √2 of the claim together: that is why attempts are counted."""
    peers = circle("abcd", least=4)
    guessed = canaries()
    total = 0
    for attempt in range(2):
        values = {name: guessed.noise() for name in "bc"} | {"a": guessed.victim()}
        total = total + honest_sum(peers, slot("abcd", attempt=attempt), values, "d")
    measured = guessed.measured(total)
    assert math.sqrt(2) * CLAIM in measured
    assert CLAIM not in measured


def sums_around_a_restart(guessed, bound):
    """Ask for a round, make all clients restart, and ask for it again without the victim. Clients draw noise by key, from
    secrets that outlive a restart; `bound` says what the draws are bound to."""
    secrets = {name: SystemDraws() for name in "abc"}
    sums = []
    for run, names in ((b"one", "abcd"), (b"two", "bcd")):
        asked = slot(names)
        peers = circle(names, least=3, run=run)
        values = {}
        for name in set(names) - {"d"}:
            drawn = secrets[name].bound(bound(asked)).normal(Key(name, 0, 0, "noise"), COUNT).numpy()
            values[name] = guessed.rounded(STEPS * ((guessed.bits - 0.5) * (name == "a") + drawn))
        sums.append(honest_sum(peers, asked, values, "d"))
    return sums


def test_a_restart_against_a_naive_client():
    """Draws that are bound to plan and round alone come again, and new peers know nothing of the old slot."""
    guessed = canaries()
    with_victim, without_victim = sums_around_a_restart(guessed, lambda asked: asked.plan + bytes([asked.round]))
    assert 1.0 in guessed.measured(with_victim - without_victim)


def test_a_restart():
    """Draws that are bound to the slot, its list included, are others."""
    guessed = canaries()
    with_victim, without_victim = sums_around_a_restart(guessed, Slot.encoded)
    assert CLAIM in guessed.measured(with_victim)
    assert 1 / math.sqrt(5) in guessed.measured(with_victim - without_victim)


# ---------------------------------------------------------------------- keys

FLIP = 0x80  # X25519 ignores the top bit of a key


def flipped(key):
    return key[:-1] + bytes([key[-1] ^ FLIP])


def test_a_partners_key_under_another_name_against_a_naive_client():
    """Colluders y and z register the keys of a and b, with a bit flipped that X25519 ignores. They sort on the other side
    of the victim m, so that its streams with y and z cancel those with a and b."""
    clients = {name: Naive(name) for name in "abm"}
    keys = {name: client.key for name, client in clients.items()}
    keys |= {"y": flipped(keys["a"]), "z": flipped(keys["b"])}
    assert len(set(keys.values())) == 5  # no two are alike
    clients["m"].meet(keys)
    guessed = canaries()
    message = clients["m"].masked(slot("abmyz"), guessed.victim())
    assert 1.0 in guessed.measured(summed([message]))


def signed(peer, identity, key):
    """An introduction of a colluder with a key that it chose."""
    given = replace(peer.introduction, key=key)
    return replace(given, signature=Ed25519PrivateKey.from_private_bytes(identity).sign(given.signed()))


@pytest.mark.parametrize("copied", [flipped, bytes], ids=["with a bit flipped", "as it is"])
def test_a_partners_key_under_another_name(copied):
    """Ours takes the key, which its owner signed, and derives another root: nothing cancels."""
    identities = {name: new_identity() for name in "abmyz"}
    pinned = {name: public_identity(each) for name, each in identities.items()}
    peers = {name: Peer(name, identities[name], b"run", pinned, 5) for name in "abmyz"}
    given = [peers[name].introduction for name in "abm"]
    given += [signed(peers[to], identities[to], copied(peers[of].introduction.key)) for of, to in ("ay", "bz")]
    for name in "abm":
        peers[name].meet(given)
    guessed = canaries()
    values = {"a": guessed.noise(), "b": guessed.noise(), "m": guessed.victim()}
    sent = [peers[name].masked(slot("abmyz"), values[name]) for name in "mab"]
    for heard in (sent[:1], sent[:2], sent):
        assert says_nothing(guessed, summed(heard))
    assert len(set(peers["m"]._roots.values())) == 4


def test_the_servers_own_keys_against_a_naive_client():
    """Give the victim keys of the server's own under the names of the others: it then knows every stream."""
    victim = Naive("a")
    puppets = {name: Naive(name) for name in "bcd"}
    victim.meet({name: puppet.key for name, puppet in puppets.items()})
    guessed = canaries()
    asked = slot("abcd")
    for puppet in puppets.values():
        puppet.meet({"a": victim.key})
    message = victim.masked(asked, guessed.victim())
    known = [-puppet.stream("a", asked) for puppet in puppets.values()]  # what a puppet adds the victim subtracts
    assert 1.0 in guessed.measured(summed([without(message, *known)]))


def test_the_servers_own_keys():
    """Ours takes no key that a pinned identity has not signed."""
    identities = {name: new_identity() for name in "abcd"}
    pinned = {name: public_identity(each) for name, each in identities.items()}
    victim = Peer("a", identities["a"], b"run", pinned, 4)
    servers = {name: new_identity() for name in "abcd"}
    theirs = {name: public_identity(each) for name, each in servers.items()}
    puppets = [Peer(name, servers[name], b"run", theirs, 4) for name in "bcd"]
    with pytest.raises(BadValue, match="is not signed by the pinned identity of b"):
        victim.meet([puppet.introduction for puppet in puppets])


# ---------------------------------------------------------------------- somebody "who dropped out"


def test_masks_of_the_lost_against_a_naive_client():
    """Say that the victim dropped out, and let the others reveal what they share with it, so that the sum can be saved."""
    clients = naive_circle("abcd")
    guessed = canaries()
    asked = slot("abcd")
    message = clients["a"].masked(asked, guessed.victim())
    revealed = [-clients[name].stream("a", asked) for name in "bcd"]
    assert 1.0 in guessed.measured(summed([without(message, *revealed)]))


def test_masks_of_the_lost():
    """Ours has nothing to ask for: a message for one slot is all. The victim's message stays uniform after the next
    attempt without it."""
    assert {name for name in dir(Peer) if not name.startswith("_")} == {"introduction", "meet", "answered", "masked"}
    peers = circle("abcd", least=3)
    guessed = canaries()
    asked = slot("abcd")
    message = stripped(peers["a"].masked(asked, guessed.victim()), "a", asked, [peers["d"]])
    after = honest_sum(peers, slot("bcd", attempt=1), {name: guessed.noise() for name in "bc"}, "d")
    words = summed([message])
    for statistic in (words, words + after, words - after):
        assert says_nothing(guessed, statistic)


# ---------------------------------------------------------------------- state that is not in the view

CROWD = [f"client {number:02}" for number in range(50)]
SLOPE = 50  # how much a gradient moves with the model, in units of the model: many records against the noise of one


def two_rounds(next_values):
    """Sums of two rounds of fifty clients. In the second, the victim's values are what `next_values` makes of its own noisy
    values and of the sum of the first."""
    guessed = canaries(count=60_000)
    peers = circle(CROWD, least=50)
    sums = []
    own = guessed.victim()
    for round in range(2):
        values = {name: guessed.noise() for name in CROWD[1:]}
        values[CROWD[0]] = own if round == 0 else next_values(own, sums[0]) + guessed.noise()
        sums.append(summed([peers[name].masked(slot(CROWD, round), values[name]) for name in CROWD]))
    return guessed, sums


def test_a_gradient_of_the_clients_own_state_against_a_naive_client():
    """Momentum at the client: its next gradient is taken at a model that its own unmasked noise has moved. The next sum
    says what that was: claimed 1/√50 = .14, measured .99."""
    guessed, sums = two_rounds(lambda own, total: SLOPE * own)
    measured = guessed.measured(sums[1] / SLOPE + sums[0] / len(CROWD))
    assert 0.99 in measured
    assert measured.low > 0.9


def test_a_gradient_of_what_everybody_has_seen():
    """State at the server: the next gradient is taken at a model that is in the view, and says nothing new."""
    guessed, sums = two_rounds(lambda own, total: SLOPE * total)
    claim = guessed.measured(sums[0])
    assert predicted(50) in claim
    assert 2 * predicted(50) not in claim
    left = sums[1] - SLOPE * sums[0]
    assert 0 in guessed.measured(left)
    for statistic in (sums[1], sums[1] / SLOPE + sums[0] / len(CROWD)):
        assert guessed.measured(statistic).low <= predicted(50)
