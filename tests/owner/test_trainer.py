"""What an owner trains: one slot at a time, for somebody who may send anything, on records that may be anything."""

from dataclasses import replace

import pytest
import torch
from scipy import stats

from prifedsync.asking.refusals import Refusal
from prifedsync.asking.tensors import HELPER, packed
from prifedsync.config import ModelConfig
from prifedsync.data import Records
from prifedsync.local import RecordedDraws, SeededDraws, SystemDraws
from prifedsync.local.job import LARGEST_HELPER
from prifedsync.local.net import invariance
from prifedsync.owner import trainer as trainers
from prifedsync.owner.trainer import Trainer, Unanswerable, extreme_helpers
from prifedsync.values import BadValue

from ..local.laws import follows
from .federations import Run, config_of, records_of
from .nets import REACH, TOKENS

MASKS = {"privacy__masks": True, "local__local_steps": 1, "privacy__attempts": 1, "privacy__least_clients": 2}


def run_of(**changed):
    return Run.of(config_of(**changed))


def trainer_of(run, draws=None, client="b", records=None, **options):
    return Trainer(run.document, client, records or run.records[client], draws=draws or SeededDraws(5), **options)


def helper_of(trainer, weights=None):
    return packed(HELPER, trainer.net.initial() if weights is None else weights)


def refused(trainer, *question):
    with pytest.raises(Unanswerable) as raised:
        trainer.answer(*question)
    return raised.value.refusal


# ---------------------------------------------------------------------- what leaves


@pytest.mark.parametrize("changed", [{}, {"local__local_steps": 1}, {"privacy__mechanism": "output-gaussian"}], ids=str)
def test_a_reply_has_one_length_and_a_round_one_reply(changed):
    run = run_of(**changed, participation=0.5, rounds=12)
    trainer = trainer_of(run)
    found = [trainer.answer(round, 0, (), helper_of(trainer)) for round in range(12)]
    assert {len(outcome.body) for outcome in found} == {trainer.reply_bytes}
    by_status = {status: [o for o in found if o.status == status] for status in ("sent", "absent")}
    assert len(by_status["sent"]) > 1
    assert len(by_status["absent"]) > 1
    assert len({outcome.body for outcome in by_status["absent"]}) == len(by_status["absent"])
    assert len({outcome.body for outcome in by_status["sent"]}) == len(by_status["sent"])
    assert {outcome.queries for outcome in by_status["absent"]} == {0}
    queries = 2 if not changed else 1
    assert {outcome.queries for outcome in by_status["sent"]} == {queries}
    assert len(helper_of(trainer)) == trainer.helper_bytes


def test_scores_leave_only_where_there_are_tests():
    run = run_of()
    silent = trainer_of(run).answer(0, 0, (), helper_of(trainer_of(run)))
    assert silent.scores == {}
    shown = trainer_of(run, tests=run.records["c"]).answer(0, 0, (), helper_of(trainer_of(run)))
    assert set(shown.scores) == {"accuracy"}
    assert 0 <= shown.scores["accuracy"] <= 1
    assert shown.body == silent.body


def test_a_score_that_is_no_number_is_none(monkeypatch):
    """A ledger has no NaN, and a round must not fail because of what the records make of a helper."""
    run = run_of()
    trainer = trainer_of(run, tests=run.records["c"])
    monkeypatch.setattr(trainer.scorer, "each", lambda weights: [(float("nan"),)])
    assert trainer.answer(0, 0, (), helper_of(trainer)).scores == {"accuracy": None}


@pytest.mark.parametrize("bad", ["none", "one raises", "NaN"])
def test_the_noise_is_that_of_the_plan(bad):
    """Also where records fail: the sum without noise is known, and what is left of the reply is the noise."""
    config = config_of(
        local__local_steps=1, local__batch="full", rule__delivery="push", rounds=200, privacy__noise_multiplier=3.0,
        model__name="tests.owner.nets:raising" if bad == "one raises" else "softmax",
    )  # fmt: skip
    run = Run.of(config, records_of(shape=(300,)))
    assert not run.document.summed
    records = run.records["b"]
    x = records.x.clone()
    if bad != "none":
        x[2] = 2 * REACH if bad == "one raises" else float("nan")
    trainer = trainer_of(run, SystemDraws(), records=Records(x, records.y))
    weights = trainer.net.initial() + 0.1
    job = run.document.job("b")
    clipped = trainer.engine.batch_sums(0, 0, [trainer.engine.client], weights[None])[0]
    assert 0 < clipped.norm() <= 9 * 0.5
    body = helper_of(trainer, weights)
    rounds = 100_000 // trainer.count + 1
    rows = []
    for round in range(rounds):
        outcome = trainer.answer(round, 0, (), body)
        assert len(outcome.body) == trainer.reply_bytes
        assert outcome.queries == 1
        sent = trainers.unpacked(outcome.body, "upload", torch.float64, trainer.count)
        rows.append((weights - sent) * len(records) / job.optimiser.learning_rate - clipped)
    noise = torch.stack(rows)
    scale = 3.0 * 0.5
    assert follows(noise, stats.norm, scale)
    assert not follows(noise, stats.norm, scale * 2 / 3)
    assert not follows(noise, stats.norm, scale * 3 / 2)


# ---------------------------------------------------------------------- records that fail


def sums_of(run, records, log=None, round=0):
    trainer = trainer_of(run, records=records, log=(log.append if log is not None else lambda text: None))
    client = trainer.engine.client
    return trainer.engine.batch_sums(round, 0, [client], trainer.net.initial()[None])[0], trainer


@pytest.mark.parametrize("batch", ["full", 4])
def test_a_record_that_raises_adds_zero_and_the_others_stay(batch):
    """One record must not take its whole batch with it: the sum would move by as many clip norms as there are records."""
    run = run_of(model__name="tests.owner.nets:raising", local__batch=batch)
    good = run.records["b"]
    for place in range(len(good)):
        x = good.x.clone()
        x[place] = 2 * REACH
        log = []
        spoiled, trainer = sums_of(run, Records(x, good.y), log)
        x = good.x.clone()
        x[place] = float("nan")  # a gradient that is no number adds zero
        without, _ = sums_of(run, Records(x, good.y))
        assert torch.allclose(spoiled, without, rtol=0, atol=1e-12)
        whole, _ = sums_of(run, good)
        margin = trainer.engine.client.job.noisy.clip_margin
        assert (whole - spoiled).norm() <= 0.5 * (1 + margin)
        in_batch = not torch.equal(whole, without)
        assert bool(log) == in_batch
        assert not in_batch or spoiled.norm() > 0.5 * (1 + margin) or batch == 4


def test_a_token_outside_the_table_adds_zero():
    draw = torch.Generator().manual_seed(3)
    tokens = {name: (torch.randint(0, TOKENS, (size, 6), generator=draw), torch.randint(0, 3, (size,), generator=draw))
              for name, size in {"a": 5, "b": 9, "c": 7}.items()}  # fmt: skip
    run = Run.of(config_of(model__name="tests.owner.nets:words", local__batch="full"), tokens, TOKENS)
    good = run.records["b"]
    whole, trainer = sums_of(run, good)
    x = good.x.clone()
    x[4, 2] = TOKENS + 3
    log = []
    spoiled, trainer = sums_of(run, Records(x, good.y), log)
    assert log
    assert 0 < (whole - spoiled).norm() <= 0.5 * (1 + trainer.engine.client.job.noisy.clip_margin)
    outcome = trainer.answer(0, 0, (), helper_of(trainer))
    assert len(outcome.body) == trainer.reply_bytes
    assert outcome.queries == 2


def test_open_steps_that_fail_are_clipped_as_a_whole():
    run = run_of(model__name="tests.owner.nets:raising", privacy__mechanism="output-gaussian", local__batch="full")
    x = run.records["b"].x.clone()
    x[0] = 2 * REACH
    log = []
    trainer = trainer_of(run, records=Records(x, run.records["b"].y), log=log.append)
    outcome = trainer.answer(0, 0, (), helper_of(trainer))
    assert log
    assert outcome.queries == 1
    sent = trainers.unpacked(outcome.body, "message", torch.int64, trainer.count)
    assert sent.abs().max() > 0  # noise alone


def test_records_decide_nothing_before_the_first_slot():
    """Neither whether a trainer is made, nor its net, nor what it says of itself."""
    run = run_of(model__name="tests.owner.nets:raising")
    for value in (float("nan"), float("inf"), 1e30, 2 * REACH):
        records = Records(torch.full_like(run.records["b"].x, value), run.records["b"].y)
        trainer = trainer_of(run, SystemDraws(), records=records)
        assert trainer.probe()
        assert trainer.reply_bytes == trainer_of(run).reply_bytes
        outcome = trainer.answer(0, 0, (), helper_of(trainer))
        assert torch.isfinite(trainers.unpacked(outcome.body, "upload", torch.float64, trainer.count)).all()


# ---------------------------------------------------------------------- questions that are not answered


def test_a_bad_helper_is_refused_before_anything_is_drawn():
    run = run_of()
    tape = RecordedDraws(SeededDraws(5))
    trainer = trainer_of(run, tape)
    good = helper_of(trainer)
    before = trainer.state()
    short = packed(HELPER, trainer.net.initial()[:-1])
    other = packed(HELPER, trainer.net.initial().float())
    named = packed("upload", trainer.net.initial())
    for bad in (b"", good[:-1], good + b"\0", short, other, named, good[:8] + b"\xff" + good[9:], b"\x80\x04K\x01."):
        assert refused(trainer, 0, 0, (), bad) is Refusal.HELPER
    assert trainer.state() == before
    assert not [key for _, key in tape.asked if key.purpose != "fingerprint"]
    assert trainer.answer(0, 0, (), good).status == "sent"


def test_entries_beyond_any_use_are_cut():
    run = run_of()
    wild = trainer_of(run).net.initial().clone()
    wild[:6] = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e30, -1e300, 5e-324], dtype=torch.float64)
    tame = wild.clone()
    tame[:5] = torch.tensor([0, LARGEST_HELPER, -LARGEST_HELPER, LARGEST_HELPER, -LARGEST_HELPER], dtype=torch.float64)
    one, other = trainer_of(run), trainer_of(run)
    assert one.answer(0, 0, (), helper_of(one, wild)).body == other.answer(0, 0, (), helper_of(other, tame)).body


def test_rounds_are_asked_in_order_and_within_the_plan():
    run = run_of(rounds=5)
    trainer = trainer_of(run)
    helper = helper_of(trainer)
    trainer.answer(2, 0, (), helper)
    for round in (0, 1, 2):
        assert refused(trainer, round, 0, (), helper) is Refusal.ORDER
    assert refused(trainer, 5, 0, (), helper) is Refusal.BEYOND
    assert refused(trainer, 2, 1, (), helper) is Refusal.BEYOND  # nothing is masked, so nothing is repeated
    assert refused(trainer, 3, 0, ("a", "b"), helper) is Refusal.LIST
    trainer.answer(4, 0, (), helper)


def test_masked_slots():
    run = run_of(**MASKS, rounds=3)
    keys = run.pinned()
    direct = run.direct(SeededDraws(5))
    for name, connection in direct.items():
        connection.identity = keys[name]
    run.apart(run.owners(direct))
    trainer = direct["b"].trainer
    helper = helper_of(trainer)
    again = trainer_of(run)
    assert refused(again, 0, 0, ("a", "b", "c"), helper) is Refusal.SESSION
    for wrong in [(), ("b",), ("a", "c"), ("b", "a"), ("a", "b", "b"), ("a", "b", "z")]:
        assert refused(again, 0, 0, wrong, helper) is Refusal.LIST
    assert refused(trainer, 2, 2, ("a", "b"), helper) is Refusal.ORDER
    assert refused(trainer, 1, 1, ("a", "b"), helper) is Refusal.ORDER
    outcome = trainer.answer(2, 1, ("a", "b"), helper)
    assert len(outcome.body) == trainer.reply_bytes
    assert refused(trainer, 2, 2, ("a", "b"), helper) is Refusal.BEYOND  # one spare attempt is planned


def test_what_cannot_be_trained():
    run = run_of(local__local_steps=1)
    with pytest.raises(BadValue, match="not in the roster"):
        Trainer(run.document, "z", run.records["b"], draws=SeededDraws(1))
    with pytest.raises(BadValue, match="but the client has 9"):
        Trainer(run.document, "a", run.records["b"], draws=SeededDraws(1))
    with pytest.raises(BadValue, match="is not that of these records"):
        Trainer(replace(run.document, shape=(5,)), "b", run.records["b"], draws=SeededDraws(1))
    with pytest.raises(BadValue, match="which are numbers"):
        Trainer(replace(run.document, tokens=7), "b", run.records["b"], draws=SeededDraws(1))
    wide = replace(run.document, model=ModelConfig(name="mlp", hidden=(10**6, 10**6), features="none"))
    with pytest.raises(BadValue, match="must have at most"):
        Trainer(wide, "b", run.records["b"], draws=SeededDraws(1))
    several = run_of(local__local_steps=2)
    with pytest.raises(BadValue, match="is not possible"):
        Trainer(replace(several.document, summed=True), "b", several.records["b"], draws=SeededDraws(1))
    absent = run_of(local__local_steps=1, participation=0.5)
    masked = replace(absent.document, masks=True, least=2)
    with pytest.raises(BadValue, match="may be absent"):
        Trainer(masked, "b", absent.records["b"], draws=SeededDraws(1))
    thin = [replace(job, plan=job.plan.changed(clip_margin=0.0)) for job in run.document.jobs]
    with pytest.raises(BadValue, match="does not cover rounding"):
        Trainer(replace(run.document, jobs=tuple(thin)), "b", run.records["b"], draws=SeededDraws(1))
    with pytest.raises(BadValue, match="sends nothing"):
        Trainer(replace(run.document, rule_name="alone"), "b", run.records["b"], draws=SeededDraws(1))


# ---------------------------------------------------------------------- what is carried


@pytest.mark.parametrize(
    "changed",
    [
        {"rule__name": "apfl", "local__optimiser": "adam", "participation": 0.7},
        {"rule__name": "pfedme", "local__optimiser": "momentum"},
        {"rule__name": "ditto", "local__local_steps": 1},
    ],
    ids=str,
)
def test_a_restart_in_every_slot_changes_no_bit(changed):
    run = run_of(**changed, rounds=6)

    def bodies(restarts):
        trainer = trainer_of(run)
        found = []
        for round in range(6):
            outcome = trainer.answer(round, 0, (), helper_of(trainer))
            found.append(outcome.body if outcome.status == "sent" else outcome.status)
            trainer.keep(round)
            if restarts:
                state = trainer.state()
                trainer = trainer_of(run)
                trainer.restore(state)
                assert trainer.state() == state
        return found, trainer

    straight, one = bodies(False)
    restarted, other = bodies(True)
    assert straight == restarted
    assert one.state() == other.state()
    (mine,), (theirs,) = one.engine.models().values(), other.engine.models().values()
    assert torch.equal(mine.value, theirs.value)
    assert one.engine.accounts() == other.engine.accounts()


def test_what_was_counted_decides_what_may_be_asked_after_a_restart():
    run = run_of(rounds=4)
    trainer = trainer_of(run)
    trainer.answer(1, 0, (), helper_of(trainer))
    again = trainer_of(run)
    again.restore(trainer.state())
    assert refused(again, 1, 0, (), helper_of(trainer)) is Refusal.ORDER
    again.answer(2, 0, (), helper_of(trainer))


def test_a_kept_model_is_trained_once_in_a_round_and_changes_no_reply():
    run = run_of(rule__name="ditto", rounds=4)
    keeping, idle = trainer_of(run), trainer_of(run)
    for round in range(4):
        helper = helper_of(keeping)
        assert keeping.answer(round, 0, (), helper).body == idle.answer(round, 0, (), helper).body
        keeping.keep(round)
        state = keeping.state()
        keeping.keep(round)
        assert keeping.state() == state
    (mine,), (theirs,) = keeping.engine.models().values(), idle.engine.models().values()
    assert not torch.equal(mine.value, theirs.value)


# ---------------------------------------------------------------------- the probe


@pytest.mark.parametrize("model", ["softmax", "mlp"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_are_invariant_at_the_bounds(model, dtype):
    assert trainer_of(run_of(model__name=model, performance__dtype=dtype)).probe()


def test_the_probe_looks_at_the_bounds(monkeypatch):
    trainer = trainer_of(run_of())
    trainer.engine.program_of(trainer.engine.client)  # which is probed by itself
    seen = []
    honest = invariance.same_in_all_rows

    def watched(net, program, probe):
        seen.append(probe.weights)
        return honest(net, program, probe)

    monkeypatch.setattr(trainers.invariance, "same_in_all_rows", watched)
    assert trainer.probe()
    tried = torch.cat(seen)
    assert tried.max() == LARGEST_HELPER
    assert tried.min() == -LARGEST_HELPER
    assert (tried == 0).all(1).any()
    assert ((tried != 0) & (tried.abs() < 1e-38)).any()
    assert len(tried) == len(extreme_helpers(trainer.net))
    for wrong in range(len(tried)):
        calls = iter(range(len(tried)))
        monkeypatch.setattr(
            trainers.invariance, "same_in_all_rows", lambda *given, at=wrong, calls=calls: None if next(calls) == at else []
        )
        assert not trainer.probe()
