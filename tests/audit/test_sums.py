"""`audit step` on a run that adds up messages: right engines pass, and each planted fault fails in the check about it."""

from dataclasses import replace

import pytest
import torch

from prifedsync.accounting import OutputPerturbation
from prifedsync.audit.fresh import check_fresh_noise
from prifedsync.audit.noise import check_noise
from prifedsync.audit.release import check_count
from prifedsync.audit.subject import Subject
from prifedsync.audit.sums import check_sum
from prifedsync.engines import Reference, Vectorised
from prifedsync.engines.messages import Bare
from prifedsync.fdp import Neighbours
from prifedsync.local import Net, SystemDraws, host, losses, noise
from prifedsync.local import client as clients

from .test_device import OnDevice
from .test_step import LABELS, NETS, PLAN, SGD, assert_passed, audit

STEP = replace(PLAN, local_steps=1)
OUTPUT = OutputPerturbation(noise_multiplier=0.7, clip_norm=2.0)


def failures(part, mechanism=STEP, engine=Vectorised, dtype=torch.float64):
    torch.manual_seed(0)
    module, x = NETS["linear"]()
    net = Net(module, losses.classes, x, LABELS, dtype)
    subject = Subject(net, x, LABELS, mechanism, SGD, engine, Neighbours.REPLACE, SystemDraws(), summed=True)
    found = part(subject)
    return {check.name for check in (found if isinstance(found, tuple) else (found,)) if not check.passed}


def check_some_noise(subject):
    return check_noise(subject, 2_000)


@pytest.mark.parametrize("engine", [Vectorised, Reference, OnDevice])
@pytest.mark.parametrize("mechanism", [STEP, replace(STEP, batch="full"), OUTPUT], ids=["batch", "full", "output"])
def test_right_engines_pass(engine, mechanism):
    dtype = torch.float32 if engine is Vectorised else torch.float64
    assert_passed(audit("linear", mechanism=mechanism, engine=engine, dtype=dtype, summed=True))


def planted(monkeypatch, change):
    """Noise is added with other numbers than it should be."""
    right = noise.integers

    def wrong(total, scale, factor, grid, draws, key):
        return right(*change(total, scale, factor, grid, draws, key))

    monkeypatch.setattr(noise, "integers", wrong)


@pytest.mark.parametrize("by", [2 / 3, 1.5])
@pytest.mark.parametrize("mechanism", [STEP, OUTPUT], ids=["steps", "output"])
def test_noise_of_another_scale(by, mechanism, monkeypatch):
    planted(monkeypatch, lambda total, scale, *others: (total, by * scale, *others))
    assert "noise scale" in failures(check_some_noise, mechanism)


@pytest.mark.parametrize("by", [2 / 3, 1.5])
def test_noise_of_another_scale_on_a_device(by, monkeypatch):
    right = noise.add_normals_in_cells

    def wrong(parts, planned, cells):
        return right(parts, planned._replace(scale=by * planned.scale), cells)

    monkeypatch.setattr(noise, "add_normals_in_cells", wrong)
    assert "noise scale" in failures(check_some_noise, engine=OnDevice)


def test_noise_that_is_rounded_away(monkeypatch):
    """A grid of four standard deviations."""
    planted(monkeypatch, lambda total, scale, factor, grid, *others: (total, scale, factor / 2048, grid, *others))
    assert failures(check_some_noise) >= {"noise scale", "noise shape"}


def test_noise_that_comes_back_in_every_round(monkeypatch):
    planted(monkeypatch, lambda *given: (*given[:-1], given[-1]._replace(round=0)))
    assert failures(check_fresh_noise) == {"noise used again"}


def test_noise_that_clients_share(monkeypatch):
    planted(monkeypatch, lambda *given: (*given[:-1], given[-1]._replace(client="everybody")))
    assert "independence" in failures(check_some_noise)


def test_noise_that_is_counted_twice_or_not_at_all(monkeypatch):
    right = noise.integers
    for count in (0, 2):
        monkeypatch.setattr(noise, "integers", lambda *given, count=count: right(*given)._replace(queries=count))
        assert failures(check_count) == {"count"}


def test_noise_that_is_left_out(monkeypatch):
    monkeypatch.setattr(
        noise, "integers",
        lambda total, scale, factor, grid, *draws: noise.NoisySum((total * factor / grid).round().long(), 1),
    )  # fmt: skip
    assert "noise scale" in failures(check_some_noise)
    assert failures(check_count) == {"count"}


def test_a_round_beyond_the_plan(monkeypatch):
    monkeypatch.setattr(clients.Client, "_refused", lambda self, round: None)
    assert failures(check_count) == {"count"}


def test_a_sum_that_is_rounded(monkeypatch):
    right = Bare.total
    monkeypatch.setattr(Bare, "total", lambda self: right(self) // 2 * 2)
    assert failures(check_sum) == {"sum"}


def test_a_sum_that_lacks_a_client(monkeypatch):
    right = Bare.add
    monkeypatch.setattr(Bare, "add", lambda self, names, words: right(self, names, words[: len(words) - 1]))
    assert failures(check_sum) == {"sum"}


def test_a_message_that_depends_on_its_company(monkeypatch):
    right = host.messages

    def wrong(sums, round, group, shared):
        words = right(sums, round, group, shared)
        return words.roll(1, 0)

    monkeypatch.setattr(host, "messages", wrong)
    assert failures(check_sum) == {"sum"}
