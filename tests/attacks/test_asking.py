"""A server that asks otherwise than planned: again, out of order, too often, with something else than a helper."""

from dataclasses import dataclass
from functools import cache

import pytest
import torch

from prifedsync.engines import Reference, Vectorised
from prifedsync.local import Optimiser, SeededDraws, SystemDraws, Update
from prifedsync.rules import Ditto, FedAvg, FedProx, Kept, Rule, Steps
from prifedsync.sync import Absent, Helpers, Refused, Sent
from prifedsync.values import BadValue

from ..engines.settings import (
    MLP,
    ask,
    jobs_of,
    jobs_under,
    net_of,
    noisy_queries,
    perturbing,
    records_of,
    rounds_taken,
    unnoised,
    with_participation,
)

ENGINE = pytest.mark.parametrize("kind", [Vectorised, Reference])
ROUNDS = 20


def sometimes(kind=Vectorised, draws=None, **options):
    jobs = [with_participation(job, 0.3) for job in jobs_of(rounds=ROUNDS)]
    return kind(net_of(MLP), jobs, records_of(MLP), FedAvg(), draws or SystemDraws(), **options)


def kinds(uploads):
    return {name: type(answer) for name, answer in uploads.answers.items()}


# ------------------------------------------------------------------ when


@ENGINE
def test_a_round_is_answered_once(kind):
    """Asked again in a round in which its coin said yes, a client would take part whenever the server likes."""
    engine = sometimes(kind)
    for round in range(6):
        ask(engine, round, range(4), engine.start)
        taken = rounds_taken(engine)
        queries = noisy_queries(engine)
        for before in (round, round - 1, 0, -1):
            assert set(kinds(ask(engine, before, range(4), engine.start)).values()) == {Refused}
        assert rounds_taken(engine) == taken
        assert noisy_queries(engine) == queries


def test_a_round_that_was_left_out_cannot_be_made_up_for():
    engine = sometimes()
    ask(engine, 7, range(4), engine.start)
    assert set(kinds(ask(engine, 3, range(4), engine.start)).values()) == {Refused}


@ENGINE
def test_a_coin_is_tossed_in_no_round_beyond_the_plan(kind):
    """The plan accounts for 20 tosses. In 400 every client would come to 20 rounds."""
    engine = sometimes(kind)
    for round in range(400):
        uploads = ask(engine, round, range(4), engine.start)
        if round >= ROUNDS:
            assert set(kinds(uploads).values()) == {Refused}
        else:
            assert set(kinds(uploads).values()) <= {Sent, Absent}
    assert all(rounds < ROUNDS for rounds in rounds_taken(engine))


def test_a_resumed_client_remembers_when_it_was_asked(tmp_path):
    draws = SystemDraws(b"k" * 32)
    engine = sometimes(draws=draws, folder=tmp_path)
    for round in range(5):
        ask(engine, round, range(4), engine.start)
    state = engine.save()
    engine.saved()
    again = sometimes(draws=draws, folder=tmp_path)
    again.load(state)
    assert set(kinds(ask(again, 4, range(4), again.start)).values()) == {Refused}
    assert set(kinds(ask(again, 5, range(4), again.start)).values()) <= {Sent, Absent}


def test_who_is_not_there_is_answered_for():
    engine = sometimes()
    offered = Helpers((*engine.names, "nobody"), lambda names: engine.start.expand(len(names), -1))
    answers = engine.train(0, offered).answers
    assert isinstance(answers["nobody"], Refused)
    assert set(answers) == {*engine.names, "nobody"}


# ------------------------------------------------------------------ with what


def test_a_helper_that_is_another_when_asked_for_again():
    """What is kept looks at the helper that was received: what was not received is in no key."""
    rule = Ditto(publish=True)
    sent = []
    for later in (0.0, 5.0):
        engine = Vectorised(net_of(MLP), jobs_under(rule, strength=0.5), records_of(MLP), rule, SystemDraws(b"k" * 32))
        times = []

        def make(names, engine=engine, later=later, times=times):
            times.append(names)
            return engine.start.expand(len(names), -1) + (later if len(times) > 1 else 0.0)

        engine.train(0, Helpers(engine.names, make))
        sent.append(torch.stack([model.value for model in engine.models().values()]))
    assert torch.equal(*sent)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.float16])
def test_a_helper_of_another_kind_is_brought_to_that_of_the_net(dtype, tmp_path):
    """In double precision it would be stored beyond its place, and overwrite another state."""
    jobs = jobs_under(FedProx(), strength=0.5)
    net = net_of(MLP, torch.float32)
    engine = Vectorised(net, jobs, records_of(MLP), FedProx(), SystemDraws(b"k" * 32), folder=tmp_path)
    row = engine.start.to(dtype)
    uploads = engine.train(0, Helpers(engine.names, lambda names: row.expand(len(names), -1)))
    assert uploads.rows.value.dtype == torch.float32
    state = engine.save()
    engine.saved()
    again = Vectorised(net, jobs, records_of(MLP), FedProx(), SystemDraws(b"k" * 32), folder=tmp_path)
    again.load(state)
    assert all(torch.equal(again.own(i), engine.own(i)) for i in range(4))


@pytest.mark.parametrize("shape", [(3, 137), (4, 136), (137,), (4, 137, 1)])
def test_a_helper_of_another_shape_is_refused(shape):
    engine = Vectorised(net_of(MLP), jobs_of(), records_of(MLP), FedAvg(), SeededDraws(1))
    assert engine.net.count == 137
    with pytest.raises(ValueError, match="a helper has shape"):
        engine.train(0, Helpers(engine.names, lambda names: torch.zeros(shape)))


# ------------------------------------------------------------------ rules that are not pure functions


GRADIENTS = []  # of whoever trained before


class Remembering(Kept):
    anchored = True

    def adapted(self, share, gradient, weights, anchor):
        GRADIENTS.append(gradient.clone())
        return share


@dataclass(frozen=True)
class Leaking(Rule):
    """Keeps gradients that nobody noised, and sends them."""

    name = "leaking"

    @property
    def kept(self):
        return Remembering()

    def finish(self, trained, anchor):
        return trained + sum(gradient.sum() for gradient in GRADIENTS)


class InPlace(Steps):
    anchored = True

    def adapted(self, share, gradient, weights, anchor):
        weights.sub_(1000 * gradient)
        return share


@dataclass(frozen=True)
class Moving(Rule):
    """Moves the place from which output perturbation measures a change."""

    name = "moving"

    @property
    def steps(self):
        return InPlace()

    def start(self, own, helper):
        return (own + helper) / 2


@dataclass(frozen=True)
class Mixing(Rule):
    name = "mixing"

    def start(self, own, helper):
        return own.mean(0, keepdim=True).expand_as(own)


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (Leaking(), "rule = leaking gave another result for the same input"),
        (Moving(), "rule = moving changes what it is given in place"),
        (Mixing(), "rule = mixing gave a client another result in a stack than alone"),
    ],
)
def test_a_rule_that_is_not_a_pure_function_is_refused(rule, says):
    with pytest.raises(BadValue, match=says):
        Vectorised(net_of(MLP), jobs_under(rule), records_of(MLP), rule, SeededDraws(1))


def test_a_change_is_measured_from_where_the_round_began(monkeypatch):
    """The second line of defence: even a rule that was not tried cannot move that place."""
    monkeypatch.setattr("prifedsync.rules.trial.check", lambda rule, parameters: None)
    jobs = jobs_of(unnoised, plan=perturbing(clip_norm=0.3, noise_multiplier=0.1), batch="full")
    engine = Vectorised(net_of(MLP), jobs, records_of(MLP), Moving(), SeededDraws(1))
    rows = ask(engine, 0, range(4), engine.start).rows.value
    assert float((rows - engine.start).norm(dim=1).max()) < 2  # 0.3, and 137 entries of noise of scale 0.03


def test_secret_draws_depend_on_what_a_rule_does():
    """A rule reads a number that no digest of its code covers. Its answers are in the key all the same."""
    held = {"value": 0.0}

    @cache
    def read():
        return held["value"]

    @dataclass(frozen=True)
    class Reading(Rule):
        name = "reading"

        def start(self, own, helper):
            return helper + read()

    contexts = set()
    codes = set()
    for value in (0.0, 1e-3):
        held["value"] = value
        read.cache_clear()
        engine = Vectorised(net_of(MLP), jobs_of(), records_of(MLP), Reading(), SystemDraws(b"k" * 32))
        contexts.add(engine.context)
        codes.add(engine.binding.parts["rule"])
    assert len(codes) == 1
    assert len(contexts) == 2


def test_secret_draws_depend_on_what_an_optimiser_does():
    """The same for an optimiser from outside: two updates of one code and other answers have other noise."""
    held = {"value": 1.0}

    @cache
    def read():
        return held["value"]

    class Scaled(Update):
        name = "scaled"

        def step(self, w, g, slots, numbers, count):
            return w - numbers["rate"] * read() * g

    contexts = set()
    codes = set()
    for value in (1.0, 2.0):
        held["value"] = value
        read.cache_clear()
        jobs = jobs_of(optimiser=Optimiser(name="own:scaled", own=Scaled()))
        engine = Vectorised(net_of(MLP), jobs, records_of(MLP), FedAvg(), SystemDraws(b"k" * 32))
        contexts.add(engine.context)
        codes.add(engine.binding.parts["optimiser"])
    assert len(codes) == 1
    assert len(contexts) == 2
