"""Random numbers that a device makes by itself: the cipher, the law, and who shares what with whom."""

import numpy as np
import pytest
import torch
from scipy import stats

from prifedsync.local import SeededDraws, SystemDraws
from prifedsync.local.device import streams
from prifedsync.local.noise import DeviceNoise, add_normals, add_normals_in_cells

from . import expanded

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
DRAWS = SeededDraws(3)


def keys_of(*clients, device="cpu", purpose="noise"):
    return streams.keys([DRAWS] * len(clients), clients, 4, [purpose], torch.device(device))[0]


def nonces_of(*pairs, clients=1, device="cpu"):
    return torch.tensor(pairs, dtype=torch.int32, device=device).expand(clients, -1, -1)


def test_the_cipher_is_the_one_of_the_standard():
    """RFC 8439, section 2.3.2: the second block under its key and nonce."""
    key = torch.from_numpy(np.frombuffer(bytes(range(32)), dtype="<i4").copy()).unsqueeze(0)
    nonce = torch.tensor([[[0x09000000, 0x4A000000]]], dtype=torch.int32)
    block = streams.words(key, nonce, 32)[0, 0, 16:].numpy().view("<u4")
    assert block[:4].tolist() == [0xE4E7F110, 0x15593BD1, 0x1FDD0F50, 0xC47120A3]
    assert block[12:].tolist() == [0xD19C12B5, 0xB94E16DE, 0xE883D0CB, 0x4E3C50A2]


def test_the_oracle_is_the_cipher_of_a_library():
    ciphers = pytest.importorskip("cryptography.hazmat.primitives.ciphers")
    key, nonce = DRAWS.stream("a", 1, "noise"), b"".join(n.to_bytes(4, "little") for n in (0, 3, 70000, 0))
    stream = ciphers.Cipher(ciphers.algorithms.ChaCha20(key, nonce), mode=None).encryptor().update(bytes(400))
    assert (expanded.words(key, 3, 70000, 100) == np.frombuffer(stream, dtype="<u4")).all()


@pytest.mark.parametrize("device", DEVICES)
def test_words_are_those_of_another_implementation(device):
    clients, places = ("a", "b"), ((0, 0), (7, 0), (7, 123456))
    found = streams.words(keys_of(*clients, device=device), nonces_of(*places, clients=2, device=device), 37)
    for c, client in enumerate(clients):
        for n, (step, part) in enumerate(places):
            expected = expanded.words(DRAWS.stream(client, 4, "noise"), step, part, 37)
            assert (found[c, n].cpu().numpy().view("<u4") == expected).all()


@pytest.mark.parametrize("device", DEVICES)
def test_uniforms_and_normals_are_those_of_another_implementation(device):
    keys, nonce = keys_of("a", device=device), nonces_of((5, 2), device=device)
    uniforms = streams.uniforms(keys, nonces_of((5, 0), device=device), 99)[0, 0].cpu().numpy()
    assert (uniforms == expanded.uniforms(DRAWS.stream("a", 4, "noise"), 5, 99)).all()
    normals = streams.normals(keys, nonce, 3001)[0, 0].cpu().numpy()
    np.testing.assert_allclose(normals, expanded.normals(DRAWS.stream("a", 4, "noise"), 5, 2, 3001), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_added_to_every_part_on_the_grid_and_divided(device, dtype):
    sizes, clients = (1, 13, 14, 15, 1000), ("a", "b", "c")
    on = {"device": device}
    parts = [torch.randn(3, size, dtype=dtype, **on) for size in sizes]
    scale, grid = torch.tensor([0.5, 2.0, 0.7]).double(), torch.tensor([2.0**-13, 2.0**-11, 2.0**-13]).double()
    divisor, step = torch.tensor([1.0, 16.0, 3.0]).double(), torch.tensor([6], dtype=torch.int32, **on)
    out = torch.full((3, sum(sizes)), torch.nan, dtype=dtype, **on)
    given = [value.to(device) for value in (scale, grid, divisor)]
    made = torch.zeros(3, len(sizes), dtype=torch.int32, **on)
    planned = DeviceNoise(keys_of(*clients, device=device), step, *given, made)
    add_normals(parts, planned, out)
    assert planned.queries(3) == [1, 1, 1]
    add_normals(parts, planned, torch.empty_like(out))
    assert planned.queries(2) == [2, 2]
    for c, client in enumerate(clients):
        key = DRAWS.stream(client, 4, "noise")
        drawn = np.concatenate([expanded.normals(key, 6, place, size) for place, size in enumerate(sizes)])
        noised = torch.cat([part[c] for part in parts]).double().cpu().numpy() + scale[c].item() * drawn
        found = out[c].double().cpu().numpy() * divisor[c].item()
        assert abs(found - noised).max() <= 0.51 * grid[c].item()
        if divisor[c].item() != 3:
            cells = found / grid[c].item()
            assert (cells == np.round(cells)).all()


@pytest.mark.parametrize("device", DEVICES)
def test_the_law_is_normal_to_its_tails(device):
    count = 10**6 if device == "cpu" else 10**8
    keys = keys_of("a", device=device)
    out = torch.zeros(1, count, device=device)
    ones = torch.ones(1, dtype=torch.float64, device=device)
    step = torch.zeros(1, dtype=torch.int32, device=device)
    made = torch.zeros(1, 1, dtype=torch.int32, device=device)
    add_normals([out.clone()], DeviceNoise(keys, step, ones, ones * 2**-12, ones, made), out)
    z = out[0].double()
    tolerance = 6 / count**0.5
    assert abs(z.mean().item()) < tolerance
    assert abs(z.square().mean().item() - 1) < tolerance * 2**0.5
    assert abs((z**4).mean().item() - 3) < tolerance * 96**0.5
    for level in (1.0, 3.0, 4.0, 4.5, 5.0):
        expected = 2 * stats.norm.sf(level)
        seen = (z.abs() > level).double().mean().item()
        assert abs(seen - expected) < 6 * (expected / count) ** 0.5 + 1e-3 / count
    few = z[:: max(1, count // 10**5)].cpu().numpy()
    assert stats.kstest(few, "norm").pvalue > 1e-6


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cells", [2.0**20, 2.0**25])
def test_low_bits_of_a_sum_are_noised_however_many_cells_the_noise_has(cells, device):
    """Noise added to itself in single precision is even beyond 2^24, and the last bit of the sum would be released."""
    many = 2**20
    on = {"device": device}
    ones = torch.ones(1, dtype=torch.float64, **on)
    made = torch.zeros(1, 1, dtype=torch.int32, **on)
    step = torch.zeros(1, dtype=torch.int32, **on)
    planned = DeviceNoise(keys_of("a", device=device), step, ones * cells, ones, ones, made)
    total = torch.arange(many, dtype=torch.float64, **on).mul(7919).remainder(10**6)
    low = (add_normals_in_cells([total.unsqueeze(0)], planned, ones)[0] - total.long()).remainder(16)
    seen = torch.bincount(low, minlength=16).cpu().numpy()
    assert stats.chisquare(seen).pvalue > 1e-6


def test_radii_reach_beyond_eight_and_down_to_nothing():
    """The longest and the shortest radius there can be; a generator of 24 bits ends at 5.8."""
    ends = {"longest": 0, "shortest": 2**32 - 1}
    radii = {}
    for name, bits in ends.items():
        word = [torch.tensor([bits]) for _ in range(16)]
        word[1] = word[1] & 255
        x, y = streams._pair(word, 0)
        radii[name] = float(torch.hypot(x, y))
    assert 8.2 < radii["longest"] < 8.4
    assert 0 < radii["shortest"] < 1e-7


def test_no_two_values_share_a_bit():
    """Flip each bit of a block: exactly one pair of normals moves. Whoever knows one value knows nothing about another."""
    torch.manual_seed(0)
    words = torch.randint(0, 2**32, (16,))
    moved = []
    for word in range(16):
        for bit in range(32):
            other = words.clone()
            other[word] ^= 1 << bit
            before, after = ([streams._pair(list(w.unsqueeze(1)), m) for m in range(7)] for w in (words, other))
            pairs = [m for m in range(7) if any(a != b for a, b in zip(before[m], after[m], strict=True))]
            assert len(pairs) <= 1
            moved.append(pairs)
    assert (
        sum(map(len, moved)) > 14 * 24
    )  # all but those too small to be seen in single precision, and one that is not used


def test_secret_streams_have_the_secret_in_them():
    pytest.importorskip("cryptography")
    assert len({SystemDraws(secret * 32).stream("a", 4, "noise") for secret in (b"1", b"2")}) == 2


def test_everything_in_a_name_counts():
    base = DRAWS.stream("a", 4, "noise")
    others = [DRAWS.stream("b", 4, "noise"), DRAWS.stream("a", 5, "noise"), DRAWS.stream("a", 4, "batch")]
    others += [SeededDraws(4).stream("a", 4, "noise")]
    assert len({base, *others}) == 5
    assert {len(key) for key in others} == {32}
    keys = keys_of("a")
    first = streams.normals(keys, nonces_of((0, 0)), 100)
    for nonce in ((1, 0), (0, 1)):
        assert not torch.isin(streams.normals(keys, nonces_of(nonce), 100), first).any()


def test_noise_that_is_missing_on_one_parameter_is_no_query():
    """Every part of a vector is counted by itself, so that noise on some of it cannot pass for noise on all."""
    made = torch.tensor([[3, 3], [3, 2]], dtype=torch.int32)
    ones = torch.ones(2, dtype=torch.float64)
    planned = DeviceNoise(keys_of("a", "b"), torch.zeros(1, dtype=torch.int32), ones, ones, ones, made)
    assert planned.queries(1) == [3]
    with pytest.raises(RuntimeError, match=r"noise was added to the parameters \[3, 2\] times"):
        planned.queries(2)
