"""What a device draws, written a second time on the host: numpy, doubles throughout."""

from dataclasses import dataclass

import numpy as np
import torch

from prifedsync.local import Net, SeededDraws


def words(key: bytes, step: int, part: int, count: int) -> np.ndarray:
    """RFC 8439: a block counter of 32 bits, then a nonce of 96, which is step, part and zero."""
    blocks = -(-count // 16)
    state = np.zeros((4, 4, blocks), dtype=np.uint32)
    state[0] = np.frombuffer(b"expand 32-byte k", dtype="<u4")[:, None]
    state[1:3] = np.frombuffer(key, dtype="<u4").reshape(2, 4, 1)
    state[3] = np.array([0, step, part, 0], dtype=np.uint32)[:, None]
    state[3, 0] = np.arange(blocks)
    a, b, c, d = state.copy()
    for half in range(20):
        for one, two, three, turn in ((0, 1, 3, 16), (2, 3, 1, 12), (0, 1, 3, 8), (2, 3, 1, 7)):
            rows = [a, b, c, d]
            rows[one] += rows[two]
            rows[three] ^= rows[one]
            rows[three][:] = rows[three] << np.uint32(turn) | rows[three] >> np.uint32(32 - turn)
        turned = 1 if half % 2 == 0 else -1  # columns, then diagonals
        b, c, d = np.roll(b, -turned, 0), np.roll(c, -2 * turned, 0), np.roll(d, -3 * turned, 0)
    return (np.stack([a, b, c, d]) + state).reshape(16, -1).T.ravel()[:count].astype(np.uint64)


def uniforms(key: bytes, step: int, count: int) -> np.ndarray:
    low, high = words(key, step, 0, 2 * count).reshape(-1, 2).T
    return (((high << np.uint64(32)) + low >> np.uint64(12)).astype(float) + 0.5) / 2**52


def normals(key: bytes, step: int, part: int, count: int) -> np.ndarray:
    blocks = -(-count // 14)
    found = np.empty((14, blocks))
    w = words(key, step, part, 16 * blocks).astype(np.int64).reshape(-1, 16).T
    more = [w[14 + m // 3] >> 9 * (m % 3) & 511 for m in range(6)]
    more.append((w[14] >> 27) * 16 + (w[15] >> 27) % 16)
    for m in range(7):
        first, second = w[2 * m], w[2 * m + 1]
        whole = first * 2**17 + more[m] * 2**8 + second % 2**8
        u, rest = (whole + 0.5) / 2**49, (2**49 - 1 - whole + 0.5) / 2**49
        radius = np.sqrt(-2 * np.where(u < 0.5, np.log(u), np.log1p(-rest)))
        angle = ((second >> 8) % 2**22 + 0.5) / 2**22 * np.pi / 2
        found[2 * m] = radius * np.cos(angle) * np.where(second >> 30 & 1, -1, 1)
        found[2 * m + 1] = radius * np.sin(angle) * np.where(second >> 31, -1, 1)
    return found.ravel()[:count]


@dataclass
class Expanded:
    """Draws for the reference engine that are those of a device."""

    net: Net
    source: SeededDraws

    def _key(self, key):
        return self.source.stream(key.client, key.round, key.purpose)

    def bound(self, context):
        return self

    def uniform(self, key, count):
        if key.purpose == "batch":
            return torch.from_numpy(uniforms(self._key(key), key.step, count))
        if key.purpose.startswith(("dropout", "augment")):
            return torch.from_numpy(words(self._key(key), key.step, key.part, count) / 2**32)
        return self.source.uniform(key, count)

    def normal(self, key, count):
        if key.purpose != "noise":
            return self.source.normal(key, count)
        parts = [normals(self._key(key), key.step, part, size) for part, size in enumerate(self.net.sizes)]
        return torch.from_numpy(np.concatenate(parts))
