"""A run on real machines, all of which are this one: a SuperLink, three SuperNodes and the owners' daemons behind them.

One run of four rounds is made once, and the tests look at what it left.

    after round 1   a stranger registers keys in odd writings
                    a hostile operator submits an app to the same SuperLink, and executes its part of the server's side
    after round 2   the app has its answers; one client gets a new key
    after round 3   somebody tries the old key
"""

import csv
import json
import shutil
import time
from dataclasses import dataclass, field

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest
from safetensors.torch import load_file

from prifedsync.deploy.processes import Process, own
from prifedsync.deploy.serving import serve
from prifedsync.deploy.settings import server_settings
from prifedsync.engines.flower.calls import Address
from prifedsync.engines.flower.link import UNREGISTERED
from prifedsync.engines.flower.link import _pem as node_key
from prifedsync.engines.flower.site import FOREIGN
from prifedsync.events import RoundDone
from prifedsync.local.answers import Sent
from prifedsync.owner.policy import read

from ..owner.sites import Forks
from . import hostile
from .live import (
    TapedClients,
    command,
    deployed,
    in_one_process,
    last_lines,
    ledger_of,
    lines_of,
    listeners_of,
    logs_shown,
    processes_of,
    records_of_owner,
    status_of,
    until,
)

ROUNDS = 4
NAMES = ("hospital-a", "hospital-b", "hospital-c")
ROTATED = "hospital-b"


@dataclass(repr=False)
class Seen:
    """What there was to see during the run, and what it left."""

    copy: object
    together: list
    operator: hostile.Operator
    clients: TapedClients
    record: object = None
    finished: dict = field(default_factory=dict)  # the status after the run
    statuses: dict = field(default_factory=dict)  # round → what `deploy status` said after it
    page: str = ""  # and how it says so to people
    pids: set = field(default_factory=set)
    listening: set = field(default_factory=set)
    got: dict = field(default_factory=dict)  # what the hostile operator got
    rounds_at: list = field(default_factory=list)  # rounds over when the operator had its answers
    keys: dict = field(default_factory=dict)
    old_key: str = ""  # what became of whoever came with the old key
    odd: list = field(default_factory=list)  # keys that a stranger registered
    registered: dict = field(default_factory=dict)  # public key → what the SuperLink says of its node then
    left: dict = field(default_factory=dict)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deployment")
    with deployed(folder, f"rounds={ROUNDS}") as copy, logs_shown(copy):
        together, tape = in_one_process(copy)
        with (
            Forks() as forks,
            TapedClients(copy, forks, tape) as clients,
            hostile.Operator(folder / "operator", _place(copy), copy.server.authority) as operator,
        ):
            found = Seen(copy, together, operator, clients)
            found.record = serve(copy.server.folder, _watching(found))
            found.finished = status_of(copy)
        found.left = processes_of(copy.folder, set(clients.started))
        yield found


def _place(copy):
    return server_settings(copy.server.folder).place


def _watching(seen):
    steps = {1: _first, 2: _second, 3: _third}

    def watch(event):
        if isinstance(event, RoundDone) and event.round in steps:
            steps[event.round](seen)

    return watch


def _first(seen):
    """Look at the processes, and let the operator begin while the run goes on."""
    seen.pids = {*processes_of(seen.copy.folder, set(seen.clients.started)), *seen.clients.started}
    seen.listening = listeners_of(seen.pids)
    seen.statuses[1] = _new_status(seen.copy)
    seen.page = command("deploy", "status", seen.copy.folder)
    _register_odd_keys(seen)
    seen.operator.execute(seen.copy.server.secret)
    seen.operator.submit(_wanted(seen.copy), nodes=len(NAMES))


def _wanted(copy):
    """All that a site has, by its right path."""
    owner = [copy.client(name).owner for name in NAMES]
    files = [folder / name for folder in owner for name in ("ledger.db", "policy.toml", "identity.key")]
    records = [records_of_owner(copy, name) for name in NAMES]
    return [*records, *files, *(copy.client(name).site / "node.key" for name in NAMES)]


def _second(seen):
    """Wait for what the operator gets; then give one client a new key, as docs/deploy.md says."""
    logs = seen.operator.folder / "executor.log"
    seen.got = until(seen.operator.got, lambda: last_lines(logs))
    seen.rounds_at = [line["round"] for line in lines_of(seen.copy)]
    site = seen.copy.client(ROTATED).site
    old = seen.copy.folder / "old"
    seen.clients.sites[ROTATED].end()
    shutil.copytree(site, old, ignore=shutil.ignore_patterns("flower"))
    seen.keys["old"] = (site / "node.key.pub").read_text()
    seen.keys["new"] = command("deploy", "key", site, "--new")
    (seen.copy.server.nodes / f"{ROTATED}.pub").write_text(seen.keys["new"])
    seen.clients.start_site(ROTATED)


def _third(seen):
    """Somebody tries the old key."""
    old = seen.copy.folder / "old"
    thief = Process(own("deploy", "join", str(old)), old / "join.log")
    try:
        log = old / "flower" / "supernode.log"
        seen.old_key = until(lambda: _ended(old), lambda: last_lines(log))
    finally:
        thief.end()
    seen.registered = _nodes(seen.copy)
    seen.statuses[3] = _new_status(seen.copy)


def _new_status(copy):
    """What `deploy status` says of the run as it is now: the server writes it every two seconds."""
    now = time.time()

    def written():
        status = status_of(copy)
        return status if status["changed"] > now else None

    return until(written, "the status is written anew")


def _nodes(copy):
    """All nodes that the SuperLink knows."""
    control = Address(_place(copy), copy.server.authority).control()
    try:
        return {node.public_key: node.status for node in control.ListNodes(ListNodesRequest()).nodes_info}
    finally:
        control.close()


def _register_odd_keys(seen):
    """A stranger at the port registers keys in odd writings: one of its own, and one of a client's."""
    own = ec.generate_private_key(ec.SECP384R1()).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    client = (seen.copy.server.nodes / f"{NAMES[0]}.pub").read_bytes()
    control = Address(_place(seen.copy), seen.copy.server.authority).control()
    try:
        for key in (b"hello\n" + node_key(own), b"\n" + node_key(client)):
            control.RegisterNode(RegisterNodeRequest(public_key=key, name="stranger"))
            seen.odd.append(key)
    finally:
        control.close()


def _ended(site):
    """What the log of a site says once its SuperNode was refused and ended."""
    joins = site / "join.log"
    said = joins.read_text() if joins.exists() else ""
    return (site / "flower" / "supernode.log").read_text() if "is started again" in said else ""


# ---------------------------------------------------------------------- the run


def test_it_computes_what_one_process_does(seen):
    server, _ = seen.together[-1]
    found = load_file(seen.copy.server.run / "models" / "global.safetensors")
    weights = torch.cat([found[name].flatten() for name in sorted(found, reverse=True)])  # the weight, then the bias
    assert weights.dtype == torch.float64
    assert (weights - server.released).abs().max() < 1e-9
    assert all(isinstance(answer, Sent) for _, uploads in seen.together for answer in uploads.answers.values())


def test_everybody_sent_in_every_round(seen):
    lines = lines_of(seen.copy)
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    assert all(line["participants"] == len(NAMES) and line["answers"] == {} for line in lines)
    said = seen.record.deployment
    assert {name: counts["sent"] for name, counts in said["answers"].items()} == dict.fromkeys(NAMES, ROUNDS)
    assert said["events"] == []
    assert said["resumed"] == 0
    assert said["carrier"].startswith("Flower 1.")
    assert json.loads((seen.copy.server.run / "record.json").read_text())["deployment"] == said
    assert seen.finished["phase"] == "finished"
    assert seen.finished["round"] == ROUNDS
    answered = {one["name"]: (one["answer"], one["answered"]) for one in seen.finished["clients"]}
    assert answered == dict.fromkeys(NAMES, ("sent", ROUNDS))


def test_status_shows_a_run_that_goes_on(seen):
    status = seen.statuses[1]
    assert status["phase"] == "training"
    assert (status["round"], status["rounds"]) == (1, ROUNDS)
    assert {one["name"]: one["node"] for one in status["clients"]} == dict.fromkeys(NAMES, "online")
    assert all(name in seen.page for name in NAMES)


def test_the_ledgers_have_every_round_once(seen):
    for name in NAMES:
        with ledger_of(seen.copy, name) as ledger:
            (run,) = ledger.runs()
            assert (run.asked, run.spare) == (ROUNDS, 0)
        command("ledger", "verify", seen.copy.client(name).policy)


def test_the_released_model_predicts(seen, tmp_path):
    table = records_of_owner(seen.copy, "hospital-a").read_text().splitlines()
    rows = tmp_path / "rows.csv"
    rows.write_text("\n".join(line.rpartition(",")[0] for line in table[:11]) + "\n")
    answers = list(csv.DictReader(command("predict", seen.copy.server.run, rows).splitlines()))
    assert len(answers) == 10


def test_only_this_machine_is_listened_on(seen):
    assert len(seen.pids) >= 3 * len(NAMES) + 1  # daemons, joins, SuperNodes, and the SuperLink
    assert len(seen.listening) >= len(NAMES) + 1
    assert all(place.startswith("0100007F:") for place in seen.listening), seen.listening


def test_no_process_is_left(seen):
    assert seen.left == {}
    assert not processes_of(seen.operator.folder)


# ---------------------------------------------------------------------- the hostile operator


def test_the_servers_code_does_not_run_at_the_clients(seen):
    """All that it gets is one constant: `test_stock_flower` shows that the same app gets the rows elsewhere."""
    assert len(seen.got["nodes"]) == len(NAMES)
    assert seen.got["unanswered"] == 0
    assert len(seen.got["replies"]) == len(NAMES) * len(hostile.KINDS)
    assert {reply["kind"] for reply in seen.got["replies"]} == set(hostile.KINDS)
    for reply in seen.got["replies"]:
        assert "content" not in reply
        assert reply["error"] == [1000, FOREIGN]
    assert not seen.operator.marker.exists()
    assert seen.rounds_at == [1, 2]


def test_nothing_of_a_site_is_in_what_the_operator_got(seen):
    text = seen.operator.replies.read_text()
    for path in _wanted(seen.copy):
        assert str(path) not in text
    assert str(seen.copy.folder) not in text
    for name in NAMES:
        assert name not in text
        records = records_of_owner(seen.copy, name).read_text().splitlines()
        assert not any(line[:20] in text for line in records)


def test_the_ledgers_know_of_no_other_run(seen):
    own_run = json.loads(seen.copy.server.begun.read_text())["run"]
    for name in NAMES:
        with ledger_of(seen.copy, name) as ledger:
            assert [run.run for run in ledger.runs()] == [own_run]


# ---------------------------------------------------------------------- a new key


def test_a_new_key_is_taken_and_the_old_one_refused(seen):
    assert seen.keys["old"] != seen.keys["new"]
    assert (seen.copy.client(ROTATED).site / "node.key.pub").read_text() == seen.keys["new"]
    assert lines_of(seen.copy)[2]["answers"] == lines_of(seen.copy)[3]["answers"] == {}
    assert "Exit Code: 305" in seen.old_key
    assert "Failed to activate SuperNode" in seen.old_key
    assert seen.registered[node_key(seen.keys["old"].encode())] == UNREGISTERED
    assert seen.registered[node_key(seen.keys["new"].encode())] == "online"
    status = seen.statuses[3]
    assert {one["name"]: one["node"] for one in status["clients"]} == dict.fromkeys(NAMES, "online")


def test_keys_of_a_stranger_in_odd_writings_change_nothing_and_are_unregistered(seen):
    """The roster changed after they were registered, so all keys were looked at."""
    client = node_key((seen.copy.server.nodes / f"{NAMES[0]}.pub").read_bytes())
    assert [seen.registered[key] for key in seen.odd] == [UNREGISTERED] * 2
    assert seen.registered[client] == "online"


def test_the_policies_are_those_of_the_run(seen):
    """The run that is tested is masked, as the example is."""
    assert all(read(seen.copy.client(name).policy).masks.required for name in NAMES)
