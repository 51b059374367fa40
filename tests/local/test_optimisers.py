"""Optimisers against torch.optim, step by step; schedules against hand-worked values."""

import math

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from prifedsync.local import Optimiser, Schedule
from prifedsync.local.optimisers import OPTIMISERS, Stacked
from prifedsync.values import BadValue

THEIRS = {
    "sgd": lambda p, o: torch.optim.SGD(p, o.learning_rate, weight_decay=o.weight_decay),
    "momentum": lambda p, o: torch.optim.SGD(p, o.learning_rate, o.momentum, weight_decay=o.weight_decay),
    "adam": lambda p, o: torch.optim.Adam(p, o.learning_rate, o.betas, o.stability, o.weight_decay),
    "adagrad": lambda p, o: torch.optim.Adagrad(p, o.learning_rate, eps=o.stability, weight_decay=o.weight_decay),
    "rmsprop": lambda p, o: torch.optim.RMSprop(p, o.learning_rate, o.decay, o.stability, o.weight_decay),
}


def test_every_optimiser_is_compared():
    assert THEIRS.keys() == OPTIMISERS.keys()


@pytest.mark.parametrize("name", THEIRS)
def test_stacked_clients_step_as_torch_does(name):
    """Three clients, each with numbers of its own; the last without weight decay."""
    optimisers = [
        Optimiser(name=name, learning_rate=0.3, momentum=0.5, betas=(0.8, 0.9), decay=0.7, weight_decay=0.1),
        Optimiser(name=name, learning_rate=0.01, momentum=0.9, betas=(0.9, 0.99), stability=1e-3, weight_decay=0.5),
        Optimiser(name=name, learning_rate=1.0),
    ]
    dice = torch.Generator().manual_seed(0)
    weights = torch.randn(3, 7, generator=dice, dtype=torch.float64)
    leaves = [torch.nn.Parameter(row.clone()) for row in weights]
    theirs = [THEIRS[name]([leaf], o) for leaf, o in zip(leaves, optimisers, strict=True)]
    stacked = Stacked(optimisers, [0, 0, 0], weights)
    slots = {slot: torch.zeros_like(weights) for slot in OPTIMISERS[name].slots}
    for count in range(1, 6):
        gradient = torch.randn(3, 7, generator=dice, dtype=torch.float64)
        for leaf, row, optimiser in zip(leaves, gradient.clone(), theirs, strict=True):
            leaf.grad = row
            optimiser.step()
        before, given = weights.clone(), weights
        weights = stacked.step(weights, gradient, slots, torch.full((3, 1), float(count), dtype=torch.float64))
        assert torch.equal(given, before)  # where a round began is needed when it ends
        torch.testing.assert_close(weights, torch.stack([leaf.detach() for leaf in leaves]), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", THEIRS)
def test_a_step_can_be_traced(name, decay):
    """As plain operations, none of which depends on what tensors hold."""
    stacked = Stacked([Optimiser(name=name, weight_decay=decay)] * 2, [0, 0], torch.zeros(2, 5, dtype=torch.float64))
    weights, gradient, count = torch.ones(2, 5).double(), torch.full((2, 5), 0.3).double(), torch.ones(2, 1).double()
    seen, traced = ({slot: torch.ones_like(weights) for slot in OPTIMISERS[name].slots} for _ in range(2))
    example = weights.clone(), gradient.clone(), {slot: weights.clone() for slot in OPTIMISERS[name].slots}, count
    program = make_fx(lambda *given: stacked.step(*given))(*example)
    after = program(weights, gradient.clone(), traced, count)
    assert torch.equal(after, stacked.step(weights, gradient.clone(), seen, count))
    assert all(torch.equal(traced[slot], seen[slot]) for slot in OPTIMISERS[name].slots)


@pytest.mark.parametrize("name", THEIRS)
def test_a_rate_of_zero_and_a_gradient_of_zero_move_nothing(name):
    """The last round of a cosine, and a weight that nothing depends on."""
    optimiser = Optimiser(name=name, schedule=Schedule(kind="cosine", rounds=1))
    weights = torch.linspace(-1, 1, 10).reshape(2, 5)
    for taken, gradient in ((1, torch.ones(2, 5)), (0, torch.zeros(2, 5)), (1, torch.zeros(2, 5))):
        slots = {slot: torch.zeros(2, 5) for slot in OPTIMISERS[name].slots}
        stacked = Stacked([optimiser] * 2, [taken] * 2, weights)
        assert torch.equal(stacked.step(weights, gradient, slots, torch.ones(2, 1)), weights)


SCHEDULES = [
    (Schedule(), [1, 1, 1, 1, 1]),
    (Schedule(kind="step", every=2, factor=0.5), [1, 1, 0.5, 0.5, 0.25]),
    (Schedule(kind="cosine", rounds=4), [1, 0.5 + math.sqrt(2) / 4, 0.5, 0.5 - math.sqrt(2) / 4, 0]),
    (Schedule(kind="cosine", rounds=2), [1, 0.5, 0, 0, 0]),
    (Schedule(kind="inverse-sqrt"), [1, 1 / math.sqrt(2), 1 / math.sqrt(3), 0.5, 1 / math.sqrt(5)]),
]


@pytest.mark.parametrize(("schedule", "factors"), SCHEDULES, ids=lambda v: getattr(v, "kind", ""))
def test_schedules(schedule, factors):
    assert [schedule.at(taken) for taken in range(5)] == pytest.approx(factors, abs=1e-15)
    optimiser = Optimiser(learning_rate=3.0, schedule=schedule)
    stacked = Stacked([optimiser] * 5, list(range(5)), torch.zeros(5, 1, dtype=torch.float64))
    assert stacked.rate.flatten().tolist() == pytest.approx([3 * factor for factor in factors], abs=1e-15)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"name": "lion"}, "optimiser = lion must be one of sgd, momentum, adam, adagrad, rmsprop"),
        ({"learning_rate": 0.0}, "learning_rate = 0.0"),
        ({"momentum": 1.0}, "momentum = 1.0"),
        ({"betas": (0.9, 1.0)}, "betas = 1.0"),
        ({"decay": -0.1}, "decay = -0.1"),
        ({"stability": 0.0}, "stability = 0.0"),
        ({"weight_decay": -1.0}, "weight_decay = -1.0"),
    ],
)
def test_bad_numbers_are_refused(changed, says):
    with pytest.raises(BadValue) as refusal:
        Optimiser(**changed)
    assert str(refusal.value).startswith(says)


@pytest.mark.parametrize(("kind", "every", "factor"), [("linear", 1, 0.5), ("step", 0, 0.5), ("step", 1, 0.0)])
def test_bad_schedules_are_refused(kind, every, factor):
    with pytest.raises(BadValue, match="schedule"):
        Schedule(kind=kind, every=every, factor=factor)
