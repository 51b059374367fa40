"""Owners with real trainers behind a fake SuperLink, and what may happen to them in a round."""

import threading
from dataclasses import replace

from prifedsync.asking.frames import PREFIX, answer_frame, question_frame, read_prefix, read_question
from prifedsync.asking.questions import Declined, Enrol, Reply
from prifedsync.asking.refusals import Refusal
from prifedsync.engines.flower import letters
from prifedsync.engines.flower.exchange import Exchange
from prifedsync.engines.flower.through import Through

from .faking import PATIENT, FakeLink


class Site:
    """One owner: it stores what it answers before the answer leaves, as its daemon does."""

    def __init__(self, direct):
        self.direct = direct
        self.faults = {}  # round → what happens to the questions of that round, in turn
        self.stored = {}  # slot → digest of the question, and the reply
        self.left = {}  # slot → all frames that left the site
        self._lock = threading.Lock()

    def __call__(self, link, question):
        asked = read(letters.frame_of(question))
        happens = self.faults.get(getattr(asked, "round", None))
        fault = happens.pop(0) if happens else honest
        with self._lock:
            fault(self, link, question, asked)

    def answered(self, asked):
        """What the owner answers; a slot that it has answered is not trained again."""
        if isinstance(asked, Enrol):
            return self.direct.ask(asked)
        slot = asked.round, asked.attempt
        if slot not in self.stored:
            answered = self.direct.ask(asked)
            if not isinstance(answered, Reply):
                return answered
            self.stored[slot] = asked.digest, answered
        digest, reply = self.stored[slot]
        return reply if digest == asked.digest else Declined(Refusal.SLOT)

    def send(self, link, question, asked, answered, node=None):
        frame = answer_frame(answered)
        if isinstance(answered, Reply):
            self.left.setdefault((asked.round, asked.attempt), set()).add(frame)
        link.reply(question, letters.content_of(frame), node)

    @property
    def trained(self):
        """The slots in which noise was added, once for each time."""
        sent = {slot for slot, (_, reply) in self.stored.items() if reply.status == "sent"}
        return [slot for slot in self.direct.asked if slot in sent]

    @property
    def queries(self):
        return sum(reply.queries for _, reply in self.stored.values())


def read(frame):
    lengths = read_prefix(frame[: PREFIX.size])
    header = frame[PREFIX.size : PREFIX.size + lengths.header]
    asked = read_question(header)
    if isinstance(asked, Enrol):
        return asked
    asked = replace(asked, helper=frame[PREFIX.size + lengths.header :])
    assert question_frame(asked) == frame
    return asked


# ---------------------------------------------------------------------- what happens to a question


def honest(site, link, question, asked):
    site.send(link, question, asked, site.answered(asked))


def straggles(seconds):
    """The owner takes its time."""

    def fault(site, link, question, asked):
        answered = site.answered(asked)
        threading.Timer(seconds, site.send, (link, question, asked, answered)).start()

    return fault


def is_lost_on_its_way(site, link, question, asked):
    """The question, before the owner has it."""


def reply_is_lost(site, link, question, asked):
    """The owner has trained, stored and charged; its reply never arrives."""
    site.answered(asked)


def is_killed(back=0.1, after=True):
    """The machine is gone in the middle of the round, before or after its owner has stored a reply, and comes back."""

    def fault(site, link, question, asked):
        if after:
            site.answered(asked)
        name = site.direct.name
        node = link.nodes.pop(name)
        site.direct._restart()
        comes = threading.Timer(back, link.nodes.__setitem__, (name, node))
        comes.daemon = True  # one that is gone for an hour must not hold up the end of the tests
        comes.start()

    return fault


def leaves(site, link, question, asked):
    link.nodes.pop(site.direct.name, None)


def refuses(refusal):
    return lambda site, link, question, asked: site.send(link, question, asked, Declined(refusal))


def sends_body(body):
    """The owner has charged, and sends something else."""

    def fault(site, link, question, asked):
        site.send(link, question, asked, replace(site.answered(asked), body=body))

    return fault


def comes_from(name):
    """The answer says that another SuperNode sent it."""
    return lambda site, link, question, asked: site.send(link, question, asked, site.answered(asked), link.nodes[name])


def superlink_is_lost(fault):
    """And with it everything that is on its way."""

    def lost(site, link, question, asked):
        fault(site, link, question, asked)
        link.lose()

    return lost


# ---------------------------------------------------------------------- whole runs


class Federation:
    """A run, its owners' sites, and a SuperLink between them and the server."""

    def __init__(self, run, draws):
        self.run = run
        self.sites = {name: Site(direct) for name, direct in run.direct(draws).items()}
        self.begin()

    def begin(self):
        """A SuperLink with everybody there."""
        self.link = FakeLink(*self.sites)
        for name, site in self.sites.items():
            self.link.site(name, site)

    def connections(self, exchange, **patience):
        return {name: Through(exchange, name, patience.get(name, PATIENT)) for name in self.sites}

    def trained(self, **patience):
        """All rounds, and the engine. `patience`: with which client the server has another one."""
        with Exchange(self.link) as exchange:
            owners = self.run.owners(self.connections(exchange, **patience))
            rounds = self.run.apart(owners)
        self.check(owners)
        return rounds, owners

    def check(self, owners):
        """Nobody has answered more than the server counts, or one slot twice."""
        accounts = owners.accounts()
        for name, site in self.sites.items():
            assert len(site.trained) == len(set(site.trained)), f"{name} has trained a slot twice"
            assert len(site.trained) <= accounts[name].taken
            assert site.queries <= accounts[name].queries
            assert {len(frames) for frames in site.left.values()} <= {1}


def kinds(rounds):
    """What became of everybody, round by round: a word for each."""
    return [" ".join(type(answer).__name__ for answer in uploads.answers.values()) for _, uploads in rounds]
