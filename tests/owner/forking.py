"""A process that has imported torch once, and forks daemons: to start python for each of a thousand would take an hour.

It reads one JSON object a line and answers with one:
    {"do": "serve", "policy": …, …}   → {"pid": …, "ready": true or false}, and as the daemon may be told:
        user, group           whose process it is
        kill_before, folder   it ends before the n-th call that changes a file there
        frame_seconds         how long a frame may take
        tape                  a file of recorded draws, to be replayed
        leaves_when_ready     answers leave when they are ready: a fault that the test of times must see
    {"do": "warm", "policy": …, "frames": […]}                               → {}; what answers need is imported then
    {"do": "wait", "pid": …}                                                 → {"status": as `os.waitstatus_to_exitcode`}
    {"do": "count"}                                                          → {"count": calls that were counted}
"""

import ctypes
import json
import os
import signal
import sys
import traceback
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch

from prifedsync.asking.frames import read_question
from prifedsync.asking.questions import Declined
from prifedsync.local import Net, RecordedDraws, SystemDraws
from prifedsync.local.losses import BY_TASK
from prifedsync.owner import conversations, daemon, turns
from prifedsync.owner.desk import Desk
from prifedsync.owner.ledger.pages import open_ledger
from prifedsync.owner.log import OwnerLog
from prifedsync.owner.policy import read
from prifedsync.owner.records import records_of


def main() -> None:
    torch.set_num_threads(1)
    few = torch.zeros(4, 2, dtype=torch.float64)
    Net(torch.nn.Linear(2, 2), BY_TASK["classes"], few, torch.zeros(4).long(), torch.float64).program(1, 4)  # imports more
    library = ctypes.CDLL(os.environ["LD_PRELOAD"]) if os.environ.get("LD_PRELOAD") else None
    alive = set()
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["do"] == "serve":
            said = started(asked, library)
            alive.add(said["pid"])
        elif asked["do"] == "warm":
            said = warmed(asked)
        elif asked["do"] == "wait":
            said = {"status": os.waitstatus_to_exitcode(os.waitpid(asked["pid"], 0)[1])}
            alive.discard(asked["pid"])
        else:
            said = {"count": library.kill_count()}
        print(json.dumps(said), flush=True)
    for child in alive:  # of tests that failed, and of those who killed it themselves; none was waited for
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def warmed(asked):
    """Answer questions here, so that nothing is left to import, or to be compiled, after a fork."""
    policy = read(asked["policy"])
    with open_ledger(policy) as ledger, closing(OwnerLog(policy.path("log"))) as log:
        desk = Desk(policy, ledger, records_of(policy), log)
        for header, body in asked["frames"]:
            question = read_question(bytes.fromhex(header))
            if body:
                question = replace(question, helper=bytes.fromhex(body))
            assert not isinstance(desk.decide(question, "warm"), Declined), Path(policy.path("log")).read_text()
    return {}


def started(asked, library):
    """Fork a daemon, and wait until it listens or has ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        serve(asked, library, writing)
    os.close(writing)
    ready = os.read(reading, 1) == b"r"
    os.close(reading)
    return {"pid": child, "ready": ready}


def serve(asked, library, writing):
    status = 1
    try:
        if asked.get("user"):
            os.setgroups([])
            os.setresgid(asked["group"], asked["group"], asked["group"])
            os.setresuid(asked["user"], asked["user"], asked["user"])
        if asked.get("kill_before"):
            library.kill_before(ctypes.c_long(asked["kill_before"]), asked["folder"].encode())
        conversations.SECONDS_FOR_A_FRAME = asked.get("frame_seconds", conversations.SECONDS_FOR_A_FRAME)
        if asked.get("leaves_when_ready"):
            turns.leaving = lambda begun, ready, seconds: ready
        draws = SystemDraws
        if asked.get("tape"):
            recorded = RecordedDraws(None, torch.load(asked["tape"], weights_only=False))
            draws = lambda: recorded  # noqa: E731
        status = daemon.serve(asked["policy"], lambda policy: os.write(writing, b"r"), draws)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
