"""Write prv_fixtures.json: (lower, estimate, upper) of ε(δ) as prv-accountant computes them. Run by hand; twenty seconds.

python tests/fdp/make_prv_fixtures.py
"""

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
from prv_accountant import PRVAccountant
from prv_accountant.privacy_random_variables import (
    GaussianMechanism,
    LaplaceMechanism,
    PoissonSubsampledGaussianMechanism,
    PrivacyRandomVariable,
)
from scipy.special import logsumexp, ndtr

EPS_ERROR = 5e-3
FIXTURES = Path(__file__).with_name("prv_fixtures.json")


class FixedSizeGaussian(PrivacyRandomVariable):
    """The privacy loss of C_q(G_μ) under Q.

    Above 0 it is that of (1−q)N(0) + qN(μ) against N(0); below 0 it mirrors that part; the rest is an atom at 0.
    """

    def __init__(self, rate: float, mu: float) -> None:
        self.rate, self.mu = rate, mu

    def cdf(self, t):
        stretched = np.double(np.log1p(np.expm1(np.abs(t)) / self.rate) / self.mu)  # prv works in long doubles
        p_beyond, q_beyond = ndtr(-stretched - self.mu / 2), ndtr(-stretched + self.mu / 2)
        return np.where(t >= 0, 1 - self.rate * q_beyond - (1 - self.rate) * p_beyond, p_beyond)

    def rdp(self, alpha: float) -> float:
        """log E_Q[e^((a−1)L)]/(a−1) by a sum over N(0)'s outcome z > μ/2; it only sizes prv's domain."""
        z = np.linspace(self.mu / 2, alpha * self.mu + 12, 200_001)
        log_null = -z * z / 2 - np.log(2 * np.pi) / 2
        loss = np.logaddexp(np.log1p(-self.rate), np.log(self.rate) + self.mu * z - self.mu**2 / 2)
        atom = float(self.cdf(0.0) - ndtr(-self.mu / 2))
        log_terms = np.append(np.logaddexp(alpha * loss, (1 - alpha) * loss) + log_null + np.log(z[1] - z[0]), np.log(atom))
        return float(logsumexp(log_terms) / (alpha - 1))


MECHANISMS = {
    "poisson": lambda noise, rate: PoissonSubsampledGaussianMechanism(rate, noise),
    "gaussian": lambda noise: GaussianMechanism(noise),
    "laplace": lambda scale: LaplaceMechanism(1 / scale),
    "fixed_size": lambda mu, rate: FixedSizeGaussian(rate, mu),
}

SETTINGS = [
    ("poisson", {"noise": 1.0, "rate": 0.02}, 600, 1e-5),
    ("poisson", {"noise": 0.7, "rate": 0.001}, 2500, 1e-6),
    ("poisson", {"noise": 2.2, "rate": 0.15}, 120, 1e-4),
    ("poisson", {"noise": 1.4, "rate": 0.005}, 8000, 1e-5),
    ("poisson", {"noise": 5.0, "rate": 0.3}, 400, 1e-7),
    ("gaussian", {"noise": 30.0}, 200, 1e-6),
    ("gaussian", {"noise": 4.5}, 7, 1e-8),
    ("laplace", {"scale": 10.0}, 300, 1e-5),
    ("laplace", {"scale": 1.5}, 12, 1e-4),
    ("fixed_size", {"mu": 1.0, "rate": 0.01}, 500, 1e-5),
    ("fixed_size", {"mu": 1.8, "rate": 0.05}, 60, 1e-6),
    ("fixed_size", {"mu": 0.6, "rate": 0.2}, 250, 1e-4),
]


def fixture(mechanism: str, parameters: dict[str, float], steps: int, delta: float) -> dict[str, object]:
    prv = MECHANISMS[mechanism](**parameters)
    accountant = PRVAccountant(prvs=[prv], max_self_compositions=[steps], eps_error=EPS_ERROR, delta_error=delta / 1000)
    lower, estimate, upper = accountant.compute_epsilon(delta, [steps])
    asked = {"mechanism": mechanism, "parameters": parameters, "steps": steps, "delta": delta}
    return asked | {"lower": lower, "estimate": estimate, "upper": upper}


def main() -> None:
    made_with = {"prv_accountant": version("prv_accountant"), "eps_error": EPS_ERROR, "delta_error": "delta / 1000"}
    FIXTURES.write_text(json.dumps({"made_with": made_with, "cases": [fixture(*s) for s in SETTINGS]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
