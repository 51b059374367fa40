"""A server that chooses helpers to make one record count for more: a search for the worst one.

The guarantee counts on one bound: if one record is replaced, the clipped sum of a batch moves by at most 2·clip_norm, and
by as much more as the plan's margin says, at every helper that a client accepts. The search goes through the trainer's own
door (bytes, bounds, batch sums), looks at random helpers of many kinds, and goes on from the worst that it has found.
PRIFEDSYNC_HELPERS is the number of helpers; `make test-slow` tries 10⁵.
"""

import os
from dataclasses import dataclass

import pytest
import torch

from prifedsync.asking.tensors import HELPER, packed
from prifedsync.data import Records
from prifedsync.local import SeededDraws
from prifedsync.local.client import bounded
from prifedsync.local.job import LARGEST_HELPER
from prifedsync.owner.trainer import Trainer, extreme_helpers

from ..owner.federations import Run, config_of, records_of

TRIALS = int(os.environ.get("PRIFEDSYNC_HELPERS", "600"))
CLIP = 0.5
CASES = {
    "softmax, single": {"model__name": "softmax", "performance__dtype": "float32"},
    "mlp, single": {"performance__dtype": "float32"},
    "mlp, double": {"performance__dtype": "float64"},
    "regression, single": {
        "performance__dtype": "float32", "data__task": "regression", "data__classes": 0, "model__name": "linear",
        "metrics": ["rmse"],
    },
}  # fmt: skip


@dataclass
class Search:
    """Trainers of neighbouring records, and the helper at which they differ most so far."""

    trainers: list  # the first one's records, and those of its neighbours
    dice: torch.Generator
    worst: float = 0.0
    at: torch.Tensor | None = None

    @property
    def net(self):
        return self.trainers[0].net

    @property
    def bound(self):
        return 2 * CLIP * (1 + self.trainers[0].engine.client.job.noisy.clip_margin)

    def sums(self, trainer, helper):
        """By the bytes that would be sent."""
        weights = bounded(trainer._helper(packed(HELPER, helper)))
        return trainer.engine.batch_sums(0, 0, [trainer.engine.client], weights[None])[0]

    def tried(self, helper):
        first, *others = self.trainers
        other = others[int(torch.randint(len(others), (1,), generator=self.dice))]
        moved = float((self.sums(first, helper) - self.sums(other, helper)).norm())
        if not moved <= self.worst:  # what is no number is worst
            self.worst = moved
            self.at = helper
        return moved

    def uniform(self, low=0.0, high=1.0):
        return low + (high - low) * torch.rand(self.net.count, generator=self.dice, dtype=torch.float64)

    def signs(self):
        return self.uniform().sub(0.5).sign()

    def kinds(self):
        """One helper of each kind."""
        scale = 10.0 ** float(torch.empty(1).uniform_(-45, 40, generator=self.dice))
        normal = torch.randn(self.net.count, generator=self.dice, dtype=torch.float64)
        yield self.net.initial().double() + normal * 10.0 ** float(torch.empty(1).uniform_(-3, 2, generator=self.dice))
        yield LARGEST_HELPER * self.signs()
        yield scale * normal
        yield 10.0 ** self.uniform(-45, 5) * self.signs()
        yield torch.where(self.uniform() < 0.1, LARGEST_HELPER * self.signs(), 1e-3 * normal)
        yield torch.where(self.uniform() < 0.2, 5e-42 * self.signs(), normal)
        odd = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e300, -1e30, 5e-324, 0.0], dtype=torch.float64)
        yield torch.where(self.uniform() < 0.3, odd[(self.uniform() * len(odd)).long()], normal)
        yield self.along_a_gradient(scale)
        yield self.near(self.at)
        yield self.near(self.at)

    def along_a_gradient(self, scale):
        """Where the gradients of one record are largest: along the sum that it moves."""
        direction = self.sums(self.trainers[0], self.net.initial())
        return self.net.initial().double() + min(scale, 1e4) * direction / direction.norm().clamp(min=1e-30)

    def near(self, helper):
        """The worst so far, with some entries changed."""
        if helper is None:
            return self.uniform(-1, 1)
        factor = torch.where(self.uniform() < 0.3, 10.0 ** self.uniform(-2, 2) * self.signs(), 1.0)
        swapped = torch.where(self.uniform() < 0.05, LARGEST_HELPER * self.signs(), helper.double() * factor)
        return torch.where(self.uniform() < 0.05, 0.0, swapped)

    def run(self, trials):
        for helper in extreme_helpers(self.net):
            self.tried(helper)
        done = 0
        while done < trials:
            for helper in self.kinds():
                self.tried(helper.to(self.net.dtype))
                done += 1
        return self.worst


def neighbours_of(records):
    """One record replaced: by itself turned round, with another label, by large, small and empty ones, by no number."""
    yield records
    changes = {
        "the same": lambda x: x,
        "turned": lambda x: -x,
        "huge": lambda x: 1e30 * x,
        "large": lambda x: 1e4 * x,
        "tiny": lambda x: 1e-30 * x,
        "zero": lambda x: 0 * x,
        "nan": lambda x: x * float("nan"),
    }
    for change in changes.values():
        x = records.x.clone()
        x[2] = change(x[2])
        y = records.y.clone()
        y[2] = (y[2] + 1) % 3
        yield Records(x, y)


def search_of(case, seed=0):
    given = records_of()
    if "data__task" in CASES[case]:
        given = {name: (x, y.float()) for name, (x, y) in given.items()}
    run = Run.of(config_of(**CASES[case], local__batch="full", privacy__clip_norm=CLIP), given)
    trainers = [
        Trainer(run.document, "c", own, draws=SeededDraws(1)) for own in neighbours_of(run.records["c"])
    ]  # fmt: skip
    return Search(trainers, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("case", CASES)
def test_no_helper_moves_the_sum_further_than_accounted(case):
    search = search_of(case)
    worst = search.run(TRIALS // len(CASES))
    print(f"{case}: at worst the sum moved by 1 {worst / (2 * CLIP) - 1:+.3g} times two clip norms")
    assert worst <= search.bound
    assert worst > 1.9 * CLIP  # the search comes near to what is allowed


@pytest.mark.parametrize("fault", ["longer by a thousandth", "not clipped", "clipped by a norm that underflows"])
def test_the_search_finds_planted_faults(fault, monkeypatch):
    search = search_of("softmax, single")
    for trainer in search.trainers:
        honest = trainer.net.clipped_sums

        def spoiled(flat, x, y, valid, clip, masks, program=None, groups=None, net=trainer.net, honest=honest):
            if fault == "longer by a thousandth":
                return 1.001 * honest(flat, x, y, valid, clip, masks, program, groups)
            if fault == "not clipped":
                return honest(flat, x, y, valid, 1e9 * clip, masks, program, groups)
            small = bool((flat.abs().amax() > 0.9 * LARGEST_HELPER) & (flat.abs().amin() < 1e-30))
            return honest(flat, x, y, valid, clip * (1e6 if small else 1), masks, program, groups)

        monkeypatch.setattr(trainer.net, "clipped_sums", spoiled)
    assert search.run(400) > search.bound
