"""The server's side of a SuperLink: nodes are registered, a run is submitted, and its task is taken by this process.

The bundle of the run holds no code that anybody runs. It is there because Flower asks for one.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)
from flwr.app import Message
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest, UnregisterNodeRequest
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import PullTaskInputResponse
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.task_identity import TaskIdentity

from ...values import BadValue
from .calls import Address, Failed, Task, Tasks
from .grid import Grid

UNREGISTERED = "unregistered"
MOST_SAID = 200  # characters of what the SuperLink says
MOST_ANSWER = 2**34  # bytes of an answer, where nobody knows better
SECONDS_TO_BEGIN = 60.0
SECONDS_TO_TAKE = 30.0  # our own task, after the run was submitted
PAUSE = 0.2  # seconds between two looks for our task
FOREIGN = "this server runs no code of others"
BUNDLE = {
    "pyproject.toml": b"""[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "prifedsync-run"
version = "1.0.0"
description = "A run of PriFedSync: both sides run what is installed there, and nothing of this bundle"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "prifedsync"

[tool.flwr.app.components]
serverapp = "nothing:app"
clientapp = "nothing:app"
""",
    "nothing.py": b'"""Nothing is run from here: docs/deploy.md of PriFedSync says why."""\n\napp = None\n',
}

log = logging.getLogger(__name__)


class NotTaken(Exception):
    """A message that the SuperLink declines, which is there and knows the run."""


class Closed(Exception):
    """The link was closed while something waited for it."""


class Link:
    """One run at one SuperLink. Where that was restarted, the run is submitted again: clients answer what they stored."""

    def __init__(
        self, address: Address, secret: bytes, roster: Callable[[], Mapping[str, bytes]], keys: bool = True,
        most: int = MOST_ANSWER,
    ) -> None:  # fmt: skip
        """roster  the clients' names, and the public keys of their SuperNodes as OpenSSH writes them
        keys    False: there is no TLS, and SuperNodes have no keys
        most    bytes that an answer may have; a longer one is none
        """
        self._address = address
        self._secret = secret
        self._roster = roster
        self.keys = keys
        self._most = most
        self._enlisted: Mapping[str, bytes] = {}  # the keys as they were registered, by client
        self._reported: dict[str, bytes] = {}  # lines of the roster that are no keys, and were reported
        self._task: Task | None = None
        self._grid: Grid | None = None
        self._lock = threading.Lock()
        self._enlisting = threading.Lock()
        self._pushing = threading.Lock()
        self._closed = threading.Event()
        self.submitted = 0  # how often the run was submitted

    # ------------------------------------------------------------------ a run at the SuperLink

    def renew(self, seen: int) -> bool:
        """Submit the run again, unless somebody has since it was submitted `seen` times; waits for the SuperLink.

        Whether this call did it. One that never took the run is not waited for without end: its certificate may be wrong.
        Once a run has begun, it is tried until it succeeds, whatever is wrong: no client is to blame for it.
        """
        with self._lock:
            if self.submitted != seen:
                return False
            end = time.monotonic() + SECONDS_TO_BEGIN
            said = ""
            while True:
                self._check_open()
                self._drop()
                try:
                    self.enlist()
                    self._submit()
                    break
                except Closed:
                    raise
                except Failed as error:
                    log.info("the SuperLink is not there yet: %s", error)
                    if not self.submitted and time.monotonic() > end:
                        raise _unusable(self._address, error) from None
                except Exception as error:  # of Flower, or of this machine
                    if not self.submitted:
                        raise
                    said = _warned(error, said)
                self._closed.wait(PAUSE)
            self.submitted += 1
            return True

    def enlist(self) -> None:
        """Register the SuperNodes of the roster, and no others: whoever is not in it is unregistered.

        Keys are compared as the SuperLink stores and checks them, byte for byte. It takes a key in other writings too, from
        whoever reaches its port: such a one is not read, and is nobody's, even where it is a client's key.
        """
        if not self.keys:
            return
        with self._enlisting:  # the roster may change meanwhile: who is registered must not be unregistered by the old one
            roster = self._keys_now()
            control = self._address.control()
            try:
                self._register_all(control, roster)
            finally:
                control.close()
            self._enlisted = roster

    def _register_all(self, control: ControlHttpClient, roster: Mapping[str, bytes]) -> None:
        wanted = {key: name for name, key in roster.items()}
        for node in control.ListNodes(ListNodesRequest()).nodes_info:
            if node.status == UNREGISTERED:
                continue
            if node.public_key in wanted:
                del wanted[node.public_key]
            else:
                _unregister(control, node)
        for key, name in wanted.items():
            _register(control, key, name)

    def _keys_now(self) -> dict[str, bytes]:
        """The public keys of the roster. One that cannot be read is being written: the last good one stays until it is.

        So it does where the key is that of another client: the answers of one would be taken for those of both.
        """
        lines = self._roster()
        read = {name: _readable(line) for name, line in lines.items()}
        keys = list(read.values())
        found = {}
        for name, key in read.items():
            last = self._enlisted.get(name)
            if key is None or (key != last and keys.count(key) > 1):
                self._report(name, lines[name])
                key = last
            if key is not None:
                found[name] = key
        return found

    def _report(self, name: str, line: bytes) -> None:
        if self._reported.get(name) != line:
            self._reported[name] = line
            log.warning("the key of client %s cannot be read, is none, or is another client's: the last one stays", name)

    def _submit(self) -> None:
        bundle, _ = build_fab_from_files(BUNDLE)
        fab = Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})
        control = self._address.control()
        try:
            run = control.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id
        finally:
            control.close()
        self._take(run)

    def _take(self, run: int) -> None:
        """Our own task. Whatever else waits there is refused: this server runs what is installed."""
        tasks = Tasks(self._address, self._secret)
        end = time.monotonic() + SECONDS_TO_TAKE
        try:
            while True:
                self._check_open()
                if time.monotonic() > end:  # somebody stopped the run before it was taken
                    raise httpx.ReadTimeout("the task of the run does not come")
                task = tasks.take()
                if task is None:
                    self._closed.wait(PAUSE)
                elif task.run == run and task.kind == TaskType.SERVER_APP:
                    break
                else:
                    log.warning("a task of run %s is refused: %s", task.run, FOREIGN)
                    task.refuse(FOREIGN)
        finally:
            tasks.close()
        given = _begun(task)
        TaskIdentity.run_id = task.run  # Flower's messages take who sends them from here
        TaskIdentity.task_id = task.id
        TaskIdentity.node_id = given.context.node_id
        self._task = task
        self._grid = Grid(task, self._most)
        self._grid.set_run(run_from_proto(given.run))

    def beat(self) -> bool:
        """Say that the run goes on; False where the SuperLink does not know it any more."""
        task = self._task
        return task is not None and task.beat()

    # ------------------------------------------------------------------ messages

    @property
    def roster(self) -> Mapping[str, bytes]:
        """The clients that have a key here, as it is now."""
        return self._roster()

    def online(self) -> dict[str, int]:
        """The SuperNodes that are there, by client; without keys, by their own number. A new key is registered first."""
        if self.keys and self._keys_now() != self._enlisted:
            self.enlist()
        nodes = self._there().get_nodes()
        if not self.keys:
            return {str(node.node_id): node.node_id for node in nodes}
        names = {key: name for name, key in self._enlisted.items()}
        known = ((names.get(node.public_key), node.node_id) for node in nodes)
        return {name: node for name, node in known if name is not None}

    def push(self, message: Message) -> str:
        """Send a message; its number, by which its answer is known.

        One after another: the SuperLink has the body that several clients are sent before it is asked to take it again.
        """
        with self._pushing:
            message.metadata.created_at = time.time()  # others may have been before it for longer than it may take
            (sent,) = self._there().push_messages([message])
        if not sent:
            raise NotTaken("the SuperLink did not take the message")
        return str(sent)

    def pull(self, sent: Sequence[str]) -> Iterator[Message]:
        """The answers that have come to these messages, each once."""
        return self._there().arrived(sent)

    def _there(self) -> Grid:
        grid = self._grid
        if grid is None:
            raise httpx.ConnectError("there is no run at the SuperLink")
        return grid

    # ------------------------------------------------------------------ the end

    def stop(self) -> None:
        """Nobody waits for the SuperLink any more."""
        self._closed.set()

    def close(self, done: bool) -> None:
        """The run is over at the SuperLink too."""
        self.stop()
        task = self._task
        if task is not None:
            with suppress(Exception):  # the SuperLink may be gone, and has nothing that is needed
                task.end(done)
        self._drop()

    def _drop(self) -> None:
        task = self._task
        grid = self._grid
        self._task = None
        self._grid = None
        if grid is not None:
            grid.stop()
        if task is not None:
            task.close()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise Closed


def _unusable(address: Address, error: Exception) -> BadValue:
    remedy = "look into its log; `prifedsync deploy certificate` makes a new certificate, also for other names"
    return BadValue("superlink", address.place, f"does not take the run: {error}", remedy)


def _warned(error: Exception, said: str) -> str:
    """Warn of what is wrong, unless that was said before; what is said now."""
    text = f"{type(error).__name__}: {error}"
    if text != said:
        log.warning("the run cannot be submitted again yet: %s", text)
    return text


def _begun(task: Task) -> PullTaskInputResponse:
    """What there is to know of our own task's run. Where that fails, another task will come."""
    try:
        return task.begin()
    except BaseException:
        task.close()
        raise


def _unregister(control: ControlHttpClient, node: NodeInfo) -> None:
    """Unregister a node that is not in the roster. One that stays is asked nothing: the others must not wait for that."""
    who = (node.name or str(node.node_id))[:MOST_SAID]  # anybody may have written it
    try:
        control.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
    except httpx.HTTPStatusError as error:
        said = error.response.text[:MOST_SAID]
        log.warning("a SuperNode that is not in the roster cannot be unregistered, and is asked nothing: %r: %r", who, said)
        return
    log.warning("a SuperNode that is not in the roster was unregistered: %r", who)


def _register(control: ControlHttpClient, key: bytes, name: str) -> None:
    """Register one key. One that was unregistered before is not taken again: the others must not wait for that."""
    try:
        control.RegisterNode(RegisterNodeRequest(public_key=key, name=name))
    except httpx.HTTPStatusError as error:
        if error.response.is_server_error:
            raise
        said = error.response.text[:MOST_SAID]
        log.warning("the SuperLink does not take the key of client %s, which needs a new one: %s", name, said)


def _readable(line: bytes) -> bytes | None:
    """A line of the roster as the SuperLink stores it; None where it is no key."""
    try:
        return _pem(line)
    except (ValueError, UnsupportedAlgorithm):
        return None


def _pem(key: bytes) -> bytes:
    """A public key as the SuperLink stores it, whichever way it is written."""
    load = load_pem_public_key if b"-----BEGIN" in key else load_ssh_public_key
    return load(key).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
