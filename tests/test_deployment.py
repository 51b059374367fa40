"""A run between machines leaves a record of what happened: who answered what, who was lost and why, and who chose."""

import json
from dataclasses import replace

import pytest
import torch

import prifedsync
from prifedsync.config import load
from prifedsync.engines.chosen import Chosen
from prifedsync.local import SeededDraws
from prifedsync.local.answers import Absent, Lost, Refused, Sent, Stayed
from prifedsync.predicting import open_run
from prifedsync.record import (
    EMPTY_ROUNDS,
    KEPT,
    MASKS_SIMULATED,
    REHEARSAL,
    REPLIES_LEAK,
    SERVER_CHOSE,
    TIMINGS_LEAK,
    UPPER_BOUNDS,
    WITH_OWNERS,
    RunRecord,
)
from prifedsync.rules import Noised
from prifedsync.run import prepare
from prifedsync.run.deployment import LONGEST, MOST_EVENTS, answers_in_line, deployment_of
from prifedsync.run.folder import finish
from prifedsync.run.history import logged_lines
from prifedsync.run.loop import rounds_of
from prifedsync.run.recording import _at_most, _publishing, _warnings, guarantees_of
from prifedsync.sync import Account, Answers
from prifedsync.values import BadValue

from .owner.federations import Run, Storing, config_of

HOW = {"carrier": "Flower 1.41.0", "participation": "clients"}
ONE_OF_EACH = {
    "a": Sent(None, 1), "b": Stayed(), "c": Absent(), "d": Refused("no budget"), "e": Lost("was not reached"),
    "f": Lost("no sum", arrived=True),
}  # fmt: skip


def quiet(event):
    pass


# ---------------------------------------------------------------------- a round's line


def test_a_line_says_what_became_of_everybody():
    said = answers_in_line(Answers(ONE_OF_EACH, public=True), tuple(ONE_OF_EACH))
    assert said == {
        "answers": {
            "stayed": ["b"],
            "absent": ["c"],
            "refused": {"d": "no budget"},
            "lost": {"e": "was not reached", "f": "no sum"},
        }
    }


def test_empty_parts_are_left_out_and_whoever_was_not_asked_is_told_apart():
    assert answers_in_line(Answers({"a": Sent(None, 1)}, public=True), ("a",)) == {"answers": {}}
    assert answers_in_line(Answers({"a": Sent(None, 1)}, public=True), ("a", "b")) == {"answers": {"asked": ["a"]}}
    assert answers_in_line(Answers({}, public=True), ("a",)) == {"answers": {"asked": []}}


def test_nothing_is_said_of_a_coin_that_nobody_else_knows():
    assert answers_in_line(Answers(ONE_OF_EACH), tuple(ONE_OF_EACH)) == {}


def test_a_long_reason_is_cut():
    said = answers_in_line(Answers({"a": Lost("x" * 10_000)}, public=True), ("a",))
    assert said["answers"]["lost"]["a"] == "x" * LONGEST + "…"


def test_lines_in_one_process_are_as_they_were(tmp_path):
    run = Run.of(config_of(rounds=3, participation=0.5))
    rounds_of(run.held, tmp_path, quiet)
    for line in logged_lines(tmp_path):
        assert "answers" not in line


# ---------------------------------------------------------------------- all of them


def lines_of(*answers):
    return [{"round": round, "participants": 1, "answers": each} for round, each in enumerate(answers, 1)]


def test_answers_are_counted_by_client_and_kind():
    lines = lines_of(
        {},
        {"absent": ["a"], "lost": {"b": "was not reached"}},
        {"asked": ["b"], "refused": {"b": "no budget"}},
        {"asked": ["a", "c"], "stayed": ["c"]},
    )
    said = deployment_of(lines, ("a", "b", "c"), participation="server", share=0.5, resumed=2, carrier="Flower 1.41.0")
    assert said == {
        "carrier": "Flower 1.41.0",
        "participation": "server",
        "share": 0.5,
        "resumed": 2,
        "rehearsal": False,
        "answers": {
            "a": {"sent": 2, "stayed": 0, "absent": 1, "refused": 0, "lost": 0},
            "b": {"sent": 1, "stayed": 0, "absent": 0, "refused": 1, "lost": 1},
            "c": {"sent": 2, "stayed": 1, "absent": 0, "refused": 0, "lost": 0},
        },
        "events": [
            {"round": 2, "client": "b", "answer": "lost", "reason": "was not reached"},
            {"round": 3, "client": "b", "answer": "refused", "reason": "no budget"},
        ],
        "events_left_out": 0,
    }


@pytest.mark.parametrize(("rounds", "left_out"), [(MOST_EVENTS, 0), (MOST_EVENTS + 3, 3)])
def test_the_first_events_are_kept(rounds, left_out):
    said = deployment_of(lines_of(*[{"lost": {"a": "gone"}}] * rounds), ("a",), **HOW)
    assert len(said["events"]) == MOST_EVENTS
    assert said["events"][-1]["round"] == MOST_EVENTS
    assert said["events_left_out"] == left_out
    assert said["answers"]["a"]["lost"] == rounds


# ---------------------------------------------------------------------- a whole run


class Away:
    """Owner b cannot be reached in these calls, counted from 0."""

    def __init__(self, connection, calls):
        self.connection = connection
        self.calls = calls
        self.count = -1

    def ask(self, question):
        self.count += 1
        if self.count in self.calls:
            raise OSError("no such socket")
        return self.connection.ask(question)


def finished(tmp_path, run, engine, **how):
    folder = tmp_path / "run"
    folder.mkdir(parents=True, exist_ok=True)
    session = rounds_of(run.served, folder, quiet, engine=engine)
    said = deployment_of(logged_lines(folder), engine.names, **{**HOW, **how})
    return finish(
        run.served, session, folder, quiet, {"train": 1.0, "all": 2.0}, measured=session.measure(), deployment=said
    )


def owners_of(run, calls=()):
    connections = run.direct(SeededDraws(5))
    return run.owners(connections | {"b": Away(connections["b"], calls)}), connections


def test_a_run_between_machines_has_a_record(tmp_path):
    run = Run.of(config_of(rounds=4, participation=0.7))
    owners, _ = owners_of(run, {0, 3})
    result = finished(tmp_path, run, owners)
    assert RunRecord.read(tmp_path / "run" / "record.json") == result.record
    said = result.record.deployment
    together, engine = run.together(SeededDraws(5))
    absent = {name: sum(isinstance(uploads.answers[name], Absent) for _, uploads in together) for name in "ac"}
    assert {name: said["answers"][name]["absent"] for name in "ac"} == absent
    assert sum(absent.values()) > 0
    for name in "ac":
        assert said["answers"][name]["sent"] == 4 - absent[name] == engine.accounts()[name].taken
    assert [(event["round"], event["client"], event["answer"]) for event in said["events"]] == [
        (1, "b", "lost"),
        (3, "b", "lost"),
    ]
    assert [event["reason"] for event in said["events"]] == [
        "was not reached: OSError: no such socket",
        "the owner's answer cannot be used: OSError: no such socket",
    ]
    assert said["answers"]["b"]["lost"] == 2
    assert result.record.timings == {"train": 1.0, "all": 2.0}
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert result.record.uploads_lost == 2
    assert [client.rounds_taken for client in result.record.clients] == [owners.accounts()[name].taken for name in "abc"]


def test_a_resumed_run_has_all_of_it(tmp_path):
    run = Run.of(config_of(rounds=4, performance__checkpoint_seconds=0.0))
    straight = finished(tmp_path / "straight", run, owners_of(run, {0})[0])
    connections = {name: Storing(own) for name, own in run.direct(SeededDraws(5)).items()}
    owners = run.owners(connections | {"b": Away(connections["b"], {0})})
    folder = tmp_path / "run"
    folder.mkdir()

    class Stopped(Exception):
        pass

    def stops(event):
        if event.round == 3:
            raise Stopped

    with pytest.raises(Stopped):
        rounds_of(run.served, folder, stops, engine=owners)
    again = run.owners(connections)
    resumed = finished(tmp_path, run, again, resumed=1)
    assert resumed.record.deployment == straight.record.deployment | {"resumed": 1}
    assert resumed.record.deployment["answers"]["b"] == {"sent": 3, "stayed": 0, "absent": 0, "refused": 0, "lost": 1}


@pytest.mark.parametrize(("calls", "empty"), [({}, 0), (range(2, 5), 3), (range(100), 5)])
def test_rounds_in_which_nobody_answered_are_said(tmp_path, calls, empty):
    """The model of a run in which nobody ever answered is the one that it began with."""
    run = Run.of(config_of(rounds=5))
    connections = run.direct(SeededDraws(5))
    owners = run.owners({name: Away(connection, calls) for name, connection in connections.items()})
    warnings = finished(tmp_path, run, owners).record.warnings
    said = [warning for warning in warnings if "and it stayed as it was" in warning]
    assert said == ([EMPTY_ROUNDS.format(empty, 5)] if empty else [])


def test_the_record_says_that_the_server_chose(tmp_path):
    run = Run.of(config_of(rounds=4, privacy__randomness="system"))
    owners, connections = owners_of(run)
    result = finished(tmp_path, run, Chosen(owners, 0.34, 7), participation="server", share=0.34)
    assert SERVER_CHOSE in result.record.warnings
    assert SERVER_CHOSE.endswith("guarantees count every round of the plan")
    for client in result.record.clients:
        counts = result.record.deployment["answers"][client.name]
        assert client.rounds_taken == counts["sent"] == len(connections[client.name].asked)
        assert client.plan["participation"] == 1
    assert sum(client.rounds_taken for client in result.record.clients) == 4
    whole = finished(tmp_path / "whole", run, owners_of(run)[0])
    assert [client.planned for client in whole.record.clients] == [client.planned for client in result.record.clients]
    assert SERVER_CHOSE not in whole.record.warnings
    assert whole.record.guarantee == result.record.guarantee


@pytest.mark.parametrize("rule", ["fedavg", "ditto"])
def test_models_of_clients_stay_with_their_owners(tmp_path, rule):
    run = Run.of(config_of(rounds=2, rule__name=rule))
    result = finished(tmp_path, run, owners_of(run)[0])
    models = tmp_path / "run" / "models"
    assert [path.name for path in models.iterdir()] == ["global.safetensors"]
    assert WITH_OWNERS in result.record.personal_models
    assert (KEPT in result.record.personal_models) == (rule == "ditto")


def test_an_opened_run_says_where_the_models_are(tmp_path):
    """The record alone decides; a run in one process has its models here."""
    draw = torch.Generator().manual_seed(0)
    rows = {name: (torch.randn(20, 3, generator=draw), torch.arange(20) % 2) for name in "ab"}
    config = {"rounds": 1, "data": {"classes": 2}, "privacy": {"noise_multiplier": 9.0}}
    result = prifedsync.train(config, clients=rows, out=tmp_path / "run")
    assert result.record.deployment is None
    saved = open_run(tmp_path / "run")
    assert saved.personal("a")
    said = deployment_of([], ("a", "b"), **HOW)
    (tmp_path / "run" / "models" / "personal" / "a.safetensors").unlink()
    with pytest.raises(BadValue, match="took part in no round, or its file was removed"):
        saved.personal("a")
    with pytest.raises(BadValue, match="no model of its own here: it stays with its owner"):
        replace(saved, record=replace(saved.record, deployment=said)).personal("a")


# ---------------------------------------------------------------------- warnings


def warnings_of(deployment, *changes):
    prepared = prepare(load("digits", ("data.clients=3", "rounds=2", *changes)))
    return _warnings(prepared, (), guarantees_of(prepared), None, deployment)


def test_masks_between_machines_are_real():
    masks = ("privacy.masks=true", "privacy.randomness=system")
    assert MASKS_SIMULATED in warnings_of(None, *masks)
    assert MASKS_SIMULATED not in warnings_of(deployment_of([], (), **HOW), *masks)


def test_a_rehearsal_says_that_one_machine_had_everything():
    assert REHEARSAL in warnings_of(deployment_of([], (), **HOW, rehearsal=True))
    assert REHEARSAL not in warnings_of(deployment_of([], (), **HOW))


def test_counts_after_a_restart_are_marked_as_upper_bounds():
    once = deployment_of([], (), **HOW)
    assert UPPER_BOUNDS not in warnings_of(once)
    assert UPPER_BOUNDS in warnings_of(once | {"resumed": 1})


def test_times_between_machines_are_those_of_replies():
    system = ("privacy.randomness=system",)
    here = warnings_of(None, *system)
    assert TIMINGS_LEAK in here
    assert REPLIES_LEAK not in here
    between = warnings_of(deployment_of([], (), **HOW), *system)
    assert REPLIES_LEAK in between
    assert TIMINGS_LEAK not in between


def test_a_deployment_is_plain_json():
    said = deployment_of(lines_of({"lost": {"a": "gone"}}), ("a",), **HOW)
    assert json.loads(json.dumps(said, allow_nan=False)) == said


def test_after_a_restart_all_spare_attempts_count_as_taken():
    """A killed server does not know which attempts it was making: its owners may have charged them."""
    config = ("privacy.masks=true", "privacy.randomness=system", "privacy.attempts=2", "privacy.least_clients=2")
    (job, *_) = prepare(load("digits", ("data.clients=4", "rounds=3", *config))).jobs
    account = Account(taken=3, queries=3, spare=1)
    once = deployment_of([], (), **HOW)
    assert _at_most(account, job, None) == account
    assert _at_most(account, job, once) == account
    again = _at_most(account, job, {**once, "resumed": 1})
    assert again == Account(taken=4, queries=4, spare=2)
    assert again.rounds == account.rounds
    assert _at_most(Account(0, 0), job, {**once, "resumed": 1}) == Account(0, 0)


def test_a_model_of_a_rehearsal_says_that_nobody_has_charged_it():
    prepared = prepare(load("digits", ("data.clients=3", "rounds=2", "privacy.randomness=system")))
    model = Noised(prepared.start)
    assert _publishing(prepared, model, rehearsal=True).startswith("do not publish")
    assert _publishing(prepared, model).startswith("may be published")
