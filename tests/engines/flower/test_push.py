"""A body that several clients are sent goes to the SuperLink once."""

import threading
import time
from types import SimpleNamespace

from flwr.app import Message

from prifedsync.engines.flower import letters
from prifedsync.engines.flower.calls import Address
from prifedsync.engines.flower.link import Link

from .faking import identity


class Counting:
    """Flower's side of messages: how many pushes are under way, at most."""

    def __init__(self):
        self.now = self.most = 0

    def push_messages(self, messages):
        self.now += 1
        self.most = max(self.most, self.now)
        time.sleep(0.02)
        self.now -= 1
        return [message.number for message in messages]


def numbered(number):
    return SimpleNamespace(number=number, metadata=SimpleNamespace(created_at=0.0))


def test_messages_are_pushed_one_after_another():
    link = Link(Address("127.0.0.1:1"), b"secret", dict)
    link._grid = grid = Counting()
    numbers = []
    threads = [
        threading.Thread(target=lambda number=number: numbers.append(link.push(numbered(number))))
        for number in ("1", "2", "3")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == ["1", "2", "3"]
    assert grid.most == 1


def test_the_time_of_a_message_begins_when_its_turn_comes():
    """A SuperLink takes no message whose time is over, and many large models before it take long."""
    link = Link(Address("127.0.0.1:1"), b"secret", dict)
    ages = []

    class Looking:
        def push_messages(self, messages):
            ages.extend(time.time() - message.metadata.created_at for message in messages)
            return ["1"]

    link._grid = Looking()
    identity()
    waiting = Message(letters.asks_who(), 101, letters.WHO, ttl=60.0)
    waiting.metadata.created_at -= 600.0
    link.push(waiting)
    assert 0.0 <= ages[0] < 10.0
