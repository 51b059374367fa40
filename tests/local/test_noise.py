"""Noise where it is added: its law, and the grid that it is rounded to."""

import numpy as np
import pytest
import torch
from scipy import stats

from prifedsync.local import Key, RecordedDraws, SeededDraws, SystemDraws, noise

from .laws import follows

KEY = Key("a", 0, 0, "noise")
MANY = 2**17
LAWS = {"gaussian": (noise.gaussian, stats.norm), "laplace": (noise.laplace, stats.laplace)}
GRIDS = [  # scale, bound on an entry → grid
    (1.0, 4.0, 2.0**-12),  # 1/4096 of the scale
    (1.5, 4.0, 2.0**-12),
    (2.0, 4.0, 2.0**-11),
    (0.3, 1.0, 2.0**-14),
    (1.0, 1e6, 2.0**-3),  # so large that exactness in single precision decides
]


@pytest.mark.parametrize("kind", LAWS)
@pytest.mark.parametrize("draws", [SeededDraws(4), SystemDraws()], ids=["seeded", "secret"])
def test_the_law_is_that_of_the_scale(kind, draws):
    add, law = LAWS[kind]
    total = torch.linspace(-3, 3, MANY, dtype=torch.float64)
    added = add(total, 2.5, 3.0, draws, KEY).value - total
    assert follows(added, law, 2.5)
    for wrong in (2 / 3, 1.5):
        assert not follows(added, law, 2.5 * wrong)
    other = LAWS["laplace" if kind == "gaussian" else "gaussian"][1]
    assert not follows(added, other, 2.5)


@pytest.mark.parametrize("kind", LAWS)
@pytest.mark.parametrize(("scale", "bound", "grid"), GRIDS)
def test_what_is_released_lies_on_a_grid_of_public_numbers(kind, scale, bound, grid):
    """Whatever the data, the same grid; and every multiple is exact in single precision."""
    dice = np.random.default_rng(1)
    for size in (0.0, 1e-9, 1e-3, 1.0):
        total = torch.from_numpy(size * bound * dice.uniform(-1, 1, 4000))
        released, queries = LAWS[kind][0](total, scale, bound, SeededDraws(3), KEY)
        assert queries == 1
        steps = released / grid
        assert torch.equal(steps, steps.round())
        assert bool((steps % 2 == 1).any())  # no coarser grid
        assert torch.equal(released.float().double(), released)


def test_rounding_is_to_the_nearest():
    total = torch.zeros(4000, dtype=torch.float64)
    exact = SeededDraws(3).normal(KEY, 4000)
    assert float((noise.gaussian(total, 1.0, 1.0, SeededDraws(3), KEY).value - exact).abs().max()) <= 2.0**-13


@pytest.mark.parametrize("kind", LAWS)
@pytest.mark.parametrize("draws", [SeededDraws(4), SystemDraws()], ids=["seeded", "secret"])
def test_neither_the_vector_nor_what_was_drawn_is_changed(kind, draws):
    """A tape keeps the draws; and it changes nothing of what is released."""
    total = torch.linspace(-3, 3, MANY, dtype=torch.float64)
    before, tape = total.clone(), RecordedDraws(draws)
    released = LAWS[kind][0](total, 2.5, 3.0, tape, KEY).value
    assert torch.equal(total, before)
    assert torch.equal(released, LAWS[kind][0](total, 2.5, 3.0, draws, KEY).value)
    name = "normal" if kind == "gaussian" else "uniform"
    assert torch.equal(tape.tape[name, KEY], getattr(draws, name)(KEY, MANY))


@pytest.mark.parametrize("draws", [SeededDraws(4), SystemDraws()], ids=["seeded", "secret"])
def test_nothing_of_the_sum_is_left_in_the_last_bits(draws):
    """Two sums a fifth of a cell apart, on either side of its middle, are told apart in a fifth of all entries; and what
    is released has as many odd multiples of the grid as even ones."""
    grid, many = 2.0**-12, 2**20
    low, high = (
        noise.gaussian(torch.full((many,), sum, dtype=torch.float64), 1.0, 4.0, draws, KEY).value
        for sum in (0.4 * grid, 0.6 * grid)
    )
    moved = (high - low) / grid
    assert set(moved.tolist()) == {0.0, 1.0}
    for share, expected in ((moved, 0.2), ((low / grid) % 2, 0.5), ((low / grid) % 3 == 1, 1 / 3)):
        assert abs(float(share.double().mean()) - expected) < 6.5 * np.sqrt(expected * (1 - expected) / many)


@pytest.mark.parametrize("cells", [2.0**20, 2.0**25])
def test_low_bits_of_integers_are_noised_however_many_cells_the_noise_has(cells):
    total = torch.arange(2**20, dtype=torch.float64).mul(7919).remainder(10**6)
    sent = noise.integers(total, cells / 4, 1.0, 0.25, SeededDraws(4), KEY).value
    low = (sent - 4 * total.long()).remainder(16)
    assert stats.chisquare(torch.bincount(low, minlength=16).numpy()).pvalue > 1e-6


class Ends:
    """The smallest, the middle and the largest uniforms there are."""

    def uniform(self, key, count):
        return torch.tensor([2.0**-53, 0.5, 1 - 2.0**-53], dtype=torch.float64)


def test_laplace_noise_is_finite_at_both_ends():
    low, middle, high = noise.laplace(torch.zeros(3), 1.0, 1.0, Ends(), KEY).value.tolist()
    assert (low, middle, high) == (pytest.approx(-52 * np.log(2), abs=1e-3), 0.0, pytest.approx(52 * np.log(2), abs=1e-3))
