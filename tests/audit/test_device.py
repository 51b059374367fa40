"""The audit of an engine that makes its noise on the device: nothing is on a tape there, and faults still show."""

import pytest
import torch
from torch import nn

from prifedsync.accounting import NoisySteps
from prifedsync.audit import batches, noise, release
from prifedsync.audit.subject import Subject
from prifedsync.engines import Vectorised
from prifedsync.fdp import Neighbours
from prifedsync.local import CLIP_MARGIN, Net, Optimiser, SeededDraws, losses
from prifedsync.local import noise as adding
from prifedsync.local.device import stack as device
from prifedsync.local.device import streams

PLAN = NoisySteps(noise_multiplier=1.2, records=40, batch=10, local_steps=3, clip_margin=CLIP_MARGIN)


class OnDevice(Vectorised):
    @property
    def streams(self):
        return self.draws if isinstance(self.draws, streams.Streams) else None


@pytest.fixture(scope="module")
def subject():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module, x, y = nn.Linear(5, 2), torch.randn(12, 5), torch.randint(0, 2, (12,))
    net = Net(module, losses.classes, x, y, torch.float32)
    return Subject(net, x, y, PLAN, Optimiser(learning_rate=0.1), OnDevice, Neighbours.REPLACE, SeededDraws(7))


def failed(*checks):
    return {check.name for check in checks if not check.passed}


def test_a_right_engine_passes(subject):
    assert not failed(*noise.check_noise(subject, 4000), release.check_optimiser(subject), release.check_count(subject))
    assert not failed(*batches.check_batches(subject), release.check_padding(subject))


@pytest.mark.parametrize("factor", [0, 2 / 3, 1.5])
def test_noise_of_another_scale_shows(subject, factor, monkeypatch):
    right = adding.add_normals
    wrong = lambda parts, made, out: right(parts, made._replace(scale=made.scale * factor), out)  # noqa: E731
    monkeypatch.setattr(adding, "add_normals", wrong)
    found = failed(*noise.check_noise(subject, 4000), release.check_count(subject))
    assert {"noise scale", "count"} <= found


def test_the_same_noise_in_every_step_shows(subject, monkeypatch):
    right = adding.add_normals
    wrong = lambda parts, made, out: right(parts, made._replace(step=made.step * 0), out)  # noqa: E731
    monkeypatch.setattr(adding, "add_normals", wrong)
    assert "count" in failed(release.check_count(subject))


def test_one_query_too_few_shows(subject, monkeypatch):
    right = device.Stack.run

    def wrong(self, *given):
        self.local_steps -= 1
        try:
            return right(self, *given)
        finally:
            self.local_steps += 1

    monkeypatch.setattr(device.Stack, "run", wrong)
    assert "count" in failed(release.check_count(subject))


def test_batches_at_another_rate_show(subject, monkeypatch):
    right = device.choose

    def wrong(spec, terms, keys):
        return right(spec, terms._replace(rates=terms.rates * 1.4), keys)

    monkeypatch.setattr(device, "choose", wrong)
    assert failed(*batches.check_batches(subject))
