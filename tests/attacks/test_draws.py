"""Random numbers of whole runs under secret draws: whoever knows the config and all past rounds knows none of the next.

Clients hold one-hot records of a linear model, targets are far off and noise is small, so that every upload shows which
records its batch had and which noise was added. Two runs with the same config and seed follow each other in one folder.
A right program fails here in less than one run of 10^7.
"""

import shutil
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import prifedsync
from prifedsync.audit import statistics
from prifedsync.engines import ENGINES
from prifedsync.local import SeededDraws, SystemDraws
from prifedsync.run import RoundDone

from ..audit.test_device import OnDevice
from ..engines.settings import heard_messages

CLIENTS, RECORDS, BATCH, ROUNDS = 8, 64, 32, 200
NOISE = 0.06  # clip norms: a record is told from none by eight standard deviations
CHANCE = 1e-9  # of a false alarm, a test
CONFIG = {
    "rounds": ROUNDS,
    "participation": 0.5,
    "seed": 3,
    "compare": [],
    "data": {"task": "regression", "test_fraction": 0},
    "local": {"batch": BATCH, "local_steps": 1, "learning_rate": 1.0, "optimiser": "sgd"},
    "rule": {"name": "fedavg"},
    "privacy": {"noise_multiplier": NOISE, "clip_norm": 1.0, "randomness": "system"},
    "performance": {"device": "cpu", "checkpoint_seconds": 1e9},
}


def transparent():
    model = nn.Linear(RECORDS, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def one_hot():
    return {f"site {i}": (torch.eye(RECORDS), torch.full((RECORDS,), -1e6)) for i in range(CLIENTS)}


@dataclass
class Seen:
    """What can be known of a run from outside, and its key."""

    batches: dict = field(default_factory=dict)  # (client, round) → whether each record was in it
    noise: dict = field(default_factory=dict)  # (client, round) → in units of its scale
    coins: np.ndarray = field(default_factory=lambda: np.zeros((CLIENTS, ROUNDS)))
    drawn: list = field(default_factory=list)  # secret draws: kind, key, bytes
    seeded: list = field(default_factory=list)  # keys of draws by a seed
    secret: bytes = b""


class Over(BaseException):
    """All rounds are done; accounting for so little noise would take long, and is not looked at."""


def watched(folder, patch):
    """One run in this folder, seen from outside."""
    seen = Seen()
    uniform = SystemDraws.uniform
    normal = SystemDraws.normal

    def heard(client, round, total):
        i = client.index
        seen.batches[i, round] = total.numpy() > 0.5
        seen.noise[i, round] = (total.numpy() - seen.batches[i, round]) / NOISE
        seen.coins[i, round] = 1

    def noted(kind, draw):
        def drawing(self, key, count):
            values = draw(self, key, count)
            if kind == "normal" or key.purpose in ("batch", "coin"):
                seen.drawn.append((kind, key, values.numpy().tobytes()))
            return values

        return drawing

    def known(self, key, count):
        seen.seeded.append(key)
        return seeded(self, key, count)

    def watch(event):
        if isinstance(event, RoundDone) and event.round == ROUNDS:
            seen.secret = (folder / "checkpoint/secret.key").read_bytes()
            raise Over

    seeded = SeededDraws.uniform
    patch.setattr(SystemDraws, "uniform", noted("uniform", uniform))
    patch.setattr(SystemDraws, "normal", noted("normal", normal))
    patch.setattr(SeededDraws, "uniform", known)
    with heard_messages(heard), pytest.raises(Over):
        prifedsync.train(CONFIG, clients=one_hot(), model=transparent(), out=folder, watch=watch)
    return seen


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secret") / "run"
    found = []
    for _ in range(2):
        with pytest.MonkeyPatch.context() as patch:
            found.append(watched(folder, patch))
        shutil.rmtree(folder)
    return found


def test_every_upload_shows_its_batch_and_its_noise(runs):
    """No attack: what is read off uploads is one Poisson batch and normal noise, or nothing below would mean anything."""
    batches = np.stack([batch for seen in runs for batch in seen.batches.values()])
    noise = np.stack([noise for seen in runs for noise in seen.noise.values()])
    assert stats.binomtest(int(batches.sum()), batches.size, BATCH / RECORDS).pvalue > CHANCE
    assert abs(noise.std() - 1) < 0.02
    assert np.abs(noise).max() < 8


def test_a_batch_is_known_from_no_other_round_or_run(runs):
    """Batches that come back after some rounds, or in the next run with the seed, can be looked up."""
    batches = [batch.tobytes() for seen in runs for batch in seen.batches.values()]
    assert len(batches) > CLIENTS * ROUNDS * 0.8
    assert len(set(batches)) == len(batches)  # two of 1,600 agree by chance in one case of 10^13


def test_noise_is_known_from_no_other_round_or_run(runs):
    """Noise that comes back is subtracted."""
    noise = np.stack([noise for seen in runs for noise in seen.noise.values()])
    assert statistics.correlation(noise)[1] > CHANCE


def test_who_takes_part_is_known_from_no_other_round_client_or_run(runs):
    """A coin that is tossed once, every so many rounds, for all clients, or from the seed, says who is next."""
    coins = np.concatenate([seen.coins for seen in runs])
    for client in coins:
        assert stats.binomtest(int(client.sum()), ROUNDS, 0.5).pvalue > CHANCE
    assert statistics.repetition(coins - 0.5)[1] > CHANCE
    assert statistics.agreement(coins - 0.5) > CHANCE


def test_one_client_alternates_as_a_coin_does(runs):
    """Wald and Wolfowitz: a client that takes part in stretches, or every other time, is known in advance."""
    for client in np.concatenate([seen.coins for seen in runs]):
        changes = int(np.sum(client[1:] != client[:-1]))
        assert stats.binomtest(changes, ROUNDS - 1, 0.5).pvalue > CHANCE


def test_no_two_secret_draws_have_the_same_key_or_the_same_bits(runs):
    """Two draws of one name are one draw."""
    for seen in runs:
        keys = [(kind, key) for kind, key, _ in seen.drawn]
        assert {key.purpose for _, key in keys} == {"noise", "batch", "coin"}
        assert len(set(keys)) == len(keys)
    bits = [bits for seen in runs for _, _, bits in seen.drawn]
    assert len(set(bits)) == len(bits)


def test_nothing_is_drawn_from_the_seed(runs):
    """The seed stands in the config, which is public."""
    assert not any(seen.seeded for seen in runs)


def test_a_key_is_new_and_all_of_it_is_random(runs):
    """A key of few random bytes, or made of the folder's name, is guessed. Random ones fail once in 10^12."""
    first, second = (seen.secret for seen in runs)
    for secret in (first, second):
        assert len(secret) == 32
        assert len(set(secret)) > 20
    assert sum(one == other for one, other in zip(first, second, strict=True)) < 8


def test_no_two_streams_of_a_device_have_the_same_key(monkeypatch):
    """A GPU makes all noise of a round from one key: rounds, clients and purposes must not share it."""
    stream = SystemDraws.stream
    asked = []
    drawn = []

    def noted(self, client, round, purpose):
        key = stream(self, client, round, purpose)
        if purpose in ("noise", "batch"):
            asked.append((client, round, purpose))
            drawn.append(key)
        return key

    monkeypatch.setitem(ENGINES, "vectorised", OnDevice)
    monkeypatch.setattr(SystemDraws, "stream", noted)
    x = torch.eye(6)
    config = CONFIG | {"rounds": 40, "participation": 1.0, "local": {"batch": 3}, "privacy": {"noise_multiplier": 2.0}}
    config["privacy"]["randomness"] = "system"
    for _ in range(2):
        prifedsync.train(config, clients={"a": (x, x[0]), "b": (x, x[1])})
    assert len(asked) == 2 * 40 * 2 * 2
    assert len(set(asked)) == len(asked) / 2
    assert len(set(drawn)) == len(drawn)
    assert all(len(set(key)) > 16 for key in drawn)
