"""A body that several clients are sent goes to the SuperLink once."""

import threading
import time
from types import SimpleNamespace

from prifedsync.engines.flower.calls import Address
from prifedsync.engines.flower.link import Link


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


def test_messages_are_pushed_one_after_another():
    link = Link(Address("127.0.0.1:1"), b"secret", dict)
    link._grid = grid = Counting()
    numbers = []
    threads = [
        threading.Thread(target=lambda number=number: numbers.append(link.push(SimpleNamespace(number=number))))
        for number in ("1", "2", "3")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == ["1", "2", "3"]
    assert grid.most == 1
