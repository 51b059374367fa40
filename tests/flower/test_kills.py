"""Processes of a real deployment are killed at random moments, and the run computes what it would have computed.

    clients    50 kills: most of them of owners' daemons, the others of network sides, which take their SuperNodes along
    SuperNode  3 alone; the network side starts it again
    SuperLink  2; the server starts it again
    server     3; it is started again, and its SuperLink with it

Whatever was killed is started again. Flower refuses a SuperNode for up to a minute where the last one could not say that it
goes, so those of different clients are killed together. `make test-slow` runs this.
"""

import json
import os
import random
import signal
import sys
import time
from collections import Counter

import pytest
import torch
from safetensors.torch import load_file

from prifedsync.deploy.processes import Process

from ..owner.sites import Forks
from .live import (
    TapedClients,
    children_of,
    command,
    deployed,
    in_one_process,
    ledger_of,
    lines_of,
    logs_shown,
    processes_of,
    until,
)
from .noting import digest

KILLS = min(50, int(os.environ.get("PRIFEDSYNC_KILLS", "0")))
SEED = 25
ROUNDS = 40
LAST = 4  # rounds at the end in which nobody is killed
JOINS = 6 if KILLS == 50 else 3
LINKS = 2
SERVERS = 3
MOMENT = 2.0  # seconds within which a kill comes
SECONDS = 900.0  # for one round, with a SuperNode that is refused for a minute, and the server started again
NOT_MASKED = ("privacy.masks=false", "privacy.attempts=0", "privacy.least_clients=1")
WAITING = {"begin": 300.0, "question": 10.0, "round": 900.0, "offline": 600.0}

pytestmark = pytest.mark.skipif(KILLS == 0, reason="takes about ten minutes: make test-slow runs it")


class Deployment:
    """A run whose processes are killed, and started again."""

    def __init__(self, copy, clients):
        self.copy = copy
        self.clients = clients
        self.names = list(clients.places)
        self.killed = Counter()
        self.journal = copy.folder / "journal"
        self.start_server()

    def start_server(self):
        words = [sys.executable, "-m", "tests.flower.noting", str(self.copy.server.folder), str(self.journal)]
        self.server = Process(words, self.copy.folder / "server.log")
        self.clients.started.append(self.server.pid)

    @property
    def rounds(self):
        """Rounds that are over."""
        return len(lines_of(self.copy)) if (self.copy.server.run / "rounds.jsonl").exists() else 0

    def reach(self, round):
        until(lambda: self.rounds >= round or not self.server.runs, lambda: f"round {round}", SECONDS)
        assert self.server.runs, f"the server ended with status {self.server.status}: {self.server.last_words}"

    def kill_owner(self, name):
        assert self.clients.owners[name].kill() == -signal.SIGKILL
        self.clients.start_owner(name)
        self.killed["owner's daemon"] += 1

    def kill_site(self, name):
        process = self.clients.sites[name]
        os.kill(process.pid, signal.SIGKILL)
        until(lambda: not process.runs, "it ends")
        self.clients.start_site(name)
        self.killed["network side"] += 1

    def kill_node(self, name):
        self._kill_child(self.clients.sites[name].pid, "flower-supernode")
        self.killed["SuperNode alone"] += 1

    def kill_link(self):
        self._kill_child(self.server.pid, "flower-superlink")
        self.killed["SuperLink"] += 1

    def kill_server(self):
        os.kill(self.server.pid, signal.SIGKILL)
        until(lambda: not self.server.runs, "it ends")
        self.start_server()
        self.killed["server"] += 1

    def _kill_child(self, parent, program):
        """Kill what a process has started, once it is there."""
        (child,) = until(lambda: children_of(parent, program), f"{program} is started")
        os.kill(child, signal.SIGKILL)
        until(lambda: child not in children_of(parent, program), "it ends")


def schedule(draw, deployment):
    """Round → what is killed in it: (kind, client)."""
    rounds = range(1, ROUNDS - LAST)
    whole = {round: [] for round in rounds}
    for _ in range(KILLS - JOINS):
        whole[draw.choice(rounds)].append((deployment.kill_owner, draw.choice(deployment.names)))
    together = draw.sample(rounds, JOINS // 3 + 1)
    for round in together[1:]:
        whole[round] += [(deployment.kill_site, name) for name in deployment.names]
    whole[together[0]] += [(deployment.kill_node, name) for name in deployment.names]
    for kill, count in ((deployment.kill_link, LINKS), (deployment.kill_server, SERVERS)):
        for round in draw.sample(rounds, count):
            whole[round].append((kill, None))
    return whole


def test_a_run_survives_kills(tmp_path, capsys):
    draw = random.Random(SEED)
    with deployed(tmp_path, f"rounds={ROUNDS}", *NOT_MASKED, waiting=WAITING) as copy, logs_shown(copy):
        together, tape = in_one_process(copy)
        with Forks() as forks, TapedClients(copy, forks, tape) as clients:
            deployment = Deployment(copy, clients)
            try:
                begun = time.monotonic()
                disturb(deployment, draw)
                until(lambda: not deployment.server.runs, "the run finishes", SECONDS)
                took = time.monotonic() - begun
                assert deployment.server.status == 0, deployment.server.last_words
            finally:
                deployment.server.end()
        with capsys.disabled():
            kinds = ", ".join(f"{count} of {kind}" for kind, count in deployment.killed.items())
            print(f"\n{sum(deployment.killed.values())} kills in {took:.0f} s and {ROUNDS} rounds: {kinds}")
        assert not processes_of(copy.folder, set(clients.started))
        check_ledgers(deployment)
        check_run(deployment, together)


def disturb(deployment, draw):
    for round, kills in schedule(draw, deployment).items():
        deployment.reach(round)
        for kill, name in kills:
            if kill.__name__ in ("kill_owner", "kill_link", "kill_server"):  # the others come together
                time.sleep(draw.uniform(0, MOMENT))
            kill(*[name] if name else [])


def check_ledgers(deployment):
    """Every reply that the server got is charged, with its bytes, and nothing is charged twice.

    Owners replay their draws, so a reply that left before its charge, and was made again, would have the same bytes. It
    would have another head: each entry of a ledger has fresh random bytes.
    """
    copy = deployment.copy
    run = json.loads(copy.server.begun.read_text())["run"]
    got = {}
    for line in deployment.journal.read_text().splitlines():
        name, round, attempt, found = json.loads(line)
        assert got.setdefault((name, round, attempt), found) == found, "one slot has two replies"
    for name in deployment.names:
        with ledger_of(copy, name) as ledger:
            (charged,) = ledger.runs()
            assert (charged.run, charged.asked, charged.spare) == (run, ROUNDS, 0)
            for (client, round, attempt), found in got.items():
                if client == name:
                    stored = ledger.stored(run, round, attempt)
                    assert stored is not None, f"round {round} of {name} left without an entry"
                    assert [digest(stored.body), stored.head.number, stored.head.hash.hex()] == found
                    assert ledger.knows(stored.head)
            totals = ledger.totals()
            assert totals.spent + totals.reserved <= totals.limit
        command("ledger", "verify", copy.client(name).policy)
    assert {slot[:2] for slot in got} == {(name, round) for name in deployment.names for round in range(ROUNDS)}


def check_run(deployment, together):
    """The model of the same draws without any kill; everybody sent in every round."""
    copy = deployment.copy
    assert all(line["answers"] == {} for line in lines_of(copy)), [line["answers"] for line in lines_of(copy)]
    record = json.loads((copy.server.run / "record.json").read_text())
    assert record["deployment"]["resumed"] == SERVERS
    assert {counts["sent"] for counts in record["deployment"]["answers"].values()} == {ROUNDS}
    found = load_file(copy.server.run / "models" / "global.safetensors")
    weights = torch.cat([found[name].flatten() for name in sorted(found, reverse=True)])
    server, _ = together[-1]
    assert (weights - server.released).abs().max() < 1e-9
