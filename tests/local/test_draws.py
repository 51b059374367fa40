"""Draws: the law of each kind, streams that keys keep apart, and secrets that stay secret."""

import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from prifedsync.fdp import BadValue
from prifedsync.local import Key, RecordedDraws, SeededDraws, SystemDraws
from prifedsync.local.draws import BLOCK, _in_unit

from .laws import SIGMAS, follows, uncorrelated

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


def test_tails_are_not_cut(draws):
    """Beyond 4.5 lie 27.2 of 4·10⁶ normals; fewer than 2 or more than 75 come by chance less than once in 10⁹ runs."""
    values = torch.cat([draws.normal(KEY._replace(round=r), 10**6) for r in range(4)])
    assert 2 <= int((values.abs() > 4.5).sum()) <= 75


def test_normals_have_the_resolution_of_doubles(draws):
    """Made in single precision from 24 random bits, they would never exceed 5.8."""
    values = draws.normal(KEY, 10_000)
    assert float((values.float().double() == values).double().mean()) < 0.01


def test_the_largest_secret_normal_is_far_out(monkeypatch):
    """The smallest uniform that can be drawn is 2⁻⁵³: 8.57 standard deviations. Beyond lies 10⁻¹⁷ of a normal."""
    smallest = _in_unit(np.zeros(1, dtype=np.uint64))[0]
    monkeypatch.setattr(SystemDraws, "_uniform", lambda self, key, block, count: np.full(count, smallest))
    assert SystemDraws().normal(KEY, 1).item() == pytest.approx(8.5717, abs=1e-4)


def test_uniforms_never_reach_an_end():
    words = np.array([0, 1, 2**63, 2**64 - 2, 2**64 - 1], dtype=np.uint64)
    ends = _in_unit(words)
    assert np.all((ends > 0) & (ends < 1))
    assert ends[0] == 1 - ends[-1] == 2.0**-53
    assert _in_unit(np.array([2**12, 2**13], dtype=np.uint64)).tolist() == [1.5 * 2.0**-52, 2.5 * 2.0**-52]


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
