"""How long answers may be: whoever carries them takes no more into memory."""

import pytest
import torch

from prifedsync.asking.frames import PREFIX, answer_frame
from prifedsync.asking.questions import Head, Reply
from prifedsync.asking.tensors import KINDS, most_answer_bytes, packed, reply_of

from ..owner.federations import Run, config_of

KINDS_OF_RUN = {
    "models": {},
    "single precision": {"performance__dtype": "float32"},
    "sums": {"local__local_steps": 1},
    "masks": {"privacy__masks": True, "local__local_steps": 1, "privacy__attempts": 1, "privacy__least_clients": 2},
}


@pytest.mark.parametrize("changed", KINDS_OF_RUN.values(), ids=KINDS_OF_RUN)
def test_the_longest_answer_has_room_for_every_reply_and_little_more(changed):
    document = Run.of(config_of(**changed)).document
    name, dtype = reply_of(document)
    assert dtype in KINDS
    scores = {f"metric {number}": 0.1234567890123456 for number in range(1000)}
    reply = Reply("sent", Head(2**60, bytes(64)), 2**60, packed(name, torch.zeros(5000, dtype=dtype)), scores)
    most = most_answer_bytes(document, 5000)
    assert len(answer_frame(reply)) <= most <= PREFIX.size + len(reply.body) + 8 * 2**20
