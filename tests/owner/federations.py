"""Small federations for tests of owners: one run in one process, and the same run behind one trainer for each client."""

import json
from dataclasses import dataclass, field
from threading import Lock

import torch

from prifedsync.asking import document as documents
from prifedsync.asking.questions import Accepted, Declined, Enrol, Head, Introduction, Reply
from prifedsync.asking.refusals import Refusal
from prifedsync.config import from_mapping
from prifedsync.config.layering import merged, nested
from prifedsync.data import Description, Records
from prifedsync.engines.owners import Owners
from prifedsync.local import RecordedDraws, SeededDraws
from prifedsync.local.masks import Introduction as Introduced
from prifedsync.local.masks import Peer, new_identity, public_identity
from prifedsync.owner.trainer import Trainer, Unanswerable
from prifedsync.rules import Server
from prifedsync.run import prepare
from prifedsync.sync import synchronise

SIZES = {"a": 5, "b": 9, "c": 7}
RUN = "0123456789abcdef" * 2
ONE_PROCESS = Lock()  # owners are processes of their own; here they share one, and with it torch's random state
BASE = {
    "rounds": 3, "compare": [], "server_rate": 0.7, "averaging": 0.5, "metrics": ["accuracy"], "participation": 1.0,
    "data": {"task": "classes", "classes": 3, "test_fraction": 0.0},
    "model": {"name": "mlp", "hidden": [4], "features": "none"},
    "local": {"batch": 3, "learning_rate": 0.3, "local_steps": 2},
    "privacy": {"noise_multiplier": 2.0, "clip_norm": 0.5},
    "performance": {"dtype": "float64", "device": "cpu"},
}  # fmt: skip


def config_of(**changed):
    layers = [nested(name.replace("__", "."), value) for name, value in changed.items()]
    return from_mapping(merged(BASE, *layers))


def records_of(shape=(4,), sizes=SIZES):
    draw = torch.Generator().manual_seed(7)
    made = {}
    for name, size in sizes.items():
        made[name] = torch.randn(size, *shape, generator=draw), torch.randint(0, 3, (size,), generator=draw)
    return made


@dataclass
class Run:
    """One run, prepared where the records are (`held`) and where they are not (`served`)."""

    held: object
    served: object
    description: Description
    document: documents.RunDocument
    records: dict

    @classmethod
    def of(cls, config, records=None, tokens=0):
        records = records or records_of()
        held = prepare(config, dict(records))
        parts = {client.name: client.train for client in held.held.clients}
        shape = next(iter(records.values()))[0].shape[1:]
        description = Description(held.description.sizes, tuple(shape), held.description.task, tokens=tokens)
        served = prepare(config, description)
        assert served.jobs == held.jobs
        document = documents.of(
            served.config, description, served.jobs, served.rule, run=RUN, arithmetic=served.net.arithmetic,
            metrics=[metric.name for metric in served.metrics], sums=served.sums,
        )  # fmt: skip
        train = {name: Records(*records[name]) for name in parts}
        return cls(held, served, description, document, train)

    def together(self, draws, engine=None):
        """All rounds in one process: the servers, the uploads, and the engine."""
        engine = engine or self.held.cohort(draws)
        rounds = list(synchronise(self.held.synchronisation, self.held.aggregator(), engine, Server(self.held.start)))
        return rounds, engine

    def apart(self, owners):
        return list(synchronise(self.served.synchronisation, self.served.aggregator(), owners, Server(self.served.start)))

    def direct(self, draws, **options):
        """A connection for each client that calls its trainer."""
        return {name: Direct(self.document, name, own, draws, **options) for name, own in self.records.items()}

    def owners(self, connections):
        return Owners(self.document, connections, self.served.start, self.served.sums)

    def pinned(self):
        """Connections of owners who have pinned each other's identities."""
        secrets = {name: new_identity() for name in self.records}
        public = {name: public_identity(secret) for name, secret in secrets.items()}
        return {name: {"secret": secrets[name], "public": public} for name in secrets}


@dataclass
class Direct:
    """An owner without a socket: the document goes through its text, every answer through the trainer alone."""

    document: documents.RunDocument
    name: str
    records: Records
    draws: object
    identity: dict | None = None
    lost: set = field(default_factory=set)  # (round, attempt) whose replies never arrive
    restarts: set = field(default_factory=set)  # before these the owner is started anew
    entries: int = 0
    first_round: int = 0
    asked: list = field(default_factory=list)

    def __post_init__(self):
        self.trainer = None
        self.peer = None
        self.session = b""

    def ask(self, question):
        with ONE_PROCESS:
            return self._enrol(question) if isinstance(question, Enrol) else self._answer(question)

    def _enrol(self, question):
        document = documents.read(json.loads(json.dumps(question.document)))
        assert document == self.document
        is_again = self.peer is not None and question.session == self.session
        self.session = question.session
        if document.masks and not is_again:
            own = self.identity
            self.peer = Peer(self.name, own["secret"], b"run" + question.session, own["public"], document.least)
        if self.trainer is None:
            self.trainer = self._made(document)
        self.trainer.peer = self.peer
        shown = self.peer.introduction if self.peer else None
        introduction = Introduction(shown.name, shown.key, shown.signature) if shown else None
        return Accepted(self.head, self.first_round, 0.0, introduction)

    def _made(self, document):
        return Trainer(document, self.name, self.records, draws=self.draws, peer=self.peer)

    @property
    def head(self):
        return Head(self.entries, self.entries.to_bytes(32, "little"))

    def _answer(self, question):
        slot = question.round, question.attempt
        self.asked.append(slot)
        if slot in self.restarts:
            self.restarts.remove(slot)
            self._restart()
        if self.document.masks:
            if self.peer is None or question.session != self.session:
                return Declined(Refusal.SESSION)
            self._meet(question.introductions)
        try:
            outcome = self.trainer.answer(question.round, question.attempt, question.clients, question.helper)
        except Unanswerable as refused:
            return Declined(refused.refusal)
        assert len(outcome.body) == self.trainer.reply_bytes
        self.entries += 1
        self.first_round = question.round + 1
        self.trainer.keep(question.round)
        if slot in self.lost:
            raise TimeoutError("the reply never arrived")
        return Reply(outcome.status, self.head, outcome.queries, outcome.body, outcome.scores)

    def _restart(self):
        """The daemon ends, and another one goes on from what was carried; it has no peer."""
        state = self.trainer.state()
        self.peer = None
        self.trainer = self._made(self.document)
        self.trainer.restore(state)

    def _meet(self, introductions):
        if self.peer._secret is not None:
            run = b"run" + self.session
            self.peer.meet([Introduced(each.name, run, each.key, each.signature) for each in introductions])


def tape_of(seed=5):
    return RecordedDraws(SeededDraws(seed))


class Storing:
    """A connection to an owner that stores its answers, as a daemon does."""

    def __init__(self, connection):
        self.connection = connection
        self.stored = {}

    def ask(self, question):
        if isinstance(question, Enrol):
            return self.connection.ask(question)
        if question.digest not in self.stored:
            self.stored[question.digest] = self.connection.ask(question)
        return self.stored[question.digest]
