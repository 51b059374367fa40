"""A reader of the released models attacks the default run, and finds no more than the sum of all clients' noise allows.

The reader knows everything but one secret bit of each canary: all other records, the plan, the order of the clients. Of the
run it sees the global model after every round, and nothing else. A canary is a record with a column of its own, so each of
them can be attacked by itself in the same run, and its noise is that of no other.

The canary's column holds +REACH or −REACH. Its clipped gradients are then nearly opposite, 2·clip_norm apart, which is the
most that one record can do. The likelihood-ratio test of the two is the best test there is; the share of bits that it
guesses bounds μ from below: under a μ-GDP guarantee no test guesses more than Φ(μ/2) of fair bits.
"""

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise

import torch
from scipy import stats
from torch import nn

from prifedsync import data
from prifedsync.config import load
from prifedsync.data import Client, Records
from prifedsync.models import features
from prifedsync.run.loop import session
from prifedsync.run.prepare import prepare
from prifedsync.sync import synchronise

CANARIES = 1000  # in each run
RUNS = 8  # 8,000 bits: the ends of an interval of μ are 0.09 from its middle, and the three noises stay apart
REACH = 1.5  # long enough to be clipped while the column is being learnt, and short enough not to saturate the softmax
CHANCE = 1e-3  # of a bound on the wrong side; draws are seeded, so a test that passes keeps passing
CLAIM = 1 / math.sqrt(10)  # μ = 1 against everybody, ten clients in each sum
DIGIT = 0  # the label of every canary


def config_of(noise):
    """The default, with `noise` times the noise that μ = 1 needs."""
    default = load("digits", ["compare=[]", "model.features=none"])
    steps = prepare(default).jobs[0].plan.mechanism.steps
    return default.changed(**{"privacy.target.mu": None, "privacy.noise_multiplier": noise * steps.noise_multiplier})


def with_canaries(federation, signs):
    """Each record gets a column for each canary, and each client its share of the canaries, which are zero elsewhere."""
    hog = features("hog", federation.shape)
    clients = []
    for place, client in enumerate(federation.clients):
        own = torch.arange(place, len(signs), len(federation.clients))
        plain = nn.functional.pad(hog(client.train.x), (0, len(signs)))
        canaries = torch.zeros(len(own), plain.shape[1])
        canaries[torch.arange(len(own)), plain.shape[1] - len(signs) + own] = REACH * signs[own]
        labels = torch.full((len(own),), DIGIT)
        train = Records(torch.cat([plain, canaries]), torch.cat([client.train.y, labels]))
        clients.append(Client(client.name, train, Records(train.x[:0], train.y[:0])))
    return replace(federation, clients=tuple(clients), encoding=None)


def released(config, federation):
    """The plan, and the global model after every round: all that a reader sees."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(federation.shape[0], 10, bias=False))
    nn.init.zeros_(net[1].weight)
    prepared = prepare(config, federation, net)
    run = session(prepared, None)
    rounds = synchronise(prepared.synchronisation, run.aggregator, run.engine, run.server)
    return prepared, [run.server.weights, *(server.weights for server, _ in rounds)]


def gradient(columns, sign, clip):
    """The clipped gradient of each canary in its own column [N, 10], if it has this sign."""
    towards = torch.softmax(sign * REACH * columns, dim=1)
    towards[:, DIGIT] -= 1
    vector = sign * REACH * towards
    return vector * (clip / vector.norm(dim=1, keepdim=True)).clamp(max=1)


def evidence(prepared, models, canaries):
    """The log-likelihood ratio of each canary up to a positive factor, and how far its gradients are apart, in 2·clip."""
    config = prepared.config
    clip = config.privacy.clip_norm
    records = sum(client.train.units for client in prepared.held.clients)
    columns = [model.double().reshape(10, -1)[:, -canaries:].T for model in models]
    ratio = torch.zeros(canaries, dtype=torch.float64)
    apart = torch.zeros(canaries, dtype=torch.float64)
    for before, after in pairwise(columns):
        noisy_sum = (before - after) * records / config.local.learning_rate
        plus, minus = (gradient(before, sign, clip) for sign in (1, -1))
        ratio += ((noisy_sum - (plus + minus) / 2) * (plus - minus)).sum(1)
        apart += (plus - minus).square().sum(1)
    return ratio, (apart.mean() / config.rounds).sqrt().item() / (2 * clip)


@cache
def attacked(noise, runs):
    """Bits guessed, bits in all, and the share of the largest distance between two gradients that canaries reach."""
    config = config_of(noise)
    plain = data.load(config.data, config.seed)
    guessed = 0
    apart = 0.0
    for run in range(runs):
        signs = torch.randint(0, 2, (CANARIES,), generator=torch.Generator().manual_seed(run)) * 2 - 1
        prepared, models = released(config.changed(seed=run), with_canaries(plain, signs))
        ratio, apart = evidence(prepared, models, CANARIES)
        guessed += int((ratio.sign() == signs).sum())
    return guessed, runs * CANARIES, apart


def mu_between(guessed, of):
    """The interval of μ by the share of bits that were guessed; each end is wrong with probability CHANCE."""
    ends = stats.binomtest(guessed, of).proportion_ci(1 - 2 * CHANCE, "exact")
    return 2 * stats.norm.ppf(ends.low), 2 * stats.norm.ppf(ends.high)


def test_readers_of_all_released_models_stay_below_their_claim():
    guessed, of, apart = attacked(1.0, RUNS)
    low, high = mu_between(guessed, of)
    print(f"{guessed} of {of} bits: μ from {low:.4f} to {high:.4f}, claimed {CLAIM:.4f}; gradients {apart:.3f}·2C apart")
    assert apart > 0.95  # the canaries are nearly the worst records
    assert low < CLAIM < high / apart
    assert low > 0.6 * CLAIM  # so a claim with a gain of 10 in place of √10 is refuted
    assert high < 0.5  # and one without a gain is far from what readers can do


def test_the_attack_refutes_the_claim_if_there_is_less_noise():
    guessed, of, _ = attacked(2 / 3, RUNS)
    assert mu_between(guessed, of)[0] > CLAIM


def test_the_attack_finds_less_where_there_is_more_noise():
    guessed, of, apart = attacked(1.5, RUNS)
    assert mu_between(guessed, of)[1] < CLAIM * apart
