"""Every way in which a question over Flower can go wrong, and what becomes of it."""

import threading
import time
from dataclasses import replace

import httpx
import pytest
from flwr.app import ConfigRecord, RecordDict

from prifedsync.asking.connection import NoAnswer
from prifedsync.asking.frames import answer_frame
from prifedsync.asking.questions import Accepted, Answer, Declined, Enrol, Head
from prifedsync.asking.refusals import Refusal
from prifedsync.engines.flower import exchange as exchanges
from prifedsync.engines.flower import letters
from prifedsync.engines.flower.exchange import Exchange, Patience
from prifedsync.engines.flower.through import Through

from .faking import (
    PATIENT,
    FakeLink,
    answers,
    asking,
    echoes,
    faster,
    frame_of,
    identity,
    in_turn,
    is_silent,
    says_content,
    says_error,
    tells,
)

NAMES = "abcdefgh"


@pytest.fixture(autouse=True)
def _faster(monkeypatch):
    identity()
    faster(monkeypatch)


@pytest.fixture
def link():
    return FakeLink("a", "b", "c")


def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)


def ask(link, name="a", patience=PATIENT, frame=None):
    with asking(link) as exchange:
        return exchange.ask_aside(name, frame, patience).result()


# ---------------------------------------------------------------------- answers


def test_every_client_gets_its_own_answer(link):
    with asking(link) as exchange:
        asked = {name: exchange.ask_aside(name) for name in "abc"}
        assert {name: each.result() for name, each in asked.items()} == {name: frame_of(name.encode()) for name in "abc"}
        assert exchange.online == exchange.registered == set("abc")
        assert exchange.waited_for == {}
    assert len(link.pushed) == 3
    assert link.submitted == 1
    assert link.closed is True


def test_an_answer_that_comes_late(link):
    def late(link, question):
        threading.Timer(0.3, echoes, (link, question)).start()

    link.site("a", late)
    begun = time.monotonic()
    assert ask(link) == frame_of(b"a")
    assert time.monotonic() - begun >= 0.3
    assert len(link.pushed) == 1


def test_an_answer_that_never_comes_is_asked_for_with_longer_and_longer_waits(link):
    seen = []

    def silent(link, question):
        now = exchange.waited_for["a"]
        seen.append((now.tries, now.wrong, now.since))

    link.site("a", silent)
    begun = time.time()
    with asking(link) as exchange, pytest.raises(NoAnswer, match="did not answer in time"):
        exchange.ask_aside("a", None, Patience(whole=2.0, first=0.1, offline=0.1)).result()
    assert 2.0 <= time.time() - begun < 10.0
    waits = link.waits("a")
    assert waits[:3] == pytest.approx([0.1, 0.2, 0.4], rel=0.05)  # and what travelling takes
    assert max(waits) <= 0.8 * 1.05
    assert sum(waits) <= 2.1
    assert [tries for tries, _, _ in seen] == list(range(1, len(waits) + 1))
    assert {wrong for _, wrong, _ in seen} == {""}
    assert seen[0][2] == pytest.approx(begun, abs=2.0)


def test_a_question_outlives_the_wait_for_it(link, monkeypatch):
    """A SuperLink says of an expired question what it says of a lost one: a slow client would pass for one that is gone."""
    link.site("a", in_turn(is_silent, is_silent, is_silent, echoes))
    assert ask(link, patience=Patience(whole=60.0, first=0.1, offline=0.05)) == frame_of(b"a")
    assert len(link.pushed) == 4
    monkeypatch.setattr(exchanges, "LONGER", -0.05)  # the fake SuperLink does say so
    link.site("a", is_silent)
    with pytest.raises(NoAnswer, match="Message Unavailable"):
        ask(link, patience=Patience(whole=60.0, first=0.1, offline=0.05))


def test_an_error_and_then_an_answer(link):
    link.site("a", in_turn(says_error, lambda link, question: says_error(link, question, 2, "it raised"), echoes))
    assert ask(link) == frame_of(b"a")
    assert len(link.pushed) == 3


def test_errors_alone_are_endured_as_long_as_an_absence(link):
    link.site("a", says_error)
    with pytest.raises(NoAnswer, match=r"error 1000: .the owner's daemon cannot be reached"):
        ask(link, patience=Patience(whole=60.0, first=30.0, offline=0.1))
    assert 1 < len(link.pushed) <= 11


def test_an_owner_that_worked_for_long_and_was_killed_is_waited_for_as_any_other(link):
    """The time in which it worked is not one in which it was away."""

    def dies(link, question):
        timer = threading.Timer(0.5, says_error, (link, question))
        timer.daemon = True
        timer.start()

    link.site("a", in_turn(dies, says_error, echoes))
    with asking(link) as exchange:
        brief = Patience(whole=60.0, first=30.0, offline=0.3)
        assert exchange.ask_aside("a", patience=brief).result(10) == frame_of(b"a")


def test_of_a_long_error_a_line_is_kept(link):
    link.site("a", lambda link, question: says_error(link, question, 2, "x" * 10**6))
    with pytest.raises(NoAnswer) as caught:
        ask(link, patience=Patience(whole=60.0, first=30.0, offline=0.05))
    assert len(str(caught.value)) < 300


def test_an_answer_under_another_name_is_not_taken(link):
    def forged(link, question):
        link.reply(question, letters.content_of(frame_of(b"forged")), node=link.nodes["b"])

    link.site("a", in_turn(forged, forged, echoes))
    assert ask(link) == frame_of(b"a")
    assert len(link.pushed) == 3
    link.site("a", forged)
    with pytest.raises(NoAnswer, match="another SuperNode answered in its place"):
        ask(link, patience=Patience(whole=60.0, first=30.0, offline=0.05))


def test_an_answer_to_the_question_of_another_is_not_taken(link):
    """Client b answers the question that a was sent: as b it is not the node that was asked."""
    of_a = []
    link.site("a", lambda link, question: of_a.append(question))

    def crossed(link, question):
        until(lambda: of_a)
        link.reply(of_a[0], letters.content_of(frame_of(b"forged")), node=link.nodes["b"])
        link.site("a", echoes)
        echoes(link, question)

    link.site("b", crossed)
    with asking(link) as exchange:
        asked = {name: exchange.ask_aside(name) for name in "ab"}
        assert {name: each.result() for name, each in asked.items()} == {name: frame_of(name.encode()) for name in "ab"}


@pytest.mark.parametrize(
    "content",
    [RecordDict({}), RecordDict({"prifedsync": ConfigRecord({"header": b"bytes"})}), letters.says_who("a")],
    ids=["nothing", "a config", "a name"],
)
def test_content_that_is_no_frame_is_no_answer(link, content):
    link.site("a", in_turn(says_content(content), echoes))
    assert ask(link) == frame_of(b"a")
    link.site("a", says_content(content))
    with pytest.raises(NoAnswer, match="the message"):
        ask(link, patience=Patience(whole=60.0, first=30.0, offline=0.05))


def test_an_answer_that_nobody_asked_for_is_ignored(link):
    def talkative(link, question):
        question.metadata.__dict__["_message_id"] = "a message of nobody"
        echoes(link, question)
        question.metadata.__dict__["_message_id"] = "message 0"
        link.reply(question, letters.content_of(frame_of(b"first")))
        link.reply(question, letters.content_of(frame_of(b"second")), node=5)

    link.site("a", talkative)
    real = link.pull
    link.pull = lambda sent: real((*sent, "a message of nobody"))
    assert ask(link) == frame_of(b"first")  # and it is not exchanged for another one
    assert len(link.pushed) == 1


def test_an_answer_to_an_earlier_try_will_do(link):
    """A large reply may be on its way for longer than a try is waited for."""
    late = []

    def site(link, question):
        late.append(question)
        if len(late) == 2:
            echoes(link, late[0])

    link.site("a", site)
    assert ask(link, patience=Patience(60.0, 0.1, 30.0)) == frame_of(b"a")
    assert len(late) == 2


def test_an_error_to_an_earlier_try_says_nothing_of_the_last_one(link):
    late = []

    def site(link, question):
        late.append(question)
        if len(late) == 2:
            says_error(link, late[0])
            threading.Timer(0.1, echoes, (link, question)).start()

    link.site("a", site)
    assert ask(link, patience=Patience(60.0, 0.2, offline=0.01)) == frame_of(b"a")
    assert len(late) == 2


def test_an_answer_to_a_question_that_was_given_up_is_ignored(link):
    late = []
    link.site("a", in_turn(lambda link, question: late.append(question), answers(frame_of(b"now"))))
    with asking(link) as exchange:
        with pytest.raises(NoAnswer):
            exchange.ask("a", frame_of(b"before"), Patience(0.1, 0.1, 30.0))
        link.reply(late[0], letters.content_of(frame_of(b"before")))
        assert exchange.ask("a", frame_of(b"now"), PATIENT) == frame_of(b"now")
        assert exchange._tries == {}


# ---------------------------------------------------------------------- the SuperLink is lost


def silent_until_lost(link):
    """Over the first link nobody answers."""
    for name in link.nodes:
        link.site(name, lambda link, question: link.submitted > 1 and echoes(link, question))


@pytest.mark.parametrize("noticed", [("push",), ("pull",), ("beat",), ("online",), ()], ids=str)
def test_the_run_is_submitted_again_once_and_all_are_asked_again(noticed):
    link = FakeLink(*NAMES, "i")
    silent_until_lost(link)
    with asking(link) as exchange:
        asked = {name: exchange.ask_aside(name) for name in NAMES}
        until(lambda: len(link.pushed) == len(NAMES))
        link.lose(*noticed)
        more = exchange.ask_aside("i")  # whoever pushes notices too
        assert {name: each.result() for name, each in asked.items()} == {name: frame_of(name.encode()) for name in NAMES}
        assert more.result() == frame_of(b"i")
        until(lambda: not link.failing)
        time.sleep(0.1)  # more than the time between any two looks
        assert link.submitted == 2
    assert len(link.pushed) <= 2 * len(NAMES) + 2


def test_it_is_submitted_once_also_where_all_push_at_once():
    link = FakeLink(*NAMES)
    with asking(link) as exchange:
        link.lose("push")
        asked = [exchange.ask_aside(name) for name in NAMES]
        assert [each.result() for each in asked] == [frame_of(name.encode()) for name in NAMES]
        assert link.submitted == 2


def test_it_is_submitted_again_for_every_loss(link):
    with asking(link) as exchange:
        for lost in range(1, 4):
            assert exchange.ask_aside("a").result() == frame_of(b"a")
            assert link.submitted == lost
            link.lose()
            until(lambda: not link.failing)


def test_whoever_loses_the_race_to_submit_does_not_submit_again(link):
    """Between the sign of life and its failure, somebody else has submitted the run."""
    beaten = []

    def beat():
        if not beaten:
            beaten.append(link.renew(link.submitted))
            return False
        return True

    link.beat = beat
    with asking(link):
        until(lambda: beaten)
        time.sleep(0.1)
        assert link.submitted == 2


def test_a_loss_that_is_noticed_late_disturbs_no_question_that_was_sent_since(link):
    pulling = threading.Event()
    go_on = threading.Event()
    real = link.pull

    def pull(sent):
        if link.submitted == 1:
            pulling.set()
            go_on.wait(20.0)
            raise httpx.ReadTimeout("no answer from the old one")
        return real(sent)

    link.pull = pull
    held = []
    link.site("b", lambda link, question: held.append(question))
    with asking(link) as exchange:
        first = exchange.ask_aside("a")
        assert pulling.wait(20.0)
        link.lose("push")
        second = exchange.ask_aside("b")
        until(lambda: held)
        go_on.set()
        assert first.result() == frame_of(b"a")
        echoes(link, held[0])
        assert second.result() == frame_of(b"b")
        assert len(held) == 1
        assert link.submitted == 2


def test_a_superlink_that_is_away_for_long_costs_no_client_its_patience(link):
    silent_until_lost(link)
    with asking(link) as exchange:
        asked = exchange.ask_aside("a", None, Patience(60.0, 30.0, offline=0.1))
        until(lambda: link.pushed)
        link.lose(back=False)
        time.sleep(0.3)
        assert not asked.done()
        link.back.set()
        assert asked.result() == frame_of(b"a")


@pytest.mark.parametrize("where", ["push", "pull"])
def test_an_error_of_the_servers_own_renewal_is_no_fault_of_a_client(link, monkeypatch, where):
    """However long it lasts: longer than the client's whole patience, and more often than a link may be lost."""
    monkeypatch.setattr(exchanges, "MOST_LOST", 3)
    real = link.renew
    tried = []

    def renew(seen):
        tried.append(seen)
        if seen and len(tried) < 40:
            raise ValueError("Invalid line format")
        return real(seen)

    link.renew = renew
    with asking(link) as exchange:
        link.lose(where)
        asked = exchange.ask_aside("a", None, Patience(0.3, 0.2, offline=0.3))
        assert asked.result(timeout=20.0) == frame_of(b"a")
        assert exchange.away("a") == ""
    assert len(tried) >= 40


def test_a_question_whose_link_is_closed_while_it_is_sent_is_no_fault_of_the_client(link):
    """Somebody else has noticed that the link is gone, and Flower cannot send the rest of a large model over it."""
    real = link.push
    pushed = []

    def push(message):
        pushed.append(message)
        if len(pushed) == 1:
            link.renew(link.submitted)
            time.sleep(0.3)
            raise RuntimeError("Cannot send a request, as the client has been closed.")
        return real(message)

    link.push = push
    assert ask(link, patience=Patience(60.0, 30.0, offline=0.2)) == frame_of(b"a")


def test_the_time_in_which_the_superlink_is_away_is_not_the_clients(link):
    silent_until_lost(link)
    with asking(link) as exchange:
        asked = exchange.ask_aside("a", None, Patience(0.5, 0.4, offline=0.1))
        until(lambda: link.pushed)
        link.lose(back=False)
        time.sleep(1.0)
        link.back.set()
        assert asked.result(timeout=20.0) == frame_of(b"a")


def test_an_error_of_the_roster_at_the_beginning_is_left_to_the_threads(link):
    real = link.online
    errors = [ValueError("Invalid line format")]
    link.online = lambda: _fail(errors.pop()) if errors else real()
    with asking(link) as exchange:
        assert exchange.ask_aside("a").result() == frame_of(b"a")


def _fail(error):
    raise error


def test_a_link_that_is_lost_again_and_again_is_given_up(link, monkeypatch):
    monkeypatch.setattr(exchanges, "MOST_LOST", 4)
    link.site("a", lambda link, question: link.lose("pull"))
    with pytest.raises(NoAnswer, match="the SuperLink was not there"):
        ask(link)
    assert link.questions("a") == [frame_of(b"a")] * 4


def test_one_that_takes_runs_and_nothing_else_is_not_flooded(link, monkeypatch):
    monkeypatch.setattr(exchanges, "PAUSE", 0.1)
    real = link.renew
    link.renew = lambda seen: real(seen) and not link.lose("online")
    link.lose("online")
    begun = time.monotonic()
    with Exchange(link):
        time.sleep(0.5)
    assert link.submitted <= 2 + (time.monotonic() - begun) / 0.1


def test_a_superlink_that_is_lost_at_once_is_met_again(link):
    link.renew = lambda seen, real=link.renew: real(seen) and (seen or link.lose("online") or True)
    with asking(link) as exchange:
        assert exchange.ask_aside("a").result() == frame_of(b"a")
    assert link.submitted == 2


# ---------------------------------------------------------------------- clients that are not there


def test_a_client_that_comes_late_is_waited_for(link):
    node = link.nodes.pop("a")
    with asking(link) as exchange:
        asked = exchange.ask_aside("a")
        until(lambda: exchange.waited_for["a"].wrong == exchanges.NOT_THERE)
        time.sleep(0.1)
        assert link.pushed == []
        assert exchange.online == {"b", "c"}
        link.nodes["a"] = node
        assert asked.result() == frame_of(b"a")


def test_a_client_that_is_gone_for_good_is_waited_for_at_length_once(link, monkeypatch):
    monkeypatch.setattr(exchanges, "SHORT", 0.05)
    patience = Patience(whole=60.0, first=30.0, offline=1.5)
    node = link.nodes.pop("a")
    with asking(link) as exchange:

        def seconds():
            begun = time.monotonic()
            with pytest.raises(NoAnswer, match="its SuperNode is not there"):
                exchange.ask("a", frame_of(), patience)
            return time.monotonic() - begun

        assert seconds() >= 1.5
        assert 0.05 <= seconds() < 1.4
        assert 0.05 <= seconds() < 1.4
        link.nodes["a"] = node
        assert exchange.ask("a", frame_of(b"back"), patience) == frame_of(b"back")
        del link.nodes["a"]
        until(lambda: "a" not in exchange.online)
        assert seconds() >= 1.5


def test_the_whole_wait_ends_it_also_for_whoever_is_not_there(link):
    del link.nodes["a"]
    begun = time.monotonic()
    with pytest.raises(NoAnswer):
        ask(link, patience=Patience(whole=0.2, first=30.0, offline=30.0))
    assert time.monotonic() - begun < 10.0


# ---------------------------------------------------------------------- the end


def busy(link, question):
    link.reply(question, letters.content_of(answer_frame(Declined(Refusal.BUSY))))


def test_stop_ends_all_waits_at_once(link):
    link.site("b", is_silent)
    link.site("c", busy)
    del link.nodes["a"]
    with asking(link) as exchange:
        waits = [exchange.ask_aside("a"), exchange.ask_aside("b")]
        through = Through(exchange, "c", PATIENT)
        waits.append(exchange.aside.submit(through.ask, Enrol("a", {})))
        until(lambda: len(link.pushed) > 3)
        begun = time.monotonic()
        exchange.stop()
        for each in waits:
            with pytest.raises(NoAnswer, match="the run is over"):
                each.result(timeout=10.0)
        assert time.monotonic() - begun < 10.0  # each of them would have waited for half a minute


def test_stop_ends_the_wait_for_a_superlink_that_is_gone(link):
    link.site("a", is_silent)
    with asking(link) as exchange:
        asked = exchange.ask_aside("a")
        until(lambda: link.pushed)
        link.lose(back=False)
        more = exchange.ask_aside("b")
        until(link._renewing.locked)
        exchange.stop()
        for each in (asked, more):
            with pytest.raises(NoAnswer):
                each.result(timeout=1.0)


def test_a_question_that_is_sent_while_the_run_ends_is_not_waited_for(link):
    def ends(link, question):
        exchange.stop()

    link.site("a", ends)
    with asking(link) as exchange, pytest.raises(NoAnswer):
        exchange.ask_aside("a").result(timeout=1.0)


def test_no_thread_is_left():
    before = set(threading.enumerate())
    for _ in range(3):
        link = FakeLink(*NAMES)
        assert ask(link) == frame_of(b"a")
    assert set(threading.enumerate()) <= before


def test_a_run_that_failed_is_closed_as_failed(link):
    with pytest.raises(ZeroDivisionError), Exchange(link):
        raise ZeroDivisionError
    assert link.closed is False


# ---------------------------------------------------------------------- errors inside Flower


def test_an_error_about_one_answer_does_not_end_the_others(link, caplog):
    class Broken:
        @property
        def metadata(self):
            raise ValueError("Flower has sent something else")

    real = link.pull
    link.pull = lambda sent: [Broken(), *real(sent)]
    with asking(link) as exchange:
        asked = [exchange.ask_aside(name) for name in "abc"]
        assert [each.result(timeout=20.0) for each in asked] == [frame_of(name.encode()) for name in "abc"]
    assert len(link.pushed) == 3
    assert "an answer could not be read" in caplog.text


def test_an_error_in_a_look_does_not_end_the_looks(link, caplog):
    real = link.pull
    fails = iter([ValueError("Flower"), KeyError("object")])

    def pull(sent):
        for error in fails:
            raise error
        return real(sent)

    link.pull = pull
    assert ask(link) == frame_of(b"a")
    assert len(link.pushed) == 1
    assert link.submitted == 1
    assert "could not be looked for" in caplog.text


def test_an_error_in_the_roster_does_not_end_the_threads(link):
    """A key that is just being written cannot be read; the next time it can."""
    real = link.renew
    fails = iter([ValueError("no key")])

    def renew(seen):
        for error in fails if seen else ():
            raise error
        return real(seen)

    link.renew = renew
    with asking(link) as exchange:
        link.lose("online")
        until(lambda: link.submitted == 2)
        assert exchange.ask_aside("a").result() == frame_of(b"a")


def test_a_question_that_flower_cannot_send_is_sent_again(link):
    """Where somebody else submits the run again, the connection is closed under whoever is just sending."""
    real = link.push
    fails = iter([RuntimeError("Cannot send a request, as the client has been closed."), ValueError("413")])

    def push(message):
        for error in fails:
            raise error
        return real(message)

    link.push = push
    assert ask(link) == frame_of(b"a")
    assert link.submitted == 1
    link.push = lambda message: 1 / 0
    with pytest.raises(NoAnswer, match="the question could not be sent"):
        ask(link, patience=Patience(whole=60.0, first=30.0, offline=0.05))


# ---------------------------------------------------------------------- names without keys


@pytest.fixture
def nameless():
    """Three nodes, and no keys to know them by."""
    link = FakeLink("x", "y", "z", keys=False)
    for node, name in zip("xyz", "abc", strict=True):
        link.site(node, tells(name))
    return link


def test_sites_tell_their_names(nameless):
    with asking(nameless) as exchange:
        until(lambda: exchange.online == set("abc"))
        assert exchange.ask_aside("b").result() == frame_of(b"b")
        assert nameless.pushed[-1].metadata.dst_node_id == nameless.nodes["y"]
        del nameless.nodes["y"]
        until(lambda: exchange.online == {"a", "c"})
    assert len([each for each in nameless.pushed if each.metadata.message_type == letters.WHO]) == 3


def nonsense(link, question):
    link.reply(question, RecordDict({"prifedsync": ConfigRecord({"client": 5})}))


def says_a_frame(link, question):
    link.reply(question, letters.content_of(frame_of()))


def forged(link, question):
    link.reply(question, letters.says_who("a"), node=999)


@pytest.mark.parametrize("site", [is_silent, nonsense, says_error, says_a_frame, forged], ids=lambda site: site.__name__)
def test_a_node_without_a_name_is_asked_again_and_answers_for_nobody(nameless, monkeypatch, site):
    monkeypatch.setattr(exchanges, "SECONDS_FOR_A_NAME", 0.05)
    nameless.says_expired = False
    seen = []

    def nobody(link, question):
        seen.append(question.metadata.message_type)
        site(link, question)

    nameless.site("x", nobody)
    with asking(nameless) as exchange:
        until(lambda: exchange.online == {"b", "c"} and len(seen) >= 3)
        assert exchange.ask_aside("b").result() == frame_of(b"b")
        assert exchange.online == {"b", "c"}
        assert set(seen) == {letters.WHO}  # it is asked for nothing else
        nameless.site("x", tells("a"))
        until(lambda: exchange.online == set("abc"))


def test_a_node_that_cannot_be_asked_for_its_name_does_not_hide_the_others(nameless):
    real = nameless.push

    def push(message):
        if message.metadata.dst_node_id == nameless.nodes["x"]:
            raise ValueError("Flower does not take it")
        return real(message)

    nameless.push = push
    with asking(nameless) as exchange:
        until(lambda: exchange.online == {"b", "c"})
        assert nameless.submitted == 1


def test_of_two_nodes_with_one_name_the_last_one_is_the_client(nameless):
    """A SuperNode without a key has a new number when it is started again, and the old one lives on for a minute."""
    del nameless.nodes["z"]
    with asking(nameless) as exchange:
        until(lambda: exchange.online == set("ab"))
        nameless.nodes = {"again": 200, **nameless.nodes}
        nameless.sites[200] = tells("a")
        until(lambda: exchange._there["a"] == 200)
        exchange.ask_aside("a").result()
        assert nameless.pushed[-1].metadata.dst_node_id == 200
        time.sleep(0.05)
        assert exchange._there["a"] == 200
        del nameless.nodes["again"]
        until(lambda: exchange._there["a"] == nameless.nodes["x"])


def test_names_outlive_the_superlink(nameless):
    with asking(nameless) as exchange:
        until(lambda: exchange.online == set("abc"))
        nameless.lose()
        until(lambda: nameless.submitted == 2 and exchange.online == set("abc"))
        assert exchange.ask_aside("c").result() == frame_of(b"c")


def test_a_question_for_a_name_that_was_lost_with_the_superlink_is_asked_again(nameless):
    told = tells("a")
    nameless.site("x", lambda link, question: link.submitted > 1 and told(link, question))
    with asking(nameless) as exchange:
        until(lambda: exchange.online == {"b", "c"})
        nameless.lose("beat")
        until(lambda: exchange.online == set("abc"))


# ---------------------------------------------------------------------- one client's owner


def through(link, patience=PATIENT):
    with asking(link) as exchange:
        return Through(exchange, "a", patience).ask(Enrol("a", {}))


ACCEPTED = Accepted(Head(1, b"x" * 32), 0, 0.0)


def test_an_owner_is_asked_through_the_exchange(link):
    link.site("a", answers(answer_frame(ACCEPTED)))
    assert through(link) == ACCEPTED


def test_a_busy_owner_is_asked_again(link):
    link.site("a", in_turn(busy, busy, answers(answer_frame(ACCEPTED))))
    assert through(link) == ACCEPTED
    assert len(set(link.questions("a"))) == 1


def test_an_owner_that_stays_busy_is_given_up(link):
    """By this clock every question takes 100 seconds."""
    link.site("a", busy)
    with asking(link, clock=lambda: 100.0 * len(link.pushed)) as exchange:
        asked = Through(exchange, "a", Patience(whole=350.0, first=300.0, offline=300.0)).ask(Enrol("a", {}))
    assert asked == Declined(Refusal.BUSY)
    assert link.waits("a") == pytest.approx([350.0, 250.0, 150.0, 50.0])


SLOT = Answer("a", 32 * "0", 0, 0, b"")


def asked_in_turn(link, *questions, patience):
    with asking(link) as exchange:
        through = Through(exchange, "a", patience)
        for question in questions:
            through.ask(question)


def test_an_owner_is_asked_once_in_the_time_that_it_needs(link):
    """A copy of a question costs it a whole turn."""
    link.site("a", answers(answer_frame(replace(ACCEPTED, seconds=1200.0))))
    asked_in_turn(link, Enrol("a", {}), SLOT, patience=Patience(whole=5000.0, first=60.0, offline=90.0))
    assert link.waits("a") == pytest.approx([5000.0, 3600.0], rel=1e-3)


def test_an_owner_that_takes_no_longer_is_asked_again_as_soon_as_before(link, caplog):
    link.site("a", answers(answer_frame(replace(ACCEPTED, seconds=10.0))))
    asked_in_turn(link, Enrol("a", {}), SLOT, patience=Patience(whole=5000.0, first=60.0, offline=90.0))
    assert link.waits("a") == pytest.approx([5000.0, 60.0], rel=1e-3)
    assert not caplog.records


def test_a_server_whose_waits_are_too_short_is_told_once(link, caplog):
    link.site("a", answers(answer_frame(replace(ACCEPTED, seconds=60.0))))
    asked_in_turn(link, Enrol("a", {}), Enrol("a", {}), patience=Patience(whole=5000.0, first=60.0, offline=90.0))
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == "answers of client a leave after 60 s: set waiting.question in server.toml to at least 180"


def test_of_a_question_that_may_wait_only_the_first_copy_does(link):
    """Answers to both count. Later copies would keep the owner busy when the question is answered."""
    link.site("a", in_turn(is_silent, is_silent, answers(answer_frame(ACCEPTED))))
    asked_in_turn(link, Enrol("a", {}), patience=Patience(whole=60.0, first=0.02, offline=90.0))
    assert link.waits("a") == pytest.approx([60.0, 0.04, 0.08], rel=0.01)


@pytest.mark.parametrize(
    "frame",
    [frame_of(), frame_of(b"{}"), answer_frame(ACCEPTED)[:-1], answer_frame(ACCEPTED) + b"x"],
    ids=["no JSON", "no answer", "too short", "too long"],
)
def test_a_frame_that_is_no_answer_is_none(link, frame):
    link.site("a", answers(frame))
    with pytest.raises(NoAnswer):
        through(link)


def test_a_frame_that_lost_its_beginning_is_no_answer(link):
    """A message may carry any bytes as a frame."""
    content = letters.content_of(frame_of())
    content[letters.RECORD] = letters.ArrayRecord({letters.HEADER: letters._array(b"PFS")})
    link.site("a", says_content(content))
    with pytest.raises(NoAnswer):
        through(link)
