"""Composition: the law of a sum of independent privacy losses, by FFT, with a bound on its floating-point error.

Notation
    h, N        lattice step and FFT length; losses are multiples of h
    q_l, p_l    masses of a discrete pair at loss l, p_l = q_l e^−l
    θ           tilt: the law computed is q_l e^(θl)/M(θ), M(θ) = Σ q_l e^(θl). Rounding is relative to the centre of
                the computed law, so tilting the law to where a small δ lives gives δ to relative precision.
                θ = 0 is the law under Q, θ = −1 the law under P.
    K(θ)        log M(θ). Sums add it: K = Σ n_i K_i; a mixture with "nothing happened" gives log(1−p + p e^K)
    F           the normalised Fourier transform of the tilted law, at z = e^(−iωh). What is computed is F − 1, as
                (z − 1) times the transform of the tail sums (summation by parts), and powers are taken as
                exp(n·log1p(F − 1)): the error of an n-fold composition then grows with n·|z − 1|, which is tiny at
                every frequency that survives n factors, instead of with n.
    slack       bound on Σ_l |computed − true| of the tilted law: rounding (a first-order FFT error analysis with a
                safety factor of 8) plus what the window cuts off (Chernoff)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy import fft

from .bounds import Array
from .lattice import Masses

UNIT = float(np.finfo(float).eps)
LOG_OUTSIDE = -46.0  # the window leaves out at most e^−46 ≈ 1e−20 of the (tilted) law at either end
SAFETY = 8.0
SECTIONS = 16  # into which a search divides the nodes that are left: one call for many is faster than many calls


class Factor(ABC):
    """A law on a lattice that can be composed with others before its masses are computed."""

    step: float

    @cached_property
    def windows(self) -> dict[float, tuple[int, int]]:
        """What `window` has found, by the tilt: each is asked for several times."""
        return {}

    @property
    @abstractmethod
    def log_finite(self) -> tuple[float, float]:
        """(log of the Q-mass, log of the P-mass) at finite losses."""

    @property
    def infinite(self) -> tuple[float, float]:
        """(Q-mass at loss +∞, P-mass at loss −∞)."""
        q, p = (-float(np.expm1(part)) for part in self.log_finite)
        return q, p

    @property
    @abstractmethod
    def support(self) -> tuple[float, float]:
        """The smallest and the largest finite loss."""

    @abstractmethod
    def cgf(self, tilt: float) -> float:
        """K(θ) over the finite losses; −∞ if there are none."""

    @abstractmethod
    def moments(self, tilt: float) -> tuple[float, float]:
        """Mean and variance of the tilted law."""

    @abstractmethod
    def log_spectrum(self, size: int, tilt: float) -> tuple[np.ndarray, Array]:
        """log F at the frequencies of a real FFT of `size` points, and a bound on the error of F at each (rms).

        The rounding error relative to |log F| itself is added and bounded once, in `compose`.
        """


@dataclass(frozen=True, eq=False)
class Leaf(Factor):
    masses: Masses
    step: float

    @property
    def log_finite(self) -> tuple[float, float]:
        with np.errstate(divide="ignore"):
            q, p = np.log1p([-self.masses.q_infinite, -self.masses.p_infinite])
        return float(q), float(p)

    @property
    def support(self) -> tuple[float, float]:
        first = self.masses.first
        return first * self.step, (first + self.masses.q.size - 1) * self.step

    @cached_property
    def _losses(self) -> Array:
        return self.masses.losses(self.step)

    @cached_property
    def _log_q(self) -> Array:
        with np.errstate(divide="ignore"):
            # log q from whichever of q and p did not underflow
            above = np.log(self.masses.q)
            below = np.log(self.masses.p) + self._losses
        return np.where(self._losses >= 0, above, below)

    def cgf(self, tilt: float) -> float:
        exponent = self._log_q + tilt * self._losses
        peak = float(exponent.max())
        return peak if peak == -np.inf else peak + float(np.log(np.exp(exponent - peak).sum()))

    def _tilted(self, tilt: float) -> Array:
        exponent = self._log_q + tilt * self._losses
        weights = np.exp(exponent - exponent.max())
        return np.asarray(weights / weights.sum())

    def moments(self, tilt: float) -> tuple[float, float]:
        weights = self._tilted(tilt)
        mean = float((weights * self._losses).sum())
        return mean, float((weights * (self._losses - mean) ** 2).sum())

    def log_spectrum(self, size: int, tilt: float) -> tuple[np.ndarray, Array]:
        weights, origin = self._tilted(tilt), -self.masses.first
        # F − 1 = (z − 1)·(Σ_{j≥0} P(L > j) z^j − Σ_{j<0} P(L ≤ j) z^j)
        tails = np.concatenate((-np.cumsum(weights[:origin]), np.cumsum(weights[:origin:-1])[::-1], [0.0]))
        wrapped = np.bincount((self.masses.first + np.arange(tails.size)) % size, tails, minlength=size)
        rotation = _z_minus_1(size)
        error = UNIT * (np.log2(size) + 4) * _norm(tails) * np.abs(rotation)
        return _log1p(rotation * fft.rfft(wrapped)), error


@lru_cache(maxsize=2)  # the pessimistic and the optimistic law share it
def _z_minus_1(size: int) -> np.ndarray:
    """e^(−2πim/size) − 1 for the frequencies of a real FFT, to relative precision."""
    half_angle = np.pi / size * np.arange(size // 2 + 1)
    return np.asarray(-2 * np.sin(half_angle) * (np.sin(half_angle) + 1j * np.cos(half_angle)))


@dataclass(frozen=True, eq=False)
class Mixture(Factor):
    """With probability `share` the loss of the child, otherwise loss 0, and all see which."""

    child: Factor
    share: float

    @property
    def step(self) -> float:  # type: ignore[override]
        return self.child.step

    @property
    def log_finite(self) -> tuple[float, float]:
        q, p = (float(np.log1p(self.share * np.expm1(part))) for part in self.child.log_finite)
        return q, p

    @property
    def support(self) -> tuple[float, float]:
        low, high = self.child.support
        return min(low, 0.0), max(high, 0.0)

    def cgf(self, tilt: float) -> float:
        return float(np.logaddexp(np.log1p(-self.share), np.log(self.share) + self.child.cgf(tilt)))

    def _tilted_share(self, tilt: float) -> float:
        return float(np.exp(np.log(self.share) + self.child.cgf(tilt) - self.cgf(tilt)))

    def moments(self, tilt: float) -> tuple[float, float]:
        share = self._tilted_share(tilt)
        mean, variance = self.child.moments(tilt) if share > 0 else (0.0, 0.0)
        return share * mean, share * variance + share * (1 - share) * mean**2

    def log_spectrum(self, size: int, tilt: float) -> tuple[np.ndarray, Array]:
        share = self._tilted_share(tilt)
        if share == 0:
            return np.zeros(size // 2 + 1, dtype=complex), np.zeros(size // 2 + 1)
        log_child, error = self.child.log_spectrum(size, tilt)
        return _log1p(share * np.expm1(log_child)), share * error


@dataclass(frozen=True, eq=False)
class Product(Factor):
    """The sum of independent losses, each repeated by its count."""

    children: tuple[tuple[Factor, int], ...]

    @property
    def step(self) -> float:  # type: ignore[override]
        return self.children[0][0].step

    @property
    def log_finite(self) -> tuple[float, float]:
        parts = [(count, child.log_finite) for child, count in self.children]
        return sum(n * q for n, (q, _) in parts), sum(n * p for n, (_, p) in parts)

    @property
    def support(self) -> tuple[float, float]:
        ends = np.array([[count * end for end in child.support] for child, count in self.children])
        low, high = ends.sum(axis=0)
        return float(low), float(high)

    def cgf(self, tilt: float) -> float:
        return sum(count * child.cgf(tilt) for child, count in self.children)

    def moments(self, tilt: float) -> tuple[float, float]:
        pairs = [(count, child.moments(tilt)) for child, count in self.children]
        return sum(n * mean for n, (mean, _) in pairs), sum(n * variance for n, (_, variance) in pairs)

    def log_spectrum(self, size: int, tilt: float) -> tuple[np.ndarray, Array]:
        total = np.zeros(size // 2 + 1, dtype=complex)
        parts = []
        for child, count in self.children:
            log_child, error = child.log_spectrum(size, tilt)
            total += count * log_child
            parts.append((log_child.real, count * error))
        # an error in one of n equal factors is multiplied by all the others: n·|error|·|F_total / F|
        return total, sum((np.exp(total.real - size_of) * error for size_of, error in parts), np.zeros(size // 2 + 1))


def _norm(values: Array) -> float:
    """The Euclidean norm by numpy's own loop. BLAS would wake all its threads for it, which takes longer than the sum."""
    return float(np.sqrt((values * values).sum()))


def _log1p(z: np.ndarray) -> np.ndarray:
    """log(1 + z) to relative precision in z, and to absolute precision where 1 + z nearly vanishes."""
    real, imaginary = 1 + z.real, z.imag
    near = np.abs(z.real) + np.abs(imaginary) < 0.5
    with np.errstate(divide="ignore"):
        size = np.log(np.hypot(real, imaginary))
    small = z[near]
    size[near] = 0.5 * np.log1p(2 * small.real + small.real**2 + small.imag**2)
    return np.asarray(np.maximum(size, -1e6) + 1j * np.arctan2(imaginary, real))


@dataclass(frozen=True, eq=False)
class Law:
    """The tilted law of a sum of losses: Q-mass at loss l is weight_l·e^(log_scale − tilt·l)."""

    first: int
    step: float
    tilt: float
    log_scale: float
    weights: Array
    slack: float

    @cached_property
    def mirrored(self) -> Law:
        """The same law with P and Q exchanged: losses change sign, and θ becomes −1 − θ."""
        first = -(self.first + self.weights.size - 1)
        return Law(first, self.step, -1 - self.tilt, self.log_scale, self.weights[::-1], self.slack)

    @cached_property
    def _q_above(self) -> Suffix:
        return Suffix.of(self.weights, self.first, self.step, self.tilt)

    @cached_property
    def _p_above(self) -> Suffix:
        return Suffix.of(self.weights, self.first, self.step, 1 + self.tilt)

    def p_above(self, node: np.ndarray) -> tuple[Array, Array]:
        """(P(L > loss of node), its error bound) for any nodes of the lattice; needs θ ≥ −1."""
        log_p = self._p_above.log_at(node + 1 - self.first) + self.log_scale
        value = np.exp(np.minimum(log_p, 0.0))
        return value, self._error(1 + self.tilt, node * self.step) + self._summing * value

    def q_up_to(self, node: np.ndarray) -> tuple[Array, Array]:
        """(Q(L ≤ loss of node), its error bound) for any nodes of the lattice; needs θ ≤ 0."""
        return self.mirrored.p_above(-node - 1)

    def _error(self, decay: float, loss: Array) -> Array:
        """Bound on the error of the mass beyond `loss`: slack·e^(log_scale − decay·l) is largest at `loss` itself."""
        return np.asarray(np.exp(np.minimum(np.log(self.slack) + self.log_scale - decay * loss, 700.0)))

    @property
    def _summing(self) -> float:
        """Relative rounding error of a running sum over all nodes (the usual √N) and of the exponents, times eight."""
        return SAFETY * (UNIT * float(np.sqrt(self.weights.size)) + self._exponents)

    @property
    def _exponents(self) -> float:
        """Rounding error of log_scale − (1 + θ)·l at its largest."""
        farthest = self.step * max(abs(self.first), abs(self.first + self.weights.size))
        return UNIT * (abs(self.log_scale) + (1 + abs(self.tilt)) * farthest)

    def hockey_stick(self, eps: Array) -> tuple[Array, Array, Array]:
        """(Σ over l > ε of q_l(1 − e^(ε−l)), e^ε P(L > ε), error bound of the first); needs θ ≥ 0."""
        index = np.floor(eps / self.step).astype(np.int64) + 1 - self.first
        log_q, log_tail = self._q_above.log_at(index) + self.log_scale, eps + self._p_above.log_at(index) + self.log_scale
        q, tail = np.exp(np.minimum(log_q, 700.0)), np.exp(np.minimum(log_tail, 700.0))
        # far left of the centre of a tilted law there is only positive rounding noise: return more than any δ
        value = np.where(log_q < 700.0, q - tail, np.inf)
        return value, tail, self._error(self.tilt, eps) + self._summing * q

    def delta(self, eps: float) -> tuple[float, float]:
        """(δ over the finite losses, its error bound); needs θ ≥ 0."""
        value, _, error = self.hockey_stick(np.array([eps]))
        return float(value[0]), float(error[0])

    def epsilon(self, delta: float) -> tuple[float, float]:
        """The ε ≥ 0 at which the sum of `delta` equals `delta` (0 if it is smaller there), from both sides; needs θ ≥ 0."""
        if self.delta(0.0)[0] <= delta:
            return 0.0, 0.0
        low, high = 0, max(1, self.first + self.weights.size)  # δ(low) > delta ≥ δ(high): search the nodes
        while high - low > 1:
            inner = low + (high - low) * np.arange(1, SECTIONS) // SECTIONS
            above = int(np.count_nonzero(np.logical_and.accumulate(self.hockey_stick(inner * self.step)[0] > delta)))
            nodes = (low, *inner.tolist(), high)
            low, high = nodes[above], nodes[above + 1]
        index = np.array(low + 1 - self.first)
        log_q, log_p = float(self._q_above.log_at(index)), float(self._p_above.log_at(index))
        left, right = low * self.step, high * self.step
        share = delta * float(np.exp(min(-log_q - self.log_scale, 700.0)))
        if not (share < 1 and np.isfinite(log_q) and np.isfinite(log_p)):
            return left, right
        # inside a cell δ is linear in e^ε: Q − e^ε P = δ
        answer = log_q + float(np.log1p(-share)) - log_p
        rounding = SAFETY * (self._exponents + UNIT * (abs(log_q) + abs(log_p)))
        return min(max(answer - rounding, left), right), max(min(answer + rounding, right), left)


@dataclass(frozen=True, eq=False)
class Suffix:
    """Sums of weight_l·e^(−decay·l) from each node to the last, in a form that does not underflow."""

    sums: Array
    shift: float
    logarithmic: bool

    @staticmethod
    def of(weights: Array, first: int, step: float, decay: float) -> Suffix:
        exponent = -decay * step * (first + np.arange(weights.size))
        shift = float(max(exponent[0], exponent[-1]))
        if abs(exponent[-1] - exponent[0]) < 600:
            return Suffix(np.cumsum((weights * np.exp(exponent - shift))[::-1]), shift, logarithmic=False)
        with np.errstate(divide="ignore"):
            return Suffix(np.logaddexp.accumulate((np.log(weights) + exponent)[::-1]), 0.0, logarithmic=True)

    def log_at(self, index: np.ndarray) -> Array:
        """log of the sum from position `index` (of the law, clipped to it) on; −∞ past the end."""
        count = self.sums.size - np.maximum(index, 0)
        found = self.sums[np.maximum(count, 1) - 1]
        with np.errstate(divide="ignore"):
            value = found if self.logarithmic else np.log(found) + self.shift
        return np.asarray(np.where(count > 0, value, -np.inf))


def window(factor: Factor, tilt: float) -> tuple[int, int]:
    """The first node and the FFT length of a window with all but 2·e^LOG_OUTSIDE of the tilted law."""
    if tilt not in factor.windows:
        factor.windows[tilt] = _window(factor, tilt)
    return factor.windows[tilt]


def _window(factor: Factor, tilt: float) -> tuple[int, int]:
    mean, variance = factor.moments(tilt)
    low, high = factor.support
    if variance > 0:
        # under a strong tilt one atom remains, and the variance is rounding: use at least a thousandth of a step
        centre, scale = factor.cgf(tilt), np.sqrt(-2 * LOG_OUTSIDE / max(variance, (1e-3 * factor.step) ** 2))
        high = min(high, _least(lambda t: (factor.cgf(tilt + t) - centre - LOG_OUTSIDE) / t, scale))
        low = max(low, -_least(lambda t: (factor.cgf(tilt - t) - centre - LOG_OUTSIDE) / t, scale))
    else:
        low = high = mean
    first = int(np.floor(low / factor.step)) - 1
    size = fft.next_fast_len(int(np.ceil(high / factor.step)) - first + 2, real=True)
    return first, size


def _least(bound: Callable[[float], float], scale: float) -> float:
    """The least of Chernoff's bounds at t = scale·2^k. (K(t) − K(0) + c)/t has one valley: it ends where they rise again.

    Each of them is a bound, so one that is not the least costs length and never precision.
    """
    best = bound(scale)
    for factors in (0.5, 0.25, 0.125, 0.0625), (2.0,):
        first = best
        for factor in factors:
            value = bound(factor * scale)
            if not value < best:
                break
            best = value
        if best < first:
            break  # the valley is on this side
    return best


def compose(factor: Factor, tilt: float) -> Law:
    """Compute the masses of the tilted law."""
    log_scale = factor.cgf(tilt)
    if log_scale == -np.inf:  # no finite loss: the loss is +∞ with probability 1
        return Law(0, factor.step, tilt, log_scale, np.zeros(2), UNIT)
    first, size = window(factor, tilt)
    log_spectrum, carried = factor.log_spectrum(size, tilt)
    spectrum = np.exp(log_spectrum)
    weights = np.roll(fft.irfft(spectrum, size), -first)
    # Σ|error| ≤ √N·‖error‖₂ = ‖error of F‖₂ (Parseval), and the error of F is what the factors carry into it, a few
    # units in the last place of log F, and what the inverse FFT adds
    modulus = np.abs(spectrum)
    rounding = 8 * _norm(modulus * np.abs(log_spectrum)) + np.log2(size) * _norm(modulus)
    # computed masses need not sum to exactly one; the whole difference counts as error
    drift = sum(abs(factor.cgf(end) - known) for end, known in zip((0.0, -1.0), factor.log_finite, strict=True))
    slack = SAFETY * float(np.sqrt(2) * (_norm(carried) + UNIT * rounding)) + 2 * drift + 4 * np.exp(LOG_OUTSIDE)
    return Law(first, factor.step, tilt, log_scale, np.maximum(weights, 0.0), slack)
