"""Crops and mirror images: by hand, by an independent implementation, and the law of the moves."""

import numpy as np
import pytest
import torch

from prifedsync.local.augment import CHOICES, PADDING, check, crop_flip, moves_from_uniforms, moves_from_words
from prifedsync.values import BadValue

STAY = (PADDING, PADDING, 0)


def by_padding(image, down, right, mirrored):
    """The usual way: pad, cut a window out, mirror it."""
    height, width = image.shape[-2:]
    padded = np.pad(image, ((0, 0), (PADDING, PADDING), (PADDING, PADDING)))
    window = padded[:, down : down + height, right : right + width]
    return window[:, :, ::-1] if mirrored else window


def test_nothing_moves_in_the_middle():
    images = torch.randn(3, 2, 5, 6)
    assert torch.equal(crop_flip(images, torch.tensor([STAY] * 3)), images)


def test_by_hand():
    image = torch.arange(1.0, 10).reshape(1, 1, 3, 3)
    up_and_left = crop_flip(image, torch.tensor([[PADDING + 1, PADDING + 1, 0]]))  # the window moves down and right
    assert up_and_left[0, 0].tolist() == [[5, 6, 0], [8, 9, 0], [0, 0, 0]]
    mirrored = crop_flip(image, torch.tensor([[PADDING, PADDING, 1]]))
    assert mirrored[0, 0].tolist() == [[3, 2, 1], [6, 5, 4], [9, 8, 7]]


def test_every_move_is_that_of_padding_and_cutting():
    image = torch.randn(2, 7, 9)
    moves = torch.cartesian_prod(*(torch.arange(count) for count in CHOICES))
    found = crop_flip(image.expand(len(moves), -1, -1, -1), moves)
    for one, move in zip(found, moves.tolist(), strict=True):
        assert np.array_equal(one.numpy(), by_padding(image.numpy(), *move))


def test_clients_and_records_are_moved_each_by_its_own():
    images, moves = torch.randn(2, 3, 1, 5, 5), torch.randint(0, 2, (2, 3, 3))
    found = crop_flip(images, moves)
    for client in range(2):
        for record in range(3):
            alone = crop_flip(images[client, record][None], moves[client, record][None])[0]
            assert torch.equal(found[client, record], alone)


def test_what_is_no_number_stays_with_its_record():
    images = torch.zeros(2, 1, 4, 4)
    images[0] = torch.nan
    assert torch.equal(crop_flip(images, torch.tensor([STAY, (0, 0, 1)]))[1], images[1])


def test_all_moves_come_and_equally_often():
    uniforms = torch.rand(90_000, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    words = torch.randint(-(2**31), 2**31, (90_000, 3), generator=torch.Generator().manual_seed(2)).int()
    for moves in (moves_from_uniforms(uniforms), moves_from_words(words)):
        for axis, choices in enumerate(CHOICES):
            counts = torch.bincount(moves[:, axis], minlength=choices)
            assert len(counts) == choices
            expected = 90_000 / choices
            assert (counts - expected).abs().max() < 4.5 * expected**0.5


def test_the_ends_of_the_uniforms_are_the_ends_of_the_moves():
    assert moves_from_uniforms(torch.tensor([2.0**-53, 1 - 2.0**-53, 0.5], dtype=torch.float64)).tolist() == [0, 8, 1]
    assert moves_from_words(torch.tensor([0, -1, -(2**31)], dtype=torch.int32)).tolist() == [0, 8, 1]


@pytest.mark.parametrize(("shape", "tokens"), [((64,), False), ((8, 8), False), ((1, 8, 8), True)])
def test_what_is_no_image_is_refused(shape, tokens):
    check("none", shape, tokens)
    with pytest.raises(BadValue, match=r"local\.augment = crop-flip.*images"):
        check("crop-flip", shape, tokens)
