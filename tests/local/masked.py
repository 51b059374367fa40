"""Masked messages for tests: circles of peers, what a coalition can strip off, and μ measured by canaries."""

import math

import numpy as np
from scipy import stats

from prifedsync.local.masks import Peer, new_identity, public_identity
from prifedsync.local.pairs import add_streams, next_root, stream_key
from prifedsync.local.words import WORD

PLAN = b"plan"
FLAKES = 1e-9  # chance that the true μ lies outside the interval of `measured`
CELLS = 256


def circle(names, least=2, run=b"run", meeting=None):
    """Peers that have met, by name; where `meeting` is given, only these have met the others."""
    identities = {name: new_identity() for name in names}
    pinned = {name: public_identity(identity) for name, identity in identities.items()}
    peers = {name: Peer(name, identities[name], run, pinned, least) for name in names}
    introductions = [peer.introduction for peer in peers.values()]
    for name in meeting or names:
        peers[name].meet(introductions)
    return peers


def root_in(peer, other, round):
    """The root that a peer shares with another in a round, from what it has now."""
    root = peer._roots[other]
    for _ in range(peer._round, round):
        root = next_root(root)
    return root


def stripped(message, name, slot, colluders):
    """A client's message without the streams that it shares with these colluders, who must not have gone on."""
    words = np.frombuffer(message, WORD).copy()
    keys = {peer.name: stream_key(root_in(peer, name, slot.round), slot) for peer in colluders if peer.name in slot.clients}
    undone = [key for other, key in keys.items() if other < name]
    add_streams(words, undone, [key for other, key in keys.items() if name < other])
    return words.tobytes()


def looks_uniform(words):
    """All bytes of the words pass a chi-square test; it says no to uniform ones with a chance of 4e-10."""
    counts = [np.bincount(each, minlength=CELLS) for each in words.astype(WORD).view(np.uint8).reshape(-1, 4).T]
    return all(stats.chisquare(count).pvalue > 1e-10 for count in counts)


class Canaries:
    """A secret bit for each coordinate: the victim's value there is +½ or −½ of what one record may move it by."""

    def __init__(self, count, steps, seed):
        self.dice = np.random.default_rng(seed)
        self.bits = self.dice.integers(0, 2, count).astype(bool)
        self.steps = steps  # of the grid, in one standard deviation of the noise and in Δ: μ of an unmasked message is 1

    def noise(self, times=1.0):
        return self.rounded(times * self.steps * self.dice.standard_normal(len(self.bits)))

    def victim(self, times=1.0):
        """Its values on the grid, with fresh noise."""
        noise = times * self.steps * self.dice.standard_normal(len(self.bits))
        return self.rounded(self.steps * (self.bits - 0.5) + noise)

    @staticmethod
    def rounded(values):
        return np.rint(values).astype(np.int64)

    def measured(self, statistic):
        """An interval for μ: what the test "the bit is 1 where the statistic is above 0" gets right.

        It is the most powerful one where the statistic is Gaussian around ±½. The error rates of N(0, 1) against N(μ, 1)
        at the middle are Φ(−μ/2), and Clopper and Pearson's interval needs no assumption on the law.
        """
        right = int(np.count_nonzero((statistic > 0) == self.bits))
        low, high = stats.binomtest(right, len(self.bits)).proportion_ci(1 - FLAKES)
        return Interval(2 * stats.norm.ppf(low), 2 * stats.norm.ppf(high))


class Interval:
    def __init__(self, low, high):
        self.low, self.high = low, high

    def __contains__(self, mu):
        return self.low <= mu <= self.high

    def __repr__(self):
        return f"μ in [{self.low:.3f}, {self.high:.3f}]"


def predicted(honest):
    return 1 / math.sqrt(honest)
