"""Faults planted in an engine or its draws, one at a time, each of which `audit step` must see.

Draws are secret and fresh, as for users: a right engine fails here in less than one run of a million.
"""

import hashlib
import os
from dataclasses import replace

import pytest
import torch
from torch import nn

from prifedsync import run
from prifedsync.accounting import NoisySteps, OutputPerturbation, Sampling
from prifedsync.audit import audit_config, audit_step, configured
from prifedsync.audit.batches import check_batches
from prifedsync.audit.coins import check_coins
from prifedsync.audit.fresh import check_fresh_batches, check_fresh_noise
from prifedsync.audit.kept import check_kept
from prifedsync.audit.keys import check_keys
from prifedsync.audit.labels import check_labels
from prifedsync.audit.noise import check_noise
from prifedsync.audit.output import check_carried
from prifedsync.audit.stack import check_stack
from prifedsync.audit.subject import Subject
from prifedsync.config import load
from prifedsync.engines import Reference, Vectorised
from prifedsync.fdp import Neighbours
from prifedsync.limits import LEAST_NOISE
from prifedsync.local import CLIP_MARGIN, Net, Optimiser, SeededDraws, SystemDraws, host, losses
from prifedsync.local.batches import choose, expected_size
from prifedsync.local.device import stack as device
from prifedsync.local.device import streams
from prifedsync.run.checkpoint import Checkpoint

from ..audit.test_device import OnDevice

POISSON = NoisySteps(noise_multiplier=1.2, records=40, batch=10, local_steps=3, clip_margin=CLIP_MARGIN)
FIXED = replace(POISSON, sampling=Sampling.FIXED)
FULL = replace(POISSON, batch="full")
OUTPUTS = [OutputPerturbation(noise_multiplier=0.7, clip_norm=2.0, noise=kind) for kind in ("gaussian", "laplace")]
LABELS = torch.arange(40) % 3
RECORDS = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
SAMPLES = 2_000


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Nets this small are slower on two threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def subject_of(mechanism=POISSON, engine=Vectorised):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Linear(6, 3)
    net = Net(module, losses.classes, RECORDS, LABELS, torch.float32)
    return Subject(net, RECORDS, LABELS, mechanism, Optimiser(), engine, Neighbours.REPLACE, SystemDraws())


def failed(check, mechanism=POISSON, engine=Vectorised):
    """The names of the checks that fail."""
    found = check(subject_of(mechanism, engine))
    checks = found if isinstance(found, tuple) else (found,)
    return {each.name for each in checks if not each.passed}


def noise_checks(subject):
    return check_noise(subject, SAMPLES)


NOISY = [check_labels, noise_checks, check_fresh_noise, check_batches, check_fresh_batches, check_stack, check_kept]
PERTURBED = [noise_checks, check_fresh_noise, check_carried]


@pytest.mark.parametrize("engine", [Vectorised, Reference, OnDevice])
@pytest.mark.parametrize("check", NOISY)
def test_a_right_engine_passes(check, engine):
    """No attack: noisy steps as they are."""
    assert not failed(check, engine=engine)


@pytest.mark.parametrize("mechanism", [FIXED, FULL], ids=["fixed", "full"])
@pytest.mark.parametrize("check", NOISY)
def test_every_way_to_draw_batches_passes(check, mechanism):
    """No attack: batches of fixed size, and all records."""
    assert not failed(check, mechanism)


@pytest.mark.parametrize("mechanism", OUTPUTS, ids=["gaussian", "laplace"])
@pytest.mark.parametrize("check", PERTURBED)
def test_right_output_perturbation_passes(check, mechanism):
    """No attack: output perturbation as it is."""
    assert not failed(check, mechanism)


# ------------------------------------------------------------------ draws that come back, or that a seed decides


def drawn_otherwise(monkeypatch, purposes, otherwise):
    """Draws for these purposes are made by `otherwise(right, self, key, count)`, streams of a device too."""
    right_uniform = SystemDraws.uniform
    right_normal = SystemDraws.normal

    def uniform(self, key, count):
        wrong = key.purpose in purposes
        return otherwise(right_uniform, self, key, count) if wrong else right_uniform(self, key, count)

    def normal(self, key, count):
        wrong = key.purpose in purposes
        return otherwise(right_normal, self, key, count) if wrong else right_normal(self, key, count)

    monkeypatch.setattr(SystemDraws, "uniform", uniform)
    monkeypatch.setattr(SystemDraws, "normal", normal)


def streamed_otherwise(monkeypatch, purposes, otherwise):
    right = SystemDraws.stream

    def stream(self, client, round, purpose):
        wrong = purpose in purposes
        return otherwise(right, self, client, round, purpose) if wrong else right(self, client, round, purpose)

    monkeypatch.setattr(SystemDraws, "stream", stream)


@pytest.mark.parametrize("period", [16, 256])
@pytest.mark.parametrize(("purpose", "check"), [("noise", check_fresh_noise), ("batch", check_fresh_batches)])
def test_draws_keyed_by_a_round_cut_to_some_bits(monkeypatch, purpose, check, period):
    """Noise or batches of rounds 0, 16, 32, … are the same: uploads are subtracted from each other."""
    cut = lambda right, self, key, count: right(self, key._replace(round=key.round % period), count)  # noqa: E731
    drawn_otherwise(monkeypatch, {purpose}, cut)
    assert failed(check)


@pytest.mark.parametrize(("purpose", "check"), [("noise", check_fresh_noise), ("batch", check_fresh_batches)])
def test_a_devices_streams_keyed_by_a_round_cut_to_some_bits(monkeypatch, purpose, check):
    """The same on a GPU, where a round's key makes all of its noise."""
    cut = lambda right, self, client, round, purpose: right(self, client, round % 16, purpose)  # noqa: E731
    streamed_otherwise(monkeypatch, {purpose}, cut)
    assert failed(check, engine=OnDevice)


@pytest.mark.parametrize(("purpose", "check"), [("noise", check_fresh_noise), ("batch", check_fresh_batches)])
def test_draws_from_the_public_seed(monkeypatch, purpose, check):
    """Whoever reads the config knows the noise, or which records a step looks at."""
    public = SeededDraws(0)
    seeded = lambda right, self, key, count: getattr(public, right.__name__)(key, count)  # noqa: E731
    drawn_otherwise(monkeypatch, {purpose}, seeded)
    assert failed(check)


@pytest.mark.parametrize(("purpose", "check"), [("noise", check_fresh_noise), ("batch", check_fresh_batches)])
def test_a_devices_streams_from_the_public_seed(monkeypatch, purpose, check):
    """The same on a GPU."""
    seeded = lambda right, self, *what: SeededDraws(0).stream(*what)  # noqa: E731
    streamed_otherwise(monkeypatch, {purpose}, seeded)
    assert failed(check, engine=OnDevice)


def test_an_output_noised_from_the_public_seed(monkeypatch):
    """Output perturbation whose noise anybody can make."""
    public = SeededDraws(0)
    seeded = lambda right, self, key, count: getattr(public, right.__name__)(key, count)  # noqa: E731
    drawn_otherwise(monkeypatch, {"output"}, seeded)
    for mechanism in OUTPUTS:
        assert failed(check_fresh_noise, mechanism)


# ------------------------------------------------------------------ noise within a vector


def halves(noise):
    """The second half repeats the first."""
    half = (noise.shape[-1] + 1) // 2
    return torch.cat([noise[..., :half], noise[..., :half]], -1)[..., : noise.shape[-1]]


def opposites(noise):
    """The second half takes the first away."""
    half = noise.shape[-1] // 2
    return torch.cat([noise[..., : noise.shape[-1] - half], -noise[..., :half]], -1)


def neighbours(noise):
    """Entries are equal in pairs."""
    return noise[..., ::2].repeat_interleave(2, -1)[..., : noise.shape[-1]]


def blocks(noise):
    """Every block is the first one."""
    size = min(14, noise.shape[-1])
    times = -(-noise.shape[-1] // size)
    return torch.cat([noise[..., :size]] * times, -1)[..., : noise.shape[-1]]


@pytest.mark.parametrize("repeated", [halves, opposites, neighbours, blocks])
def test_noise_that_is_equal_within_a_vector(monkeypatch, repeated):
    """Two entries with the same noise give away the difference of their sums."""
    equal = lambda right, self, key, count: repeated(right(self, key, count))  # noqa: E731
    drawn_otherwise(monkeypatch, {"noise"}, equal)
    assert "noise within a vector" in failed(noise_checks)


@pytest.mark.parametrize("repeated", [halves, neighbours, blocks])
def test_noise_that_is_equal_within_an_output(monkeypatch, repeated):
    """The same in output perturbation, whose Laplace noise is made of uniform numbers."""
    equal = lambda right, self, key, count: repeated(right(self, key, count))  # noqa: E731
    drawn_otherwise(monkeypatch, {"output"}, equal)
    for mechanism in OUTPUTS:
        assert "noise within a vector" in failed(noise_checks, mechanism)


@pytest.mark.parametrize("repeated", [halves, opposites, neighbours, blocks])
def test_noise_that_is_equal_within_a_vector_of_a_device(monkeypatch, repeated):
    """The same on a GPU."""
    right = streams.normals
    monkeypatch.setattr(streams, "normals", lambda *given: repeated(right(*given)))
    assert "noise within a vector" in failed(noise_checks, engine=OnDevice)


# ------------------------------------------------------------------ one client's numbers for all


class Otherwise(Vectorised):
    """Plans its jobs otherwise while it takes gradients."""

    def otherwise(self, job, first):
        raise NotImplementedError

    def under(self, method, round, step, clients, *given):
        planned = [client.job for client in clients]
        for client, job in zip(clients, planned, strict=True):
            client.job = self.otherwise(job, planned[0])
        try:
            return method(round, step, clients, *given)
        finally:
            for client, job in zip(clients, planned, strict=True):
                client.job = job


class FirstScale(Otherwise):
    def otherwise(self, job, first):
        scale = first.noisy.noise_multiplier * first.noisy.clip_norm
        return replace(job, plan=job.plan.changed(noise_multiplier=scale / job.noisy.clip_norm))

    def gradients(self, round, step, clients, weights, part="upload"):
        return self.under(super().gradients, round, step, clients, weights, part)


class FirstClip(Otherwise):
    def otherwise(self, job, first):
        return replace(job, plan=job.plan.changed(clip_norm=first.noisy.clip_norm))

    def batch_sums(self, round, step, clients, weights, part="upload"):
        return self.under(super().batch_sums, round, step, clients, weights, part)


class FirstRate(FirstClip):
    def otherwise(self, job, first):
        return replace(job, plan=job.plan.changed(batch=first.noisy.batch))


@pytest.mark.parametrize("mechanism", [POISSON, FIXED], ids=["poisson", "fixed"])
@pytest.mark.parametrize("engine", [FirstScale, FirstClip, FirstRate])
def test_the_first_clients_numbers_for_the_whole_stack(engine, mechanism):
    """A client who paid for more noise, a smaller clip or smaller batches gets its neighbour's."""
    assert failed(check_stack, mechanism, engine) == {"unlike clients"}


@pytest.mark.parametrize("row", [0, 1, 3], ids=["clip", "scale", "divisor"])
def test_the_first_clients_numbers_for_the_whole_stack_of_a_device(monkeypatch, row):
    """The same on a GPU."""
    right = device.Stack.load

    def load(self, members, round, attempt):
        right(self, members, round, attempt)
        self.numbers[row] = self.numbers[row, 0].clone()

    monkeypatch.setattr(device.Stack, "load", load)
    assert failed(check_stack, engine=OnDevice) == {"unlike clients"}


# ------------------------------------------------------------------ kept models that are published


class KeptLikeUpload(Vectorised):
    """Kept steps are numbered from zero again: they have the upload's noise and batches."""

    def gradients(self, round, step, clients, weights, part="upload"):
        first = clients[0].job.upload.steps if part == "kept" else 0
        return super().gradients(round, step - first, clients, weights, part)


class KeptOnUploadsBatches(Vectorised):
    def batch_sums(self, round, step, clients, weights, part="upload"):
        first = clients[0].job.upload.steps if part == "kept" else 0
        return super().batch_sums(round, step - first, clients, weights, part)


class KeptUnnoised(Vectorised):
    """Draws and counts the noise of kept steps, and leaves it out."""

    def gradients(self, round, step, clients, weights, part="upload"):
        noised = super().gradients(round, step, clients, weights, part)
        if part == "upload":
            return noised
        expected = torch.tensor([expected_size(client.job.steps) for client in clients])
        return (self.batch_sums(round, step, clients, weights, part) / expected.unsqueeze(1)).to(weights.dtype)


class KeptUncounted(Vectorised):
    def _keep(self, round, group, helper):
        before = [client.queries for client in group]
        super()._keep(round, group, helper)
        for client, queries in zip(group, before, strict=True):
            client.queries = queries


@pytest.mark.parametrize("engine", [KeptLikeUpload, KeptOnUploadsBatches, KeptUnnoised, KeptUncounted])
def test_kept_steps_without_noise_of_their_own(engine):
    """A published kept model is the upload's noise once more, or none: the two are subtracted."""
    assert failed(check_kept, engine=engine) == {"published kept models"}


@pytest.mark.parametrize("engine", [KeptLikeUpload, KeptUnnoised])
def test_kept_steps_of_full_batches_without_noise_of_their_own(engine):
    """The same where no batch is drawn."""
    assert failed(check_kept, FULL, engine) == {"published kept models"}


def test_kept_steps_of_a_device_with_the_uploads_noise(monkeypatch):
    """The same on a GPU: the step is the nonce."""
    right = device.Stack.run

    def run(self, *given):
        planned = self.first
        self.first = 0
        try:
            return right(self, *given)
        finally:
            self.first = planned

    monkeypatch.setattr(device.Stack, "run", run)
    assert failed(check_kept, FULL, OnDevice) == {"published kept models"}


# ------------------------------------------------------------------ what is carried on, and schedules


class CarriesUnnoised(Vectorised):
    """Sends the noised model, and goes on from the one without noise."""

    def take_steps(self, round, clients, *given):
        self.bare = super().take_steps(round, clients, *given)
        return self.bare

    def _upload(self, round, group, helper):
        found = super()._upload(round, group, helper)
        places = [client.index for client in group]
        states = self.store.gather(places).clone()
        states[0] = self.bare.weights
        self.store.scatter(places, list(states))
        return found


@pytest.mark.parametrize("mechanism", OUTPUTS, ids=["gaussian", "laplace"])
def test_a_model_without_noise_carried_on_after_output_perturbation(mechanism):
    """The next upload starts from the records themselves."""
    assert failed(check_carried, mechanism, CarriesUnnoised) == {"carried on"}


class NoiseFalls(Vectorised):
    """Noise follows the learning rate's schedule."""

    def _upload(self, round, group, helper):
        planned = [client.job for client in group]
        for client in group if planned[0].plan else ():
            mechanism = client.job.plan.mechanism
            falls = client.job.optimiser.schedule.at(client.taken - 1)
            less = max(LEAST_NOISE, falls * mechanism.noise_multiplier)
            client.job = replace(client.job, plan=client.job.plan.changed(noise_multiplier=less))
        try:
            return super()._upload(round, group, helper)
        finally:
            for client, job in zip(group, planned, strict=True):
                client.job = job


@pytest.mark.parametrize("mechanism", [POISSON, *OUTPUTS], ids=["steps", "gaussian", "laplace"])
def test_noise_that_falls_with_the_learning_rate(mechanism):
    """A schedule that is meant for the learning rate makes the noise of later rounds smaller than accounted."""
    assert "noise scale" in failed(noise_checks, mechanism, NoiseFalls)


# ------------------------------------------------------------------ batches


def test_the_batch_rate_from_the_real_count(monkeypatch):
    """Under add/remove the rate tells how many records there are."""
    real = lambda steps, present, *rest: choose(replace(steps, records=present), present, *rest)  # noqa: E731
    monkeypatch.setattr(host, "choose", real)
    assert failed(check_batches) == {"large batches"}


def test_the_batch_rate_from_the_real_count_on_a_device(monkeypatch):
    """The same on a GPU."""
    right = device.choose

    def real(spec, terms, keys):
        return right(spec, terms._replace(rates=terms.wanted / terms.sizes), keys)

    monkeypatch.setattr(device, "choose", real)
    assert failed(check_batches, engine=OnDevice) == {"large batches"}


def test_records_beyond_three_times_the_batch_dropped(monkeypatch):
    """Whether a record counts depends on how many others were drawn."""
    cut = lambda steps, *rest: choose(steps, *rest)[: 3 * expected_size(steps)]  # noqa: E731
    monkeypatch.setattr(host, "choose", cut)
    assert failed(check_batches) == {"large batches"}


def test_records_beyond_three_times_the_batch_dropped_on_a_device(monkeypatch):
    """The same on a GPU."""
    right = device.choose

    def cut(spec, terms, keys):
        found = right(spec, terms, keys)
        found.valid[..., 3 * spec.batch :] = False
        return found

    monkeypatch.setattr(device, "choose", cut)
    assert failed(check_batches, engine=OnDevice) == {"large batches"}


# ------------------------------------------------------------------ keys


def test_keys_are_random():
    """No attack: keys as they are."""
    assert check_keys().passed


def test_a_key_of_one_random_byte(monkeypatch):
    """256 keys are tried."""
    right = os.urandom
    monkeypatch.setattr(os, "urandom", lambda count: right(1) * count)
    assert not check_keys().passed


def test_a_key_of_a_few_random_bytes(monkeypatch):
    """Half of the key is the other half."""
    right = os.urandom
    monkeypatch.setattr(os, "urandom", lambda count: right(count // 2) * 2)
    assert not check_keys().passed


@pytest.mark.parametrize("made_of", ["path", "nothing"])
def test_a_key_that_can_be_computed(monkeypatch, made_of):
    """The key is a digest of something that others know."""

    def secret(self, **given):
        return hashlib.sha256(str(self.folder).encode() if made_of == "path" else b"").digest()

    monkeypatch.setattr(Checkpoint, "secret", secret)
    assert not check_keys().passed


# ------------------------------------------------------------------ who takes part


@pytest.fixture(scope="module")
def sometimes():
    return run.prepare(load("digits", ["participation=0.3", "data.clients=12"]))


def test_the_coin_is_fair(sometimes):
    """No attack: the coin as it is."""
    assert check_coins(sometimes, SystemDraws()).passed


@pytest.mark.parametrize("wrong", ["once", "period", "client"])
def test_a_coin_that_is_not_tossed_anew(monkeypatch, sometimes, wrong):
    """One toss serves all rounds, every 16th round or all clients: who takes part is known from the past."""

    def again(right, self, key, count):
        fields = {"once": {"round": 0}, "period": {"round": key.round % 16}, "client": {"client": ""}}
        return right(self, key._replace(**fields[wrong]), count)

    drawn_otherwise(monkeypatch, {"coin"}, again)
    assert not check_coins(sometimes, SystemDraws()).passed


def test_a_coin_from_the_public_seed(monkeypatch, sometimes):
    """Whoever reads the config knows who takes part when."""
    seeded = lambda right, self, key, count: SeededDraws(0).uniform(key, count)  # noqa: E731
    drawn_otherwise(monkeypatch, {"coin"}, seeded)
    assert not check_coins(sometimes, SystemDraws()).passed


def test_a_coin_that_falls_too_often(monkeypatch, sometimes):
    """Clients take part more often than accounted."""
    often = lambda right, self, key, count: right(self, key, count) * 0.8  # noqa: E731
    drawn_otherwise(monkeypatch, {"coin"}, often)
    assert not check_coins(sometimes, SystemDraws()).passed


# ------------------------------------------------------------------ labels


class ByCounts(Vectorised):
    """Losses are weighted by how often a client has their label."""

    def batch_sums(self, round, step, clients, weights, part="upload"):
        rows = []
        for c, client in enumerate(clients):
            here = slice(client.offset, client.offset + client.records)
            x, y = self.records.x[here], self.records.y[here]
            total = weights.new_zeros(self.net.count, dtype=torch.float64)
            for own, label in zip(x.split(1), y.split(1), strict=True):
                gradient = self.net.one_record(weights[c], own, label, {}).double() / (y == label).sum()
                total += gradient * torch.clamp(client.job.noisy.clip_norm / gradient.norm(), max=1.0)
            rows.append(total)
        return torch.stack(rows)


def test_losses_weighted_by_private_class_counts():
    """One record changes what all others of its class add."""
    assert failed(check_labels, FULL, ByCounts) == {"others' labels"}


def test_a_loss_that_was_made_from_private_labels(monkeypatch):
    """The weights are fixed before the first round, from everybody's labels."""
    config = load("digits", ["compare=[]"])
    right = run.prepare

    def weighted(config):
        prepared = right(config)
        labels = torch.cat([client.train.y for client in prepared.federation.clients])
        weights = len(labels) / torch.bincount(labels).float()
        plain = prepared.net.loss
        prepared.net.loss = lambda outputs, y: plain(outputs, y) * weights.to(outputs)[y]
        return prepared

    monkeypatch.setattr(configured.run, "prepare", weighted)
    assert "loss" in audit_config(config).failed


# ------------------------------------------------------------------ the whole


def test_the_whole_audit_sees_what_its_parts_see(monkeypatch):
    """Noise of every 16th round, batches from the seed and a byte as a key, each in the table that users read."""
    module = nn.Linear(6, 3)
    given = {"optimiser": Optimiser(), "mechanism": POISSON, "samples": SAMPLES}
    public = SeededDraws(0)

    def wrong(right, self, key, count):
        if key.purpose == "batch":
            return public.uniform(key, count)
        return right(self, key._replace(round=key.round % 16), count)

    one_byte = os.urandom
    drawn_otherwise(monkeypatch, {"noise", "batch"}, wrong)
    monkeypatch.setattr(os, "urandom", lambda count: one_byte(1) * count)
    found = audit_step(module, RECORDS, LABELS, losses.classes, engine=FirstScale, **given)
    assert {"noise used again", "batches used again", "secret keys", "unlike clients"} <= set(found.failed)


def test_the_whole_audit_of_a_config_sees_the_coin(monkeypatch):
    """A coin that is tossed once, in the table that users read."""
    once = lambda right, self, key, count: right(self, key._replace(round=0), count)  # noqa: E731
    drawn_otherwise(monkeypatch, {"coin"}, once)
    assert audit_config(load("digits", ["participation=0.3", "privacy.randomness=system"])).failed == (
        "participation coin",
    )
