"""Augmentation inside the engines: each record of a batch has one version in a step, and one clipped gradient."""

import pytest
import torch

from prifedsync.accounting import Sampling
from prifedsync.engines import Performance, Reference, Vectorised
from prifedsync.local import RecordedDraws, SeededDraws
from prifedsync.local.augment import crop_flip
from prifedsync.local.host import moves_of
from prifedsync.rules import FedAvg
from prifedsync.values import BadValue

from ..local.zoo import CASES
from . import test_device
from .settings import assert_same, jobs_of, net_of, records_of, run, sums, twins, unnoised
from .test_device import CELL, DEVICES, OnDevice

PICTURES, SIGNALS = CASES["conv2d"], CASES["conv1d"]
ON = {"augment": "crop-flip"}


@pytest.mark.parametrize("batch", [3, "full"])
@pytest.mark.parametrize("make", [None, unnoised])
def test_both_engines_do_the_same(batch, make):
    jobs = jobs_of(batch=batch) if make is None else jobs_of(make, batch=batch)
    fast, slow = twins(net_of(PICTURES), jobs, records_of(PICTURES), **ON)
    assert_same(fast, slow)
    plain = run(Vectorised, net_of(PICTURES), jobs, records_of(PICTURES), SeededDraws(5))
    assert (plain.weights - fast.weights).norm() > 1e-3


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("batch", "sampling"), [(3, Sampling.FIXED), (3, Sampling.POISSON), ("full", Sampling.POISSON)])
@pytest.mark.parametrize("performance", [None, Performance(chunk=2), Performance(records_at_once=2)])
def test_a_device_does_the_same(device, batch, sampling, performance):
    net, jobs = test_device.net_of(PICTURES, device), jobs_of(batch=batch, sampling=sampling)
    assert_same(*test_device.twins(net, jobs, records_of(PICTURES), performance=performance, **ON), tolerance=CELL)


@pytest.mark.parametrize("device", DEVICES)
def test_augmentation_and_dropout_draw_apart(device):
    case = next(case for name, case in CASES.items() if "dropout" in name and len(case.shape) == 3)
    net = test_device.net_of(case, device)
    assert net.dropouts
    assert_same(*test_device.twins(net, jobs_of(), records_of(case), **ON), tolerance=CELL)


def test_each_record_is_drawn_once_a_step_under_its_own_key():
    tape = RecordedDraws(SeededDraws(3))  # refuses a key that is drawn twice
    run(Vectorised, net_of(PICTURES), jobs_of(batch="full", local_steps=2), records_of(PICTURES), tape, rounds=2, **ON)
    drawn = [key for _, key in tape.asked if key.purpose == "augment"]
    assert len(drawn) == 2 * 2 * sum(len(x) for x, _ in records_of(PICTURES))
    assert {key.step for key in drawn} == {0, 1}
    assert {key.round for key in drawn} == {0, 1}


@pytest.mark.parametrize("kind", [Vectorised, Reference, OnDevice])
def test_a_record_still_moves_a_sum_by_no_more_than_twice_the_clip_norm(kind):
    """Whatever version of it is drawn: replacing one record changes one clipped gradient."""
    net, records, clip = net_of(PICTURES), records_of(PICTURES, (6,)), 0.3
    (x, y), weights = records[0], net.initial().expand(1, -1)
    other = x.clone()
    other[2] = 100 * torch.randn(other[2].shape, generator=torch.Generator().manual_seed(4), dtype=x.dtype)
    jobs = jobs_of(sizes=(6,), batch="full", clip_norm=clip)
    found = [sums(kind(net, jobs, [(each, y)], FedAvg(), SeededDraws(1), **ON), 0, 0, [0], weights) for each in (x, other)]
    assert 0 < (found[0] - found[1]).norm() <= 2 * clip * (1 + 1e-9)


def test_the_sum_is_that_of_the_versions():
    net, (records,) = net_of(PICTURES), records_of(PICTURES, (5,))
    jobs, weights = jobs_of(sizes=(5,), batch="full"), net.initial().expand(1, -1)
    engine = Vectorised(net, jobs, [records], FedAvg(), SeededDraws(1), **ON)
    versions = crop_flip(records[0], moves_of(engine.clients[0], 0, 1, torch.arange(5)))
    plain = Vectorised(net, jobs, [(versions, records[1])], FedAvg(), SeededDraws(1))
    torch.testing.assert_close(sums(engine, 0, 1, [0], weights), sums(plain, 0, 1, [0], weights))


def test_records_that_are_no_images_are_refused():
    with pytest.raises(BadValue, match=r"local\.augment"):
        Vectorised(net_of(SIGNALS), jobs_of(), records_of(SIGNALS), FedAvg(), SeededDraws(1), **ON)
