"""What stays with a client: it cannot travel, it is not counted as private, and what is published of it is noised and
counted to the last step."""

import re
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from scipy import stats

from prifedsync import run as running
from prifedsync.config import load
from prifedsync.engines import ENGINES, Vectorised
from prifedsync.local import Optimiser, RecordedDraws, SeededDraws
from prifedsync.local import noise as noises
from prifedsync.local.device import streams
from prifedsync.planning import rule_of
from prifedsync.record import KEPT, NO_GUARANTEE, NOTHING_LEAVES
from prifedsync.rules import (
    APFL,
    RULES,
    Alone,
    Ditto,
    Interpolate,
    LocalOnly,
    Noised,
    PFedMe,
    Server,
    Unprotected,
)
from prifedsync.run.checkpoint import Checkpoint
from prifedsync.server import Aggregator
from prifedsync.sync import Refused, Stayed, Synchronisation, Uploads, synchronise
from prifedsync.values import BadValue

from ..engines.settings import (
    ask,
    jobs_under,
    net_of,
    noisy_queries,
    perturbing,
    private,
    records_of,
    run,
    served,
    sums,
    unnoised,
)
from ..engines.test_device import OnDevice
from ..engines.test_noise_law import RATE, RECORDS, WIDE, WRONG, wide
from ..engines.test_store import fail
from ..local.laws import follows, uncorrelated
from ..local.zoo import CASES
from ..test_run import Killed, interrupted_at, killed_in_round

KINDS = ENGINES | {"on device": OnDevice}
ENGINE = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
PUBLISHED = [kind(publish=True) for kind in (APFL, Ditto, Alone)]
KEEPING = [APFL(), Ditto()]
EVERY = [*(kind() for kind in RULES.values()), *PUBLISHED]
ADAM = Optimiser(name="adam", learning_rate=0.05, stability=1e-3)
CASE, SIZES, STEPS = CASES["linear without bias"], (5, 9, 1), 2
net = cache(lambda: net_of(CASE))


def make_of(each):
    """Where nothing leaves there is nothing to plan."""
    return private if each.noisy_gradients(1) else unnoised


# ------------------------------------------------------------------ types


def test_what_is_kept_cannot_travel():
    rows = torch.zeros(1, 3)
    with pytest.raises(TypeError, match="an upload must be Noised, not LocalOnly"):
        Uploads({}, LocalOnly(rows))
    for each in EVERY:
        with pytest.raises(TypeError, match="not LocalOnly" if each.uploads else "nothing is sent"):
            each.merge(Server(rows[0]), LocalOnly(rows), 1.0)


@ENGINE
@pytest.mark.parametrize("each", EVERY, ids=str)
def test_each_personal_model_says_whether_it_may_leave(kind, each):
    """Before and after a round, and whatever the plan."""
    plans = {"noisy steps": private, "none": unnoised}
    if not (each.outer or each.publishes):
        plans["output"] = lambda *a, **o: unnoised(*a, plan=perturbing(), **o)
    if make_of(each) is unnoised:
        plans = {"none": unnoised}
    for name, make in plans.items():
        engine = kind(net(), jobs_under(each, make, sizes=SIZES), records_of(CASE, SIZES), each, SeededDraws(1))
        stays = each.kept and not (each.publishes and name == "noisy steps")
        right = LocalOnly if stays and (name != "none" or not each.uploads) else Unprotected if name == "none" else Noised
        assert type(engine.personal(0)) is right
        uploads = ask(engine, 0, [0, 2], engine.start)
        assert [type(engine.personal(i)) for i in range(3)] == [right] * 3
        assert type(uploads.rows) is (Unprotected if name == "none" else Noised)
        assert all(isinstance(given, Stayed) for given in uploads.answers.values()) == (not each.uploads)


# ------------------------------------------------------------------ counts


@pytest.mark.parametrize("kind", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("each", EVERY, ids=str)
def test_every_noisy_gradient_is_drawn_once_and_counted_once(kind, each):
    """On the tape: a batch for every step of the round, noise for those that are counted; 0, 1, 2, … and none twice."""
    jobs = jobs_under(each, make_of(each), STEPS, SIZES, batch=2)
    seen = run(kind, net(), jobs, records_of(CASE, SIZES), RecordedDraws(SeededDraws(4)), rule=each)
    counted, kept = each.noisy_gradients(STEPS), STEPS if each.kept else 0
    drawn = {purpose: Counter(key[:3] for _, key in seen.draws.asked if key.purpose == purpose)
             for purpose in ("noise", "batch")}  # fmt: skip
    steps = max(counted, each.upload_steps(STEPS) + kept)
    for purpose, number in (("noise", counted), ("batch", steps)):
        clients = jobs if purpose == "noise" else jobs[:2]  # the third has one record, which is always in
        assert drawn[purpose] == Counter((job.client, r, s) for job in clients for r in range(3) for s in range(number))
    assert noisy_queries(seen.engine) == [3 * counted] * len(SIZES)
    assert all(job.plan is None or job.plan.mechanism.local_steps == counted for job in jobs)


@pytest.mark.parametrize("each", EVERY, ids=str)
def test_on_a_device_too(each, monkeypatch):
    """A stream is a client's, a round's and a purpose's; every step has its own number in it."""
    noised, batches, plain = [], [], noises.add_normals

    def add_normals(parts, noise, out):
        noised.extend((tuple(key), int(noise.step)) for key in noise.keys.tolist())
        return plain(parts, noise, out)

    def uniforms(keys, nonces, count, plain=streams.uniforms):
        batches.extend((tuple(key), step) for key in keys.tolist() for step in nonces[0, :, 0].tolist())
        return plain(keys, nonces, count)

    monkeypatch.setattr(noises, "add_normals", add_normals)
    monkeypatch.setattr(streams, "uniforms", uniforms)
    jobs = jobs_under(each, make_of(each), STEPS, (4, 4, 4), batch=2)
    seen = run(OnDevice, net(), jobs, records_of(CASE, (4, 4, 4)), SeededDraws(4), rule=each, rounds=2)
    counted, kept = each.noisy_gradients(STEPS), STEPS if each.kept else 0
    steps = max(counted, each.upload_steps(STEPS) + kept)
    for found, purpose, number in ((noised, "noise", counted), (batches, "batch", steps)):
        keys = [streams.keys([seen.draws] * len(jobs), [job.client for job in jobs], r, [purpose], "cpu") for r in range(2)]
        rows = [tuple(row) for round in keys for row in round[0].tolist()]
        assert Counter(found) == Counter((row, step) for row in rows for step in range(number))
    assert noisy_queries(seen.engine) == [2 * counted] * 3


SMALL = ("data.clients=3", "rounds=2", "compare=[]", "performance.checkpoint_seconds=0", "privacy.noise_multiplier=20")
CONFIGS = [*RULES, "apfl, published", "ditto, published", "alone, published"]


def config_of(text, *more):
    name, _, published = text.partition(", ")
    chosen = [f"rule.name={name}"]
    chosen += ["rule.publish=true"] if published else []
    chosen += ["rule.inner_steps=4"] if name == "pfedme" else []
    return load("digits", [*SMALL, f"local.local_steps={STEPS}", *chosen, *more])


@pytest.mark.parametrize("text", CONFIGS)
def test_the_plan_has_as_many_steps_as_the_rule_takes(text):
    """And who trains alone takes part whenever there is a round, in the plan and in truth."""
    config = config_of(text, "participation=0.3", "rounds=3")
    counted = rule_of(config).noisy_gradients(STEPS)
    assert counted == {"pfedme": 4 * STEPS, "alone": 0, "apfl, published": 2 * STEPS, "ditto, published": 2 * STEPS}.get(
        text, STEPS
    )
    result = running.train(config)
    alone = text.startswith("alone")
    for job, client in zip(result.engine.jobs, result.record.clients, strict=True):
        assert (job.plan is None) == (counted == 0)
        if job.plan:
            assert job.plan.mechanism.local_steps == counted == client.plan["local_steps"]
            assert job.plan.participation == client.plan["participation"] == (1.0 if alone else 0.3)
        assert client.noisy_queries == counted * client.rounds_taken
    taken = [client.rounds_taken for client in result.record.clients]
    assert taken == [3, 3, 3] if alone else sum(taken) < 9


@pytest.mark.parametrize("kind", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("each", [*PUBLISHED, *KEEPING], ids=str)
def test_beyond_its_plan_nothing_is_trained_and_nothing_drawn(kind, each):
    """Neither for the upload nor for the client's own model."""
    jobs = jobs_under(each, private, STEPS, SIZES, rounds=1)
    engine = kind(net(), jobs, records_of(CASE, SIZES), each, RecordedDraws(SeededDraws(4)))
    ask(engine, 0, [0, 1], engine.start)
    before, counters, drawn = [engine.personal(i).value for i in (0, 1)], engine.counters(), len(engine.draws.asked)
    again = ask(engine, 1, [0, 1], engine.start)
    assert all(isinstance(given, Refused) for given in again.answers.values())
    assert (len(again.rows.value), len(engine.draws.asked)) == (0, drawn)
    assert engine.counters() == counters
    assert all(torch.equal(engine.personal(i).value, before[i]) for i in (0, 1))


# ------------------------------------------------------------------ the law of what is published


def own_noise(kind, each, factor=1.0):
    """What the first step of the upload and of the personal model have beyond the clipped sums, each [P]."""
    options = {"batch": "full", "optimiser": Optimiser(learning_rate=RATE), "clip_norm": 0.3, "strength": 0.7}
    jobs = jobs_under(each, private, 1, (RECORDS,), noise_multiplier=2.0 * factor, **options)
    engine = kind(wide(), jobs, records_of(WIDE, (RECORDS,)), each, SeededDraws(17))
    uploads = ask(engine, 0, [0], engine.start).rows.value
    start, own, share = engine.start, engine.kept.read(0)[0], each.kept.share
    upload = uploads[0] if each.uploads else None
    point = start if share is None else share * start + (1 - share) * upload
    found = [(start - own) / (share or 1.0) * RECORDS / RATE - clipped(engine, point)]
    return [*found, *([] if upload is None else [(start - upload) * RECORDS / RATE - clipped(engine, start)])]


def clipped(engine, point):
    """The clipped sum over all records there."""
    plain = Vectorised(wide(), engine.jobs, records_of(WIDE, (RECORDS,)), engine.rule, SeededDraws(17))
    part = "upload" if engine.rule.uploads else "kept"
    return sums(plain, 0, 0, [0], point[None], part)[0]


@ENGINE
@pytest.mark.parametrize("each", PUBLISHED, ids=str)
def test_a_published_model_has_the_noise_of_the_plan(kind, each):
    """Its own, and not that of the upload once more."""
    noise = own_noise(kind, each)
    assert all(follows(one, stats.norm, 0.6) for one in noise)
    assert len(noise) < 2 or uncorrelated(torch.stack(noise))
    for factor in WRONG:
        assert not any(follows(one, stats.norm, 0.6) for one in own_noise(kind, each, factor))


@ENGINE
@pytest.mark.parametrize("each", [*KEEPING, Alone()], ids=str)
def test_a_kept_model_follows_plain_gradients(kind, each):
    """Nothing clipped, nothing added: other draws, the same model, where the upload is given and batches are full."""
    models = []
    for seed in (1, 2):
        options = (
            {"batch": "full", "strength": 0.7, "plan": None} if each == Alone() else {"batch": "full", "strength": 0.7}
        )
        jobs = jobs_under(each, unnoised if each == Alone() else private, STEPS, SIZES, **options)
        engine = kind(net(), jobs, records_of(CASE, SIZES), each, SeededDraws(seed))
        engine._uploads = lambda group, start=engine.start: start.expand(len(group), -1)
        ask(engine, 0, range(3), engine.start)
        models.append(torch.stack([engine.kept.read(i)[0] for i in range(3)]))
    assert torch.equal(*models)
    assert (models[0] - engine.start).norm(dim=1).min() > 0.3 * 0.5  # further than a clipped step would go


# ------------------------------------------------------------------ a run's folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Runs by rule and publishing, trained once."""
    new = tmp_path_factory.mktemp
    return cache(lambda text, *more: running.train(config_of(text, *more), out=new("runs") / "run"))


def says(path):
    with safe_open(path, "pt") as file:
        return file.metadata()["publishing"]


@pytest.mark.parametrize("text", CONFIGS)
def test_files_and_record_say_which_models_may_be_published(folders, text):
    result = folders(text)
    files, record = sorted((result.folder / "models/personal").iterdir()), result.record
    kept = text in ("apfl", "ditto", "alone")
    word = f"not private if published: {KEPT}" if kept else "a simulation: the guarantee is of the algorithm"
    assert len(files) == 3
    assert all(says(file).startswith(word) for file in files)
    assert record.personal_models.startswith(word)
    assert any(KEPT in warning and "neither they nor their scores" in warning for warning in record.warnings) == kept
    assert all(torch.equal(value, result.personal("client-00")[name]) for name, value in load_file(files[0]).items())
    assert (result.folder / "models/global.safetensors").exists() == (not text.startswith("alone"))
    assert not list(result.folder.rglob("kept.safetensors"))


@pytest.mark.parametrize("text", ["apfl", "ditto", "apfl, published", "ditto, published"])
def test_the_global_model_is_that_of_fedavg(folders, text):
    """Nothing kept is in it, nor in anything a client sent."""
    (mine, theirs), sizes = (folders(each) for each in (text, "fedavg")), range(3)
    models = [load_file(each.folder / "models/global.safetensors") for each in (mine, theirs)]
    assert models[0].keys() == models[1].keys()
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
    assert all(torch.equal(mine.engine.own(i), theirs.engine.own(i)) for i in sizes)
    assert not any(torch.equal(mine.engine.personal(i).value, mine.engine.own(i)) for i in sizes)


def test_alone_states_that_nothing_leaves(folders):
    kept, published = folders("alone").record, folders("alone, published").record
    assert kept.sentence == NOTHING_LEAVES
    assert kept.guarantee is None
    assert all(client.plan is client.planned is client.taken is None for client in kept.clients)
    assert published.guarantee["epsilon"]["upper"] > 0
    assert NOTHING_LEAVES not in published.sentence
    bare = running.train(config_of("alone, published").changed(**{"privacy.mechanism": "none"})).record
    assert bare.sentence == NO_GUARANTEE
    assert bare.personal_models.startswith("not private if published")


def test_with_secret_draws_only_what_is_covered_may_be_published(folders):
    for text, word in (("ditto", "not private"), ("ditto, published", "may be published"), ("pfedme", "may be published")):
        result = folders(text, "privacy.randomness=system")
        assert result.record.personal_models.startswith(word)
        assert {says(file).startswith(word) for file in (result.folder / "models/personal").iterdir()} == {True}
        assert says(result.folder / "models/global.safetensors").startswith("may be published")


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize("mechanism", ["output-gaussian", "output-laplace"])
@pytest.mark.parametrize("text", ["pfedme", "apfl, published", "ditto, published", "alone, published"])
def test_one_noised_change_does_not_cover_two_models(text, mechanism):
    with pytest.raises(BadValue, match=r"cannot be combined with rule .* not cover two models; use noisy-steps") as refused:
        running.prepare(config_of(text, f"privacy.mechanism={mechanism}"))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["fedprox", "mean-regularised", "pfedme", "attentive", "ditto", "mixture"])
@pytest.mark.parametrize("optimiser", ["sgd", "momentum"])
def test_a_strength_that_overshoots_is_refused_for_whom_it_does(name, optimiser):
    lasting = 0.5 / (1 - 0.9) if optimiser == "momentum" else 0.5  # how far a lasting gradient leads in a step
    most = 1 / (lasting * STEPS) * (1 - 1e-9) if name == "mixture" else 1 / 0.5
    how = (f"local.optimiser={optimiser}", "local.learning_rate=0.5", f"rule.strength={most}")
    assert running.prepare(config_of(name, *how)).jobs
    with pytest.raises(BadValue) as refused:
        running.prepare(config_of(name, *how, f'clients."client-01".strength={1.01 * most}'))
    text = str(refused.value)
    assert text.startswith(f"client client-01: strength = {1.01 * most}")
    said = float(re.search(r"at most ([\d.]+)", text)[1])
    assert most * (1 - 2e-6) < said <= most * (1 + 2e-9)
    assert "\n" not in text


@pytest.mark.parametrize("name", ["fedavg", "interpolate", "apfl", "alone"])
def test_a_strength_that_is_not_used_is_not_refused(name):
    assert running.prepare(config_of(name, "rule.strength=1000")).jobs


# ------------------------------------------------------------------ whatever happens


@ENGINE
@pytest.mark.parametrize("each", [*KEEPING, *PUBLISHED, PFedMe(inner_steps=2), Interpolate()], ids=str)
def test_a_resumed_engine_goes_on_to_the_same_bits(kind, each, tmp_path):
    """Uploads, personal models and shares of all later rounds, from a checkpoint on disk."""
    jobs = jobs_under(each, sizes=SIZES, optimiser=ADAM, strength=0.5, mixing=0.3, rounds=4, participation=0.6)
    options = {"rule": each, "participation": 0.6, "delivery": "push"}
    whole = run(kind, net(), jobs, records_of(CASE, SIZES), SeededDraws(4), rounds=4, **options)
    first = run(kind, net(), jobs, records_of(CASE, SIZES), SeededDraws(4), rounds=2, folder=tmp_path, **options)
    Checkpoint(tmp_path).save(first.servers[-1], first.engine, first.aggregator, {})
    engine = kind(net(), jobs, records_of(CASE, SIZES), each, SeededDraws(4), folder=tmp_path)
    aggregator = Aggregator(each, jobs, engine.start, delivery="push", folder=tmp_path)
    server, _ = Checkpoint(tmp_path).load(engine, aggregator)
    assert [client.share for client in engine.clients] == [client.share for client in first.engine.clients]
    rest = list(synchronise(Synchronisation(rounds=4), aggregator, engine, server))
    for (server, uploads), right, expected in zip(rest, whole.servers[2:], whole.uploads[2:], strict=True):
        assert torch.equal(server.weights, right.weights)
        assert uploads.answers.keys() == expected.answers.keys()
        assert torch.equal(uploads.rows.value, expected.rows.value)
    assert engine.counters() == whole.engine.counters()
    for i in range(3):
        assert torch.equal(engine.personal(i).value, whole.engine.personal(i).value)
        assert torch.equal(engine.state(i), whole.engine.state(i))


@pytest.mark.parametrize("broken", ["os.fsync", "prifedsync.run.checkpoint.save", "os.replace"])
def test_a_checkpoint_that_fails_again_and_again_spares_what_was_kept(broken, tmp_path, monkeypatch):
    jobs = jobs_under(APFL(), sizes=SIZES, optimiser=ADAM, rounds=9)
    given = (net(), jobs, records_of(CASE, SIZES), APFL(), SeededDraws(4))
    engine, server = Vectorised(*given, folder=tmp_path), Server(net().initial(), 1)
    ask(engine, 0, range(3), engine.start)
    Checkpoint(tmp_path).save(server, engine, served(engine), {})
    models, shares = [engine.personal(i).value.clone() for i in range(3)], engine.counters()["share"]
    for round in range(1, 4):
        ask(engine, round, range(3), engine.start)
        with monkeypatch.context() as patch:
            patch.setattr(broken, fail)
            with pytest.raises(OSError, match="No space left"):
                Checkpoint(tmp_path).save(replace(server, round=round + 1), engine, served(engine), {})
    again = Vectorised(*given, folder=tmp_path)
    assert Checkpoint(tmp_path).load(again, served(again))[0].round == 1
    assert again.counters()["share"] == shares != engine.counters()["share"]
    assert all(torch.equal(again.personal(i).value, models[i]) for i in range(3))


CARRYING = ("local.optimiser=adam", "local.learning_rate=0.05", "participation=0.5", "rule.delivery=push", "rounds=4")


@pytest.mark.parametrize("text", ["apfl", "ditto, published", "alone"])
def test_a_run_that_is_ended_anywhere_resumes_to_the_same_models(text, tmp_path, monkeypatch):
    """Between rounds, and in the middle of writing what is kept."""
    config = config_of(text, *CARRYING, f"performance.memory_gib={1e-9 if text == 'apfl' else 2}")
    whole = running.train(config)
    for count, operation in enumerate(("pwrite", "pwrite", "replace", None)):
        folder = tmp_path / str(count)
        with monkeypatch.context() as patch:
            if operation:
                interrupted_at(operation, 4 + 3 * count, Killed(), patch)
            with pytest.raises(Killed):
                running.train(config, out=folder, watch=None if operation else killed_in_round(3))
        found = running.resume(folder)
        assert found.engine.counters() == whole.engine.counters()
        assert torch.equal(found.server.weights, whole.server.weights)
        for i in range(3):
            assert torch.equal(found.engine.personal(i).value, whole.engine.personal(i).value)
            assert torch.equal(found.engine.own(i), whole.engine.own(i))
        assert found.record.repeatable() == whole.record.repeatable()
