"""Configs and tables to make projects of, and what is asked of a project's owners."""

import json
import signal
from contextlib import contextmanager

import numpy as np

from prifedsync.asking import document as documents
from prifedsync.config import load
from prifedsync.data import Description
from prifedsync.data.preprocessing import Preprocessing
from prifedsync.deploy import project
from prifedsync.deploy.hosts import Reached
from prifedsync.deploy.places import ProjectPlaces
from prifedsync.owner.policy import read
from prifedsync.run import prepare

CLIENTS = {"north": 30, "south": 40}
BASE = """
rounds = 3
[data]
source = "csv"
path = "tables"
classes = 2
test_fraction = 0.0
ranges = { age = [0, 100], dose = [0, 1] }
categories = { sex = ["f", "m"] }
[local]
batch = "full"
learning_rate = 0.5
[privacy]
clip_norm = 1.0
noise_multiplier = 6.0
"""


def rows(count, seed=0, more=()):
    """Texts of a table: age, sex, dose, label, and these columns."""
    draw = np.random.default_rng(seed)
    made = []
    for at in range(count):
        age = int(draw.integers(20, 90))
        made.append(
            [age, "fm"[int(draw.integers(2))], round(draw.random(), 3), int(age > 50), *(each[at] for each in more)]
        )
    return made


def table(path, lines, header=("age", "sex", "dose", "label")):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(",".join(map(str, line)) for line in [header, *lines]) + "\n")


def written_config(folder, text=BASE, clients=CLIENTS):
    """A config file beside a folder of tables, one for each client."""
    for seed, (name, count) in enumerate(clients.items()):
        table(folder / "tables" / f"{name}.csv", rows(count, seed))
    path = folder / "run.toml"
    path.write_text(text)
    return path


def made(folder, source=None, *overrides, **more):
    reached = Reached(**{key: more.pop(key) for key in ("hosts", "port", "insecure") if key in more})
    return project.init(folder, None if source is None else str(source), overrides, reached, **more)


def described(folder):
    """The run as the server prepares it: by its folder alone."""
    places = ProjectPlaces(folder)
    config = load(places.server.config)
    rules = Preprocessing.from_json(json.loads(places.server.preprocessing.read_text()))
    sizes = {name: own.records for name, own in config.clients.items()}
    data = config.data
    description = Description(
        sizes, rules.shape, rules.label.task, data.person_clients if data.person else 1,
        unit="person" if data.person else "record",
    )  # fmt: skip
    return config, description


def document(folder, number=1, **changes):
    """What the server asks the owners to enrol, under another config where there are changes."""
    config, description = described(folder)
    prepared = prepare(config.changed(**changes) if changes else config, description)
    return documents.of(
        prepared.config, description, prepared.jobs, prepared.rule, run=f"{number:032x}",
        arithmetic=prepared.net.arithmetic, metrics=[metric.name for metric in prepared.metrics], sums=prepared.sums,
    )  # fmt: skip


def policies(folder):
    """The policies of all owners, as their daemons read them."""
    found = [read(path) for path in sorted(ProjectPlaces(folder).clients.glob("*/owner/policy.toml"))]
    return {policy.client: policy for policy in found}


@contextmanager
def survived(number):
    """A signal that nobody catches is an error of the test, and not its end."""

    def uncaught(number, frame):
        raise AssertionError(f"nobody caught {signal.Signals(number).name}")

    before = signal.signal(number, uncaught)
    try:
        yield
        assert signal.getsignal(number) == uncaught
    finally:
        signal.signal(number, before)
