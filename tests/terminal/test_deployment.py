"""What is printed of runs on real machines. Names and reasons come from outside: they are text, and never markup."""

import pytest

from prifedsync.terminal import print_deploy_status, print_record
from prifedsync.terminal.deployment import MOST_SHOWN, STALE

from .printed import record, rows_of, words

NONE = {"sent": 0, "stayed": 0, "absent": 0, "refused": 0, "lost": 0}
HOSTILE = ("[red]", "<script>", "[/]", ":smile:", "[link=x]")


def deployment(**changed):
    given = {
        "carrier": "Flower 1.41.0",
        "participation": "clients",
        "share": 1.0,
        "resumed": 0,
        "rehearsal": False,
        "answers": {"a": NONE | {"sent": 30}, "b": NONE | {"sent": 29, "absent": 1}},
        "events": [],
        "events_left_out": 0,
    }
    return given | changed


def lost(client, round=1, answer="lost", reason="was not reached"):
    return {"round": round, "client": client, "answer": answer, "reason": reason}


@pytest.fixture
def printed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "110")

    def call(function, *given):
        function(*given)
        seen = capsys.readouterr()
        assert seen.err == ""
        return seen.out

    return call


# ---------------------------------------------------------------------- the record


def test_a_run_in_one_process_says_nothing_of_machines(printed):
    assert "machines" not in printed(print_record, record(), None)


def test_a_run_of_which_nothing_was_lost_says_so(printed):
    text = words(printed(print_record, record(deployment=deployment()), None))
    assert "The run was between machines, carried by Flower 1.41.0. The server asked every client in each round." in text
    assert "Everybody who was asked answered in every round." in text
    assert "started again" not in text


def test_who_chose_and_how_often_the_server_was_started_again(printed):
    said = deployment(participation="server", share=0.25, resumed=2)
    text = words(printed(print_record, record(deployment=said), None))
    assert "The server asked 25 % of the clients in each round. The server was started again 2 times." in text
    assert "every client" not in text
    assert "started again 1 time." in words(printed(print_record, record(deployment=deployment(resumed=1)), None))


def test_who_was_lost_or_refused_how_often_and_why(printed):
    said = deployment(
        answers={
            "a": NONE | {"sent": 30},
            "b": NONE | {"sent": 20, "absent": 3, "refused": 1, "lost": 6},
            "c": NONE | {"refused": 30},
        },
        events=[lost("b"), lost("b", 2), lost("b", 3, reason="no sum"), lost("c", answer="refused", reason="no budget")],
        events_left_out=33,
    )
    text = printed(print_record, record(deployment=said), None)
    rows = rows_of(text)
    assert rows["b"] == ["20", "3", "1", "6", "was not reached"]
    assert "no sum" in rows
    assert rows["c"] == ["0", "0", "30", "0", "no budget"]
    assert "a" not in rows
    assert "The record leaves out the reasons of the last 33 answers." in words(text)
    assert text.index("no budget") < text.index("was not reached")  # the worst comes first


def test_a_table_has_few_clients_and_few_reasons(printed):
    answers = {f"client-{i:02}": NONE | {"lost": 100 - i} for i in range(MOST_SHOWN + 2)}
    events = [lost("client-00", reason=f"reason {i}") for i in range(5)]
    text = printed(print_record, record(deployment=deployment(answers=answers, events=events)), None)
    rows = rows_of(text)
    assert sum(name.startswith("client-") for name in rows) == MOST_SHOWN
    assert f"client-{MOST_SHOWN:02}" not in rows
    assert "2 more clients were lost or refused to answer less often." in words(text)
    assert "reason 2" in text
    assert "reason 3" not in text
    assert "and 2 more reasons" in text


@pytest.mark.parametrize("name", HOSTILE)
def test_names_and_reasons_of_a_record_are_text(printed, name):
    said = deployment(answers={name: NONE | {"lost": 1}}, events=[lost(name, reason=f"{name} \x1b[31m\n{name}")])
    text = printed(print_record, record(deployment=said), None)
    assert rows_of(text)[name] == ["0", "0", "0", "1", f"{name} \\x1b[31m\\n{name}"]
    assert "\x1b" not in text


def test_a_record_without_scores_has_no_empty_table(printed):
    text = printed(print_record, record(by_metric={"accuracy": {}}, deployment=deployment()), None)
    assert "own test records" not in text
    assert "own test records" in printed(print_record, record(), None)


# ---------------------------------------------------------------------- the status

NOW = 1_700_000_000.0


def client(name="a", **changed):
    given = {
        "name": name, "node": "online", "answer": "sent", "reason": "", "late": False, "since": NOW - 30, "answered": 7,
        "last": NOW - 5, "shown": None,
    }  # fmt: skip
    return given | changed


def page(*clients, **changed):
    given = {
        "run": "0123456789abcdef" * 2, "phase": "training", "round": 3, "rounds": 30, "begun": NOW - 7_000,
        "changed": NOW - 2, "error": "", "clients": clients,
    }  # fmt: skip
    return given | changed


def test_a_status_has_a_row_for_each_client(printed):
    text = printed(
        print_deploy_status,
        page(
            client("a"),
            client("b", node="offline", answer="lost", reason="was not reached", since=NOW - 300, answered=0, last=None),
            client("c", answer="asked", late=True, since=NOW - 90, last=NOW - 7_300),
            client("d", node="not registered", answer="", since=None, answered=0, last=None),
        ),
        NOW,
    )
    rows = rows_of(text)
    assert "Run 0123456789ab: training, round 3 of 30" in text
    assert "begun 2023-11-14 20:16 UTC, last written 2 s ago" in text
    assert rows["a"] == ["online", "sent", "30 s ago", "7", "5 s ago"]
    assert rows["b"] == ["offline", "lost", "5 min ago", "0", "–"]
    assert rows["c"] == ["online", "asked, late", "90 s ago", "7", "2 h ago"]
    assert rows["d"] == ["not registered", "–", "–", "0", "–"]
    assert "b: lost, was not reached" in text.splitlines()
    assert "scores" not in text
    assert "warning" not in text


def test_scores_are_shown_where_an_owner_lets_them_leave(printed):
    shown = {"accuracy": 0.91349, "auc": None}
    rows = rows_of(printed(print_deploy_status, page(client("a", shown=shown), client("b")), NOW))
    assert rows["a"][-1] == "accuracy 0.913"
    assert "auc –" in rows
    assert rows["b"][-1] == "–"


@pytest.mark.parametrize("phase", ["waiting for clients", "training", "finished", "stopped by an error", "ended"])
@pytest.mark.parametrize("age", [STALE, STALE + 1])
def test_an_old_status_of_a_run_that_goes_on_is_told(printed, phase, age):
    text = words(printed(print_deploy_status, page(phase=phase, changed=NOW - age), NOW))
    assert f"last written {age:.0f} s ago" in text
    dead = age > STALE and phase in ("waiting for clients", "training")
    assert ("the server's process has probably ended" in text) == dead


def test_an_error_is_shown(printed):
    text = printed(print_deploy_status, page(phase="stopped by an error", error="[red]no disk\x1b[0m"), NOW)
    assert "error: [red]no disk\\x1b[0m" in text


@pytest.mark.parametrize("name", HOSTILE)
def test_names_and_reasons_of_a_status_are_text(printed, name):
    status = page(client(name, answer="refused", reason=name, shown={name: 0.5}))
    text = printed(print_deploy_status, status, NOW)
    assert rows_of(text)[name][0] == "online"
    assert f"{name} 0.500" in text
    assert f"{name}: refused, {name}" in text.splitlines()


def test_a_clock_that_is_behind_is_no_negative_age(printed):
    assert "last written 0 s ago" in printed(print_deploy_status, page(changed=NOW + 50), NOW)


def test_a_rehearsal_is_not_called_a_run_between_machines(printed):
    said = words(printed(print_record, record(deployment=deployment(rehearsal=True)), None))
    assert "The run was rehearsed on one machine" in said
    assert "between machines" not in said
