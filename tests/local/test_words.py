"""Integers modulo 2³², exact sums, and the rounding lemma against laws that are summed up directly."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.interpolate import BSpline

from prifedsync.local.words import LEAST_STEPS, WORD, rounding_distance, summed, words_of
from prifedsync.values import BadValue

# ---------------------------------------------------------------------- words


def test_a_sum_of_three_by_hand():
    """Streams 5 (a and b), 2³² − 1 (a and c), 7 (b and c); values 10, −20, 4, whose sum is −6."""
    a = 14  # 10 + 5 + (2³² − 1) − 2³²
    b = 4294967278  # −20 − 5 + 7 + 2³²
    c = 4294967294  # 4 − (2³² − 1) − 7 + 2·2³²
    messages = [np.array([each], WORD).tobytes() for each in (a, b, c)]
    assert messages[0] == b"\x0e\0\0\0"  # little-endian
    assert messages[2] == b"\xfe\xff\xff\xff"
    assert summed(messages).tolist() == [-6]


@pytest.mark.parametrize(
    ("value", "word", "back"),
    [
        (0, 0, 0),
        (-1, 2**32 - 1, -1),
        (2**31 - 1, 2**31 - 1, 2**31 - 1),
        (2**31, 2**31, -(2**31)),  # one too large wraps around to the other end
        (-(2**31), 2**31, -(2**31)),
        (-(2**31) - 1, 2**31 - 1, 2**31 - 1),
        (2**40 + 3, 3, 3),
        (-(2**63), 0, 0),
    ],
)
def test_integers_modulo_two_to_the_32(value, word, back):
    words = words_of(np.array([value], np.int64))
    assert words.dtype == WORD
    assert words.tolist() == [word]
    assert summed([words.tobytes()]).tolist() == [back]


def test_a_sum_is_exact_where_its_parts_wrap_around():
    parts = [np.array([each], np.int64) for each in (2**31 - 1, 2**31 - 1, -(2**31), -(2**31) + 5)]
    total = summed([words_of(part).tobytes() for part in parts])
    assert total.tolist() == [3]
    assert total.dtype == np.int64


def test_messages_that_do_not_fit_are_refused():
    with pytest.raises(BadValue, match="messages = none must be at least one; wait for the clients"):
        summed([])
    with pytest.raises(BadValue, match="messages = 2 and 1 words must have equal lengths"):
        summed([bytes(8), bytes(4)])
    with pytest.raises(BadValue, match="message = 5 bytes must be whole words of 4 bytes"):
        summed([bytes(5)])


@pytest.mark.parametrize("values", [np.zeros(3), np.zeros(3, np.int32), np.zeros((1, 3), np.int64)])
def test_values_that_are_not_integers_of_64_bits_are_refused(values):
    with pytest.raises(BadValue, match="must be one axis of int64; round them to the grid first"):
        words_of(values)


# ---------------------------------------------------------------------- the rounding lemma

REACH = 40  # integers on each side
INTEGERS = np.arange(-REACH, REACH + 1)
NODES, WEIGHTS = np.polynomial.legendre.leggauss(40)


def rounded_sum(values, deviations):
    """The law of Σround(X_k), by convolution; the integers it starts at."""
    law = np.ones(1)
    for value, s in zip(values, deviations, strict=True):
        law = np.convolve(law, np.diff(stats.norm.cdf(np.append(INTEGERS, REACH + 1) - 0.5, value, s)))
    return law, -REACH * len(values)


def one_rounding(values, deviations, integers):
    """The law of a randomised rounding of N(Σvalue, Σs²): to n with the chance B(n − x), B the density of h uniforms."""
    honest = len(values)
    spline = BSpline.basis_element(np.arange(honest + 1) - honest / 2)
    spread = math.sqrt(math.fsum(s * s for s in deviations))
    law = np.zeros(len(integers))
    for piece in range(honest):  # on which the spline is a polynomial
        at = piece - honest / 2 + (NODES + 1) / 2
        law += np.sum(WEIGHTS / 2 * spline(at) * stats.norm.pdf(integers[:, None] - at, sum(values), spread), 1)
    return law


def distance(values, deviations):
    law, start = rounded_sum(values, deviations)
    other = one_rounding(values, deviations, np.arange(start, start + len(law)))
    assert abs(law.sum() - 1) < 1e-12
    assert abs(other.sum() - 1) < 1e-12  # it is a law: the chances B(n − x) add up to 1
    return np.abs(law - other).sum() / 2


OFFSETS = {2: [(0, 0), (0, 0.5), (0.3, 0.1), (0.25, 0.5)], 3: [(0, 0, 0), (0.5, 0, 0.5), (0.2, 0.9, 0.4)]}
OFFSETS |= {5: [(0, 0, 0, 0, 0), (0.1, 0.5, 0.7, 0.2, 0.4)]}


@pytest.mark.parametrize("honest", OFFSETS)
@pytest.mark.parametrize("steps", [0.3, 0.4, 0.5, 0.7, 0.9, 1.2])
def test_sums_of_rounded_values_are_within_the_bound(steps, honest):
    bound = rounding_distance(steps, honest, 1, 1)
    exact = max(distance(values, [steps] * honest) for values in OFFSETS[honest])
    assert exact <= bound
    if honest == 2:  # and the bound is not far away: no other constant or exponent would pass
        assert exact >= bound / 4


@pytest.mark.parametrize("steps", [0.35, 0.6, 0.9])
def test_a_client_with_more_noise_does_no_harm(steps):
    for more in (1, 1.3, 2, 5):
        assert distance((0.1, 0.6), (steps, more * steps)) <= rounding_distance(steps, 2, 1, 1)
        assert distance((0.1, 0.6, 0), (more * steps, steps, more * steps)) <= rounding_distance(steps, 3, 1, 1)


def test_one_rounded_value_is_a_rounding():
    assert distance((0.3,), (0.4,)) < 1e-12
    assert rounding_distance(0.4, 1, 10**7, 10**4) == 0


def test_the_bound_by_hand():
    """h = 2, s = 1: v = ½, e = 2(e^{−π²} + e^{−4π²} + …); half of it. And h = 3: (1 + e)(1 + 2e^{−4π²/3} + …) − 1."""
    alias = 2 * (math.exp(-(math.pi**2)) + math.exp(-4 * math.pi**2))
    assert rounding_distance(1, 2, 1, 1) == pytest.approx(alias / 2, rel=1e-8)
    third = 2 * (math.exp(-4 * math.pi**2 / 3) + math.exp(-16 * math.pi**2 / 3))
    assert rounding_distance(1, 3, 1, 1) == pytest.approx(((1 + alias) * (1 + third) - 1) / 2, rel=1e-8)
    assert rounding_distance(1, 2, 30, 100) == pytest.approx(3000 * alias / 2, rel=1e-8)


def test_eight_steps_are_enough_for_any_run():
    assert 0 < rounding_distance(LEAST_STEPS, 1000, 10**7, 10**4) < 1e-262
    assert 0 < rounding_distance(256, 1000, 10**7, 10**4) < 1e-262  # too small for a double, and never rounded down to 0
    for steps in (0.1, 1e-3, 1e-9):
        assert rounding_distance(steps, 2, 1, 1) == 1  # no statement
    assert rounding_distance(1, 2, 10**7, 10**4) == 1
