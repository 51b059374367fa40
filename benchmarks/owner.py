"""What does an owner's daemon cost? `python benchmarks/owner.py [--rounds N] [--steps K]` prints a table.

One local round of the MNIST net (mnist-cnn, 600 records, K = 38 noisy steps on batches of 16 of a fixed size, Adam) on
made-up images: by the trainer in this process, and through the daemon's socket with replies.seconds = 0. The two take turns
in one run, and the table has medians. The parts of the overhead are measured by themselves.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from prifedsync.accounting import Budget
from prifedsync.asking import document as documents
from prifedsync.asking.connection import Connection
from prifedsync.asking.frames import PREFIX, answer_frame, question_frame, read_prefix, read_question
from prifedsync.asking.questions import Accepted, Answer, Enrol, Reply
from prifedsync.asking.vectors import vector_bytes
from prifedsync.config import from_mapping
from prifedsync.data import Description, Task
from prifedsync.local.draws import SystemDraws
from prifedsync.owner.ledger import Ledger
from prifedsync.owner.policy import read
from prifedsync.owner.records import records_of
from prifedsync.owner.trainer import Outcome, Trainer
from prifedsync.run import prepare

T = TypeVar("T")
PARTS = ("in this process", "through the daemon", "frames", "state as bytes", "ledger and anchor")
CLIENT = "a"
RECORDS = 600
SHAPE = (1, 28, 28)
POLICY = """
client = "a"
[source]
name = "made-up images"
records = 600
[data]
source = "npz"
path = "records.npz"
clients = 1
partition = "iid"
test_fraction = 0.0
classes = 10
ranges = { "*" = [0.0, 1.0] }
[budget]
mu = 1000.0
[limits]
models = ["mnist-cnn"]
rules = ["fedavg"]
[replies]
seconds = 0.0
[files]
anchor = "anchor"
"""


def site(folder: Path) -> Path:
    """An owner's files; the policy."""
    draw = np.random.default_rng(0)
    images = draw.random((RECORDS, *SHAPE), dtype=np.float32)
    np.savez(folder / "records.npz", x=images, y=draw.integers(0, 10, RECORDS))
    path = folder / "policy.toml"
    path.write_text(POLICY)
    path.chmod(0o600)
    Ledger.create(folder / "ledger.db", source="made-up images", budget=Budget(mu=1000.0), anchor=folder / "anchor")
    return path


def document_of(rounds: int, steps: int) -> documents.RunDocument:
    """The run: the training of the preset mnist-paper."""
    told: dict[str, Any] = {
        "rounds": rounds,
        "compare": [],
        "model": {"name": "mnist-cnn"},
        "local": {"optimiser": "adam", "learning_rate": 1e-3, "local_steps": steps, "batch": 16, "sampling": "fixed"},
        "privacy": {"clip_norm": 1.0, "noise_multiplier": 2.0},
    }
    description = Description({"a": RECORDS, "b": RECORDS}, SHAPE, Task("classes", 10))
    prepared = prepare(from_mapping(told), description)
    return documents.of(
        prepared.config, description, prepared.jobs, prepared.rule, run="0" * 32, arithmetic=prepared.net.arithmetic,
        metrics=(), sums=prepared.sums,
    )  # fmt: skip


def taken(work: Callable[[], T]) -> tuple[T, float]:
    """What some work gives, and the milliseconds it took."""
    begun = time.perf_counter()
    found = work()
    return found, 1000 * (time.perf_counter() - begun)


def resident(process: int) -> float:
    """Resident memory in MB."""
    return int(Path(f"/proc/{process}/status").read_text().split("VmRSS:")[1].split()[0]) / 1000


def rounds_of(document: documents.RunDocument, policy: Path, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each round: in this process, through the daemon, and the parts of a reply."""
    found = read(policy)
    trainer = Trainer(document, CLIENT, records_of(found).train, draws=SystemDraws())
    asker = Connection(found.path("socket"))
    assert isinstance(asker.ask(Enrol(CLIENT, document.mapping)), Accepted)
    beside = Ledger.open(
        found.path("ledger").with_name("beside.db"),
        source="beside",
        budget=Budget(mu=1000.0),
        anchor=policy.with_name("anchor-2"),
    )
    plan = document.jobs[0].plan
    assert plan is not None
    beside.reserve(document.run, document=document.digest, text=document.text, plan=plan, by="bench")
    helper = vector_bytes("helper", "F32", np.zeros(trainer.count, np.float32).tobytes())
    times: dict[str, list[float]] = {part: [] for part in PARTS}
    for round in range(rounds):
        question = Answer(CLIENT, document.run, round, 0, helper)
        outcome, here = taken(lambda question=question: trainer.answer(question.round, 0, (), helper))
        reply, there = taken(lambda question=question: asker.ask(question))
        assert isinstance(reply, Reply)
        _, frames = taken(lambda question=question, reply=reply: (framed(question), answer_frame(reply)))
        state, packing = taken(trainer.state)
        _, charge = taken(lambda q=question, o=outcome, s=state: charged(beside, q, o, s))
        for part, milliseconds in zip(PARTS, (here, there, frames, packing, charge), strict=True):
            times[part].append(milliseconds)
    beside.close_file()
    return times


def framed(question: Answer) -> None:
    """A question to bytes and back."""
    frame = question_frame(question)
    lengths = read_prefix(frame[: PREFIX.size])
    read_question(frame[PREFIX.size : PREFIX.size + lengths.header])


def charged(ledger: Ledger, question: Answer, outcome: Outcome, state: bytes) -> None:
    ledger.charge(
        question.run, question.round, 0, question=question.digest, status=outcome.status, queries=outcome.queries,
        body=outcome.body, scores={}, state=state,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=38)
    told = parser.parse_args()
    document = document_of(told.rounds, told.steps)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        policy = site(folder)
        Ledger.create(folder / "beside.db", source="beside", budget=Budget(mu=1000.0), anchor=folder / "anchor-2")
        command = [sys.executable, "-m", "prifedsync.cli", "owner", "serve", str(policy)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as daemon:
            assert daemon.stdout is not None
            daemon.stdout.readline()
            idle = resident(daemon.pid)
            times = rounds_of(document, policy, told.rounds)
            after = resident(daemon.pid)
            daemon.send_signal(signal.SIGTERM)
    medians = {name: statistics.median(each) for name, each in times.items()}
    here, there = medians["in this process"], medians["through the daemon"]
    print(f"mnist-cnn, {RECORDS} records, K = {told.steps}, {told.rounds} rounds, {torch.get_num_threads()} threads here")
    for part, milliseconds in medians.items():
        spread = statistics.quantiles(times[part], n=4)
        print(f"{part:24} {milliseconds:9.1f} ms   (half of them {spread[0]:.1f} to {spread[2]:.1f})")
    print(f"{'overhead':24} {100 * (there / here - 1):9.1f} %")
    print(f"{'resident, idle':24} {idle:9.0f} MB")
    print(f"{'resident, after the run':24} {after:9.0f} MB")


if __name__ == "__main__":
    main()
