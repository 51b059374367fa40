"""`audit step` passes for everything that is offered, and each fault fails in the check that is about it.

Draws are secret and fresh, as for users: a right engine fails here in less than one run of 10^5.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from prifedsync.accounting import NoisySteps, OutputPerturbation, Sampling
from prifedsync.audit import audit_step, statistics
from prifedsync.engines import Reference, Vectorised, vectorised
from prifedsync.fdp import BadValue, Neighbours
from prifedsync.local import CLIP_MARGIN, Key, Net, OpenSteps, Optimiser, Schedule, layers, losses, noise, perturbation
from prifedsync.local import net as net_module
from prifedsync.local.batches import choose
from prifedsync.local.draws import SystemDraws

PLAN = NoisySteps(noise_multiplier=1.2, records=40, batch=10, local_steps=3, clip_margin=CLIP_MARGIN)


def some(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tokens(count, length):
    return torch.randint(0, 12, (count, length), generator=torch.Generator().manual_seed(1))


LABELS = torch.arange(40) % 3


class Words(nn.Module):
    """Embedding and LayerNorm, a sequence through a linear layer."""

    def __init__(self):
        super().__init__()
        self.table, self.norm, self.inner, self.out = nn.Embedding(12, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.inner(self.norm(self.table(x)))).mean(1))


class Twice(nn.Module):
    """A layer called twice has no rule of its own: torch.func must map over it."""

    def __init__(self):
        super().__init__()
        self.again, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.again(torch.tanh(self.again(x)))))


class Branches(nn.Module):
    """What a record is decides what is done with it: one record after another."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        return torch.stack([self.one(row) if row.sum() > 0 else self.other(row) for row in x])


NETS = {
    "linear": lambda: (nn.Linear(6, 3), some(40, 6)),
    "mlp": lambda: (nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Dropout(0.3), nn.Linear(5, 3)), some(40, 6)),
    "conv1d": lambda: (nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(15, 3)), some(40, 2, 5)),
    "conv2d": lambda: (
        nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)),
        some(40, 1, 6, 6),
    ),
    "words": lambda: (Words(), tokens(40, 5)),
    "twice": lambda: (Twice(), some(40, 6)),
    "branches": lambda: (Branches(), some(40, 6)),
}


def audit(name="linear", *, mechanism=PLAN, optimiser=Optimiser(), dtype=torch.float64, **options):
    torch.manual_seed(0)
    module, x = NETS[name]()
    return audit_step(
        module, x, LABELS, losses.classes, optimiser=optimiser, mechanism=mechanism, dtype=dtype, **{"samples": 20_000, **options}
    )


def assert_passed(result):
    assert result.passed, [check for check in result.checks if not check.passed]


# ------------------------------------------------------------------ what is right passes

FULL = replace(PLAN, batch="full")
FIXED = replace(PLAN, sampling=Sampling.FIXED)
ADAM = Optimiser(name="adam", weight_decay=0.1)
MOMENTUM = Optimiser(name="momentum", carried=False)
ADAGRAD = Optimiser(name="adagrad", schedule=Schedule(kind="inverse-sqrt"))
RMSPROP = Optimiser(name="rmsprop", weight_decay=0.1)


@pytest.mark.parametrize(
    ("name", "way", "options"),
    [
        ("linear", "layers", {"dtype": torch.float32, "samples": 60_000}),
        ("mlp", "layers", {"optimiser": ADAM}),
        ("conv1d", "layers", {"optimiser": MOMENTUM, "mechanism": FULL}),
        ("conv2d", "layers", {"dtype": torch.float32, "optimiser": RMSPROP, "neighbours": Neighbours.ADD_REMOVE}),
        ("words", "layers", {"dtype": torch.float32, "optimiser": ADAGRAD, "mechanism": FIXED}),
        ("twice", "general", {"dtype": torch.float32, "optimiser": ADAM}),
        ("branches", "loop", {"optimiser": RMSPROP}),
        ("mlp", "layers", {"engine": Reference, "optimiser": ADAGRAD}),
        ("words", "layers", {"engine": Reference, "dtype": torch.float32, "optimiser": MOMENTUM, "mechanism": FULL}),
        ("linear", "layers", {"mechanism": replace(PLAN, noise_multiplier=0.1, clip_norm=30.0)}),
        ("linear", "layers", {"mechanism": replace(PLAN, noise_multiplier=50.0, clip_norm=1e-4), "dtype": torch.float32}),
    ],
)  # fmt: skip
def test_passes(name, way, options):
    module, x = NETS[name]()
    assert Net(module, losses.classes, x, LABELS, torch.float64).way == way
    assert_passed(audit(name, **options))


@pytest.mark.parametrize(("kind", "engine"), [("gaussian", Vectorised), ("laplace", Vectorised), ("laplace", Reference)])
def test_output_perturbation_passes(kind, engine):
    mechanism = OutputPerturbation(noise_multiplier=0.7, clip_norm=2.0, noise=kind)
    assert_passed(audit("mlp", mechanism=mechanism, engine=engine, optimiser=Optimiser(learning_rate=0.1)))


@pytest.mark.parametrize("loss", [losses.regression, losses.binary])
def test_real_targets_pass(loss):
    x, y = some(20, 6), (some(20, seed=1) > 0).float()
    assert_passed(
        audit_step(nn.Linear(6, 1), x, y, loss, optimiser=ADAM, mechanism=PLAN, dtype=torch.float32, samples=20_000)
    )


def test_a_forced_way_passes():
    assert_passed(audit("conv1d", way="general", dtype=torch.float32))


def test_the_table_is_for_people_and_for_programs():
    result = audit()
    assert len({check.name for check in result.checks}) == len(result.checks) == 13
    for check in result.checks:
        assert check.measured
        assert check.allowed
        assert check.explanation.endswith(".")
        assert "\n" not in check.explanation
    assert json.loads(json.dumps(result.as_json()))["passed"] is True
    assert result.failed == ()


def test_no_records_are_refused():
    with pytest.raises(BadValue, match="example records"):
        audit_step(nn.Linear(6, 3), some(0, 6), LABELS[:0], losses.classes, optimiser=ADAM, mechanism=PLAN)


# ------------------------------------------------------------------ the statistics themselves


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_scales_are_accepted_and_rejected(law):
    values = statistics.standard(law).rvs(size=20_000, random_state=np.random.default_rng(5))
    low, high = statistics.scale_range(values.size, law)
    assert low <= statistics.scale(values, law) <= high
    assert min(statistics.shape_chance(values, law), statistics.tail_chance(values, law)) > 1e-4
    for wrong in (0.8, 2 / 3, 1.5):
        assert not low <= statistics.scale(wrong * values, law) <= high
        assert max(statistics.shape_chance(wrong * values, law), statistics.tail_chance(wrong * values, law)) < 1e-8


def test_correlation_has_the_chance_it_says():
    rng = np.random.default_rng(6)
    chances = [statistics.correlation(rng.standard_normal((5, 30)))[1] for _ in range(500)]
    assert 0.03 < np.mean(np.array(chances) < 0.1) < 0.2  # Bonferroni: a little below a tenth


# ------------------------------------------------------------------ faults in the sum


def replaced_clipping(monkeypatch, vector):
    """Make the engine add `vector(parts, clip)` for every record: its gradient in one part a parameter."""

    def clipped_sums(self, flat, x, y, valid, clip, masks):
        sums = torch.zeros(flat.shape, dtype=torch.float64)
        for c, i in torch.nonzero(valid).tolist():
            mask = {name: m[c, i : i + 1] for name, m in masks.items()}
            parts = self.one_record(flat[c], x[c, i : i + 1], y[c, i : i + 1], mask).double().split(self.sizes)
            v = torch.cat(vector(parts, clip[c]))
            sums[c] += torch.where(torch.isfinite(v).all(), v, 0.0)
        return sums

    monkeypatch.setattr(Net, "clipped_sums", clipped_sums)


def by(parts, clip, scale_parts):
    return [p * torch.clamp(clip / torch.cat(scale_parts).norm(), max=1.0) for p in parts]


def test_the_replacement_itself_is_right(monkeypatch):
    replaced_clipping(monkeypatch, lambda parts, clip: by(parts, clip, parts))
    assert_passed(audit())


def test_a_layer_left_out_of_the_clip(monkeypatch):
    replaced_clipping(monkeypatch, lambda parts, clip: by(parts, clip, parts[1:]))
    assert {"clip of one record", "record replaced", "record removed"} <= set(audit().failed)


def test_a_layer_left_out_of_the_real_sum(monkeypatch):
    right, clipped_sums = net_module.clip_scale, Net.clipped_sums

    def without_a_layer(*given):  # the probe before the first step would refuse it, so it breaks afterwards
        with monkeypatch.context() as inner:
            inner.setattr(net_module, "clip_scale", lambda norms, valid, clip: right(norms[:-1], valid, clip))
            return clipped_sums(*given)

    monkeypatch.setattr(Net, "clipped_sums", without_a_layer)
    assert "clip of one record" in audit("mlp", dtype=torch.float32).failed


def test_clipping_per_layer(monkeypatch):
    replaced_clipping(monkeypatch, lambda parts, clip: [q for p in parts for q in by([p], clip, [p])])
    assert "clip of one record" in audit().failed


def test_no_clipping_at_all(monkeypatch):
    replaced_clipping(monkeypatch, lambda parts, clip: parts)
    assert {"clip of one record", "record replaced", "record removed"} <= set(audit().failed)


def test_a_sum_of_nothing_does_not_pass(monkeypatch):
    replaced_clipping(monkeypatch, lambda parts, clip: [0 * p for p in parts])
    assert {"clip of one record", "record replaced", "record removed"} <= set(audit().failed)


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_a_norm_that_underflows_under_hostile_weights(monkeypatch, name):
    def squares(values):
        return values.float().square().flatten(1).sum(1).sqrt().double()

    monkeypatch.setattr(layers, "norm", squares)
    result = audit(name, dtype=torch.float32, mechanism=replace(PLAN, clip_norm=1e-5, clip_margin=1e-3))
    assert {"clip of one record", "record replaced", "record removed"} <= set(result.failed)


def test_a_broken_record_passing_through(monkeypatch):
    def scale(norms, valid, clip):
        return torch.where(valid, torch.clamp(clip / layers.norm(torch.stack(norms, 1)), max=1.0), 0.0)

    monkeypatch.setattr(net_module, "clip_scale", scale)
    monkeypatch.setattr(layers, "scaled", lambda v, s: v.double() * s.reshape(-1, *[1] * (v.dim() - 1)))
    assert audit("conv1d").failed == ("broken records",)


def test_padding_that_counts(monkeypatch):
    padded = vectorised._padded

    def all_valid(picked, offsets):
        places, valid = padded(picked, offsets)
        return places, torch.ones_like(valid)

    monkeypatch.setattr(vectorised, "_padded", all_valid)
    assert "padding" in audit().failed


# ------------------------------------------------------------------ faults in the noise


@pytest.mark.parametrize("factor", [0.8, 2 / 3, 1.5])
def test_noise_of_the_wrong_scale(monkeypatch, factor):
    right = noise.gaussian
    monkeypatch.setattr(noise, "gaussian", lambda total, scale, *rest: right(total, factor * scale, *rest))
    assert {"noise scale", "noise shape"} <= set(audit().failed)


def test_one_entry_without_noise(monkeypatch):
    right = noise.gaussian

    def but_the_last(total, *rest):
        noised = right(total, *rest)
        noised[-1] = total[-1]
        return noised

    monkeypatch.setattr(noise, "gaussian", but_the_last)
    assert "noise scale" in audit(dtype=torch.float32).failed


def test_a_missing_tail(monkeypatch):
    right = SystemDraws.normal
    monkeypatch.setattr(SystemDraws, "normal", lambda *given: right(*given).clamp(-2.5, 2.5))
    assert "noise tails" in audit().failed


class Unnoised(Vectorised):
    """Draws and counts noise, and hands the optimiser the sum without it."""

    def gradient(self, round, step, group, weights):
        super().gradient(round, step, group, weights)
        return (self.batch_sums(round, step, group, weights) / 2).to(weights.dtype)


class UnnoisedAdam(Unnoised):
    """Where steps are plain, all is well."""

    def gradient(self, round, step, group, weights):
        plain = self.jobs[group[0]].optimiser.name == "sgd"
        return (Vectorised if plain else Unnoised).gradient(self, round, step, group, weights)


def test_an_optimiser_fed_without_noise():
    assert {"noise scale", "optimiser"} <= set(audit(engine=Unnoised).failed)


@pytest.mark.parametrize("optimiser", [ADAM, MOMENTUM, ADAGRAD, RMSPROP])
def test_only_one_optimiser_fed_without_noise(optimiser):
    failed = audit(engine=UnnoisedAdam, optimiser=optimiser).failed
    assert "optimiser" in failed
    assert "noise scale" not in failed


class NoisyAtFirst(Vectorised):
    """Noise in the first step of a round only."""

    def gradient(self, round, step, group, weights):
        noised = super().gradient(round, step, group, weights)
        if step == 0:
            return noised
        expected = [self.jobs[i].noisy.records if self.jobs[i].noisy.batch == "full" else self.jobs[i].noisy.batch for i in group]
        sums = self.batch_sums(round, step, group, weights)
        return (sums / torch.tensor(expected).unsqueeze(1)).to(weights.dtype)


def test_noise_in_the_first_step_only():
    assert {"noise scale", "optimiser"} <= set(audit(engine=NoisyAtFirst).failed)


def test_two_clients_with_one_noise_stream(monkeypatch):
    def shared(client, round, step, purpose):
        return Key("anybody" if purpose == "noise" else client, round, step, purpose)

    monkeypatch.setattr(vectorised, "Key", shared)
    failed = audit().failed
    assert "independence" in failed
    assert "noise scale" not in failed


class ByPlace(Vectorised):
    """Noise that belongs to a place in the stack: two chunks share it."""

    def gradient(self, round, step, group, weights):
        right, places = self.draws, {self.jobs[i].client: str(place) for place, i in enumerate(group)}

        class Placed:
            uniform = right.uniform

            def normal(self, key, count):
                return right.normal(key._replace(client=places[key.client]), count)

        self.draws = Placed()
        try:
            return super().gradient(round, step, group, weights)
        finally:
            self.draws = right


def test_noise_by_place_in_a_stack():
    assert "independence" in audit(engine=ByPlace).failed


@pytest.mark.parametrize("field", ["round", "step"])
def test_noise_used_again(monkeypatch, field):
    def repeated(client, round, step, purpose):
        return Key(client, round, step, purpose)._replace(**({field: 0} if purpose == "noise" else {}))

    monkeypatch.setattr(vectorised, "Key", repeated)
    assert ("independence" if field == "round" else "noise scale") in audit().failed


# ------------------------------------------------------------------ faults in batches and counts


def test_fixed_batches_counted_as_poisson(monkeypatch):
    monkeypatch.setattr(
        vectorised, "choose", lambda steps, *rest: choose(replace(steps, sampling=Sampling.FIXED), *rest)
    )
    assert audit().failed == ("batch sizes",)


def test_poisson_batches_counted_as_fixed(monkeypatch):
    monkeypatch.setattr(
        vectorised, "choose", lambda steps, *rest: choose(replace(steps, sampling=Sampling.POISSON), *rest)
    )
    assert audit(mechanism=FIXED).failed == ("batch sizes",)


@pytest.mark.parametrize("given", ["round", "step", "client"])
def test_a_batch_used_again(monkeypatch, given):
    def again(steps, present, client, round, step, draws):
        here = {"client": client, "round": round, "step": step} | {given: {"client": "anybody"}.get(given, 0)}
        return choose(steps, present, here["client"], here["round"], here["step"], draws)

    monkeypatch.setattr(vectorised, "choose", again)
    assert "batch choice" in audit().failed


def test_the_wrong_rate(monkeypatch):
    monkeypatch.setattr(vectorised, "choose", lambda steps, *rest: choose(replace(steps, batch=2 * steps.batch), *rest)
                        if steps.batch != "full" else choose(steps, *rest))  # fmt: skip
    assert "batch choice" in audit(mechanism=replace(PLAN, batch=8)).failed


class RealSize(Vectorised):
    """Divides by the number of records that happen to be in the batch."""

    def gradient(self, round, step, group, weights):
        found = super().gradient(round, step, group, weights)
        for c, i in enumerate(group):
            job = self.jobs[i]
            picked = choose(job.steps, self.sizes[i], job.client, round, step, self.draws)
            found[c] *= vectorised.expected_size(job.steps) / max(1, len(picked))
        return found


def test_a_sum_divided_by_the_real_batch_size():
    assert {"optimiser", "batch sizes"} <= set(audit(engine=RealSize).failed)


class RealCount(Vectorised):
    """Divides by the number of records there are, which add/remove neighbours must not show."""

    def gradient(self, round, step, group, weights):
        found = super().gradient(round, step, group, weights)
        for c, i in enumerate(group):
            found[c] *= self.jobs[i].steps.records / self.sizes[i]
        return found


def test_a_sum_divided_by_the_real_number_of_records():
    assert audit(engine=RealCount, mechanism=FULL, neighbours=Neighbours.ADD_REMOVE).failed == ("optimiser",)


class OneMore(Vectorised):
    """Takes a step more than the plan has."""

    def _local(self, round, group, *rest):
        planned = self.jobs
        self.jobs = tuple(
            replace(job, plan=job.plan.changed(local_steps=job.noisy.local_steps + 1)) if job.noisy else job for job in planned
        )
        try:
            return super()._local(round, group, *rest)
        finally:
            self.jobs = planned


class OneMoreUncounted(OneMore):
    def _local(self, round, group, *rest):
        found = super()._local(round, group, *rest)
        for i in group:
            self.queries[i] -= 1
        return found


class OneUncounted(Vectorised):
    def _local(self, round, group, *rest):
        found = super()._local(round, group, *rest)
        self.queries[group[0]] -= 1
        return found


@pytest.mark.parametrize("engine", [OneMore, OneMoreUncounted, OneUncounted])
def test_one_step_too_many_or_not_counted(engine):
    assert "count" in audit(engine=engine).failed


class NeverSpent(Vectorised):
    """Trains on when the plan's rounds are over."""

    def train(self, round, chosen, weights):
        self.budgets = [replace(budget, taken=0) for budget in self.budgets]
        return super().train(round, chosen, weights)


def test_a_round_beyond_the_plan():
    assert audit(engine=NeverSpent).failed == ("count",)


# ------------------------------------------------------------------ faults of output perturbation

LAPLACE = OutputPerturbation(noise_multiplier=0.7, clip_norm=2.0, noise="laplace")


def test_an_output_clipped_in_the_wrong_norm(monkeypatch):
    right = perturbation.clipped
    monkeypatch.setattr(perturbation, "clipped", lambda change, m: right(change, replace(m, noise="gaussian")))
    assert {"clip of the change", "records replaced"} <= set(audit("mlp", mechanism=LAPLACE).failed)


def test_an_output_with_too_little_noise(monkeypatch):
    right = noise.laplace
    monkeypatch.setattr(noise, "laplace", lambda total, scale, *rest: right(total, 0.8 * scale, *rest))
    assert "noise scale" in audit("mlp", mechanism=LAPLACE).failed


def test_an_output_with_normal_noise_instead(monkeypatch):
    monkeypatch.setattr(noise, "laplace", noise.gaussian)
    assert "noise shape" in audit("mlp", mechanism=LAPLACE).failed


def test_a_broken_output(monkeypatch):
    monkeypatch.setattr(perturbation, "clipped", lambda change, m: F.normalize(change.double(), p=1, dim=0) * m.clip_norm)
    assert "broken records" in audit("mlp", mechanism=LAPLACE).failed
