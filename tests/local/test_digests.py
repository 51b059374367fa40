"""Digests: any change shows, and the one made on a device is a keyed multilinear hash."""

import numpy as np
import pytest
import torch

from prifedsync.local import digests
from prifedsync.local.digests import BLOCK, ROWS, OnDevice

from .expanded import words

KEY = bytes(range(32))


def test_every_part_counts():
    tensor = torch.arange(6.0)
    parts = [
        [tensor], [tensor.double()], [tensor.reshape(2, 3)], [-tensor], [tensor, tensor], ["tensor"], [b"tensor", "x"],
        ["tensorx"], [torch.tensor(1.5)], [torch.ones(2, dtype=torch.bool)], [torch.ones(2, dtype=torch.complex64)],
        [torch.ones(2, dtype=torch.bfloat16)], [torch.tensor([0.0])], [torch.tensor([-0.0])], [],
    ]  # fmt: skip
    assert len({digests.of(each) for each in parts}) == len(parts)
    assert digests.of([tensor.reshape(3, 2).T]) == digests.of([tensor.reshape(3, 2).T.contiguous()])


@pytest.mark.parametrize("size", [1, 7, BLOCK, 3 * BLOCK + 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_on_a_device_any_bit_shows(size, dtype):
    digest, vector = OnDevice(KEY, torch.device("cpu")), torch.linspace(-1, 1, size, dtype=dtype)
    (whole,) = digest(vector[None])
    assert [whole] == OnDevice(KEY, torch.device("cpu"))(vector.clone()[None])
    assert [whole] != OnDevice(KEY[::-1], torch.device("cpu"))(vector[None])
    for place in {0, size // 2, size - 1}:
        changed = vector.clone()
        changed[place] = torch.nextafter(changed[place], torch.tensor(2.0, dtype=dtype))
        assert digest(torch.stack([vector, changed, vector]))[::2] == [whole, whole]
        assert digest(changed[None]) != [whole]
    longer = torch.cat([vector, torch.zeros(1, dtype=dtype)])
    assert digest(longer[None]) != [whole]  # though zeros change no sum


def test_on_a_device_it_is_the_hash_that_was_proved(monkeypatch):
    """Lemire and Kaser's: k_0 + Σ k_i·x_i mod 2^64, the high 32 bits; written a second time with whole numbers."""
    vector = torch.randn(BLOCK + 3, generator=torch.Generator().manual_seed(0))
    seen = []
    monkeypatch.setattr(digests, "of", lambda parts: seen.extend(parts) or b"")
    OnDevice(KEY, torch.device("cpu"))(vector[None])
    length, found = seen
    entries = np.zeros(2 * BLOCK, dtype=np.int64)
    entries[: BLOCK + 3] = vector.numpy().view(np.int32)
    assert length == f"torch.float32 {BLOCK + 3}"
    for row in range(ROWS):
        low, high = words(KEY, row, 0, 2 * (BLOCK + 1)).reshape(-1, 2).T.tolist()
        keys = [a + (b << 32) for a, b in zip(low, high, strict=True)]
        for block in range(2):
            x = entries[block * BLOCK : (block + 1) * BLOCK].tolist()
            total = (keys[0] + sum(k * value for k, value in zip(keys[1:], x, strict=True))) % 2**64
            assert int(found[row, block]) % 2**32 == total >> 32
