"""What does our layer over Flower cost? `python benchmarks/flower.py [--rounds N] [--blocks K] [--quick] [--large]`.

Seconds a round of three clients whose messages have 1.2 million parameters, 4.8 MB each way, with TLS and node keys:

    bare       Flower as it comes: its own executors, an app that sends with `grid.send_and_receive`, an app that returns it
    transport  its SuperLink and SuperNodes alone: a resident client returns each message, the server looks every 0.1 s
    layer      ours over the same processes: the exchange, the carrier, and an owner that returns a frame that it holds
    owners     owners' daemons over the same socket without Flower: training, ledger, merging and checkpoint
    whole      the same over Flower: a run as `prifedsync deploy serve` makes it, with replies.seconds = 0

The ways take turns in blocks of rounds that follow each other, as in a run, and the first round of a block is not counted.
Each block has processes of its own, on 127.0.0.1. The first three ways are also taken with Flower's fixed pauses cut short,
from 3 s to 0.1 s and from 0.5 s to 0.05 s: the difference is what a round spends asleep in them.

--large sends 400 MB each way through our layer, for one client and for three, and prints the largest memory of each kind
of process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from prifedsync.config import to_toml
from prifedsync.deploy.hosts import Reached
from prifedsync.deploy.places import ClientPlaces, ProjectPlaces, ServerPlaces, SitePlaces
from prifedsync.deploy.processes import FLOWER, Process, free_port, own, program, wait_until_listening
from prifedsync.deploy.settings import WaitingConfig, server_settings, site_settings
from prifedsync.files import write_file

WAYS = ("bare", "transport", "layer", "owners", "whole")
SHORT = " (short pauses)"
BRIEF = ("bare", "transport", "layer")  # ways that are taken with short pauses too
SHORT_BLOCKS = 1
OVER_FLOWER = ("transport", "layer", "whole")
CLIENTS = ("a", "b", "c")
RECORDS = 32
WIDTH = 28 * 28
HIDDEN = 1510  # 1,200,460 parameters with 784 inputs and ten outputs
FLOATS = WIDTH * HIDDEN + HIDDEN + HIDDEN * 10 + 10
LARGE = 100_000_000
RUN = 32 * "0"
CLIENT = "anybody"  # nobody reads it
STAMP = 16  # random bytes that make a body like no other: Flower stores equal pieces once
SECONDS = 900.0  # for one block
CONFIG = """
rounds = {rounds}
averaging = 0.0
[data]
source = "npz"
path = "records.npz"
classes = 10
ranges = {{ "*" = [0.0, 1.0] }}
test_fraction = 0.0
[model]
name = "mlp"
hidden = [{hidden}]
[local]
optimiser = "sgd"
learning_rate = 0.1
local_steps = 1
batch = "full"
[privacy]
clip_norm = 1.0
noise_multiplier = 50.0
"""
APP = {
    "pyproject.toml": """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "bare"
version = "1.0.0"
description = "Sends an array to each client and takes it back"
license = "Apache-2.0"
dependencies = []
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "bench"
[tool.flwr.app.components]
serverapp = "server:app"
clientapp = "client:app"
""",
    "client.py": """from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
import os
app = ClientApp()

@app.query()
def answer(message, context):
    array = message.content["w"]["w"]
    data = os.urandom(16) + array.data[16:]
    return Message(RecordDict({"w": ArrayRecord({"w": Array(array.dtype, array.shape, "bytes", data)})}), reply_to=message)
""",
    "server.py": """from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import ServerApp
import os, time
from types import SimpleNamespace
import flwr.superlink.grid.http_grid as module
app = ServerApp()
sleep = time.sleep
if @SHORT@:
    short = lambda seconds: sleep(0.1 if seconds == 3 else seconds)
    module.time = SimpleNamespace(**{**vars(time), "sleep": short})

def letter(data, node):
    array = Array("uint8", (len(data),), "bytes", data)
    return Message(RecordDict({"w": ArrayRecord({"w": array})}), node, "query")

@app.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < @CLIENTS@:
        sleep(0.2)
    rest = os.urandom(@BYTES@ - 16)
    for round in range(@ROUNDS@):
        data = os.urandom(16) + rest
        begun = time.perf_counter()
        replies = list(grid.send_and_receive([letter(data, node) for node in nodes]))
        took = time.perf_counter() - begun
        good = all(reply.has_content() and len(reply.content["w"]["w"].data) == len(data) for reply in replies)
        with open(@OUT@, "a") as file:
            print(took if good and len(replies) == len(nodes) else "failed", file=file, flush=True)
""",
}
NODE = """#!{python}
import sys, time
from types import SimpleNamespace
import flwr.supernode.start_client_internal as module
from flwr.supernode.cli import flower_supernode
SHORTER = {{3: 0.1, 0.5: 0.05}}
sleep = time.sleep
module.time = SimpleNamespace(**{{**vars(time), "sleep": lambda seconds: sleep(SHORTER.get(seconds, seconds))}})
sys.argv[0] = "flower-supernode"
sys.exit(flower_supernode())
"""

# ---------------------------------------------------------------------- the parties of a block, each a process


def role(name: str, *words: object) -> list[str]:
    """The command line of one party."""
    return [sys.executable, __file__, "--role", name, *map(str, words)]


def supernode(short: bool, folder: Path) -> str:
    """Flower's SuperNode as a program, or one that sleeps less."""
    if not short:
        return program("flower-supernode")
    path = folder / "flower-supernode"
    path.write_text(NODE.format(python=sys.executable))
    path.chmod(0o700)
    return str(path)


def run_site(folder: str, short: str, resident: str) -> None:
    """The network side of one client: ours, or a SuperNode with a resident client that returns what comes."""
    from prifedsync.deploy import site
    from prifedsync.engines.flower import site as carrying

    chosen = supernode(short == "True", Path(folder))
    site.program = lambda name: chosen
    if resident == "True":
        carrying.answer = returned
    site.join(Path(folder))


def returned(task: Any, door: Any) -> None:
    """Send a message back, with other bytes at the beginning of its body."""
    from flwr.app import ArrayRecord, Message, RecordDict
    from flwr.proto.node_pb2 import Node

    from prifedsync.engines.flower import letters
    from prifedsync.engines.flower.calls import whole_message
    from prifedsync.engines.flower.site import SECONDS_TO_FETCH, _announced, _send

    node = Node(node_id=task.begin().context.node_id)
    _, tree = _announced(task)
    question = whole_message(task, node, tree, SECONDS_TO_FETCH, door.most)
    parts = dict(question.content[letters.RECORD])
    parts[letters.BODY] = letters._array(stamped(parts[letters.BODY].data))
    _send(task, node, Message(RecordDict({letters.RECORD: ArrayRecord(parts)}), reply_to=question))
    task.end(True)


def stamped(body: bytes) -> bytes:
    """A body that differs from all others."""
    return os.urandom(STAMP) + body[STAMP:]


def run_owners(project: str, floats: str, log: str, *names: str) -> None:
    """Owners that answer at once with a reply that they hold."""
    threads = [threading.Thread(target=own_frames, args=(project, name, int(floats), log)) for name in names]
    for thread in threads:
        thread.start()


def own_frames(project: str, name: str, floats: int, log: str) -> None:
    import socket

    from prifedsync.asking.frames import answer_frame
    from prifedsync.asking.questions import Head, Reply
    from prifedsync.asking.transfer import Deadline, receive_raw, send

    places = ProjectPlaces(Path(project)).client(name)
    path = site_settings(places.site).owner
    path.unlink(missing_ok=True)
    rest = bytes(np.random.default_rng(ord(name)).bytes(4 * floats))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(str(path))
        door.listen()
        while True:
            frame = answer_frame(Reply("sent", Head(1, b"0" * 32), 1, stamped(rest)))
            caller, _ = door.accept()
            with caller:
                receive_raw(caller, Deadline(60.0), 2**34)
                came = time.monotonic()
                send(caller, frame, Deadline(60.0))
            with Path(log).open("a") as file:
                print(name, came, time.monotonic(), file=file, flush=True)


# ---------------------------------------------------------------------- the server of a block


def run_server(way: str, project: str, out: str, told: str) -> None:
    """All rounds of a block, and the largest memory that each process had."""
    options = json.loads(told)
    places = ProjectPlaces(Path(project)).server
    serve = {"bare": bare, "transport": transport, "layer": layer, "owners": owners, "whole": whole}[way]
    measured = serve(places, options)
    Path(out).write_text(json.dumps(measured))


def bare(places: ServerPlaces, told: dict[str, Any]) -> dict[str, Any]:
    """Flower's own SuperLink, which executes the app's server side."""
    settings = server_settings(places.folder)
    listen = settings.listen
    command = [program("flower-superlink"), "--host", listen.host, "--port", str(listen.port)]
    command += ["--ssl-ca-certfile", str(places.authority), "--ssl-certfile", str(places.certificate)]
    command += ["--ssl-keyfile", str(places.key), "--enable-supernode-auth"]
    with ExitStack() as ending:
        process = Process(command, places.flower / "superlink.log", flower_home(places.flower))
        ending.callback(process.end)
        wait_until_listening(process, settings.place, 60.0)
        lines = places.folder / "rounds.txt"
        submit(places, told, lines)
        for name in CLIENTS[: told["clients"]]:  # a node whose key is not known yet ends
            client = ProjectPlaces(places.folder.parent).client(name)
            log = client.folder / "site.log"
            ending.callback(Process(node_command(client, told["short"]), log, flower_home(client.site / "flower")).end)
        meter = Meter()
        lines.touch()
        for round in range(told["rounds"]):
            while len(lines.read_text().split()) <= round:
                if not process.runs:
                    raise RuntimeError(f"the SuperLink ended: {process.last_words}")
                time.sleep(0.1)
            meter.round()
        return {"rounds": [float(line) for line in lines.read_text().split()], **meter.read()}


def node_command(client: ClientPlaces, short: bool) -> list[str]:
    """A SuperNode that executes what it is sent."""
    site = SitePlaces(client.site)
    command = [supernode(short, client.site), "--superlink", site_settings(client.site).server]
    command += ["--host", "127.0.0.1", "--port", str(free_port()), "--root-certificates", str(site.authority)]
    return [*command, "--auth-supernode-private-key", str(site.key)]


def submit(places: ServerPlaces, told: dict[str, Any], lines: Path) -> None:
    """Register the nodes' keys, and submit the app."""
    import hashlib

    from flwr.cli.build import build_fab_from_files
    from flwr.common.serde import fab_to_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.supercore.fab import Fab

    from prifedsync.engines.flower.calls import Address

    link_of(places).enlist()
    values = {
        "SHORT": told["short"],
        "CLIENTS": told["clients"],
        "BYTES": 4 * told["floats"],
        "ROUNDS": told["rounds"],
        "OUT": repr(str(lines)),
    }
    files = dict(APP)
    for name, value in values.items():
        files["server.py"] = files["server.py"].replace(f"@{name}@", str(value))
    bundle, _ = build_fab_from_files({name: text.encode() for name, text in files.items()})
    fab = Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})
    control = Address(server_settings(places.folder).place, places.authority).control()
    control.StartRun(StartRunRequest(fab=fab_to_proto(fab)))
    control.close()


def link_of(places: ServerPlaces) -> Any:
    from prifedsync.deploy.roster import roster
    from prifedsync.engines.flower.calls import Address
    from prifedsync.engines.flower.link import Link

    address = Address(server_settings(places.folder).place, places.authority)
    return Link(address, places.secret.read_bytes(), lambda: roster(places.nodes))


def frame_of_round(round: int, rest: bytes) -> bytes:
    from prifedsync.asking.frames import question_frame
    from prifedsync.asking.questions import Answer

    return question_frame(Answer(CLIENT, RUN, round, 0, stamped(rest)))


def transport(places: ServerPlaces, told: dict[str, Any]) -> dict[str, Any]:
    """Messages pushed and looked for, and nothing else."""
    from flwr.app import Message

    from prifedsync.deploy.superlink import SuperLink
    from prifedsync.engines.flower import letters

    names = CLIENTS[: told["clients"]]
    rest = os.urandom(4 * told["floats"])
    rounds = []
    meter = Meter()
    with SuperLink(server_settings(places.folder), places):
        link = link_of(places)
        link.renew(0)
        grid = link._there()
        wait_for(lambda: all(name in link.online() for name in names))
        there = link.online()
        for round in range(told["rounds"]):
            frame = frame_of_round(round, rest)
            begun = time.perf_counter()
            messages = [Message(letters.content_of(frame), there[name], letters.TYPE) for name in names]
            left = set(grid.push_messages(messages))
            while left:
                for reply in grid.pull_messages(left):
                    assert reply.has_content(), reply.error
                    left.discard(reply.metadata.reply_to_message_id)
                if left:
                    time.sleep(0.1)
            rounds.append(time.perf_counter() - begun)
            meter.round()
        measured = {"rounds": rounds, **meter.read()}
        link.close(done=True)
    return measured


def layer(places: ServerPlaces, told: dict[str, Any]) -> dict[str, Any]:
    """Questions asked through the exchange, each by a thread of its own, as a run asks them."""
    from prifedsync.asking.questions import Answer, Reply
    from prifedsync.deploy.superlink import SuperLink
    from prifedsync.engines.flower.exchange import Exchange, Patience
    from prifedsync.engines.flower.through import Through

    names = CLIENTS[: told["clients"]]
    settings = server_settings(places.folder)
    waiting = settings.waiting
    patience = Patience(waiting.round, waiting.question, waiting.offline)
    rest = os.urandom(4 * told["floats"])
    rounds = []
    spans = []
    meter = Meter()
    with SuperLink(settings, places), Exchange(link_of(places)) as exchange, ThreadPoolExecutor(len(names)) as pool:
        wait_for(lambda: all(name in exchange.online for name in names))
        askers = [Through(exchange, name, patience) for name in names]
        for round in range(told["rounds"]):
            body = stamped(rest)
            questions = [Answer(name, RUN, round, 0, body) for name in names]
            spans.append([time.monotonic()])
            begun = time.perf_counter()
            replies = list(pool.map(lambda asker, question: asker.ask(question), askers, questions))
            rounds.append(time.perf_counter() - begun)
            spans[-1].append(time.monotonic())
            meter.round()
            assert all(isinstance(reply, Reply) and len(reply.body) == len(rest) for reply in replies)
        return {"rounds": rounds, "spans": spans, **meter.read()}


def whole(places: ServerPlaces, told: dict[str, Any]) -> dict[str, Any]:
    """A run as it is served."""
    from prifedsync.deploy.serving import serve

    clock = Clock(told["rounds"])
    serve(places.folder, clock)
    return {"rounds": clock.rounds, **clock.measured}


def owners(places: ServerPlaces, told: dict[str, Any]) -> dict[str, Any]:
    """The same run over the owners' own sockets."""
    from prifedsync.asking.connection import Connection
    from prifedsync.config import load
    from prifedsync.data.preprocessing import Preprocessing
    from prifedsync.deploy.described import described, document_of
    from prifedsync.engines.owners import Owners
    from prifedsync.files import claimed
    from prifedsync.run.folder import begin
    from prifedsync.run.loop import rounds_of
    from prifedsync.run.prepare import prepare

    config = load(places.config).changed(compare=[], **{"performance.checkpoint_seconds": 0.0})
    rules = Preprocessing.read(places.preprocessing)
    description = described(config, rules)
    prepared = prepare(config, description)
    project = ProjectPlaces(places.folder.parent)
    doors = {name: Connection(site_settings(project.client(name).site).owner) for name in CLIENTS}
    engine = Owners(document_of(prepared, description, RUN), doors, prepared.start, prepared.sums)
    clock = Clock(told["rounds"])
    with claimed(places.run, new=False) as run:
        begin(run, prepared.config, rules)
        engine.enrol()
        rounds_of(prepared, run, clock, engine=engine)
    return {"rounds": clock.rounds, **clock.measured}


class Clock:
    """Seconds between the ends of rounds."""

    def __init__(self, rounds: int) -> None:
        self.rounds: list[float] = []
        self.measured: dict[str, Any] = {}
        self._meter = Meter()
        self._most = rounds
        self._last = time.perf_counter()

    def __call__(self, event: object) -> None:
        from prifedsync.events import RoundDone

        if not isinstance(event, RoundDone):
            return
        assert event.participants == len(CLIENTS), event
        now = time.perf_counter()
        self.rounds.append(now - self._last)
        self._last = now
        self._meter.round()
        if len(self.rounds) == self._most:
            self.measured = self._meter.read()


def wait_for(there: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not there():
        if time.monotonic() > end:
            raise TimeoutError("not all clients have come")
        time.sleep(0.2)


# ---------------------------------------------------------------------- memory and work

NAMES = {
    "--role server": "server process",
    "--role site": "carrier",
    "--role owners": "",
    "flower-superlink": "SuperLink",
    "flower-supernode": "SuperNode",
    "owner serve": "owner's daemon",
    "flwr-serverapp": "Flower's executors",
    "flwr-clientapp": "Flower's executors",
    "flower-superexec": "Flower's executors",
}


def parties() -> Iterator[tuple[str, Path]]:
    """All processes of this block but the owners that only return frames: what each is, and its folder in /proc."""
    for process in descendants(os.getppid()):
        place = Path(f"/proc/{process}")
        with suppress(OSError):
            words = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            name = next((name for part, name in NAMES.items() if part in words), "")
            if name:
                yield name, place


def peaks() -> dict[str, float]:
    """The largest resident memory of each kind of process, in MB."""
    found: dict[str, float] = {}
    for name, place in parties():
        with suppress(OSError):
            status = (place / "status").read_text()
            if "VmHWM:" in status:
                found[name] = max(found.get(name, 0.0), int(status.split("VmHWM:")[1].split()[0]) / 1000)
    return found


def work() -> dict[str, float]:
    """Seconds on a core that each kind of process has used, with the processes that it started and that have ended."""
    found: dict[str, float] = {}
    for name, place in parties():
        with suppress(OSError):
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            found[name] = found.get(name, 0.0) + sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return found


class Meter:
    """What the rounds after the first one took, on all cores together, and the memory at the end."""

    def __init__(self) -> None:
        self._before: dict[str, float] = {}
        self._rounds = 0

    def round(self) -> None:
        self._rounds += 1
        if self._rounds == 1:
            self._before = work()

    def read(self) -> dict[str, Any]:
        used = {name: seconds - self._before.get(name, 0.0) for name, seconds in work().items()}
        each = {name: seconds / max(1, self._rounds - 1) for name, seconds in used.items()}
        return {"peaks": peaks(), "work": each}


def descendants(root: int) -> list[int]:
    """All processes below this one."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [root]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found[1:]


# ---------------------------------------------------------------------- blocks


def flower_home(folder: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**FLOWER, "FLWR_HOME": str(folder), "PATH": path}


@contextmanager
def projects(rounds: int) -> Iterator[Path]:
    """A project of three clients with made-up images."""
    from prifedsync.deploy.project import init

    with tempfile.TemporaryDirectory(prefix="flower-") as name:
        folder = Path(name)
        draw = np.random.default_rng(0)
        count = RECORDS * len(CLIENTS)
        images = draw.random((count, 1, 28, 28), dtype=np.float32)
        whose = np.repeat(CLIENTS, RECORDS)
        np.savez(folder / "records.npz", x=images, y=draw.integers(0, 10, count), client=whose)
        config = folder / "run.toml"
        config.write_text(CONFIG.format(rounds=rounds, hidden=HIDDEN))
        init(folder / "project", str(config), [f"data.path={folder / 'records.npz'}"], Reached(), reply_seconds=0.0)
        yield folder / "project"


def block(project: Path, way: str, rounds: int, *, short: bool, clients: int = 3, floats: int = FLOATS) -> dict[str, Any]:
    """Rounds that follow each other in one way, by processes that have ended afterwards."""
    from prifedsync.deploy.rehearsal import rehearsed

    told = {"rounds": rounds, "short": short, "clients": clients, "floats": floats}
    with rehearsed(project, 0.0, real_records=True) as copy, ExitStack() as ending:
        wait_as_served(copy.server)
        logs = copy.folder
        for name in CLIENTS[:clients]:
            for number, command in enumerate(commands(copy, way, name, short)):
                home = flower_home(copy.client(name).site / "flower")
                ending.callback(Process(command, logs / f"{name}-{number}.log", home).end)
        if way in ("layer",):
            command = role("owners", copy.folder, floats, logs / "times.txt", *CLIENTS[:clients])
            ending.callback(Process(command, logs / "owners.log").end)
        if way in ("whole", "owners"):
            doors = [site_settings(copy.client(name).site).owner for name in CLIENTS]
            wait_for(lambda: all(door.exists() for door in doors))
        out = copy.folder / "measured.json"
        server = Process(role("server", way, copy.folder, out, json.dumps(told)), logs / "server.log")
        ending.callback(server.end)
        end = time.monotonic() + SECONDS
        while server.runs and time.monotonic() < end:
            time.sleep(0.1)
        if not out.is_file():
            raise RuntimeError("\n".join(f"{log}: {log.read_text()[-2000:]}" for log in logs.glob("**/*.log")))
        measured = json.loads(out.read_text())
        if way == "layer":
            measured["legs"] = legs(measured.pop("spans"), logs / "times.txt")
        return measured


def wait_as_served(places: ServerPlaces) -> None:
    """A rehearsal sends questions again sooner than a server does."""
    settings = replace(server_settings(places.folder), waiting=WaitingConfig())
    write_file(places.settings, to_toml(settings).encode())


def commands(copy: ProjectPlaces, way: str, name: str, short: bool) -> list[list[str]]:
    """The processes of one client."""
    places = copy.client(name)
    found = []
    if way in ("owners", "whole"):
        found.append(own("owner", "serve", str(places.policy), "--quiet"))
    if way in OVER_FLOWER:
        found.append(role("site", places.site, short, way == "transport"))
    return found


def legs(spans: list[list[float]], path: Path) -> list[list[float]]:
    """Of each round: seconds until the last owner has its question, and from the last answer to the end."""
    times = [tuple(map(float, line.split()[1:])) for line in path.read_text().splitlines()]
    found = []
    for begun, ended in spans:
        mine = [(came, gone) for came, gone in times if begun <= came <= ended]
        found.append([max(came for came, _ in mine) - begun, ended - max(gone for _, gone in mine)])
    return found


# ---------------------------------------------------------------------- tables


def spread(rounds: list[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    if len(rounds) < 2:
        return (rounds[0],) * 3
    low, middle, high = statistics.quantiles(rounds, n=4, method="inclusive")
    return low, middle, high


def table(found: dict[str, list[float]]) -> str:
    lines = ["| way | rounds | median s | half of them | with short pauses |", "|---|---|---|---|---|"]
    for way in WAYS:
        low, middle, high = spread(found[way])
        short = found.get(way + SHORT)
        brief = f"{spread(short)[1]:.2f} ({spread(short)[0]:.2f}–{spread(short)[2]:.2f})" if short else "–"
        lines.append(f"| {way} | {len(found[way])} | {middle:.2f} | {low:.2f}–{high:.2f} | {brief} |")
    return "\n".join(lines)


def ratios(found: dict[str, list[float]]) -> dict[str, float]:
    pairs = (("layer", "bare"), ("layer", "transport"), ("whole", "bare"))
    made = {}
    for kind in ("", SHORT):
        for over, under in pairs:
            if over + kind in found and under + kind in found:
                made[f"{over} / {under}{kind}"] = spread(found[over + kind])[1] / spread(found[under + kind])[1]
    return made


def averaged(blocks: list[dict[str, float]]) -> dict[str, float]:
    """Seconds on a core in a round, over blocks."""
    return {name: statistics.mean(each.get(name, 0.0) for each in blocks) for name in blocks[0]}


def small(project: Path, rounds: int, blocks: int) -> dict[str, Any]:
    """All ways in turns."""
    found: dict[str, list[float]] = {}
    memory: dict[str, dict[str, float]] = {}
    used: dict[str, list[dict[str, float]]] = {}
    parts: dict[str, list[list[float]]] = {}
    for number in range(blocks):
        for short in (False, True):
            for way in WAYS if number % 2 == 0 else WAYS[::-1]:
                if short and (way not in BRIEF or number >= SHORT_BLOCKS):
                    continue
                measured = block(project, way, rounds + 1, short=short)
                name = way + SHORT * short
                found.setdefault(name, []).extend(measured["rounds"][1:])
                memory[name] = measured["peaks"]
                used.setdefault(name, []).append(measured["work"])
                parts.setdefault(name, []).extend(measured.get("legs", [])[1:])
                taken = " ".join(f"{each:.2f}" for each in measured["rounds"])
                busy = sum(measured["work"].values())
                print(f"block {number + 1}, {name}: {taken}; on a core {busy:.2f}", file=sys.stderr, flush=True)
    return {
        "rounds": found,
        "ratios": ratios(found),
        "peaks": memory,
        "work": {name: averaged(each) for name, each in used.items()},
        "legs": {name: each for name, each in parts.items() if each},
    }


def large(project: Path, floats: int) -> dict[str, Any]:
    found = {}
    for clients in (1, 3):
        measured = block(project, "layer", 2, short=False, clients=clients, floats=floats)
        found[str(clients)] = measured
        print(f"{clients} clients, {4 * floats / 1e6:.0f} MB: {measured}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    if sys.argv[1:2] == ["--role"]:
        parts = {"site": run_site, "owners": run_owners, "server": run_server}
        parts[sys.argv[2]](*sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help="of a block, after the first")
    parser.add_argument("--blocks", type=int, default=3, help="of each way")
    parser.add_argument("--quick", action="store_true", help="one block of two rounds")
    parser.add_argument("--large", action="store_true", help="400 MB each way instead")
    parser.add_argument("--floats", type=int, default=LARGE, help="parameters of --large")
    parser.add_argument("--out", type=Path, help="write the raw numbers here; parts that are there stay")
    told = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # what was started ends with this
    rounds, blocks = (2, 1) if told.quick else (told.rounds, told.blocks)
    versions = {"python": platform.python_version()} | {name: version(name) for name in ("flwr", "torch", "httpx")}
    with projects(rounds + 1) as project:
        measured = {"large": large(project, told.floats)} if told.large else small(project, rounds, blocks)
    if not told.large:
        print(table(measured["rounds"]))
        for name, ratio in measured["ratios"].items():
            print(f"{name}: {ratio:.3f}")
        for name, seconds in measured["work"].items():
            parts = ", ".join(f"{party} {each:.2f}" for party, each in seconds.items())
            print(f"seconds on a core in a round, {name}: {sum(seconds.values()):.2f} ({parts})")
    if told.out:
        before = json.loads(told.out.read_text()) if told.out.is_file() else {}
        told.out.write_text(json.dumps({**before, "versions": versions, **measured}, indent=1) + "\n")


if __name__ == "__main__":
    main()
