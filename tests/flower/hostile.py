"""A server operator who sends code to the clients: Flower's own programs, and an app that reads what it should not.

The ClientApp reads each file of a list, and tries to leave a marker behind. The ServerApp asks for that with messages of
several kinds, and writes down all that it gets back.
"""

import json
import os
import subprocess

from prifedsync.deploy.processes import FLOWER, Process, program

KINDS = ("train", "evaluate", "query", "query.prifedsync", "query.prifedsync_who", "train.other")
SECONDS = 60  # that the ServerApp waits for answers
SETTINGS = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "averages"
version = "1.0.0"
description = "Averages"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "operator"

[tool.flwr.app.components]
serverapp = "server:app"
clientapp = "client:app"
"""
CLIENT = """
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

try:
    Path({marker!r}).write_text("here")
except OSError:
    pass
app = ClientApp()


def steal(message, context):
    found = {{}}
    for path in {files!r}:
        try:
            found[path] = Path(path).read_bytes()
        except OSError as error:
            found[path] = str(error)
    return Message(RecordDict({{"found": ConfigRecord(found)}}), reply_to=message)


for register in (app.train, app.evaluate, app.query):
    register()(steal)
app.train("other")(steal)
app.query("prifedsync")(steal)
app.query("prifedsync_who")(steal)
"""
SERVER = """
import json
import time
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


def shown(sent, message):
    if message.has_error():
        said = {{"error": [message.error.code, message.error.reason]}}
    else:
        said = {{"content": {{name: {{key: repr(value) for key, value in record.items()}}
                             for name, record in message.content.items()}}}}
    return {{**sent, **said, "metadata": repr(message.metadata)}}


@app.main()
def main(grid, context):
    end = time.monotonic() + {seconds}
    while len(nodes := list(grid.get_node_ids())) < {nodes} and time.monotonic() < end:
        time.sleep(0.2)
    asked = [(kind, node) for kind in {kinds!r} for node in nodes]
    messages = [Message(RecordDict({{"prifedsync": ConfigRecord({{"give": "all"}})}}), node, kind, ttl={seconds})
                for kind, node in asked]
    numbers = list(grid.push_messages(messages))
    sent = {{number: {{"kind": kind, "node": node}} for number, (kind, node) in zip(numbers, asked)}}
    replies = []
    while sent and time.monotonic() < end:
        for message in grid.pull_messages(list(sent)):
            replies.append(shown(sent.pop(message.metadata.reply_to_message_id), message))
        time.sleep(0.2)
    out = Path({out!r})
    out.with_suffix(".part").write_text(json.dumps({{"nodes": nodes, "replies": replies, "unanswered": len(sent)}}))
    out.with_suffix(".part").rename(out)
"""


class Operator:
    """Whoever runs the server, with Flower's stock executor. A context manager that ends what it started."""

    def __init__(self, folder, place, certificate=None):
        self.folder = folder
        self.replies = folder / "replies.json"
        self.marker = folder / "marker"
        self._place = place
        self._certificate = certificate
        self._executor = None
        folder.mkdir(parents=True)
        root = f'root-certificates = "{certificate}"' if certificate else "insecure = true"
        home = folder / "home"
        home.mkdir()
        (home / "config.toml").write_text(f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{place}"\n{root}\n')
        path = f"{os.path.dirname(program('flwr'))}:{os.environ['PATH']}"
        self._environment = {**FLOWER, "FLWR_HOME": str(home), "PATH": path}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._executor:
            self._executor.end()

    @property
    def pid(self):
        return self._executor.pid

    def execute(self, secret):
        """Start the executor, which takes the server's tasks with the server's secret."""
        words = [program("flower-superexec"), "--runtime-api-address", self._place]
        words += ["--root-certificates", str(self._certificate)] if self._certificate else ["--insecure"]
        words += ["--superexec-auth-secret-file", str(secret)]
        self._executor = Process(words, self.folder / "executor.log", self._environment)

    def submit(self, files, nodes):
        """Submit the app, which asks for these files."""
        app = self.folder / "app"
        app.mkdir()
        (app / "pyproject.toml").write_text(SETTINGS)
        (app / "client.py").write_text(CLIENT.format(marker=str(self.marker), files=[str(file) for file in files]))
        values = {"seconds": SECONDS, "nodes": nodes, "kinds": KINDS, "out": str(self.replies)}
        (app / "server.py").write_text(SERVER.format(**values))
        words = [program("flwr"), "run", str(app), "here", "--format", "json"]
        done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **self._environment}, timeout=120)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["success"], done.stdout

    def got(self):
        """What the ServerApp got back; None while it waits."""
        return json.loads(self.replies.read_text()) if self.replies.exists() else None
