"""What a step sums up: every record of its batch, however many they are, each by its own loss alone."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import prifedsync
from prifedsync import run
from prifedsync.accounting import Neighbours, NoisySteps, PrivacyPlan
from prifedsync.audit.subject import sums
from prifedsync.engines import Performance, Reference, Vectorised
from prifedsync.local import CLIP_MARGIN, Job, Net, Optimiser, SystemDraws, host, losses
from prifedsync.local.batches import choose, expected_size
from prifedsync.local.device import stack as device
from prifedsync.local.device import streams
from prifedsync.rules import FedAvg

from ..audit.test_device import OnDevice

BATCH, RECORDS = 10, 50
CLIP = 0.5
X = torch.randn(RECORDS, 6, generator=torch.Generator().manual_seed(0)).double()
Y = torch.arange(RECORDS) % 3


def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(6, 3)


def by_hand(module, x, y, clip):
    """Σ of clipped gradients, by plain autograd and without a line of the engine's."""
    module = module.double()
    total = 0
    for record, label in zip(x.double(), y, strict=True):
        loss = F.cross_entropy(module(record)[None], label[None])
        gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(module.parameters()))])
        total = total + gradient * torch.clamp(clip / gradient.norm(), max=1.0)
    return total


# ------------------------------------------------------------------ a batch five times as large as expected


def all_drawn(monkeypatch):
    """Every coin falls so that its record is in the batch."""
    uniform = SystemDraws.uniform

    def lucky(self, key, count):
        found = uniform(self, key, count)
        return found * 1e-9 if key.purpose == "batch" else found

    made = streams.uniforms
    monkeypatch.setattr(SystemDraws, "uniform", lucky)
    monkeypatch.setattr(streams, "uniforms", lambda *given: made(*given) * 1e-9)


def summed(engine, records_at_once=0):
    plan = PrivacyPlan(
        mechanism=NoisySteps(
            noise_multiplier=1.0, records=RECORDS, batch=BATCH, local_steps=1, clip_norm=CLIP, clip_margin=CLIP_MARGIN
        ),
        rounds=1,
        neighbours=Neighbours.REPLACE,
    )
    net = Net(model(), losses.classes, X, Y, torch.float64)
    jobs = [Job(client=f"site {i}", plan=plan, optimiser=Optimiser()) for i in range(3)]
    how = Performance(records_at_once=records_at_once)
    return sums(engine(net, jobs, [(X, Y)] * 3, FedAvg(), SystemDraws(), performance=how), net.initial())


@pytest.mark.parametrize("records_at_once", [0, 7])
@pytest.mark.parametrize("engine", [Vectorised, Reference, OnDevice])
def test_a_batch_five_times_as_large_as_expected_is_summed_whole(monkeypatch, engine, records_at_once):
    """Records dropped where a batch is full would make a record's weight depend on the others."""
    all_drawn(monkeypatch)
    whole = by_hand(model(), X, Y, CLIP)
    for found in summed(engine, records_at_once):
        torch.testing.assert_close(found, whole, rtol=1e-9, atol=1e-9)


def test_records_beyond_three_times_the_batch_dropped(monkeypatch):
    """The fault itself, on both paths: it shows in the sum."""
    whole = by_hand(model(), X, Y, CLIP)
    right = device.choose

    def cut_on_device(spec, terms, keys):
        found = right(spec, terms, keys)
        found.valid[..., 3 * spec.batch :] = False
        return found

    all_drawn(monkeypatch)
    cut = lambda steps, *rest: choose(steps, *rest)[: 3 * expected_size(steps)]  # noqa: E731
    monkeypatch.setattr(host, "choose", cut)
    monkeypatch.setattr(device, "choose", cut_on_device)
    for engine in (Vectorised, OnDevice):
        assert float((summed(engine) - whole).norm(dim=1).min()) > CLIP


# ------------------------------------------------------------------ other records' labels

SKEWED = torch.where(torch.arange(RECORDS) < 40, 0, Y)  # classes of very different size


def whole_sum(labels):
    """The first clipped sum of a run over these labels, with a clip norm that hides nothing."""
    config = {
        "data": {"classes": 3, "test_fraction": 0},
        "local": {"batch": "full"},
        "privacy": {"noise_multiplier": 1.0, "clip_norm": 100.0, "randomness": "system"},
        "performance": {"device": "cpu", "dtype": "float64"},
    }
    clients = {"a": (X, labels), "b": (X, Y)}
    prepared = run.prepare(prifedsync.config.from_mapping(config), clients, model())
    return sums(prepared.cohort(SystemDraws()), prepared.net.initial())


def test_a_record_adds_the_gradient_of_its_own_loss_alone():
    """Losses weighted by private class counts: a record's label changes what all others of its class add."""
    first, second = whole_sum(SKEWED)
    torch.testing.assert_close(first, by_hand(model(), X, SKEWED, 100.0), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(second, by_hand(model(), X, Y, 100.0), rtol=1e-6, atol=1e-6)


def test_losses_weighted_by_private_class_counts(monkeypatch):
    """The fault itself: weights made of all labels before the first round."""
    right = run.prepare

    def weighted(*given):
        prepared = right(*given)
        labels = torch.cat([client.train.y for client in prepared.federation.clients])
        weights = len(labels) / (3 * torch.bincount(labels).double())
        plain = prepared.net.loss
        prepared.net.loss = lambda outputs, y: plain(outputs, y) * weights[y]
        return prepared

    monkeypatch.setattr(run, "prepare", weighted)
    assert float((whole_sum(SKEWED)[0] - by_hand(model(), X, SKEWED, 100.0)).norm()) > 1
