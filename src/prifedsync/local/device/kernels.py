"""The numbers of `streams.py` in registers: words for batches and dropout, and noise added where it is used.

Bit for bit the words, and to the last bits the normals, of the tensor code there; tests compare them on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..noise import DeviceNoise
from ..optimisers import Stacked

PLAIN_BLOCK = 1024
RULES = ("sgd", "momentum", "adam", "adagrad", "rmsprop")
BLOCK, WARPS = 128, 4  # counters a program takes, one a thread: each has 14 or 16 values in registers

# −log(1 − x)/x for x in [0, 1/2] and sin(πy/2)/y as a polynomial in y² for y in [0, 1], each of least relative error
LOG0 = tl.constexpr(1.00000002)
LOG1 = tl.constexpr(0.499992853)
LOG2 = tl.constexpr(0.333700591)
LOG3 = tl.constexpr(0.242805467)
LOG4 = tl.constexpr(0.269609693)
LOG5 = tl.constexpr(-0.20352587)
LOG6 = tl.constexpr(1.25763883)
LOG7 = tl.constexpr(-1.69577382)
LOG8 = tl.constexpr(1.44108882)
SIN0 = tl.constexpr(1.57079632)
SIN1 = tl.constexpr(-0.645963711)
SIN2 = tl.constexpr(0.0796896789)
SIN3 = tl.constexpr(-0.00467376661)
SIN4 = tl.constexpr(0.000151485129)


@triton.jit
def _rotated(x, n: tl.constexpr):
    return (x << n) | (x >> (32 - n))


@triton.jit
def _quarter(a, b, c, d):
    a = a + b
    d = _rotated(d ^ a, 16)
    c = c + d
    b = _rotated(b ^ c, 12)
    a = a + b
    d = _rotated(d ^ a, 8)
    c = c + d
    b = _rotated(b ^ c, 7)
    return a, b, c, d


@triton.jit
def _chacha20(k0, k1, k2, k3, k4, k5, k6, k7, counter, n0, n1):
    z = counter ^ counter
    c0, c1, c2, c3 = z + 0x61707865, z + 0x3320646E, z + 0x79622D32, z + 0x6B206574
    x0, x1, x2, x3 = c0, c1, c2, c3
    x4, x5, x6, x7, x8, x9, x10, x11 = z + k0, z + k1, z + k2, z + k3, z + k4, z + k5, z + k6, z + k7
    x12, x13, x14, x15 = counter, z + n0, z + n1, z
    for _ in range(10):  # a loop at run time: unrolled, it compiles for ever
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    return (
        x0 + c0, x1 + c1, x2 + c2, x3 + c3, x4 + k0, x5 + k1, x6 + k2, x7 + k3, x8 + k4, x9 + k5, x10 + k6, x11 + k7,
        x12 + counter, x13 + n0, x14 + n1, x15,
    )  # fmt: skip


@triton.jit(do_not_specialize=["blocks", "total", "N"])
def _words(keys, nonces, out, blocks, total, N, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = i < total
    row, counter = i // blocks, (i % blocks).to(tl.uint32)
    k = keys + (row // N) * 8
    k0 = tl.load(k, mask).to(tl.uint32, bitcast=True)
    k1 = tl.load(k + 1, mask).to(tl.uint32, bitcast=True)
    k2 = tl.load(k + 2, mask).to(tl.uint32, bitcast=True)
    k3 = tl.load(k + 3, mask).to(tl.uint32, bitcast=True)
    k4 = tl.load(k + 4, mask).to(tl.uint32, bitcast=True)
    k5 = tl.load(k + 5, mask).to(tl.uint32, bitcast=True)
    k6 = tl.load(k + 6, mask).to(tl.uint32, bitcast=True)
    k7 = tl.load(k + 7, mask).to(tl.uint32, bitcast=True)
    n0 = tl.load(nonces + row * 2, mask).to(tl.uint32, bitcast=True)
    n1 = tl.load(nonces + row * 2 + 1, mask).to(tl.uint32, bitcast=True)
    w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15 = _chacha20(
        k0, k1, k2, k3, k4, k5, k6, k7, counter, n0, n1
    )
    at = out + i * 16
    tl.store(at, w0.to(tl.int32, bitcast=True), mask)
    tl.store(at + 1, w1.to(tl.int32, bitcast=True), mask)
    tl.store(at + 2, w2.to(tl.int32, bitcast=True), mask)
    tl.store(at + 3, w3.to(tl.int32, bitcast=True), mask)
    tl.store(at + 4, w4.to(tl.int32, bitcast=True), mask)
    tl.store(at + 5, w5.to(tl.int32, bitcast=True), mask)
    tl.store(at + 6, w6.to(tl.int32, bitcast=True), mask)
    tl.store(at + 7, w7.to(tl.int32, bitcast=True), mask)
    tl.store(at + 8, w8.to(tl.int32, bitcast=True), mask)
    tl.store(at + 9, w9.to(tl.int32, bitcast=True), mask)
    tl.store(at + 10, w10.to(tl.int32, bitcast=True), mask)
    tl.store(at + 11, w11.to(tl.int32, bitcast=True), mask)
    tl.store(at + 12, w12.to(tl.int32, bitcast=True), mask)
    tl.store(at + 13, w13.to(tl.int32, bitcast=True), mask)
    tl.store(at + 14, w14.to(tl.int32, bitcast=True), mask)
    tl.store(at + 15, w15.to(tl.int32, bitcast=True), mask)


@triton.jit
def _sine(y):
    """sin(πy/2) for y in (0, 1), to the last bits of a single."""
    z = y * y
    return y * (SIN0 + z * (SIN1 + z * (SIN2 + z * (SIN3 + z * SIN4))))


@triton.jit
def _pair(first, second, more):
    """Radius, cosine and sine of two normals, as in `streams.py`; conversions and library functions are avoided, they cost
    more than the cipher."""
    rest = ((((more << 8) | (second & 255)) << 6) | 0x3F800000).to(tl.float32, bitcast=True) - 0.9999961853027344  # 17 bits
    upper = first >= 0x80000000
    # the smaller of u and 1 − u, which is where singles are exact
    near = tl.where(upper, ~first, first).to(tl.float32) * 2.3283064365386963e-10
    near += tl.where(upper, 1.0 - rest, rest) * 2.3283064365386963e-10
    # −log(u) is −log(1 − x) for x = 1 − u; below a half u is first brought to [1/2, 1) by a power of two
    bits = near.to(tl.uint32, bitcast=True)
    halved = ((bits & 0x7FFFFF) | 0x3F000000).to(tl.float32, bitcast=True)
    power = ((bits >> 23) | 0x4B000000).to(tl.float32, bitcast=True) - 8388734.0  # u = halved · 2^power
    x = tl.where(upper, near, 1.0 - halved)
    series = LOG5 + x * (LOG6 + x * (LOG7 + x * LOG8))
    series = LOG0 + x * (LOG1 + x * (LOG2 + x * (LOG3 + x * (LOG4 + x * series))))
    logarithm = x * series + tl.where(upper, 0.0, power * -0.6931471805599453)
    y = ((((second >> 8) & 0x3FFFFF) << 1) | 0x3F800001).to(tl.float32, bitcast=True) - 1.0  # 22 bits, and a half
    cosine = (_sine(1.0 - y).to(tl.uint32, bitcast=True) ^ ((second << 1) & 0x80000000)).to(tl.float32, bitcast=True)
    sine = (_sine(y).to(tl.uint32, bitcast=True) ^ (second & 0x80000000)).to(tl.float32, bitcast=True)
    return tl.sqrt(2.0 * logarithm), cosine, sine


@triton.jit
def _read(j: tl.constexpr, q, Q, size, sums, weights, first, second, RULE: tl.constexpr):
    """All that is known about one coordinate, asked for before the cipher starts: the memory works meanwhile."""
    at = j * Q + q
    mask = (q < Q) & (at < size)
    total = tl.load(sums + at, mask, other=0.0)
    w, m, v = total, total, total
    if RULE > 0:
        w = tl.load(weights + at, mask, other=0.0)
    if (RULE == 2) | (RULE == 3):
        m = tl.load(first + at, mask, other=0.0)
    if RULE > 2:
        v = tl.load(second + at, mask, other=0.0)
    return at, mask, total, w, m, v


@triton.jit
def _noised(high, low, total, cells, grid, per_grid, share, weights):
    """A sum plus noise on the grid, over what it is divided by; the normal is high + low.

    In cells of the grid both are a whole part, which adding and taking away 1.5 · 2^23 (or 2^52) finds, and a fraction.
    """
    noise = cells * high
    noise_whole = (noise + 12582912.0) - 12582912.0
    fraction = (noise - noise_whole) + (tl.fma(cells, high, -noise) + cells * low)
    total *= per_grid.to(total.dtype)
    magic = 12582912.0 if total.dtype == tl.float32 else 6755399441055744.0
    size = (tl.abs(total) + magic) - magic  # not of a negative number: beyond 2^22 that would leave halves
    whole = tl.where(total < 0, -size, size)
    fraction += (total - whole).to(tl.float32)
    # each part is widened before they are added: a sum of singles beyond 2^24 would lose its low bits, and show the total's
    whole += noise_whole.to(total.dtype) + ((fraction + 12582912.0) - 12582912.0).to(total.dtype)
    return (whole * grid.to(total.dtype)).to(weights.dtype.element_ty) * share


@triton.jit
def _write(at, mask, g, w, m, v, weights, first, second, rate, beta, gamma, spread, small, decay, RULE: tl.constexpr):
    """What the optimiser does with a gradient: 0 is none, then in the order of RULES."""
    if RULE == 0:
        tl.store(weights + at, g, mask)
    else:
        g += decay * w
        change = g
        if RULE == 2:
            change = beta * m + g
            tl.store(first + at, change, mask)
        elif RULE == 3:
            mean = m + (g - m) * (1 - beta)
            square = gamma * v + (1 - gamma) * g * g
            tl.store(first + at, mean, mask)
            tl.store(second + at, square, mask)
            change = mean / (tl.sqrt(square) * spread + small)
        elif RULE > 3:
            square = gamma * v + (g * g if RULE == 4 else (1 - gamma) * g * g)
            tl.store(second + at, square, mask)
            change = g / (tl.sqrt(square) + small)
        tl.store(weights + at, w - rate * change, mask)


@triton.jit(do_not_specialize=["size", "width", "offset", "place", "parts", "Q"])  # one kernel for parameters of any size
def _noisy_step(
    sums, weights, first, second, keys, step, scales, grids, divisors, made, rates, betas, gammas, spreads, smalls, decays,
    size, width, offset, place, parts, Q, RULE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    if tl.program_id(0) == 0:  # one program for each client and part: whoever adds the noise counts it
        counted = made + client * parts + place
        tl.store(counted, tl.load(counted) + 1)
    q = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sums += client * size
    weights += client * width + offset
    first += client * width + offset
    second += client * width + offset
    at0, mask0, s0, w0, m0, v0 = _read(0, q, Q, size, sums, weights, first, second, RULE)
    at1, mask1, s1, w1, m1, v1 = _read(1, q, Q, size, sums, weights, first, second, RULE)
    at2, mask2, s2, w2, m2, v2 = _read(2, q, Q, size, sums, weights, first, second, RULE)
    at3, mask3, s3, w3, m3, v3 = _read(3, q, Q, size, sums, weights, first, second, RULE)
    at4, mask4, s4, w4, m4, v4 = _read(4, q, Q, size, sums, weights, first, second, RULE)
    at5, mask5, s5, w5, m5, v5 = _read(5, q, Q, size, sums, weights, first, second, RULE)
    at6, mask6, s6, w6, m6, v6 = _read(6, q, Q, size, sums, weights, first, second, RULE)
    at7, mask7, s7, w7, m7, v7 = _read(7, q, Q, size, sums, weights, first, second, RULE)
    at8, mask8, s8, w8, m8, v8 = _read(8, q, Q, size, sums, weights, first, second, RULE)
    at9, mask9, s9, w9, m9, v9 = _read(9, q, Q, size, sums, weights, first, second, RULE)
    at10, mask10, s10, w10, m10, v10 = _read(10, q, Q, size, sums, weights, first, second, RULE)
    at11, mask11, s11, w11, m11, v11 = _read(11, q, Q, size, sums, weights, first, second, RULE)
    at12, mask12, s12, w12, m12, v12 = _read(12, q, Q, size, sums, weights, first, second, RULE)
    at13, mask13, s13, w13, m13, v13 = _read(13, q, Q, size, sums, weights, first, second, RULE)
    k = keys + client * 8
    k0, k1 = tl.load(k).to(tl.uint32, bitcast=True), tl.load(k + 1).to(tl.uint32, bitcast=True)
    k2, k3 = tl.load(k + 2).to(tl.uint32, bitcast=True), tl.load(k + 3).to(tl.uint32, bitcast=True)
    k4, k5 = tl.load(k + 4).to(tl.uint32, bitcast=True), tl.load(k + 5).to(tl.uint32, bitcast=True)
    k6, k7 = tl.load(k + 6).to(tl.uint32, bitcast=True), tl.load(k + 7).to(tl.uint32, bitcast=True)
    scale, grid = tl.load(scales + client), tl.load(grids + client)
    share = (1.0 / tl.load(divisors + client)).to(weights.dtype.element_ty)
    per_grid = 1.0 / grid
    cells = (scale * per_grid * 1.00000012).to(tl.float32)  # rounded up: noise is never less than planned
    rate, beta, gamma, spread, small, decay = share, share, share, share, share, share
    if RULE > 0:
        rate, beta, gamma = tl.load(rates + client), tl.load(betas + client), tl.load(gammas + client)
        spread, small, decay = tl.load(spreads + client), tl.load(smalls + client), tl.load(decays + client)
    x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15 = _chacha20(
        k0, k1, k2, k3, k4, k5, k6, k7, q.to(tl.uint32), tl.load(step).to(tl.uint32), place.to(tl.uint32)
    )
    r, c, s = _pair(x0, x1, x14 & 511)
    g = _noised(r * c, tl.fma(r, c, -(r * c)), s0, cells, grid, per_grid, share, weights)
    _write(at0, mask0, g, w0, m0, v0, weights, first, second, rate, beta, gamma, spread, small, decay, RULE)
    g = _noised(r * s, tl.fma(r, s, -(r * s)), s1, cells, grid, per_grid, share, weights)
    _write(at1, mask1, g, w1, m1, v1, weights, first, second, rate, beta, gamma, spread, small, decay, RULE)
    r, c, s = _pair(x2, x3, (x14 >> 9) & 511)
    g = _noised(r * c, tl.fma(r, c, -(r * c)), s2, cells, grid, per_grid, share, weights)
    _write(at2, mask2, g, w2, m2, v2, weights, first, second, rate, beta, gamma, spread, small, decay, RULE)
    g = _noised(r * s, tl.fma(r, s, -(r * s)), s3, cells, grid, per_grid, share, weights)
    _write(at3, mask3, g, w3, m3, v3, weights, first, second, rate, beta, gamma, spread, small, decay, RULE)
    r, c, s = _pair(x4, x5, (x14 >> 18) & 511)
    g = _noised(r * c, tl.fma(r, c, -(r * c)), s4, cells, grid, per_grid, share, weights)
    _write(at4, mask4, g, w4, m4, v4, weights, first, second, rate, beta, gamma, spread, small, decay, RULE)
    g = _noised(r * s, tl.fma(r, s, -(r * s)), s5, cells, grid, per_grid, share, weights)
    _write(at5, mask5, g, w5, m5, v5, weights, first, second, rate, beta, gamma, spread, small, decay, RULE)
    r, c, s = _pair(x6, x7, x15 & 511)
    g = _noised(r * c, tl.fma(r, c, -(r * c)), s6, cells, grid, per_grid, share, weights)
    _write(at6, mask6, g, w6, m6, v6, weights, first, second, rate, beta, gamma, spread, small, decay, RULE)
    g = _noised(r * s, tl.fma(r, s, -(r * s)), s7, cells, grid, per_grid, share, weights)
    _write(at7, mask7, g, w7, m7, v7, weights, first, second, rate, beta, gamma, spread, small, decay, RULE)
    r, c, s = _pair(x8, x9, (x15 >> 9) & 511)
    g = _noised(r * c, tl.fma(r, c, -(r * c)), s8, cells, grid, per_grid, share, weights)
    _write(at8, mask8, g, w8, m8, v8, weights, first, second, rate, beta, gamma, spread, small, decay, RULE)
    g = _noised(r * s, tl.fma(r, s, -(r * s)), s9, cells, grid, per_grid, share, weights)
    _write(at9, mask9, g, w9, m9, v9, weights, first, second, rate, beta, gamma, spread, small, decay, RULE)
    r, c, s = _pair(x10, x11, (x15 >> 18) & 511)
    g = _noised(r * c, tl.fma(r, c, -(r * c)), s10, cells, grid, per_grid, share, weights)
    _write(at10, mask10, g, w10, m10, v10, weights, first, second, rate, beta, gamma, spread, small, decay, RULE)
    g = _noised(r * s, tl.fma(r, s, -(r * s)), s11, cells, grid, per_grid, share, weights)
    _write(at11, mask11, g, w11, m11, v11, weights, first, second, rate, beta, gamma, spread, small, decay, RULE)
    r, c, s = _pair(x12, x13, ((x14 >> 27) << 4) | ((x15 >> 27) & 15))
    g = _noised(r * c, tl.fma(r, c, -(r * c)), s12, cells, grid, per_grid, share, weights)
    _write(at12, mask12, g, w12, m12, v12, weights, first, second, rate, beta, gamma, spread, small, decay, RULE)
    g = _noised(r * s, tl.fma(r, s, -(r * s)), s13, cells, grid, per_grid, share, weights)
    _write(at13, mask13, g, w13, m13, v13, weights, first, second, rate, beta, gamma, spread, small, decay, RULE)


@triton.jit(do_not_specialize=["size", "width", "offset"])
def _plain_step(
    sums, weights, first, second, divisors, rates, betas, gammas, spreads, smalls, decays, size, width, offset,
    RULE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Without privacy; a kernel of its own, so that the other one has nothing by which noise could be left out."""
    client = tl.program_id(1).to(tl.int64)
    sums += client * size
    weights += client * width + offset
    first += client * width + offset
    second += client * width + offset
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at, mask, total, w, m, v = _read(0, places, size, size, sums, weights, first, second, RULE)
    g = total.to(w.dtype) * (1.0 / tl.load(divisors + client)).to(w.dtype)
    _write(
        at, mask, g, w, m, v, weights, first, second, tl.load(rates + client), tl.load(betas + client),
        tl.load(gammas + client), tl.load(spreads + client), tl.load(smalls + client), tl.load(decays + client), RULE,
    )  # fmt: skip


def words(keys: Tensor, nonces: Tensor, blocks: int) -> Tensor:
    clients, count = nonces.shape[:2]
    out = torch.empty(clients, count, blocks * 16, dtype=torch.int32, device=keys.device)
    total = clients * count * blocks
    if total:
        _words[(triton.cdiv(total, BLOCK),)](keys.contiguous(), nonces.contiguous(), out, blocks, total, count, BLOCK=BLOCK)
    return out


def add_normals(parts: Sequence[Tensor], noise: DeviceNoise, out: Tensor) -> Tensor:
    for place, offset, part in _placed(parts):
        _noisy(0, part, noise, (out, out, out), [noise.divisor] * 6, place, offset)
    return out


def noisy_step(
    parts: Sequence[Tensor],
    noise: DeviceNoise,
    weights: Tensor,
    slots: dict[str, Tensor],
    optimiser: Stacked,
    count: Tensor,
) -> None:
    """What `add_normals` makes of the sums, and a step of the optimiser with it, in one pass over the memory."""
    vectors, numbers = _state(weights, slots), _numbers(optimiser, count)
    for place, offset, part in _placed(parts):
        _noisy(_rule(optimiser), part, noise, vectors, numbers, place, offset)


def plain_step(
    parts: Sequence[Tensor], divisor: Tensor, weights: Tensor, slots: dict[str, Tensor], optimiser: Stacked, count: Tensor
) -> None:
    """A step of the optimiser with sums that nobody noised."""
    vectors, numbers = _state(weights, slots), _numbers(optimiser, count)
    for _, offset, part in _placed(parts):
        size = part.shape[1]
        _plain_step[(triton.cdiv(size, PLAIN_BLOCK), len(weights))](
            part.contiguous(), *vectors, divisor, *numbers, size, weights.stride(0), offset,
            RULE=_rule(optimiser), BLOCK=PLAIN_BLOCK,
        )  # fmt: skip


def _noisy(
    rule: int, part: Tensor, noise: DeviceNoise, vectors: tuple[Tensor, ...], numbers: list[Tensor], place: int, offset: int
) -> None:
    size, blocks = part.shape[1], triton.cdiv(part.shape[1], 14)
    _noisy_step[(triton.cdiv(blocks, BLOCK), len(vectors[0]))](
        part.contiguous(), *vectors, *noise, *numbers, size, vectors[0].stride(0), offset, place, noise.made.shape[1],
        blocks, RULE=rule, BLOCK=BLOCK, num_warps=WARPS,
    )  # fmt: skip


def _placed(parts: Sequence[Tensor]) -> Iterator[tuple[int, int, Tensor]]:
    """Each part with its place in the list and where it begins."""
    offset = 0
    for place, part in enumerate(parts):
        yield place, offset, part
        offset += part.shape[1]


def _state(weights: Tensor, slots: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    mean, square = slots.get("mean", slots.get("velocity", weights)), slots.get("square", weights)
    assert weights.stride() == mean.stride() == square.stride() == (weights.stride(0), 1)
    return weights, mean, square


def _rule(optimiser: Stacked) -> int:
    """RULE of the kernels; the caller has made sure that they know this optimiser."""
    assert optimiser.update.kernel is not None
    return RULES.index(optimiser.update.kernel) + 1


def _numbers(optimiser: Stacked, count: Tensor) -> list[Tensor]:
    kernel = optimiser.update.kernel
    rate, momentum, decay, beta1, beta2, stability, weight_decay = optimiser.numbers
    spread, beta, gamma = rate, beta1, beta2
    if kernel == "momentum":
        beta = momentum
    elif kernel == "adam":
        rate, spread = rate / (1 - beta1**count), 1 / (1 - beta2**count).sqrt()
    elif kernel == "adagrad":
        gamma = torch.ones_like(decay)
    elif kernel == "rmsprop":
        gamma = decay
    return [rate, beta, gamma, spread, stability, weight_decay]
