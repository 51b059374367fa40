"""Integers modulo 2³²: what a client sends where only a sum is wanted, and how close a sum of rounded values is to one
rounded Gaussian.

    h     honest clients whose values are in a sum
    s     the least standard deviation of their noises, in steps of the grid that each client rounds to
    X_k   the value of client k plus its noise, in steps of the grid: Gaussian with standard deviation s_k ≥ s

**The rounding lemma.** The sum of round(X_k) is, up to the distance that `rounding_distance` gives, a randomised rounding
of ΣX_k. So it says nothing about the values that one Gaussian around their sum, with variance Σs_k², does not say.

Proof. P(round(X_k) = n) is the density of X_k + U at n, U uniform on [−½, ½]. Let Q_k(n) be the density at n of
X_1 + … + X_k plus k such uniforms. Q_h is a randomised rounding of ΣX_k: given ΣX_k = x it takes n with the chance
B(n − x), B the density of h uniforms, and ΣB(n − x) over n is 1. Now add client k to the law Q_{k−1}. The new law at n is
the sum of F(j) = Q_{k−1}(n − j)·P(round(X_k) = j) over integers j, and Q_k(n) is the integral of F. Poisson's summation
formula says that they differ by ΣF̂(2πl) over l ≠ 0. For fixed uniforms F is a product of two Gaussian densities: as a
function of j it is a Gaussian with variance v_k = 1/(1/s_k² + 1/S²), S² = s_1² + … + s_{k−1}², and its transform at 2πl is
at most e^{−2π²l²v_k} of its integral. On average over the uniforms the two laws differ at n by at most e_k·Q_k(n), where

    e_k = 2·Σ_{l ≥ 1} e^{−2π²l²v_k},     v_k ≥ s²·(k − 1)/k.

By induction the sum of all h differs from Q_h at every n by at most (Π_{k = 2 … h}(1 + e_k) − 1)·Q_h(n), and half of that
factor bounds their total variation. ∎ For h = 1 it is 0; for h = 2 and s ≥ 1 it is about e^{−π²s²}.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import numpy as np

from ..values import BadValue, number, whole

WORD = np.dtype("<u4")  # on the wire: 32 bits, little-endian, as large as a number in single precision
LEAST_STEPS = 8  # of the grid in a standard deviation: with 10⁷ coordinates and 10⁴ slots the lemma gives less than 10⁻²⁶²


def words_of(values: np.ndarray) -> np.ndarray:
    """Integers (int64) modulo 2³², as a new array of words."""
    if values.dtype != np.int64 or values.ndim != 1:
        shown = f"{values.ndim} axes of {values.dtype}"
        raise BadValue("values", shown, "must be one axis of int64", "round them to the grid first")
    return values.astype(WORD)  # a cast between integers is modulo 2³²


def summed(messages: Sequence[bytes]) -> np.ndarray:
    """The sum of messages modulo 2³², each entry the one in [−2³¹, 2³¹): exact where the true sum lies there."""
    if not messages:
        raise BadValue("messages", "none", "must be at least one", "wait for the clients")
    total = _words_in(messages[0]).copy()
    for message in messages[1:]:
        words = _words_in(message)
        if len(words) != len(total):
            lengths = f"{len(total)} and {len(words)} words"
            raise BadValue("messages", lengths, "must have equal lengths", "all clients train the same model")
        np.add(total, words, out=total)
    return total.astype(np.uint32).view(np.int32).astype(np.int64)


def _words_in(message: bytes) -> np.ndarray:
    if len(message) % WORD.itemsize:
        raise BadValue("message", f"{len(message)} bytes", "must be whole words of 4 bytes", "send what the client made")
    return np.frombuffer(message, WORD)


def rounding_distance(steps: float, honest: int, coordinates: int, slots: int) -> float:
    """A bound on the total variation between all sums of a run and randomised roundings of Gaussian sums (the lemma above).

    `steps` is s. Coordinates and slots add up, also where a slot depends on those before it. The bound is never rounded
    down: terms that are too small for a double count as the least normal one.
    """
    steps = number("steps", steps, 0, ends="(]")
    honest = whole("honest", honest, 1)
    often = whole("coordinates", coordinates, 1) * whole("slots", slots, 1)
    if honest == 1:
        return 0.0
    exponent = math.fsum(math.log1p(_aliases(steps**2 * (k - 1) / k)) for k in range(2, honest + 1))
    if exponent > 1:
        return 1.0  # as far apart as two laws can be: half of e − 1 is not worth a statement
    distance = often * math.expm1(exponent) / 2 * (1 + 1e-9)  # more than all the rounding on the way
    return min(1.0, distance)


def _aliases(variance: float) -> float:
    """2·Σ e^{−2π²l²v} over l ≥ 1, never rounded down. Terms fall faster than the geometric series that bounds the rest."""
    first = max(math.exp(-2 * math.pi**2 * variance), sys.float_info.min)
    if first > 0.9:
        return math.inf
    total = first
    order = 2
    while (term := math.exp(-2 * math.pi**2 * order**2 * variance)) > 1e-20 * first:
        total += term
        order += 1
    return 2 * (total + term / (1 - first))
