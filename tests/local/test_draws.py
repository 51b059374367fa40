"""Draws: the law of each kind, streams that keys keep apart, and secrets that stay secret."""

import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from prifedsync.local import Key, RecordedDraws, SeededDraws, SystemDraws
from prifedsync.local.draws import BLOCK, _in_unit
from prifedsync.values import BadValue

from .laws import FLAKES, SIGMAS, follows, uncorrelated

KEY = Key("hospital-a", 3, 1, "noise")
KINDS = {"seeded": SeededDraws(11), "secret": SystemDraws(), "secret, known here": SystemDraws(bytes(range(32)))}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def draws(request):
    return request.param


# ------------------------------------------------------------------ the law


def test_normals_are_normal_and_uniforms_uniform(draws):
    normal, uniform = draws.normal(KEY, 2 * BLOCK), draws.uniform(KEY._replace(step=2), 2 * BLOCK)
    assert normal.dtype == uniform.dtype == torch.float64
    assert follows(normal, stats.norm, 1.0)
    assert follows(uniform - 0.5, stats.uniform(-0.5, 1), 1.0)
    for wrong in (2 / 3, 0.97, 1.03, 1.5):
        assert not follows(wrong * normal, stats.norm, 1.0)
    assert abs(float(normal.mean())) < SIGMAS / np.sqrt(len(normal))


@pytest.mark.parametrize("far", [3.0, 4.0, 4.5])
def test_tails_are_those_of_a_normal(draws, far):
    """Of 4·10⁶ values 27 lie beyond 4.5; how many it must be at least and at most leaves one failure in 10⁹ runs."""
    values = torch.cat([draws.normal(KEY._replace(round=r), 10**6) for r in range(4)])
    expected = stats.binom(len(values), stats.norm.sf(far))
    for beyond in (int((values > far).sum()), int((values < -far).sum())):
        assert expected.ppf(1e-10) <= beyond <= expected.isf(1e-10)


def test_moments_up_to_the_sixth(draws):
    """Each within 6.4 of its own standard deviations: one failure in 10⁹ runs."""
    values = draws.normal(KEY, 2**21).numpy()
    for order in range(1, 7):
        mean, second = stats.norm.moment(order), stats.norm.moment(2 * order)
        assert abs(np.mean(values**order) - mean) < SIGMAS * np.sqrt((second - mean**2) / len(values)), order


def test_normals_have_the_resolution_of_doubles(draws):
    """Made in single precision from 24 random bits, they would never exceed 5.8."""
    values = draws.normal(KEY, 10_000)
    assert float((values.float().double() == values).double().mean()) < 0.01


def test_low_bits_of_normals_are_even(draws):
    """What is left of a value below the grid that noise is rounded to, 2⁻¹², and far below it: uniform."""
    values = draws.normal(KEY, 2 * BLOCK).numpy()
    for bits in (12, 24, 36):
        assert follows((values * 2.0**bits) % 1 - 0.5, stats.uniform(-0.5, 1), 1.0)


def test_both_values_of_a_pair_are_independent():
    """The first values of all pairs come first, then the second ones. Nothing about one is seen in the other."""
    first, second = SystemDraws().normal(KEY, 3 * BLOCK).reshape(2, -1).numpy()
    angle, radius = np.arctan2(second, first), np.hypot(first, second)
    assert stats.ks_1samp(angle, stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue > FLAKES
    assert stats.ks_1samp(radius, stats.rayleigh.cdf).pvalue > FLAKES
    for one, other in (
        (first, second), (first**2, second**2), (np.abs(first), np.abs(second)), (first, second**2), (radius, angle),
        (radius, np.cos(4 * angle)),
    ):  # fmt: skip
        assert uncorrelated([one, other])


def patched(monkeypatch, change):
    """Secret draws whose random bytes are changed before use."""
    right = SystemDraws._bits
    monkeypatch.setattr(SystemDraws, "_bits", lambda self, key, block, count: change(right(self, key, block, count)))
    return SystemDraws(b"s" * 32)


@pytest.mark.parametrize("pairs", [1, 8, 50])
def test_no_bit_serves_two_values_but_the_two_of_a_pair(monkeypatch, pairs):
    """Any of them flipped: whatever changes, changes in one pair."""
    before = SystemDraws(b"s" * 32).normal(KEY, 2 * pairs)
    seen = set()
    for place in range(16 * pairs):
        with monkeypatch.context() as patch:
            mask = np.where(np.arange(16 * pairs) == place, 0xFF, 0).astype(np.uint8)
            after = patched(patch, lambda bits, mask=mask: bits ^ mask).normal(KEY, 2 * pairs)
        changed = set(torch.nonzero(after != before).flatten().tolist())
        assert len({value % pairs for value in changed}) == 1 or not changed
        seen |= changed
    assert len(seen) == 2 * pairs


def test_random_bytes_are_those_of_the_cipher():
    """ChaCha20 under a digest of the key (blake2b), the counter at zero; another block, another key."""
    for block in (0, 3):
        digest = hashlib.blake2b(KEY.encoded(block), key=b"s" * 32, digest_size=32).digest()
        expected = Cipher(algorithms.ChaCha20(digest, bytes(16)), mode=None).encryptor().update(bytes(8 * BLOCK))
        assert SystemDraws(b"s" * 32)._bits(KEY, block, 8 * BLOCK).tobytes() == expected
        assert SystemDraws(b"s" * 32)._bits(KEY, block, 77).tobytes() == expected[:77]


@pytest.mark.parametrize(("byte", "radius"), [(0, 8.5717), (255, 1.4901e-8)])
def test_the_largest_and_the_smallest_secret_normals(monkeypatch, byte, radius):
    """The uniform nearest to an end is 2⁻⁵³ away: at most 8.57 standard deviations, beyond which lies 10⁻¹⁷ of a normal."""
    first, second = patched(monkeypatch, lambda bits: np.full_like(bits, byte)).normal(KEY, 2).tolist()
    assert np.hypot(first, second) == pytest.approx(radius, rel=1e-4)
    assert first == pytest.approx(radius, rel=1e-4)
    assert second != 0  # no angle lies on an axis: there is always noise


def test_uniforms_never_reach_an_end():
    words = np.array([0, 1, 2**63, 2**64 - 2, 2**64 - 1], dtype=np.uint64)
    ends = _in_unit(words)
    assert np.all((ends > 0) & (ends < 1))
    assert ends[0] == 1 - ends[-1] == 2.0**-53
    assert _in_unit(np.array([2**12, 2**13], dtype=np.uint64)).tolist() == [1.5 * 2.0**-52, 2.5 * 2.0**-52]


@given(st.integers(0, 2**64 - 1))
def test_uniforms_are_exact(word):
    (found,) = _in_unit(np.array([word], dtype=np.uint64)).tolist()
    assert Fraction(found) == Fraction(2 * (word >> 12) + 1, 2**53)


# ------------------------------------------------------------------ keys

OTHERS = [
    KEY._replace(client="hospital-b"), KEY._replace(round=4), KEY._replace(step=2), KEY._replace(purpose="output"),
    KEY._replace(part=1), KEY._replace(round=1, step=3), KEY._replace(client="3|1|hospital-a"),
]  # fmt: skip


def test_every_part_of_a_key_keeps_streams_apart(draws):
    rows = [draws.normal(key, 50_000) for key in [KEY, *OTHERS]]
    rows += [torch.roll(rows[0], shift) for shift in (1, 25_000)]  # nor are they one stream with an offset
    assert uncorrelated(torch.stack(rows))
    assert len(np.unique(torch.cat(rows[:-2]))) == 50_000 * (1 + len(OTHERS))


def test_a_key_says_it_all(draws):
    """The order of draws, and what else was drawn, change nothing."""
    first = draws.normal(KEY, 1000)
    draws.uniform(OTHERS[0], 77)
    assert torch.equal(draws.normal(KEY, 1000), first)
    assert torch.equal(draws.normal(KEY, 3 * BLOCK + 5), draws.normal(KEY, 3 * BLOCK + 5))


@pytest.mark.parametrize("count", [0, 1, 2, 7, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3])
def test_as_many_as_asked_for(draws, count):
    assert draws.normal(KEY, count).shape == draws.uniform(KEY, count).shape == (count,)


@pytest.mark.parametrize("count", [5, BLOCK - 1, BLOCK + 1, 3 * BLOCK + 5])
def test_threads_change_nothing(draws, count, monkeypatch):
    """Neither how many there are, nor those of torch, nor the mode that the caller's thread is in."""
    before, threads = (draws.normal(KEY, count), draws.uniform(KEY, count)), torch.get_num_threads()
    for number in (1, 5):
        with ThreadPoolExecutor(number) as pool, torch.inference_mode():
            monkeypatch.setattr("prifedsync.local.draws._threads", lambda process, pool=pool: pool)
            torch.set_num_threads(number)
            after = draws.normal(KEY, count), draws.uniform(KEY, count)
        torch.set_num_threads(threads)
        assert torch.equal(before[0], after[0])
        assert torch.equal(before[1], after[1])


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted as Linux shows them")
def test_drawing_leaves_torch_the_threads_it_had():
    """A team of threads for every thread that draws would slow down whatever torch does afterwards."""
    script = (
        "import os, torch; from prifedsync.local import Key, SystemDraws; (torch.rand(999, 999) @ torch.rand(999, 999));"
    )
    script += "had = len(os.listdir('/proc/self/task')); SystemDraws().normal(Key('a', 0, 0, 'noise'), 10**6);"
    script += "print(len(os.listdir('/proc/self/task')) - had <= os.cpu_count())"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "True\n"


def test_a_failing_thread_is_no_silence(draws, monkeypatch):
    """What it would have drawn is memory as it was found: no noise."""

    def fails(*given):
        raise MemoryError

    monkeypatch.setattr(type(draws), "_bits" if isinstance(draws, SystemDraws) else "_stream", fails)
    for draw in (draws.normal, draws.uniform):
        for count in (1, 2 * BLOCK):
            with pytest.raises(MemoryError):
                draw(KEY, count)


def test_every_value_is_written(draws, monkeypatch):
    monkeypatch.setattr(np, "empty", lambda count, dtype=np.float64: np.full(count, 77, dtype=dtype))
    for count in (1, 2, 7, BLOCK + 1, 2 * BLOCK + 3):
        assert not bool((draws.normal(KEY, count) == 77).any())
        assert not bool((draws.uniform(KEY, count) == 77).any())


def test_blocks_of_a_long_draw_are_not_copies(draws):
    long = draws.normal(KEY, 4 * BLOCK)
    assert uncorrelated(long.reshape(4, BLOCK))
    assert len(np.unique(long)) == len(long)


small, purposes = st.integers(0, 30), st.sampled_from(["noise", "batch", "coin", "output", "dropout 1"])
keys = st.builds(Key, st.text(max_size=6), small, small, purposes, small)


@given(keys, keys, st.integers(0, 3), st.integers(0, 3))
def test_no_two_keys_are_written_alike(one, other, block, other_block):
    assert (one.encoded(block) == other.encoded(other_block)) == ((one, block) == (other, other_block))


# ------------------------------------------------------------------ secrets and seeds


def test_the_secret_decides_and_nothing_else():
    same = SystemDraws(b"s" * 32), SystemDraws(b"s" * 32)
    assert torch.equal(same[0].normal(KEY, 100), same[1].normal(KEY, 100))
    others = [SystemDraws(), SystemDraws(), SystemDraws(b"t" * 32), SeededDraws(0), SeededDraws(1)]
    rows = [draws.normal(KEY, 50_000) for draws in (same[0], *others)]
    assert uncorrelated(torch.stack(rows))


def test_secret_draws_of_two_contexts_have_nothing_in_common():
    secret = SystemDraws(b"s" * 32)
    assert torch.equal(secret.bound(b"run").normal(KEY, 100), SystemDraws(b"s" * 32).bound(b"run").normal(KEY, 100))
    contexts = [
        secret,
        secret.bound(b""),
        secret.bound(b"run"),
        secret.bound(b"another"),
        secret.bound(b"run").bound(b"run"),
    ]
    assert uncorrelated(torch.stack([draws.normal(KEY, 50_000) for draws in contexts]))
    assert len({draws.stream("a", 0, "noise") for draws in contexts}) == len(contexts)


def test_a_seed_is_the_same_in_every_context():
    for draws in (SeededDraws(1), RecordedDraws(SeededDraws(1))):
        assert draws.bound(b"run") is draws


def test_a_secret_is_never_shown():
    assert "sss" not in repr(SystemDraws(b"s" * 32))
    with pytest.raises(BadValue, match="secret = 5 bytes must have 32 bytes"):
        SystemDraws(b"short")


def test_without_the_package_for_secrets(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(BadValue, match=r'privacy.randomness = system needs the package cryptography; .*"seeded"'):
        SystemDraws()


# ------------------------------------------------------------------ recorded


def test_recorded_draws_play_back():
    tape = RecordedDraws(SeededDraws(1))
    drawn = tape.normal(KEY, 5), tape.uniform(KEY, 3)
    again = tape.replay()
    assert torch.equal(again.uniform(KEY, 3), drawn[1])
    assert torch.equal(again.normal(KEY, 5), drawn[0])
    assert again.asked == [("uniform", KEY), ("normal", KEY)]


def test_a_key_drawn_twice_is_an_error():
    tape = RecordedDraws(SeededDraws(1))
    tape.normal(KEY, 5)
    with pytest.raises(ValueError, match="was drawn twice"):
        tape.normal(KEY, 5)
    again = tape.replay()
    for key, count in ((KEY, 6), (OTHERS[0], 5)):
        with pytest.raises(ValueError, match="is not on the tape"):
            again.normal(key, count)
