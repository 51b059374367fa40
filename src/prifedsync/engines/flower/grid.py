"""Messages of one run at a SuperLink. Calls fail instead of ending the process, as those of Flower's own grid do."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from flwr.app import Error, Message
from flwr.app.message import make_message
from flwr.common.constant import ErrorCode
from flwr.common.serde_utils import metadata_from_proto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.superlink.grid import HttpGrid

from .calls import COMPONENT, Failed, Task, whole_message

MOST_AT_ONCE = 64  # answers fetched side by side
SECONDS_TO_FETCH = 600.0  # an answer whose pieces are still being sent
UNREADABLE = "the message cannot be read"
MOST_SAID = 200  # characters of what is wrong with a message, since it may repeat what came

log = logging.getLogger(__name__)


class Grid(HttpGrid):
    """Flower's grid for one task.

    Each answer is fetched by itself: one that cannot be read, or whose site stopped in the middle of it, holds up no other.
    One whose arrays have more than `most` bytes cannot be read.
    """

    def __init__(self, task: Task, most: int) -> None:
        super().__init__(token=COMPONENT)
        self._task = task
        self._most = most
        self._client = task.client
        self._coming: dict[str, Future[Message]] = {}  # answers that are being fetched, by what they answer
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="answers")

    def arrived(self, sent: Sequence[str]) -> Iterator[Message]:
        """The answers that are here, whole."""
        asked = [each for each in sent if each not in self._coming]  # a SuperLink shows an answer once
        for announced, tree in self._announced(asked):
            to = announced.metadata.reply_to_message_id
            self._coming[to] = self._threads.submit(self._fetched, announced, tree)
        here = [to for to, coming in self._coming.items() if coming.done()]
        lost: Failed | None = None
        for coming in [self._coming.pop(to) for to in here]:
            try:
                yield coming.result()
            except Failed as error:
                lost = error
        if lost is not None:
            raise lost

    def _announced(self, sent: Sequence[str]) -> list[tuple[MessageProto, ObjectTree]]:
        if not sent:
            return []
        found = self._task.client.PullMessages(PullAppMessagesRequest(message_ids=sent))
        return list(zip(found.messages_list, found.message_object_trees, strict=True))

    def _fetched(self, announced: MessageProto, tree: ObjectTree) -> Message:
        """An answer with its pieces. The SuperLink has checked who sent it, and to what; its pieces may say otherwise."""
        metadata = metadata_from_proto(announced.metadata)
        try:
            found = whole_message(self._task, self.node, tree, SECONDS_TO_FETCH, self._most)
        except Failed:
            raise
        except Exception as error:  # of Flower: whoever sent it may have sent anything
            log.warning("an answer cannot be read: %s: %r", type(error).__name__, str(error)[:MOST_SAID])
            return make_message(metadata, error=Error(ErrorCode.UNKNOWN, UNREADABLE))
        if found.has_content():
            return make_message(metadata, content=found.content)
        return make_message(metadata, error=found.error)

    def stop(self) -> None:
        """Nothing more is fetched."""
        self._threads.shutdown(wait=False, cancel_futures=True)
