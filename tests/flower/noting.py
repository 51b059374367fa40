"""A server as `prifedsync deploy serve` starts it, which notes every reply that it gets.

It is started with `python -m tests.flower.noting SERVER OUT`.
A line of OUT is the JSON list [client, round, attempt, what], where `what` has a digest of the body, and the head of the
ledger that the reply came with.
"""

import hashlib
import json
import sys
from pathlib import Path

from prifedsync.asking.questions import Answer, Reply
from prifedsync.deploy.serving import serve
from prifedsync.engines.flower.through import Through


def main(server, out):
    plain = Through.ask

    def ask(self, question):
        answered = plain(self, question)
        if isinstance(question, Answer) and isinstance(answered, Reply):
            what = [digest(answered.body), answered.head.number, answered.head.hash.hex()]
            line = json.dumps([self._name, question.round, question.attempt, what])
            with Path(out).open("a") as file:
                file.write(line + "\n")
        return answered

    Through.ask = ask
    serve(Path(server))


def digest(body):
    return hashlib.sha256(body).hexdigest()


if __name__ == "__main__":
    main(*sys.argv[1:])
