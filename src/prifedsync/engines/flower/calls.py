"""Flower's HTTP interfaces as far as they are needed: who runs tasks, sends messages, submits runs and registers nodes.

Flower's own clients repeat calls for ever and end their process where a token is not known any more. These do neither.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
from flwr.app import Message
from flwr.common.constant import SubStatus
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullTaskInputRequest,
    PullTaskInputResponse,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.proto.task_pb2 import Task as TaskProto
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufClientInterceptor, ProtobufRequestContext
from flwr.supercore.runtime import RuntimeHttpClient

from .pieces import TooLarge, Within, check_unfolded, names_of

COMPONENT = "prifedsync"
SECONDS_BETWEEN_HEARTBEATS = 10.0
SECONDS = 300.0  # of one call
SECONDS_TO_CONNECT = 10.0
FIRST_LOOK = 0.1  # seconds until a piece is looked for again that is not there yet
LAST_LOOK = 2.0
MOST_RESPONSE = 2**26  # bytes that come at once: a piece of a message, or what is said of all messages that wait
ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})
ALL_TASKS = tuple(TaskType)  # also those that are refused: a task that nobody takes would block its node

Failed = httpx.HTTPError  # what every call here raises where the other side is gone, or declines


class LongTimeout:
    """Lets a call take long: a model of hundreds of megabytes keeps a SuperLink busy."""

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        context.request.extensions["timeout"] = httpx.Timeout(SECONDS, connect=SECONDS_TO_CONNECT).as_dict()
        return call_next(context)


ALWAYS: tuple[ProtobufClientInterceptor, ...] = (RuntimeVersionHttpInterceptor(COMPONENT), LongTimeout())


@dataclass(frozen=True)
class Address:
    """One of Flower's servers: "host:port", and the certificate that vouches for it, as PEM or its file.

    Without a certificate there is no TLS, and whoever has the port passes for the server.
    """

    place: str
    certificate: Path | bytes | None = None

    def runtime(self, *interceptors: ProtobufClientInterceptor) -> RuntimeHttpClient:
        client = RuntimeHttpClient.from_server_address(
            self.place, self.certificate is None, self._root, [*ALWAYS, *interceptors]
        )
        client._client.event_hooks = {"response": [_check_length]}  # Flower would read any length into memory
        return client

    def control(self) -> ControlHttpClient:
        return ControlHttpClient.from_server_address(self.place, self.certificate is None, self._root, ALWAYS)

    @property
    def _root(self) -> bytes | None:
        return self.certificate.read_bytes() if isinstance(self.certificate, Path) else self.certificate


def _check_length(response: httpx.Response) -> None:
    """Refuse a response that is too long, before it is read."""
    if int(response.headers.get("content-length", 0)) > MOST_RESPONSE:
        raise TooLarge("a response is too long")


class Task:
    """One task that was taken. Its token opens nothing but its own run."""

    def __init__(self, address: Address, task: TaskProto, token: str) -> None:
        self.run = task.run_id
        self.id = task.task_id
        self.kind = task.type
        self.client = address.runtime(RuntimeTokenHttpInterceptor(token))

    def begin(self) -> PullTaskInputResponse:
        """Say that it is worked on; what there is to know of its run. The bundle that comes with it is left as it is."""
        return self.client.PullTaskInput(PullTaskInputRequest())

    def end(self, done: bool, details: str = "") -> None:
        status = SubStatus.COMPLETED if done else SubStatus.FAILED
        self.client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))

    def refuse(self, reason: str) -> None:
        """End it without looking at it."""
        try:
            self.end(False, reason)
        finally:
            self.close()

    def beat(self) -> bool:
        """Say that it is still worked on; False where the task is over."""
        try:
            return bool(self.client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success)
        except Failed:
            return False

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Say so again and again, while something else is done."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(SECONDS_BETWEEN_HEARTBEATS):
                with suppress(Exception):  # of Flower; without the next ones the task would be taken from us
                    self.beat()

        thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def close(self) -> None:
        self.client.close()


class Tasks:
    """The tasks of one of Flower's servers, which only whoever has its secret may take."""

    def __init__(self, address: Address, secret: bytes, kinds: Sequence[str] = ALL_TASKS) -> None:
        self._address = address
        self._kinds = kinds
        sign = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=ACQUIRE)
        self._client = address.runtime(sign)

    def take(self) -> Task | None:
        """The oldest task that waits; None if there is none."""
        found = self._client.AcquireTask(AcquireTaskRequest(supported_task_types=self._kinds))
        if not (found.HasField("task") and found.token):
            return None
        return Task(self._address, found.task, found.token)

    def close(self) -> None:
        self._client.close()


def whole_message(task: Task, node: Node, tree: ObjectTree, seconds: float, most: int) -> Message:
    """A message with all its pieces, which may take so many seconds to come.

    most  bytes that its arrays may have together; a larger one is `TooLarge` before they are in memory
    """
    names = names_of(tree, most)
    fetch = make_pull_object_fn_protobuf(task.client.PullObject, node, task.run)
    pieces = pull_objects(
        names,
        Within(fetch, len(names), most),
        max_time=seconds,
        max_tries_per_object=None,
        initial_backoff=FIRST_LOOK,
        backoff_cap=LAST_LOOK,
    )
    make_confirm_message_received_fn_protobuf(task.client.ConfirmMessageReceived, node, task.run)(tree.object_id)
    check_unfolded(pieces, most)
    message = inflate_object_from_contents(tree.object_id, pieces)
    if not isinstance(message, Message):
        raise TypeError(f"a {type(message).__name__} came in the place of a message")
    message.metadata.__dict__["_message_id"] = tree.object_id  # as Flower's own executor does: it does not travel
    return message
