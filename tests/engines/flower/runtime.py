"""Flower's runtime interface for tests, in memory: what a SuperNode is to a site, and a SuperLink to a server."""

from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, Context, PullObjectResponse, PushObjectResponse
from flwr.proto.runtime_pb2 import (
    PullAppMessagesResponse,
    PullTaskInputResponse,
    PushAppMessagesResponse,
    PushTaskOutputResponse,
    SendTaskHeartbeatResponse,
)
from flwr.proto.task_pb2 import Task as TaskProto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from prifedsync.engines.flower.calls import Task

RUN = 7
BUNDLE = b"PK code that a server wants to be run"


class FakeRuntime:
    """Messages that wait, their pieces, and all that was pushed."""

    def __init__(self, *waiting, node=101):
        self.node = node
        self.calls = []
        self.objects = {}
        self.waiting = []
        self.confirmed = []
        self.pushed = []  # all bytes that left
        self.outputs = []  # sub-status and details of tasks that ended
        self.replies = []
        self.handed = []  # lengths of the pieces that were asked for
        for message in waiting:
            self.add(message)

    def add(self, message, said=None):
        """A message that waits. `said`: what its sender told of it, where that is another message."""
        message.metadata.__dict__["_message_id"] = message.object_id
        told = said or message
        told.metadata.__dict__["_message_id"] = message.object_id
        self.objects |= {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
        self.waiting.append((message_to_proto(remove_content_from_message(told)), get_object_tree(message)))

    def PullTaskInput(self, request):
        self.calls.append("PullTaskInput")
        found = PullTaskInputResponse(context=Context(node_id=self.node))
        found.fab.content = BUNDLE
        return found

    def PullMessages(self, request):
        self.calls.append("PullMessages")
        wanted = set(request.message_ids)
        found = [each for each in self.waiting if not wanted or each[0].metadata.reply_to_message_id in wanted]
        self.waiting = [each for each in self.waiting if each not in found]
        return PullAppMessagesResponse(
            messages_list=[each for each, _ in found], message_object_trees=[tree for _, tree in found]
        )

    def PullObject(self, request):
        content = self.objects.get(request.object_id)
        self.handed.append(len(content or b""))
        return PullObjectResponse(
            object_found=content is not None, object_available=bool(content), object_content=content or b""
        )

    def ConfirmMessageReceived(self, request):
        self.confirmed.append(request.message_object_id)
        return ConfirmMessageReceivedResponse()

    def PushMessages(self, request):
        self.calls.append("PushMessages")
        self.pushed.append(request.SerializeToString())
        (message,) = request.messages_list
        (tree,) = request.message_object_trees
        self.replies.append((message_from_proto(message), tree))
        pieces = [each.object_id for each in iterate_object_tree(tree)]
        return PushAppMessagesResponse(message_ids=["sent"], objects_to_push=pieces, session_id="session")

    def PushObject(self, request):
        assert request.session_id == "session"
        assert request.node.node_id == self.node
        self.pushed.append(request.object_content)
        self.objects[request.object_id] = request.object_content
        return PushObjectResponse(stored=True)

    def PushTaskOutput(self, request):
        self.calls.append("PushTaskOutput")
        self.pushed.append(request.SerializeToString())
        self.outputs.append((request.sub_status, request.details))
        return PushTaskOutputResponse()

    def SendTaskHeartbeat(self, request):
        self.calls.append("SendTaskHeartbeat")
        return SendTaskHeartbeatResponse(success=True)

    def close(self):
        self.calls.append("close")

    # ------------------------------------------------------------------ what came

    @property
    def reply(self):
        """The one message that was sent, with all its pieces."""
        ((announced, tree),) = self.replies
        message = inflate_object_from_contents(tree.object_id, dict(self.objects))
        assert isinstance(message, Message)
        assert announced.metadata.message_id == tree.object_id
        assert announced.metadata.reply_to_message_id == message.metadata.reply_to_message_id
        return message

    def left(self, text):
        """Whether these bytes were in anything that left."""
        return any(text in each for each in self.pushed)


class FakeAddress:
    """Gives a task its client."""

    def __init__(self, runtime):
        self._runtime = runtime

    def runtime(self, *interceptors):
        return self._runtime


def task_of(runtime, kind="flwr-clientapp", number=1):
    return Task(FakeAddress(runtime), TaskProto(run_id=RUN, task_id=number, type=kind), "a token")
