"""Progress as people see it: plain lines, a moving bar, and where nobody looks on, nothing."""

import io
import re

import pytest
from rich.console import Console

from prifedsync.events import RoundDone, Working
from prifedsync.record import Score
from prifedsync.terminal import View, tracked, view

ROUNDS = 4


class Spending:
    """ε after each round; `seconds` is how long a bound takes."""

    seconds = 0.0

    def after(self, rounds):
        return {1: 1.1111, 2: 2.2222, 3: 3.3333, 4: 4.4444}[rounds]


def done(round, spending=None, seeded=False, **changed):
    given = {
        "phase": "private",
        "round": round,
        "rounds": ROUNDS,
        "participants": 3,
        "personal": Score(0.75, 0.25, 3),
        "released": Score(0.5, 0.125, 3),
        "seconds": 10.0,
        "spending": spending,
        "seeded": seeded,
    }
    return RoundDone(**(given | changed))


@pytest.fixture
def at_every_round(monkeypatch):
    monkeypatch.setattr(view, "PLAIN_EVERY", 0.0)


@pytest.fixture
def plain(at_every_round, capsys):
    """The plain lines that events are shown by."""

    def lines(*events, **options):
        with View(**options) as watch:
            for event in events:
                watch(event)
        seen = capsys.readouterr()
        assert seen.out == ""
        return seen.err.splitlines()

    return lines


def live(*events, width=120, **options):
    """The last line that a terminal of this width shows."""
    file = io.StringIO()
    with View(console=Console(file=file, force_terminal=True, width=width, _environ={}), **options) as watch:
        assert watch.live
        for event in events:
            watch(event)
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", file.getvalue())
    shown = [line for line in re.split(r"[\r\n]+", text) if line.strip()]
    assert all(len(line) <= width for line in shown)
    return shown[-1] if shown else ""


# ---------------------------------------------------------------------- plain lines


def test_a_plain_line_a_round(plain):
    spending = Spending()
    lines = plain(*(done(round, spending) for round in range(1, ROUNDS + 1)))
    scores = "personal 0.750, released 0.500, 3 clients"
    assert lines == [
        f"private: round 1 of 4, ε 1.12 of 4.45, {scores}, 30 s left",
        f"private: round 2 of 4, ε 2.23 of 4.45, {scores}, 20 s left",
        f"private: round 3 of 4, ε 3.34 of 4.45, {scores}, 10 s left",
        f"private: round 4 of 4, ε 4.45 of 4.45, {scores}",
    ]


def test_a_long_plain_line_is_one_line(plain, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    assert len(plain(done(1, Spending(), seeded=True))) == 1


def test_epsilon_of_an_earlier_round_says_so(plain, monkeypatch):
    spending = Spending()
    monkeypatch.setattr(spending, "seconds", 1000.0)
    (first,) = plain(done(1, spending))
    assert "ε 4.45 after all rounds" in first  # nothing is bounded yet
    *_, last = plain(done(1, spending), done(4, spending))
    assert "ε 4.45 of 4.45" in last
    monkeypatch.setattr(view, "EPSILON_SHARE", float("inf"))
    with View() as watch:
        watch(done(2, spending))
        monkeypatch.setattr(view, "EPSILON_SHARE", 0.05)
        assert watch._spent(done(3, spending), spending, due=True) == "ε 2.23 (after round 2) of 4.45"


def test_a_simulation_and_a_run_without_privacy(plain):
    assert "simulated ε 2.23 of 4.45" in plain(done(2, Spending(), seeded=True))[0]
    (line,) = plain(done(2, None, phase="alone", personal=None, released=None, participants=1))
    assert line == "alone: round 2 of 4, 1 client, 20 s left"
    assert "ε" not in plain(done(2, Spending()), spending=False)[0]


def test_plain_lines_are_seconds_apart(capsys):
    with View() as watch:
        for round in (1, 2, 3, 4):
            watch(done(round))
        watch(Working("accounting", 1, 2))
    rounds = re.findall(r"round (\d)", capsys.readouterr().err)
    assert rounds == ["1", "4"]


def test_quiet_shows_nothing(capsys):
    with View(quiet=True) as watch:
        watch(done(1, Spending()))
        watch(done(4, Spending()))
        watch(Working("accounting", 1, 2))
        watch.say("a line")
    seen = capsys.readouterr()
    assert seen.out == seen.err == ""


def test_a_line_of_its_own(capsys):
    with View() as watch:
        watch.say("row 1: [p = 0.5] :smile:")
    assert capsys.readouterr().err == "row 1: [p = 0.5] :smile:\n"


# ---------------------------------------------------------------------- a bar that moves


def test_a_bar_shows_the_last_round(at_every_round):
    spending = Spending()
    line = live(done(1, spending), done(2, spending))
    assert line.startswith("private ━")
    assert "round 2 of 4 · ε 2.23 of 4.45 · personal 0.750 · released 0.500 · 3 clients" in line
    assert line.count("━") + line.count("╸") + line.count("╺") == view.WIDEST_BAR


def test_a_narrow_terminal_keeps_round_and_epsilon_whole(at_every_round):
    line = live(done(2, Spending(), seeded=True), width=80)
    assert "round 2 of 4 · simulated ε 2.23 of 4.45 · personal 0.750" in line
    assert "…" not in line
    assert "clients" not in line
    assert "round 2 of 4" in live(done(2, Spending(), seeded=True), width=40)


def test_epsilon_so_far_on_a_bar_says_of_which_round_it_is():
    spending = Spending()
    line = live(done(1, spending), done(2, spending))  # within two seconds
    assert "round 2 of 4 · ε 1.12 (after round 1) of 4.45" in line


def test_other_work_has_its_own_bar():
    line = live(done(4), Working("accounting", 2, 3))
    assert line.startswith("accounting ━")
    assert "round" not in line
    assert live(Working("[odd] :smile:", 1, 3)).startswith("[odd] :smile: ━")


def test_nothing_moves_on_a_quiet_terminal():
    file = io.StringIO()
    with View(quiet=True, console=Console(file=file, force_terminal=True)) as watch:
        watch(done(1))
        watch(Working("accounting", 1, 2))
    assert file.getvalue() == ""


def test_items_are_tracked_by_a_bar_on_a_terminal_and_by_lines_elsewhere(monkeypatch, capsys):
    items = {"a": 1, "b": 2}
    assert list(tracked(items.items(), "clients")) == [("a", 1), ("b", 2)]
    assert capsys.readouterr().err == ""  # done before a line is due
    monkeypatch.setattr(view, "PLAIN_EVERY", 0.0)
    assert list(tracked(items.items(), "clients")) == [("a", 1), ("b", 2)]
    assert capsys.readouterr().err == "clients: 1 of 2, 0 s left\n"
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", terminal)
    assert tracked(items.items(), "clients", wanted=False) == items.items()
    assert list(tracked(items.items(), "clients")) == [("a", 1), ("b", 2)]
    assert "clients" in terminal.getvalue()
    assert capsys.readouterr().out == ""
