"""What counts as the norm of a person's mean gradient: never below the true one, and hardly above it."""

from fractions import Fraction

import pytest
import torch

from prifedsync.local.net.per_sample import Formed, Outer, Rows, norm
from prifedsync.local.net.persons import FLOOR, Groups, error

MOST = 6
WIDTH = 29
COUNTS = (1, 2, 6, 3, 1, 5, 4, 2, 1, 3)  # rows of the persons; one row of padding is left


def groups_of(most=MOST):
    starts = torch.tensor([0, *COUNTS]).cumsum(0)
    of = torch.repeat_interleave(starts[:-1], torch.tensor(COUNTS))
    return Groups(torch.cat([of, torch.arange(len(of), WIDTH)]), most)


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def nearly_cancelling(seed, width):
    """d and a of rows such that a person's gradients cancel to about a tenth of their lengths."""
    a = draw(1, width, seed=seed) + 0.05 * draw(WIDTH, width, seed=seed + 1)
    sign = torch.where(torch.arange(WIDTH) % 2 == 0, 1.0, -1.0).unsqueeze(1)
    return sign * draw(1, width, seed=seed + 2), a


def lengths(parts, groups, valid):
    own = torch.where(valid, norm(torch.stack([part.norms() for part in parts], 1)), 0.0)
    share = torch.where(valid, groups.shares(own), 0.0)
    rows = groups.rows(valid)
    squares = [part.squares(share, groups) for part in parts]
    return groups.lengths(own, squares, rows, max(part.terms for part in parts)), own, rows


def exact_square(d, a, rows):
    """‖Σ d·aᵀ‖² of these rows, in fractions."""
    total = Fraction(0)
    for one in rows:
        for other in rows:
            left = sum(Fraction(x) * Fraction(y) for x, y in zip(d[one].tolist(), d[other].tolist(), strict=True))
            right = sum(Fraction(x) * Fraction(y) for x, y in zip(a[one].tolist(), a[other].tolist(), strict=True))
            total += left * right
    return total


@pytest.mark.parametrize("most", [MOST, WIDTH])  # pairs of rows near each other, and of all rows
@pytest.mark.parametrize("seed", range(4))
def test_a_norm_from_pairs_is_never_below_the_true_one(seed, most):
    groups, valid = groups_of(most), torch.arange(WIDTH) < sum(COUNTS)
    d, a = nearly_cancelling(10 * seed, 40)
    part = Outer(d, a)
    assert d.shape[1] * a.shape[1] > groups.near  # it is not formed
    found, own, counts = lengths([part], groups, valid)
    for group in groups.of[valid].unique().tolist():
        rows = torch.nonzero(groups.of == group).flatten().tolist()
        true = exact_square(d, a, rows)
        stated = (Fraction(found[rows[0]].item()) * len(rows)) ** 2
        slack = Fraction(own[rows].sum().item()) ** 2 * Fraction(error(part.terms, WIDTH)) * 2
        assert (
            true <= stated <= max(true + slack, (Fraction(FLOOR * own[rows].sum().item()) ** 2) * (1 + Fraction(1, 10**9)))
        )
        assert counts[rows[0]] == len(rows)


@pytest.mark.parametrize("most", [MOST, WIDTH])
def test_factors_pairs_and_formed_gradients_agree(most):
    groups, valid = groups_of(most), torch.arange(WIDTH) < sum(COUNTS)
    for out, into in ((40, 30), (2, 3)):  # too large to form, and small enough
        d, a = draw(WIDTH, out), draw(WIDTH, into, seed=1)
        formed = Formed(torch.einsum("bo,bi->boi", d, a))
        bias = Formed(d)
        one, other = (lengths([part, bias], groups, valid)[0] for part in (Outer(d, a), formed))
        torch.testing.assert_close(one[valid], other[valid], rtol=1e-9, atol=0)


def test_rows_of_a_table_that_a_persons_records_share_are_added_up():
    groups, valid = groups_of(), torch.arange(WIDTH) < sum(COUNTS)
    tokens = torch.randint(0, 5, (WIDTH, 4), generator=torch.Generator().manual_seed(1))
    d = draw(WIDTH, 4, 3)
    table = torch.zeros(WIDTH, 5, 3, dtype=torch.float64)
    for row in range(WIDTH):
        table[row].index_add_(0, tokens[row], d[row])
    one, other = (lengths([part], groups, valid)[0] for part in (Rows(tokens, d, 5), Formed(table)))
    torch.testing.assert_close(one[valid], other[valid], rtol=1e-9, atol=0)


@pytest.mark.parametrize("scale", [1e-140, 1e-320, 1e150])
def test_gradients_of_any_size_keep_their_norms(scale):
    """Squares that under- or overflow: lengths scale with the gradients, and what is not finite is not scaled."""
    groups, valid = groups_of(), torch.arange(WIDTH) < sum(COUNTS)
    d, a = draw(WIDTH, 40), draw(WIDTH, 30, seed=1)
    usual = lengths([Outer(d, a)], groups, valid)[0]
    found = lengths([Outer(d * scale, a)], groups, valid)[0]
    if scale > 1e-300:
        torch.testing.assert_close(found / scale, usual, rtol=1e-9, atol=0)
    else:
        assert (found <= 1e-300).all()


def test_a_gradient_that_is_not_finite_is_its_persons_alone():
    groups, valid = groups_of(), torch.arange(WIDTH) < sum(COUNTS)
    d, a = draw(WIDTH, 40), draw(WIDTH, 30, seed=1)
    usual = lengths([Outer(d, a), Formed(d)], groups, valid)[0]
    broken = d.clone()
    broken[4] = float("nan")  # of the third person
    found = lengths([Outer(broken, a), Formed(broken)], groups, valid)[0]
    third = groups.of == groups.of[4]
    assert not torch.isfinite(found[third]).any()
    assert torch.equal(found[~third], usual[~third])


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("width", [0, 5])
def test_sums_as_a_product_keep_what_is_not_finite_to_its_person(broken, width):
    """A GPU adds up by a product, where zero times infinity would reach everybody."""
    of = torch.tensor([0, 0, 1, 2, 2, 2, 5])
    values = torch.randn(7, *([width] if width else []), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    values[3] = broken
    groups = Groups(of, 3)
    product = groups.multiplied(values)
    expected = groups.summed(values)
    assert not torch.isfinite(product[2]).any()
    others = torch.tensor([0, 1, 3, 4, 5, 6])
    assert torch.isfinite(product[others]).all()
    assert torch.allclose(product[others], expected[others], rtol=1e-14, atol=0)
