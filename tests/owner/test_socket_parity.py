"""The same parity with real daemons: processes with policies and ledgers, asked over their sockets."""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from prifedsync.accounting import Budget
from prifedsync.asking.connection import Connection
from prifedsync.local.answers import Absent
from prifedsync.owner import keys
from prifedsync.owner.ledger import Ledger
from prifedsync.owner.policy import read
from prifedsync.owner.records import records_of as own_records

from .federations import SIZES, Run, config_of, records_of, tape_of
from .sites import Forks
from .test_parity import MASKS, SENDING, assert_same

POLICY = """
client = "{name}"
[source]
name = "records of {name}"
records = {records}
[data]
source = "npz"
path = "records.npz"
test_fraction = 0.0
classes = 3
ranges = {{ "*" = [-4.0, 4.0] }}
[budget]
mu = 200.0
[limits]
models = ["mlp", "softmax"]
rules = {rules}
participants = 2
[replies]
seconds = 0.0
[masks]
identity = "identity"
peers = {peers}
"""
BUDGET = Budget(mu=200.0)


class Site:
    """One owner: a folder with records, policy, identity and ledger."""

    def __init__(self, folder, name, x, y):
        self.name = name
        self.folder = folder / name
        self.folder.mkdir(mode=0o700)
        self.policy_path = self.folder / "policy.toml"
        np.savez(self.folder / "records.npz", x=x.numpy(), y=y.numpy())
        (self.folder / "records.npz").chmod(0o600)
        self.write({})
        self.public = keys.make_identity(self.policy)
        Ledger.create(self.folder / "ledger.db", source=f"records of {name}", budget=BUDGET, anchor=None)

    def write(self, peers):
        inline = "{ " + ", ".join(f'"{name}" = "{key.hex()}"' for name, key in peers.items()) + " }"
        rules = json.dumps(SENDING)
        self.policy_path.write_text(POLICY.format(name=self.name, records=SIZES[self.name], peers=inline, rules=rules))
        self.policy_path.chmod(0o600)

    @property
    def policy(self):
        return read(self.policy_path)

    def log(self):
        return (self.folder / "owner.log").read_text()

    def totals(self):
        ledger = Ledger.open(
            self.folder / "ledger.db", source=f"records of {self.name}", budget=BUDGET, anchor=None, readonly=True
        )
        return ledger.totals()


@pytest.fixture(scope="module")
def forks():
    with Forks() as process:
        yield process


@pytest.fixture
def sites():
    folder = Path(tempfile.mkdtemp(prefix="owners-"))  # a socket's path must be short
    made = {name: Site(folder, name, x, y) for name, (x, y) in records_of().items()}
    for site in made.values():
        site.write({other.name: other.public for other in made.values() if other is not site})
    yield made
    shutil.rmtree(folder)


def behind_sockets(forks, sites, **changed):
    """The run in one process, and behind daemons that replay its draws."""
    records = {name: own_records(site.policy).train for name, site in sites.items()}
    run = Run.of(config_of(**changed), {name: (own.x, own.y) for name, own in records.items()})
    tape = tape_of()
    together, engine = run.together(tape)
    path = next(iter(sites.values())).folder.parent / "tape"
    torch.save(tape.tape, path)
    daemons = [forks.start(site, tape=str(path)) for site in sites.values()]
    try:
        connections = {name: Connection(site.folder / "owner.sock", 60.0) for name, site in sites.items()}
        owners = run.owners(connections)
        apart = run.apart(owners)
    finally:
        for daemon in daemons:
            daemon.end()
    assert_same(together, apart)
    assert owners.accounts() == engine.accounts()
    return run, apart, owners


@pytest.mark.parametrize("rule", SENDING)
def test_every_rule_over_sockets(forks, sites, rule):
    _, apart, owners = behind_sockets(forks, sites, rule__name=rule, participation=0.7, rounds=4, rule__strength=0.2)
    assert any(isinstance(answer, Absent) for _, uploads in apart for answer in uploads.answers.values())
    for name, site in sites.items():
        assert site.totals().spent > 0
        assert owners._owners[name].replied.number >= 4


@pytest.mark.parametrize(
    "changed",
    [
        {"local__local_steps": 1},
        {"privacy__mechanism": "output-gaussian", "rule__name": "ditto"},
        {"rule__name": "apfl", "rule__publish": True},
        {"rule__delivery": "push", "local__optimiser": "adam"},
        MASKS,
        MASKS | {"rule__name": "apfl"},
    ],
    ids=["summed", "output", "published", "pushed", "masked", "masked and kept"],
)
def test_other_runs_over_sockets(forks, sites, changed):
    run, _, _ = behind_sockets(forks, sites, **changed)
    assert run.document.masks == ("privacy__masks" in changed)
