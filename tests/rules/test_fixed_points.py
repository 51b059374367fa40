"""Where rules come to rest on quadratic losses, without noise: the equations of each are solved here a second time.

A client's loss is f_i(w) = (w − c_i)ᵀH_i(w − c_i)/2 and a constant, so its steps are affine and so is a round, but for
attention. Clients differ in all their numbers, and in how many steps they take, so that they are not all in one stack.
"""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from numpy.linalg import inv, matrix_power, solve
from scipy.optimize import root
from torch import nn

from prifedsync.engines import Reference, Vectorised
from prifedsync.local import Net, Optimiser, SeededDraws, losses
from prifedsync.rules import (
    APFL,
    Alone,
    Attentive,
    Ditto,
    FedAvg,
    FedProx,
    Interpolate,
    MeanRegularised,
    Mixture,
    PFedMe,
)
from prifedsync.rules import RULES as BY_NAME

from ..engines.settings import jobs_under, run, unnoised
from ..engines.test_device import OnDevice

KINDS = (Vectorised, Reference, OnDevice)
ENGINE = pytest.mark.parametrize("kind", KINDS)
START = (2.0, -3.0)
CLOSE = {"rtol": 0, "atol": 1e-6}
I2 = np.eye(2)


@dataclass(frozen=True)
class Client:
    """Its records and its numbers."""

    x: tuple
    y: tuple
    rate: float
    steps: int
    mixing: float
    strength: float

    @property
    def curvature(self):
        return np.array(self.x).T @ np.array(self.x) / len(self.y)

    @property
    def optimum(self):
        return solve(self.curvature, np.array(self.x).T @ np.array(self.y) / len(self.y))

    @property
    def level(self):
        """H·c, so that the gradient at w is H·w − H·c."""
        return self.curvature @ self.optimum

    def stepped(self, strength=0.0):
        """A step w ← w − γ(H(w − c) + λ(w − anchor)) as a matrix on (w, anchor, 1)."""
        step = np.eye(5)
        step[:2, :2] -= self.rate * (self.curvature + strength * I2)
        step[:2, 2:4] = self.rate * strength * I2
        step[:2, 4] = self.rate * self.level
        return step

    def trained(self, strength=0.0):
        """S, T, e: after all steps w is S·start + T·anchor + e."""
        steps = matrix_power(self.stepped(strength), self.steps)
        return steps[:2, :2], steps[:2, 2:4], steps[:2, 4]


CLIENTS = (
    Client(((1.5, 0.0), (0.0, 1.0), (1.0, 1.0)), (1.0, 2.0, 4.0), 0.8, 2, 0.3, 0.6),
    Client(((1.0, 1.0), (1.0, -1.0), (0.0, 1.0), (1.0, 0.0), (0.5, 1.0)), (-3.0, 1.0, -2.0, 0.0, -1.0), 0.9, 3, 0.9, 0.2),
    Client(((1.0, 0.5), (0.0, 1.0), (0.5, -0.5), (1.0, 0.0)), (5.0, 0.0, 2.0, 4.0), 1.2, 2, 0.6, 0.4),
)


@cache
def linear(start):
    """A linear model without bias, with these weights."""
    module = nn.Linear(len(start), 1, bias=False)
    module.weight.data = torch.tensor([start], dtype=torch.float64)
    return Net(module, losses.regression, torch.eye(len(start)), torch.zeros(len(start)), torch.float64)


def jobs_for(rule, clients):
    """Full batches without noise."""
    jobs = []
    for i, client in enumerate(clients):
        options = {"optimiser": Optimiser(learning_rate=client.rate), "mixing": client.mixing, "strength": client.strength}
        (job,) = jobs_under(rule, unnoised, client.steps, (len(client.y),), batch="full", **options)
        jobs.append(replace(job, client=f"client {i}"))
    return jobs


def records_for(clients):
    return [
        (torch.tensor(client.x, dtype=torch.float64), torch.tensor(client.y, dtype=torch.float64)) for client in clients
    ]


def rest(kind, rule, clients, rounds, start=START, **options):
    """A run's engine and released model, once it has come to rest."""
    jobs, records, draws = jobs_for(rule, clients), records_for(clients), SeededDraws(1)
    found = run(kind, linear(start), jobs, records, draws, rule=rule, rounds=rounds, **options)
    return found.engine, found.servers[-1].released.numpy()


def models(engine):
    """All w̃_i and all personal models [m, P]."""
    everybody = range(len(engine.jobs))
    return torch.stack([engine.own(i) for i in everybody]), torch.stack([engine.personal(i).value for i in everybody])


# ------------------------------------------------------------------ the equations


def solved(maps):
    """w and w̃_i [m, 2] where w̃_i = B_i·w̃_i + D_i·w + e_i and w = mean w̃_i, given all (B, D, e)."""
    own = [(inv(I2 - b) @ d, inv(I2 - b) @ e) for b, d, e in maps]
    weights = solve(I2 - sum(d for d, _ in own) / len(own), sum(e for _, e in own) / len(own))
    return weights, np.array([d @ weights + e for d, e in own])


def mapped(clients, start, strength):
    """Those of a client that starts from (1 − weight)·w̃_i + weight·w and is pulled to w."""
    for client in clients:
        s, t, e = client.trained(strength(client))
        yield (1 - start(client)) * s, start(client) * s + t, e


def none(client):
    return 0.0


def whole(client):
    return 1.0


def mixing(client):
    return client.mixing


def strength(client):
    return client.strength


def fedavg(clients, rule):
    """w̃_i = c_i + (I − γH_i)^K·(w − c_i)"""
    weights, own = solved(mapped(clients, whole, none))
    return weights, own, own


def interpolate(clients, rule):
    """w̃_i = c_i + (I − γH_i)^K·((1 − α_i)·w̃_i + α_i·w − c_i)"""
    weights, own = solved(mapped(clients, mixing, none))
    return weights, own, own


def fedprox(clients, rule):
    """w̃_i = m_i + (I − γ(H_i + λ_i))^K·(w − m_i) with m_i = (H_i + λ_i)⁻¹·(H_i·c_i + λ_i·w)"""
    weights, own = solved(mapped(clients, whole, strength))
    return weights, own, own


def minimum(client, weights):
    """(H + λ)⁻¹·(H·c + λ·w), where f(v) + (λ/2)·‖v − w‖² is least."""
    return solve(client.curvature + client.strength * I2, client.level + client.strength * weights)


def mean_regularised(clients, rule):
    """H_i(w̃_i − c_i) + λ_i(w̃_i − w) = 0, whatever the steps: the minimum of Σ_i f_i(w_i) + (λ_i/2)·‖w_i − w‖²"""
    pulls = [(client, inv(client.curvature + client.strength * I2)) for client in clients]
    weights, own = solved([(0 * I2, client.strength * pull, pull @ client.level) for client, pull in pulls])
    return weights, own, own


def pfedme(clients, rule):
    """(θ_i, w̃_i) = (M·E_i^L)^K·(w, w): E_i is a step on θ pulled to w_i, M moves w_i by s(θ_i − w_i)"""
    move = np.eye(5)
    move[2:4] = np.block([rule.outer_step * I2, (1 - rule.outer_step) * I2, np.zeros((2, 1))])
    ways = []
    for client in clients:
        inner = matrix_power(client.stepped(client.strength), rule.inner_steps)
        way = matrix_power(move @ inner, client.steps)
        ways.append((way[:4, :2] + way[:4, 2:4], way[:4, 4]))
    weights, own = solved([(0 * I2, way[2:], e[2:]) for way, e in ways])
    return weights, own, np.array([way[:2] @ weights + e[:2] for way, e in ways])


def mixture(clients, rule):
    """w̃_i = c_i + (I − γH_i)^K·((1 − γKλ_i)·w̃_i + γKλ_i·w − c_i)"""
    weights, own = solved(mapped(clients, lambda client: client.rate * client.steps * client.strength, none))
    return weights, own, own


def attentive(clients, rule):
    """w̃_i = S_i·u_i + T_i·u_i + e_i, u_i = Σ_j ξ_ij·w̃_j, ξ_ij = α_i/(m − 1)·exp(−‖w̃_i − w̃_j‖²/(b·their mean)), j ≠ i"""

    def left_over(flat):
        own = flat.reshape(-1, 2)
        helpers = []
        for i, client in enumerate(clients):
            others = [j for j in range(len(clients)) if j != i]
            squares = {j: np.sum((own[i] - own[j]) ** 2) for j in others}
            wide = rule.bandwidth * np.mean(list(squares.values()))
            weights = {j: client.mixing / len(others) * np.exp(-squares[j] / wide) for j in others}
            helpers.append(own[i] + sum(weights[j] * (own[j] - own[i]) for j in others))
        ways = [client.trained(client.strength) for client in clients]
        return np.concatenate([(s + t) @ u + e for (s, t, e), u in zip(ways, helpers, strict=True)]) - flat

    found = root(left_over, np.concatenate([client.optimum for client in clients]), tol=1e-13)
    assert np.abs(left_over(found.x)).max() < 1e-11
    own = found.x.reshape(-1, 2)
    return own.mean(0), own, own


def apfl(clients, rule):
    """∇f_i = 0 where a_i·v_i + (1 − a_i)·w̃_i is: that blend is c_i. Uploads are FedAvg's."""
    return *fedavg(clients, rule)[:2], np.array([client.optimum for client in clients])


def ditto(clients, rule):
    """H_i(v_i − c_i) + λ_i(v_i − w) = 0. Uploads are FedAvg's."""
    weights, own, _ = fedavg(clients, rule)
    return weights, own, np.array([minimum(client, weights) for client in clients])


def alone(clients, rule):
    """v_i = c_i, and nobody hears of it."""
    return np.array(START), np.array([START] * len(clients)), np.array([client.optimum for client in clients])


TRUTH = {
    "fedavg": fedavg, "interpolate": interpolate, "fedprox": fedprox, "mean-regularised": mean_regularised,
    "pfedme": pfedme, "mixture": mixture, "attentive": attentive, "apfl": apfl, "ditto": ditto, "alone": alone,
}  # fmt: skip
RULES = [  # and how many rounds each takes to come to rest
    (FedAvg(), 14), (Interpolate(), 16), (FedProx(), 22), (MeanRegularised(), 22), (Mixture(), 14),
    (PFedMe(inner_steps=2, outer_step=0.7), 16), (Attentive(bandwidth=0.7), 30), (APFL(share=0.9, share_rate=0.0), 25),
    (APFL(share=0.9, share_rate=0.02), 50), (Ditto(), 14), (Alone(), 16),
]  # fmt: skip


def test_every_rule_has_equations():
    assert set(TRUTH) == set(BY_NAME) == {rule.name for rule, _ in RULES}


@ENGINE
@pytest.mark.parametrize(("rule", "rounds"), RULES, ids=str)
def test_a_rule_comes_to_rest_where_its_equations_say(kind, rule, rounds):
    # rounds that push end in the same place; one engine is enough to see it
    for delivery in ("pull", "push") if kind is Vectorised else ("pull",):
        engine, released = rest(kind, rule, CLIENTS, rounds, delivery=delivery)
        weights, own, personal = TRUTH[rule.name](CLIENTS, rule)
        for found, truth in zip((released, *models(engine)), (weights, own, personal), strict=True):
            np.testing.assert_allclose(found, truth, **CLOSE)
        if rule.name == "apfl":  # what is kept makes up for the upload, by the share that it has come to
            share = np.array([client.share for client in engine.clients])[:, None]
            assert np.all((share > 0) & (share < 1))
            assert np.all((np.abs(share - rule.share) > 0.03) == (rule.share_rate > 0))
            kept = torch.stack([engine.kept.read(i)[0] for i in range(len(CLIENTS))])
            np.testing.assert_allclose(kept, (personal - (1 - share) * own) / share, **CLOSE)


@pytest.mark.parametrize(("rule", "rounds"), RULES, ids=str)
def test_with_other_numbers_it_would_rest_elsewhere(rule, rounds):
    """So the test above can tell a pull that is lost, doubled or turned round, and wrong weights of a mean."""

    def where(clients):
        return np.concatenate([np.ravel(part) for part in TRUTH[rule.name](clients, rule)])

    pulled = ("fedprox", "mean-regularised", "pfedme", "mixture", "attentive", "ditto")
    matters = {
        "mixing": rule.name in ("interpolate", "attentive"),
        "strength": rule.name in pulled,
        "steps": rule.name not in ("mean-regularised", "alone"),
    }
    for name, factors in {"mixing": (0, 0.5), "strength": (0, 0.5, 2, -0.5), "steps": (2,)}.items():
        for factor in factors:
            others = [replace(client, **{name: factor * getattr(client, name)}) for client in CLIENTS]
            assert (np.abs(where(others) - where(CLIENTS)).max() > 1e-3) == matters[name], (name, factor)


@ENGINE
def test_envelopes_are_minimised(kind):
    """F_i'(w) = λh_i/(h_i + λ)·(w − c_i): with one λ, one outer step and the inner minima, their sum comes to zero."""
    strength, optima, roots = 0.5, np.array([3.0, -1.0, 4.0]), np.array([2.0, 1.0, 1.5])
    h = roots**2
    rates = 1 / (h + strength)  # an inner step ends in the minimum
    numbers = zip(roots, optima, rates, strict=True)
    clients = [Client(((r,),), (r * c,), rate, 1, 1.0, strength) for r, c, rate in numbers]
    engine, released = rest(kind, PFedMe(inner_steps=2, outer_step=0.7), clients, 25, start=(1.0,))
    slopes = h / (h + strength)
    weights = slopes @ optima / slopes.sum()
    inner = (h * optima + strength * weights) / (h + strength)
    np.testing.assert_allclose(released, [weights], **CLOSE)
    np.testing.assert_allclose(models(engine)[1][:, 0], inner, **CLOSE)


@ENGINE
def test_two_alike_attend_to_each_other(kind):
    """Optima c and −c: w̃ = ±x with ξ = α·e^(−1/b), u = (1 − 2ξ)·x and x = A^K·u + (1 − A^K)·(H·c + λ·u)/(H + λ)."""
    h, c, rate, steps, mixing, strength, bandwidth = 4.0, 3.0, 0.1, 2, 0.7, 1.5, 0.8
    clients = [Client(((2.0,),), (sign * 2.0 * c,), rate, steps, mixing, strength) for sign in (1, -1)]
    engine, released = rest(kind, Attentive(bandwidth=bandwidth), clients, 45, start=(1.0,))
    left = (1 - rate * (h + strength)) ** steps
    shrunk = 1 - 2 * mixing * np.exp(-1 / bandwidth)
    x = (1 - left) * h * c / (h + strength) / (1 - shrunk * (left + (1 - left) * strength / (h + strength)))
    np.testing.assert_allclose(models(engine)[0], [[x], [-x]], **CLOSE)
    np.testing.assert_allclose(released, [0.0], **CLOSE)
