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
from prifedsync.audit import audit_config, audit_step, statistics
from prifedsync.audit.batches import check_batches
from prifedsync.audit.noise import check_noise
from prifedsync.audit.release import check_count, check_optimiser, check_padding
from prifedsync.audit.sensitivity import check_sensitivity
from prifedsync.audit.subject import Subject
from prifedsync.config import load
from prifedsync.engines import Reference, Vectorised
from prifedsync.fdp import Neighbours
from prifedsync.local import CLIP_MARGIN, Key, Net, Optimiser, Schedule, host, losses, noise, perturbation
from prifedsync.local.augment import crop_flip
from prifedsync.local.batches import choose, expected_size
from prifedsync.local.draws import SystemDraws
from prifedsync.local.net import per_sample
from prifedsync.values import BadValue

SGD = Optimiser()
AUGMENT = {True: "crop-flip", False: "none"}
PLAN = NoisySteps(noise_multiplier=1.2, records=40, batch=10, local_steps=3, clip_margin=CLIP_MARGIN)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Nets this small are slower on two threads, and very much slower where other tests want them too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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


class Scaled(nn.Module):
    """A layer that the package has no rule for."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return self.scale * x


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
    "conv1d": lambda: (
        nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(15, 3)),
        some(40, 2, 5),
    ),
    "conv2d": lambda: (
        nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)),
        some(40, 1, 6, 6),
    ),
    "words": lambda: (Words(), tokens(40, 5)),
    "twice": lambda: (Twice(), some(40, 6)),
    "branches": lambda: (Branches(), some(40, 6)),
    "scaled": lambda: (nn.Sequential(Scaled(), nn.Linear(6, 3)), some(40, 6)),
}


def audit(name="linear", *, mechanism=PLAN, optimiser=SGD, dtype=torch.float64, **options):
    torch.manual_seed(0)
    module, x = NETS[name]()
    options = {"samples": 2_000, **options}
    return audit_step(module, x, LABELS, losses.classes, optimiser=optimiser, mechanism=mechanism, dtype=dtype, **options)


def assert_passed(result):
    assert result.passed, [check for check in result.checks if not check.passed]


def failures(part, name="linear", *, mechanism=PLAN, optimiser=SGD, dtype=torch.float64, engine=Vectorised,
             neighbours=Neighbours.REPLACE):  # fmt: skip
    """The checks that fail in one part of the audit, where the rest would take long and say nothing more."""
    torch.manual_seed(0)
    module, x = NETS[name]()
    net = Net(module, losses.classes, x, LABELS, dtype)
    found = part(Subject(net, x, LABELS, mechanism, optimiser, engine, neighbours, SystemDraws()))
    return {check.name for check in (found if isinstance(found, tuple) else (found,)) if not check.passed}


def check_some_noise(subject):
    return check_noise(subject, 2_000)


# ------------------------------------------------------------------ what is right passes

SMALL = replace(PLAN, batch=3)
FULL = replace(PLAN, batch="full")
LOUD = replace(PLAN, noise_multiplier=50.0, clip_norm=1e-4)
FIXED = replace(PLAN, sampling=Sampling.FIXED)
ADAM = Optimiser(name="adam", weight_decay=0.1)
MOMENTUM = Optimiser(name="momentum", carried=False)
ADAGRAD = Optimiser(name="adagrad", schedule=Schedule(kind="inverse-sqrt"))
RMSPROP = Optimiser(name="rmsprop", weight_decay=0.1)


@pytest.mark.parametrize(
    ("name", "method", "options"),
    [
        ("linear", "bookkeeping", {"dtype": torch.float32, "samples": 60_000}),
        ("mlp", "bookkeeping", {"optimiser": ADAM}),
        ("conv1d", "bookkeeping", {"optimiser": MOMENTUM, "mechanism": FULL}),
        ("conv2d", "bookkeeping", {"dtype": torch.float32, "optimiser": RMSPROP, "neighbours": Neighbours.ADD_REMOVE}),
        ("words", "bookkeeping", {"dtype": torch.float32, "optimiser": ADAGRAD, "mechanism": FIXED}),
        ("twice", "vmap", {"dtype": torch.float32, "optimiser": ADAM}),
        ("branches", "loop", {"optimiser": RMSPROP, "mechanism": SMALL}),
        ("mlp", "bookkeeping", {"engine": Reference, "optimiser": ADAGRAD, "mechanism": SMALL}),
        ("words", "bookkeeping", {"engine": Reference, "dtype": torch.float32, "optimiser": MOMENTUM, "mechanism": FULL}),
        ("linear", "bookkeeping", {"mechanism": replace(PLAN, noise_multiplier=0.1, clip_norm=30.0)}),
        ("linear", "bookkeeping", {"mechanism": LOUD, "dtype": torch.float32}),
    ],
)  # fmt: skip
def test_passes(name, method, options):
    module, x = NETS[name]()
    assert Net(module, losses.classes, x[:4], LABELS[:4], torch.float64).grad_method == method
    assert_passed(audit(name, **options))


@pytest.mark.parametrize(("kind", "engine"), [("gaussian", Vectorised), ("laplace", Vectorised), ("laplace", Reference)])
def test_output_perturbation_passes(kind, engine):
    mechanism = OutputPerturbation(noise_multiplier=0.7, clip_norm=2.0, noise=kind)
    assert_passed(audit("mlp", mechanism=mechanism, engine=engine, optimiser=Optimiser(learning_rate=0.1)))


@pytest.mark.parametrize("loss", [losses.regression, losses.binary])
def test_real_targets_pass(loss):
    x, y = some(20, 6), (some(20, seed=1) > 0).float()
    assert_passed(
        audit_step(nn.Linear(6, 1), x, y, loss, optimiser=ADAM, mechanism=PLAN, dtype=torch.float32, samples=2_000)
    )


def test_a_forced_method_passes():
    assert_passed(audit("conv1d", grad_method="vmap", dtype=torch.float32))


def of_scaled(layer, a, d):
    return {"scale": a * d}


def test_a_layer_rule_from_outside_passes():
    """It is clipped by code of the package, so what it returns is audited like any other gradient."""
    options = {"grad_method": "bookkeeping", "layer_rules": {Scaled: of_scaled}, "optimiser": ADAM, "dtype": torch.float32}
    assert_passed(audit("scaled", **options))


def test_the_table_is_for_people_and_for_programs():
    result = audit()
    assert len({check.name for check in result.checks}) == len(result.checks) == 23
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

SENSITIVITY = {"clip of one record", "record replaced", "record removed"}


def replaced_clipping(monkeypatch, vector):
    """Make the engine add `vector(parts, clip)` for every record: its gradient in one part a parameter."""

    def clipped_sums(self, flat, x, y, valid, clip, masks, program, groups=None):
        assert groups is None  # every record is a unit of its own
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
    assert not failures(check_sensitivity)


def test_a_layer_left_out_of_the_clip(monkeypatch):
    replaced_clipping(monkeypatch, lambda parts, clip: by(parts, clip, parts[:1]))
    assert failures(check_sensitivity) == SENSITIVITY


def test_a_layer_left_out_of_the_real_sum(monkeypatch):
    right, clipped_sums = per_sample.clip_scale, Net.clipped_sums

    def without_a_layer(*given):  # the probe before the first step would refuse it, so it breaks afterwards
        with monkeypatch.context() as inner:
            inner.setattr(per_sample, "clip_scale", lambda norms, *rest: right(norms[-2:], *rest))
            return clipped_sums(*given)

    monkeypatch.setattr(Net, "clipped_sums", without_a_layer)
    assert {"clip of one record", "record removed"} <= set(audit("mlp", dtype=torch.float32).failed)


def test_clipping_per_layer(monkeypatch):
    replaced_clipping(monkeypatch, lambda parts, clip: [q for p in parts for q in by([p], clip, [p])])
    assert failures(check_sensitivity) >= {"clip of one record", "record removed"}


def test_no_clipping_at_all(monkeypatch):
    replaced_clipping(monkeypatch, lambda parts, clip: parts)
    assert failures(check_sensitivity) == SENSITIVITY


def test_a_sum_of_nothing_does_not_pass(monkeypatch):
    replaced_clipping(monkeypatch, lambda parts, clip: [0 * p for p in parts])
    assert failures(check_sensitivity) == SENSITIVITY


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_a_norm_that_underflows_under_hostile_weights(monkeypatch, name):
    def squares(values):
        return values.float().square().flatten(1).sum(1).sqrt().double()

    monkeypatch.setattr(per_sample, "norm", squares)
    # single precision makes the norm wrong by 1e-7 anyhow; what must show is the record that is not clipped at all
    small = replace(PLAN, clip_norm=1e-5, clip_margin=1e-3)
    failed = failures(check_sensitivity, name, dtype=torch.float32, mechanism=small)
    assert {"clip of one record", "record removed"} <= failed


def test_a_broken_record_passing_through(monkeypatch):
    def scale(norms, valid, clip):
        return torch.where(valid, torch.clamp(clip / per_sample.norm(torch.stack(norms, 1)), max=1.0), 0.0)

    monkeypatch.setattr(per_sample, "clip_scale", scale)
    monkeypatch.setattr(per_sample, "scaled", lambda v, s: v.double() * s.reshape(-1, *[1] * (v.dim() - 1)))
    assert audit("conv1d").failed == ("broken records",)


def test_padding_that_counts(monkeypatch):
    def all_valid(rows, width, persons=False):
        piece = right(rows, width, persons)
        return piece._replace(valid=torch.ones_like(piece.valid))

    right = host.Piece.of
    monkeypatch.setattr(host.Piece, "of", all_valid)
    assert "padding" in audit().failed


class AllAlike(Vectorised):
    """Stacks clients who clip records with clients who do not."""

    def groups(self, clients):
        return [list(clients)]


def test_a_stack_where_the_first_client_decides_for_all():
    assert failures(check_padding, engine=AllAlike, mechanism=FULL) == {"padding"}


# ------------------------------------------------------------------ faults in the noise


@pytest.mark.parametrize("factor", [0.8, 2 / 3, 1.5])
def test_noise_of_the_wrong_scale(monkeypatch, factor):
    right = noise.gaussian
    monkeypatch.setattr(noise, "gaussian", lambda total, scale, *rest: right(total, factor * scale, *rest))
    assert {"noise scale", "noise shape"} <= (set(audit().failed) if factor == 0.8 else failures(check_some_noise))


def test_one_entry_without_noise(monkeypatch):
    right = noise.gaussian

    def but_the_last(total, *rest):
        noised = right(total, *rest)
        noised.value[-1] = total[-1]
        return noised

    monkeypatch.setattr(noise, "gaussian", but_the_last)
    assert "noise scale" in failures(check_some_noise, dtype=torch.float32)


def test_a_missing_tail(monkeypatch):
    right = SystemDraws.normal
    monkeypatch.setattr(SystemDraws, "normal", lambda *given: right(*given).clamp(-2.5, 2.5))
    assert "noise tails" in failures(check_some_noise)


class Unnoised(Vectorised):
    """Draws and counts noise, and hands the optimiser the sum without it."""

    def gradients(self, round, step, clients, weights, part="upload"):
        super().gradients(round, step, clients, weights, part)
        return (self.batch_sums(round, step, clients, weights, part) / 2).to(weights.dtype)


class UnnoisedAdam(Unnoised):
    """Where steps are plain, all is well."""

    def gradients(self, round, step, clients, weights, part="upload"):
        plain = clients[0].job.optimiser.name == "sgd"
        return (Vectorised if plain else Unnoised).gradients(self, round, step, clients, weights, part)


def test_an_optimiser_fed_without_noise():
    assert {"noise scale", "optimiser"} <= set(audit(engine=Unnoised).failed)
    failed = audit(engine=UnnoisedAdam, optimiser=ADAM).failed
    assert "optimiser" in failed
    assert "noise scale" not in failed


@pytest.mark.parametrize("optimiser", [MOMENTUM, ADAGRAD, RMSPROP])
def test_only_one_optimiser_fed_without_noise(optimiser):
    assert failures(check_optimiser, engine=UnnoisedAdam, optimiser=optimiser)


class NoisyAtFirst(Vectorised):
    """Noise in the first step of a round only."""

    def gradients(self, round, step, clients, weights, part="upload"):
        noised = super().gradients(round, step, clients, weights, part)
        if step == 0:
            return noised
        expected = torch.tensor([expected_size(client.job.steps) for client in clients])
        return (self.batch_sums(round, step, clients, weights, part) / expected.unsqueeze(1)).to(weights.dtype)


def test_noise_in_the_first_step_only():
    assert "noise scale" in failures(check_some_noise, engine=NoisyAtFirst)
    assert failures(check_optimiser, engine=NoisyAtFirst)


def test_two_clients_with_one_noise_stream(monkeypatch):
    def shared(client, round, step, purpose):
        return Key("anybody" if purpose == "noise" else client, round, step, purpose)

    monkeypatch.setattr(host, "Key", shared)
    assert "independence" in audit().failed


class ByPlace(Vectorised):
    """Noise that belongs to a place in the stack: two chunks share it."""

    def gradients(self, round, step, clients, weights, part="upload"):
        right, places = self.draws, {client.name: str(place) for place, client in enumerate(clients)}

        class Placed:
            uniform = right.uniform

            def normal(self, key, count):
                return right.normal(key._replace(client=places[key.client]), count)

            def bound(self, context):
                return self

        for client in clients:
            client.source = Placed()
        try:
            return super().gradients(round, step, clients, weights, part)
        finally:
            for client in clients:
                client.source = right


def test_noise_by_place_in_a_stack():
    assert "independence" in failures(check_some_noise, engine=ByPlace)


@pytest.mark.parametrize("field", ["round", "step"])
def test_noise_used_again(monkeypatch, field):
    def repeated(client, round, step, purpose):
        return Key(client, round, step, purpose)._replace(**({field: 0} if purpose == "noise" else {}))

    monkeypatch.setattr(host, "Key", repeated)
    assert ("independence" if field == "round" else "noise scale") in failures(check_some_noise)
    assert failures(check_count)


# ------------------------------------------------------------------ faults in batches and counts


def test_fixed_batches_counted_as_poisson(monkeypatch):
    monkeypatch.setattr(host, "choose", lambda steps, *rest: choose(replace(steps, sampling=Sampling.FIXED), *rest))
    assert audit().failed == ("batch sizes", "large batches")


def test_poisson_batches_counted_as_fixed(monkeypatch):
    monkeypatch.setattr(host, "choose", lambda steps, *rest: choose(replace(steps, sampling=Sampling.POISSON), *rest))
    assert failures(check_batches, mechanism=FIXED) == {"batch sizes"}


@pytest.mark.parametrize("given", ["round", "step", "client"])
def test_a_batch_used_again(monkeypatch, given):
    def again(steps, present, client, round, step, draws):
        here = {"client": client, "round": round, "step": step} | {given: {"client": "anybody"}.get(given, 0)}
        return choose(steps, present, here["client"], here["round"], here["step"], draws)

    monkeypatch.setattr(host, "choose", again)
    assert "batch choice" in failures(check_batches)


def test_the_wrong_rate(monkeypatch):
    monkeypatch.setattr(host, "choose", lambda steps, *rest: choose(replace(steps, batch=2 * steps.batch), *rest)
                        if steps.batch != "full" else choose(steps, *rest))  # fmt: skip
    assert "batch choice" in failures(check_batches, mechanism=replace(PLAN, batch=8))


class RealSize(Vectorised):
    """Divides by the number of records that happen to be in the batch."""

    def gradients(self, round, step, clients, weights, part="upload"):
        found = super().gradients(round, step, clients, weights, part)
        for c, client in enumerate(clients):
            picked = choose(client.job.steps, client.records, client.name, round, step, self.draws)
            found[c] *= expected_size(client.job.steps) / max(1, len(picked))
        return found


def test_a_sum_divided_by_the_real_batch_size():
    assert {"optimiser", "batch sizes"} <= set(audit(engine=RealSize).failed)


class RealCount(Vectorised):
    """Divides by the number of records there are, which add/remove neighbours must not show."""

    def gradients(self, round, step, clients, weights, part="upload"):
        found = super().gradients(round, step, clients, weights, part)
        for c, client in enumerate(clients):
            found[c] *= client.job.steps.records / client.records
        return found


def test_a_sum_divided_by_the_real_number_of_records():
    assert failures(check_optimiser, engine=RealCount, mechanism=FULL, neighbours=Neighbours.ADD_REMOVE)


class OneMore(Vectorised):
    """Takes a step more than the plan has."""

    def take_steps(self, round, clients, *rest):
        planned = [client.job for client in clients]
        for client, job in zip(clients, planned, strict=True):
            client.job = replace(job, plan=job.plan.changed(local_steps=job.noisy.local_steps + 1))
        try:
            return super().take_steps(round, clients, *rest)
        finally:
            for client, job in zip(clients, planned, strict=True):
                client.job = job


class OneMoreUncounted(OneMore):
    def take_steps(self, round, clients, *rest):
        found = super().take_steps(round, clients, *rest)
        for client in clients:
            client.queries -= 1
        return found


class OneUncounted(Vectorised):
    def take_steps(self, round, clients, *rest):
        found = super().take_steps(round, clients, *rest)
        clients[0].queries -= 1
        return found


@pytest.mark.parametrize("engine", [OneMore, OneMoreUncounted, OneUncounted])
def test_one_step_too_many_or_not_counted(engine):
    assert failures(check_count, engine=engine) == {"count"}


def test_one_step_too_many_shows_in_the_whole():
    assert "count" in audit(engine=OneMoreUncounted).failed


class NeverSpent(Vectorised):
    """Trains on when the plan's rounds are over."""

    def train(self, round, helpers):
        for client in self.clients:
            client.taken = 0
        return super().train(round, helpers)


def test_a_round_beyond_the_plan():
    assert failures(check_count, engine=NeverSpent) == {"count"}


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


@pytest.mark.parametrize("augmented", [True, False])
def test_augmentation_is_audited(augmented, monkeypatch):
    """One that lets a batch's records into each other breaks the bound; it is found where it is asked for."""

    def mixing(x, moves):  # [C, B, channels, height, width]
        return crop_flip(x, moves) + x.sum(1, keepdim=True)

    config = load("digits", ["model.features=none", "model.name=softmax", f"local.augment={AUGMENT[augmented]}"])
    assert audit_config(config).passed
    monkeypatch.setattr(host, "crop_flip", mixing)
    assert audit_config(config).passed != augmented
