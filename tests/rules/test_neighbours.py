"""Neighbouring data sets under every rule: one record moves each noisy gradient by 2C at most, and an upload is made of
noisy gradients and public numbers, of nothing else."""

import math
from functools import cache

import pytest
import torch
from torch import nn

from prifedsync.engines import ENGINES
from prifedsync.local import Optimiser, SeededDraws
from prifedsync.rules import (
    APFL,
    Alone,
    Attentive,
    Ditto,
    FedAvg,
    FedProx,
    Interpolate,
    LocalOnly,
    MeanRegularised,
    Mixture,
    PFedMe,
    Server,
)
from prifedsync.sync import Helpers

from ..engines.settings import (
    ask,
    gradients,
    jobs_under,
    net_of,
    perturbing,
    private,
    records_of,
    served,
    unnoised,
)
from ..engines.test_device import OnDevice
from ..local.zoo import Case

KINDS = ENGINES | {"on device": OnDevice}
ENGINE = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
PLAIN = [FedAvg(), Interpolate(), FedProx(), MeanRegularised(), Mixture(), Attentive()]
KEEPING = [APFL(), Ditto(), APFL(publish=True), Ditto(publish=True)]
RULE = pytest.mark.parametrize("rule", [*PLAIN, PFedMe(inner_steps=2), *KEEPING, Alone(publish=True)], ids=str)
KEEPS = pytest.mark.parametrize("rule", KEEPING, ids=str)
PUSHES = pytest.mark.parametrize("pushes", [False, True], ids=["pull", "push"])
ADAM = Optimiser(name="adam", learning_rate=0.05, stability=1e-3)

# the gradient of a record's loss is its error times something: errors of opposite signs, opposite gradients
CASE = Case(lambda: nn.Linear(6, 1, bias=False), (6,), task="regression")
SIZES, CLIP, FAR = (4, 5, 3), 0.3, 1e9
EVERYBODY = range(len(SIZES))
net = cache(lambda: net_of(CASE))


def records(target=None):
    """One record of the first client has this target."""
    (x, y), *others = records_of(CASE, SIZES)
    y[1] = y[1] if target is None else target
    return [(x, y), *others]


def engine_of(kind, rule, records, pushes=False, make=private, **changed):
    """Clients with strengths, mixing and an optimiser that carries something."""
    options = {"batch": "full", "optimiser": ADAM, "strength": 0.5, "mixing": 0.4, **changed}
    engine = kind(net(), jobs_under(rule, make, sizes=SIZES, **options), records, rule, SeededDraws(6))
    served(engine, "push" if pushes else "pull")
    return engine


def rounds_of(engine, rounds, weights=None, after=lambda: None):
    """The uploads of these rounds, and the global model after them."""
    weights = engine.start if weights is None else weights
    found = []
    for round in rounds:
        found.append(ask(engine, round, EVERYBODY, weights).rows.value.clone())
        weights = found[-1].mean(0) if len(found[-1]) else weights
        after()
    return found, weights


def same(ones, others):
    return all(torch.equal(one, other) for one, other in zip(ones, others, strict=True))


class Tap:
    """Hears every noisy gradient that an engine follows, and can put others in their place."""

    def __init__(self, engine, instead=None):
        self.engine, self.heard, self.instead = engine, [], None if instead is None else iter(instead)
        gradients, stack_of = engine.gradients, getattr(engine, "_stack", None)

        def heard(round, step, clients, weights, part="upload"):
            found = gradients(round, step, clients, weights, part)
            group = [client.index for client in clients]
            return self.hear(round, step, group, weights, found) if clients[0].job.phase(part).noisy else found

        if isinstance(engine, OnDevice):
            engine._stack = lambda group, part: self.on(stack_of(group, part))
        else:
            engine.gradients = heard

    def on(self, stack):
        if not hasattr(stack, "tapped"):
            stack.tapped, load, update = {}, stack.load, stack._update

            def loaded(clients, round, attempt):
                stack.tapped = {"round": round, "group": [client.index for client in clients]}
                load(clients, round, attempt)

            def updated(gradient, weights, slots, anchor, share, *rest):
                seats = slice(len(stack.tapped["group"]))
                point = weights if anchor is None else stack.rule.point(weights, anchor, share)
                if stack.private:
                    step = int(stack.step)
                    gradient[seats] = self.hear(step=step, weights=point[seats], gradient=gradient[seats], **stack.tapped)
                update(gradient, weights, slots, anchor, share, *rest)

            stack.load, stack._update = loaded, updated
        return stack

    def hear(self, round, step, group, weights, gradient):
        gradient = gradient.clone() if self.instead is None else next(self.instead)[-1].clone()
        self.heard.append((round, step, list(group), weights.clone(), gradient.clone()))
        return gradient


def asked(engine, round, step, group, weights):
    """What an engine answers to a question that another was asked."""
    part = "upload" if step < engine.jobs[0].upload.steps else "kept"
    return gradients(engine, round, step, group, weights, part)


@ENGINE
@RULE
def test_one_record_moves_every_noisy_gradient_by_twice_the_clip_and_no_more(kind, rule):
    """At equal weights and with equal noise, in a third round: what is carried and kept is there."""
    one, other = (engine_of(kind, rule, records(target), clip_norm=CLIP) for target in (FAR, -FAR))
    _, weights = rounds_of(one, range(2))
    tap = Tap(one)
    rounds_of(one, [2], weights)
    heard = [each for each in tap.heard if 0 in each[2]]
    assert [step for _, step, *_ in heard] == list(range(rule.noisy_gradients(2)))
    moved = [(gradient - asked(other, *question))[question[2].index(0)] for *question, gradient in heard]
    assert [SIZES[0] * each.norm().item() for each in moved] == pytest.approx([2 * CLIP] * len(heard), rel=2e-3)  # the grid


@ENGINE
@RULE
@PUSHES
def test_uploads_are_made_of_noisy_gradients_and_public_numbers_alone(kind, rule, pushes):
    """Other records, other kept models: where the noisy gradients are held equal, every upload is the same bits."""
    one, other = (engine_of(kind, rule, [(a * x, a * y) for x, y in records()], pushes) for a in (1, -10))
    tap = Tap(one)
    uploads, weights = rounds_of(one, range(3))
    again = Tap(other, instead=tap.heard)
    replayed, there = rounds_of(other, range(3))
    assert len(again.heard) == len(tap.heard) > 0
    assert same([*uploads, weights], [*replayed, there])
    for i in EVERYBODY:
        assert torch.equal(one.state(i), other.state(i))
        mine, theirs = one.personal(i), other.personal(i)
        assert type(mine) is type(theirs)
        assert torch.equal(mine.value, theirs.value) == (not isinstance(mine, LocalOnly))


@ENGINE
@pytest.mark.parametrize("rule", [*PLAIN, APFL(), Ditto()], ids=str)
def test_with_noise_on_the_output_uploads_are_two_clips_apart_at_most(kind, rule):
    """Whatever the first client's optimiser carries, which is not noised there; last uploads and helpers are given."""
    options = {"optimiser": Optimiser(name="momentum", learning_rate=0.1), "plan": perturbing(clip_norm=CLIP)}
    one, other = (engine_of(kind, rule, records(target), make=unnoised, **options) for target in (FAR, -FAR))
    _, weights = rounds_of(one, range(2))
    rounds_of(other, range(2))
    for i in EVERYBODY:
        carried = other.state(i) if i == 0 else one.state(i)
        other.store.write(i, torch.cat([one.state(i)[:1], carried[1:]]))
    assert not torch.equal(other.state(0), one.state(0))
    given = served(one).helpers(Server(weights))(one.names)
    helpers = Helpers(one.names, lambda names: torch.stack([given[one.place(name)] for name in names]))
    mine, theirs = (engine.train(2, helpers).rows.value for engine in (one, other))
    assert (mine - theirs)[0].norm().item() == pytest.approx(2 * CLIP, rel=2e-3)
    assert torch.equal(mine[1:], theirs[1:])


# ------------------------------------------------------------------ what is kept


def spoil(engine, value):
    """Everything kept becomes garbage: models, optimisers' vectors, shares, counts."""
    for i in EVERYBODY:
        state = engine.kept.read(i)
        garbage = torch.randn(state.shape, generator=torch.Generator().manual_seed(i)) if value is None else value
        engine.kept.write(i, torch.zeros_like(state) + garbage)
    for client in engine.clients:
        client.share = 0.3 if value is None else value
        client.kept_steps += 7


@ENGINE
@KEEPS
@pytest.mark.parametrize(("value", "pushes"), [(None, True), (math.nan, False), (math.inf, True), (1e300, False)])
def test_whatever_becomes_of_what_is_kept_every_later_upload_is_the_same(kind, rule, value, pushes):
    clean, spoiled = (engine_of(kind, rule, records(), pushes, rounds=4) for _ in range(2))
    uploads, _ = rounds_of(clean, range(4))
    found, _ = rounds_of(spoiled, range(4), after=lambda: spoil(spoiled, value))
    assert same(uploads, found)
    assert same(map(clean.state, EVERYBODY), map(spoiled.state, EVERYBODY))
    assert not any(torch.equal(clean.personal(i).value, spoiled.personal(i).value) for i in EVERYBODY)


@ENGINE
@KEEPS
@PUSHES
def test_uploads_are_those_of_a_federation_that_keeps_nothing(kind, rule, pushes, monkeypatch):
    """With the training of kept models, without it, and as FedAvg sends them: the same bits."""
    keeping, idle, plain = (engine_of(kind, each, records(), pushes) for each in (rule, rule, FedAvg()))
    monkeypatch.setattr(idle, "_keep", lambda *_: None)
    uploads, without, expected = (rounds_of(engine, range(3))[0] for engine in (keeping, idle, plain))
    assert same(uploads, without)
    assert same(uploads, expected)


@ENGINE
@KEEPS
def test_when_kept_models_are_trained_the_uploads_are_sealed(kind, rule, monkeypatch):
    """They are in the store by then, and what the training of kept models does cannot change them in place."""
    engine, seen = engine_of(kind, rule, records()), []
    take_steps = engine.take_steps

    def noted(round, clients, part, *rest):
        if part == "kept":
            seen.extend(engine.own(client.index).clone() for client in clients)
        return take_steps(round, clients, part, *rest)

    monkeypatch.setattr(engine, "take_steps", noted)
    uploads, _ = rounds_of(engine, range(2))
    assert same([row for rows in uploads for row in rows], seen)


@ENGINE
@RULE
def test_within_a_round_no_client_feels_what_another_holds_or_keeps(kind, rule):
    """The first client's records and kept state become garbage; the others' models of that round are the same bits."""
    clean, dirty = (engine_of(kind, rule, records()) for _ in range(2))
    _, weights = rounds_of(clean, range(2))
    rounds_of(dirty, range(2))
    dirty.records.x[: SIZES[0]] = math.nan
    if dirty.kept:
        dirty.kept.write(0, dirty.kept.read(0) * math.nan)
        dirty.clients[0].share = math.nan
    (mine,), (theirs,) = (rounds_of(engine, [2], weights)[0] for engine in (clean, dirty))
    assert torch.equal(mine[1:], theirs[1:])
    assert torch.isfinite(theirs).all()
    assert same(*([engine.personal(i).value for i in EVERYBODY[1:]] for engine in (clean, dirty)))
