"""The client's side: questions from a SuperNode to an owner's socket, and the answers back.

Frames are carried as they are, and torch is not imported. The owner's daemon reads what is in a question, and decides.
Whatever else comes is answered with one constant: Flower sends the text of an exception to the server, and a text made at a
site may hold what must not leave it.
"""

from __future__ import annotations

import logging
import socket
import threading
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Message, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.common.serde_utils import metadata_from_proto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PushAppMessagesRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import push_objects

from ...asking.transfer import Deadline, Gone, receive_raw, send
from . import letters
from .calls import Address, Failed, Task, Tasks, whole_message
from .pieces import TooLarge

FOREIGN = "this site runs no code of others"
UNREACHABLE = "the owner's daemon cannot be reached"
TOO_LONG = "the question is longer than this site carries"
SECONDS_TO_FETCH = 600.0  # a question whose pieces are still being sent
SECONDS_TO_SEND = 30.0
MOST_BODY = 2**34  # bytes of an owner's answer
MOST_QUESTION = 2**30  # bytes of a question, where nobody says more
POLL = 0.1  # seconds between two looks for a task
AWAY = 1.0  # and while the SuperNode is not there

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Door:
    """Where questions go."""

    owner: Path  # the socket of the owner's daemon
    wait: float  # seconds that an answer may take
    name: str | None = None  # told to whoever asks; None where a key says who this is
    most: int = MOST_QUESTION  # bytes of a question


def answer(task: Task, door: Door) -> None:
    """Answer the question of a task. Nothing of what went wrong leaves but that it did."""
    if task.kind != TaskType.CLIENT_APP:
        log.warning("a task of kind %s is refused: %s", task.kind, FOREIGN)
        task.end(False, FOREIGN)
        return
    with task.beating():
        node = Node(node_id=task.begin().context.node_id)
        announced, tree = _announced(task)
        try:
            reply = _answered(whole_message(task, node, tree, SECONDS_TO_FETCH, door.most), door)
        except TooLarge as error:
            log.warning("a question is refused: %s", error)
            reply = letters.refusal(TOO_LONG, _without_content(announced, tree))
        _send(task, node, reply)
    task.end(True)


def _answered(question: Message, door: Door) -> Message:
    if door.name is not None and question.metadata.message_type == letters.WHO:
        return Message(letters.says_who(door.name), reply_to=question)
    try:
        frame = letters.frame_of(question)
    except letters.BadLetter as error:
        log.warning("a message is refused: %s", error)
        return letters.refusal(FOREIGN, question)
    try:
        return Message(letters.content_of(_asked(door, frame)), reply_to=question)
    except (Gone, OSError, ValueError) as error:
        log.warning("the owner did not answer: %s", error)
        return letters.refusal(UNREACHABLE, question)


def _asked(door: Door, frame: bytes) -> bytes:
    """The owner's answer to a frame, as it is."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(SECONDS_TO_SEND)
        sock.connect(str(door.owner))
        with suppress(Gone):  # an owner that declines early does not read the rest; what it said can still be read
            send(sock, frame, Deadline(SECONDS_TO_SEND))
        return receive_raw(sock, Deadline(door.wait), MOST_BODY)


def _announced(task: Task) -> tuple[MessageProto, ObjectTree]:
    """What is said of the message of a task before its pieces come."""
    found = task.client.PullMessages(PullAppMessagesRequest())
    (message,) = found.messages_list
    (tree,) = found.message_object_trees
    return message, tree


def _without_content(announced: MessageProto, tree: ObjectTree) -> Message:
    """A message that is only replied to."""
    message = make_message(metadata_from_proto(announced.metadata), content=RecordDict())
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message


def _send(task: Task, node: Node, reply: Message) -> None:
    """A message and all its pieces."""
    reply.metadata.__dict__["_message_id"] = reply.object_id
    with no_object_id_recompute():
        announced = task.client.PushMessages(
            PushAppMessagesRequest(
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[get_object_tree(reply)],
            )
        )
        push_objects(
            get_all_nested_objects(reply),
            make_push_object_fn_protobuf(task.client.PushObject, node, task.run, announced.session_id),
            object_ids_to_push=set(announced.objects_to_push),
        )


def carry(address: Address, secret: bytes, door: Door, over: threading.Event) -> None:
    """Take the tasks of a SuperNode, one after another, until it is `over`. A SuperNode that is away is waited for.

    A server with another certificate at its address is nobody: it is told nothing, and the SuperNode is away.
    """
    tasks = Tasks(address, secret)
    with closing(tasks):
        while not over.is_set():
            task = _taken(tasks, over)
            if task is None:
                continue
            try:
                answer(task, door)
            except Exception:  # whatever it was, the next question may be a good one; nothing of it leaves
                log.exception("a question could not be answered")
                with suppress(Exception):  # a task that nobody ends would block its node
                    task.end(False, UNREACHABLE)
            finally:
                with suppress(Exception):  # the thread must live on
                    task.close()


def _taken(tasks: Tasks, over: threading.Event) -> Task | None:
    """A task, or None after a while."""
    try:
        task = tasks.take()
    except Failed:
        over.wait(AWAY)
        return None
    except Exception:  # of Flower; the thread must live on, or the client is gone for good
        log.exception("no task can be taken")
        over.wait(AWAY)
        return None
    if task is None:
        over.wait(POLL)
    return task
