"""An optimiser from outside the package: the same in every engine, and refused in one line where it cannot be used."""

from dataclasses import dataclass, replace

import pytest
import torch

from prifedsync.engines import Reference, Vectorised
from prifedsync.local import Optimiser, SeededDraws, Update
from prifedsync.local.optimisers import OPTIMISERS, Stacked, by_name, checked, single, torch_twin
from prifedsync.local.optimisers.builtin import Adam
from prifedsync.rules import FedAvg
from prifedsync.values import BadValue

from ..engines.settings import MLP, ask, assert_same, jobs_of, net_of, noisy_queries, records_of, rounds_taken, run, twins
from ..engines.test_device import CELL, DEVICES
from ..engines.test_device import net_of as net_on
from ..engines.test_device import twins as on_device


@dataclass(frozen=True)
class Lion(Update):
    """The sign of a blend of the last mean and the gradient (Chen et al. 2023); changes nothing in place."""

    blend: float = 0.9
    name = "lion"
    slots = ("mean",)
    reads = ("beta2",)

    def step(self, w, g, slots, numbers, count):
        direction = torch.tanh(50 * torch.lerp(g, slots["mean"], self.blend))  # smooth, so that rounding stays small
        slots["mean"] = torch.lerp(g, slots["mean"], numbers["beta2"])
        return w - numbers["rate"] * direction


class HeavyBall(Update):
    """Momentum as the package has it, by another name, with its torch twin."""

    name = "heavy ball"
    slots = ("velocity",)
    reads = ("momentum",)
    proportional = True
    torch_slots = OPTIMISERS["momentum"].torch_slots

    def step(self, w, g, slots, numbers, count):
        slots["velocity"].mul_(numbers["momentum"]).add_(g)
        return w - numbers["rate"] * slots["velocity"]

    def torch_twin(self, optimiser, parameters, rate):
        decay = optimiser.weight_decay
        return torch.optim.SGD(parameters, lr=rate, momentum=optimiser.momentum, weight_decay=decay)


class Decoupled(Update):
    """SGD whose weight decay is not part of the gradient."""

    name = "decoupled"
    reads = ("weight_decay",)

    def step(self, w, g, slots, numbers, count):
        return w * (1 - numbers["rate"] * numbers["weight_decay"]) - numbers["rate"] * g


OWN = {"lion": Lion(), "heavy ball": HeavyBall(), "decoupled": Decoupled()}


def own(name, **changed):
    return Optimiser(name=f"mine:{name}", own=checked("optimiser", name, OWN[name]), learning_rate=0.05, **changed)


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("carried", [True, False])
@pytest.mark.parametrize("name", OWN)
def test_both_engines_agree(name, carried, decay):
    jobs = jobs_of(optimiser=own(name, carried=carried, weight_decay=decay), local_steps=3)
    fast, slow = twins(net_of(MLP), jobs, records_of(MLP), participation=0.8)
    assert_same(fast, slow)
    assert noisy_queries(fast.engine) == [3 * rounds for rounds in rounds_taken(fast.engine)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("averaging", [0.0, 0.5])
@pytest.mark.parametrize("name", OWN)
def test_the_engine_on_a_device_agrees(name, averaging, device):
    """Three rounds, so that a step is also replayed where it can be."""
    jobs = jobs_of(optimiser=own(name, weight_decay=0.1), local_steps=3, averaging=averaging)
    assert_same(*on_device(net_on(MLP, device), jobs, records_of(MLP)), tolerance=CELL)


def test_it_may_stand_beside_built_in_ones():
    jobs = jobs_of(optimiser=Optimiser(name="adam", learning_rate=0.05, stability=1e-3))
    jobs[1] = replace(jobs[1], optimiser=own("lion"))
    jobs[3] = replace(jobs[3], optimiser=own("heavy ball"))
    fast, slow = twins(net_of(MLP), jobs, records_of(MLP))
    assert_same(fast, slow)
    assert fast.engine.slots == ("own", "mean", "square", "velocity")


def test_heavy_ball_is_the_package_s_momentum():
    mine = run(Vectorised, net_of(MLP), jobs_of(optimiser=own("heavy ball")), records_of(MLP), SeededDraws(3))
    theirs = Optimiser(name="momentum", learning_rate=0.05)
    other = run(Vectorised, net_of(MLP), jobs_of(optimiser=theirs), records_of(MLP), SeededDraws(3))
    torch.testing.assert_close(mine.weights, other.weights, rtol=1e-12, atol=1e-12)


def test_only_built_in_updates_run_in_the_gpu_kernel():
    assert all(update.kernel == name for name, update in OPTIMISERS.items())
    assert Lion.kernel is None

    class Changed(Adam):
        def step(self, w, g, slots, numbers, count):
            return w

    assert Changed.kernel is None  # or a GPU would run adam in its place


def test_a_torch_twin_is_used_where_there_is_one():
    weights = torch.ones(4)
    assert torch_twin(own("lion"), [weights]) is None
    assert torch_twin(own("heavy ball"), [torch.nn.Parameter(weights)]).defaults["lr"] == 0.05
    assert type(single(own("heavy ball"), 0, weights, {}, 0)).__name__ == "_ByTorch"
    assert type(single(own("lion"), 0, weights, {"mean": torch.zeros(4)}, 0)).__name__ == "_ByRow"


class Greedy(Update):
    """Changes all that it is given."""

    name = "greedy"

    def step(self, w, g, slots, numbers, count):
        count.add_(100)
        numbers["rate"] = numbers["rate"] * 2
        return w.sub_(g)


@pytest.mark.parametrize("kind", [Vectorised, Reference])
def test_where_a_round_began_cannot_be_changed(kind):
    """Output perturbation clips the way from there: an update that moved the start would be released without a bound."""
    weights = torch.randn(2, 5)
    stacked = Stacked([Optimiser(name="mine:greedy", own=Greedy())] * 2, [0, 0], weights)
    before, count = weights.clone(), torch.ones(2, 1)
    first = stacked.step(weights, torch.ones(2, 5), {}, count)
    assert torch.equal(weights, before)
    assert torch.equal(count, torch.ones(2, 1))
    assert torch.equal(stacked.step(weights, torch.ones(2, 5), {}, count), first)
    job = jobs_of(optimiser=Optimiser(name="mine:greedy", own=Greedy(), learning_rate=0.1))
    engine = kind(net_of(MLP), job, records_of(MLP), FedAvg(), SeededDraws(1))
    start = engine.start.clone()
    ask(engine, 0, range(4), engine.start)
    assert torch.equal(engine.start, start)


def test_two_optimisers_of_one_name_are_refused():
    with pytest.raises(BadValue, match="optimiser = mine names two different optimisers; give each"):
        Stacked([Optimiser(name="mine", own=Lion()), Optimiser(name="mine", own=Lion(0.5))], [0, 0], torch.ones(2, 3))
    with pytest.raises(BadValue, match="optimiser = adam is the name of a built-in optimiser"):
        Optimiser(name="adam", own=Lion())


# ------------------------------------------------------------------ what cannot be used


class Plain(Update):
    name = "plain"

    def step(self, w, g, slots, numbers, count):
        return w - numbers["rate"] * g


class Undeclared(Plain):
    def step(self, w, g, slots, numbers, count):
        return w - numbers["momentum"] * g


class Remembers(Plain):
    last = 0.0

    def step(self, w, g, slots, numbers, count):
        step = g + self.last
        self.last = 0.5 * g.sum(1, keepdim=True).mean()
        return w - numbers["rate"] * step


class Random(Plain):
    def step(self, w, g, slots, numbers, count):
        return w - numbers["rate"] * (g + torch.rand_like(g))


class Mixes(Plain):
    def step(self, w, g, slots, numbers, count):
        return w - numbers["rate"] * g / g.norm()


class Flattens(Plain):
    def step(self, w, g, slots, numbers, count):
        return (w - numbers["rate"] * g).sum(1)


class Doubles(Plain):
    def step(self, w, g, slots, numbers, count):
        return w.double() - numbers["rate"] * g


class OtherTwin(HeavyBall):
    def torch_twin(self, optimiser, parameters, rate):
        return torch.optim.SGD(parameters, lr=rate, momentum=0.1, weight_decay=optimiser.weight_decay)


class FasterAdam(Adam):
    def step(self, w, g, slots, numbers, count):
        return super().step(w, 2 * g, slots, numbers, count)


class Takes(Plain):
    slots = ("helper",)


class NoTuple(Plain):
    slots = "mean"


class NeedsMore(Plain):
    def __init__(self, part):
        self.part = part


class Reads(Plain):
    reads = ("lr",)


class Kernel(Plain):
    kernel = "sgd"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (Undeclared, "failed in a trial step with made-up gradients: KeyError: 'momentum'"),
        (Remembers, "gave another result for the same input: it must be a pure function"),
        (Random, "gave another result for the same input"),
        (Mixes, "gave a client another result in a stack than alone; treat every row by itself"),
        (Flattens, "failed in a trial step with made-up gradients"),
        (Doubles, "made torch.float64 of float32"),
        (OtherTwin, "does not do what its torch twin does"),
        (FasterAdam, "does not do what its torch twin does"),
        (Takes, "has a slot called 'helper'"),
        (NoTuple, "has slots = 'mean', which is no tuple"),
        (NeedsMore, "failed in a trial step with made-up gradients: TypeError"),
        (Reads, "reads 'lr', which an optimiser is not told; choose from rate, momentum, decay"),
        (Kernel, "says that the GPU kernel knows it as 'sgd'; leave `kernel` out"),
        (torch.optim.SGD, "must be an Update, and is a type; derive a class from"),
        ("adamw", "must be an Update, and is a str"),
    ],
)
def test_what_cannot_be_used_is_refused_before_training(given, says):
    with pytest.raises(BadValue) as refusal:
        checked("optimiser", "mine", given)
    assert str(refusal.value).startswith(f"optimiser = mine {says}")


def test_a_class_a_value_or_a_function_that_makes_one(tmp_path):
    assert isinstance(checked("optimiser", "mine", Lion), Lion)
    assert checked("optimiser", "mine", OWN["lion"]) is OWN["lion"]
    (tmp_path / "mine.py").write_text(
        "from prifedsync.local import Update\n\nclass Half(Update):\n    def __init__(self, part=0.5):\n"
        "        self.part = part\n    def step(self, w, g, slots, numbers, count):\n"
        "        return w - self.part * numbers['rate'] * g\n\ndef quarter():\n    return Half(0.25)\n\nnothing = print\n"
    )
    assert by_name("local.optimiser", f"{tmp_path}/mine.py:Half").part == 0.5
    assert by_name("local.optimiser", f"{tmp_path}/mine.py:quarter").part == 0.25
    with pytest.raises(BadValue, match="must be an Update, and is a NoneType"):
        by_name("local.optimiser", f"{tmp_path}/mine.py:nothing")
