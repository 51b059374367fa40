"""Does a sample follow a law? Tests that accept the right scale and must reject another.

On a sample of the law itself `follows` says no with a chance below FLAKES, so that even a test on secret draws, which no
seed fixes, fails by accident less than once in a thousand million runs.
"""

import math

import numpy as np
from scipy import stats

FLAKES = 4e-10
ENOUGH = 100_000
SIGMAS = stats.norm.isf(FLAKES / 4)  # 6.4: two sides, half of the flakes


def follows(values, law, scale):
    """Standard deviation and distribution function (Kolmogorov and Smirnov, with Massart's constant) both fit the scale."""
    z = np.asarray(values, dtype=np.float64).ravel() / scale
    if len(z) < ENOUGH:
        raise ValueError(f"{len(z)} values are too few to tell ⅔ from 1")
    kurtosis = float(law.stats(moments="k")) + 3
    spread = np.sqrt(np.mean(z**2)) / law.std()
    if abs(spread - 1) > SIGMAS * math.sqrt((kurtosis - 1) / (4 * len(z))):
        return False
    distance = stats.ks_1samp(z, law.cdf, method="asymp").statistic
    return distance <= math.sqrt(math.log(4 / FLAKES) / (2 * len(z)))  # 2·exp(−2nd²) is half of the flakes


def uncorrelated(rows):
    """No two rows are correlated beyond chance; all pairs together share the flakes."""
    rows = np.asarray(rows)
    pairs = len(rows) * (len(rows) - 1) / 2
    seen = np.abs(np.corrcoef(rows) - np.eye(len(rows))).max() * math.sqrt(rows.shape[1])
    return bool(seen < stats.norm.isf(FLAKES / 2 / pairs))
