"""What an absent client's reply looks like to whoever sees bytes pass: like any other."""

import zlib
from itertools import pairwise

import pytest
import torch
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from prifedsync.asking.frames import answer_frame
from prifedsync.asking.questions import Head, Reply
from prifedsync.asking.tensors import packed, reply_of, unpacked
from prifedsync.engines.flower import letters
from prifedsync.engines.owners import LARGEST
from prifedsync.local.answers import Absent
from prifedsync.owner.absence import filler

from ..engines.flower.faking import identity
from .federations import Run, config_of, records_of
from .test_trainer import helper_of, trainer_of

MECHANISMS = {
    "double precision": {},
    "single precision": {"performance__dtype": "float32"},
    "one step": {"local__local_steps": 1, "rule__delivery": "push"},
    "adam": {"local__optimiser": "adam"},
    "sums of gradients": {"local__local_steps": 1},
    "sums of changes": {"privacy__mechanism": "output-gaussian"},
    "Laplace": {"privacy__mechanism": "output-laplace"},
}


def replies(changed, width, rounds=12):
    """Trainer, and its outcomes in rounds in which it was sent some weights."""
    run = Run.of(config_of(**changed, participation=0.5, rounds=rounds), records_of(shape=(width,)))
    trainer = trainer_of(run)
    draw = torch.Generator().manual_seed(1)
    found = []
    for round in range(rounds):
        weights = 0.05 * torch.randn(trainer.count, generator=draw, dtype=torch.float64).to(trainer.net.dtype)
        found.append(trainer.answer(round, 0, (), helper_of(trainer, weights)))
    return trainer, found


def status(found, which):
    return [outcome for outcome in found if outcome.status == which]


@pytest.mark.parametrize("changed", MECHANISMS.values(), ids=MECHANISMS)
def test_it_can_be_compressed_as_far_as_one_that_is_sent(changed):
    _, found = replies(changed, width=3000)
    sent = [len(zlib.compress(outcome.body)) for outcome in status(found, "sent")]
    absent = [len(zlib.compress(outcome.body)) for outcome in status(found, "absent")]
    assert len(sent) > 1
    assert len(absent) > 1
    assert max(sent + absent) <= 1.01 * min(sent + absent)


@pytest.mark.parametrize("changed", MECHANISMS.values(), ids=MECHANISMS)
def test_it_has_what_any_message_may_have_and_never_the_same_twice(changed):
    trainer, found = replies(changed, width=50)
    name, dtype = reply_of(trainer.document)
    rows = [unpacked(outcome.body, name, dtype, trainer.count) for outcome in found]
    assert all(bool(torch.isfinite(row).all()) for row in rows)
    assert all(int(row.abs().max()) <= LARGEST for row in rows if dtype == torch.int64)
    absent = [row for row, outcome in zip(rows, found, strict=True) if outcome.status == "absent"]
    assert len(absent) > 1
    for row, other in pairwise(absent):
        assert (row != other).double().mean() > 0.9


def test_its_noise_is_not_that_of_the_run():
    """The same run twice, with recorded draws: what is sent is the same, and what is absent differs."""
    _, once = replies({}, width=20)
    _, again = replies({}, width=20)
    same = {one.status: one.body == other.body for one, other in zip(once, again, strict=True)}
    assert same == {"sent": True, "absent": False}


def test_whatever_was_sent_to_it_leaves_a_finite_vector():
    run = Run.of(config_of(participation=0.5))
    trainer = trainer_of(run)
    wild = torch.full((trainer.count,), float("nan"), dtype=torch.float64)
    wild[:3] = torch.tensor([float("inf"), -float("inf"), 1e300])
    body = trainer._body(Absent(), None, wild)
    row = unpacked(body, *reply_of(run.document), trainer.count)
    assert bool(torch.isfinite(row).all())


def pieces_of(status, vector):
    """All pieces of the answer as Flower sends them, by their names."""
    identity()
    asked = Message(letters.asks_who(), 101, letters.TYPE)
    asked.metadata.__dict__["_message_id"] = "question"
    reply = Reply(status, Head(3, b"h" * 32), 2 if status == "sent" else 0, packed("upload", vector))
    message = Message(letters.content_of(answer_frame(reply)), reply_to=asked)
    message.metadata.__dict__["_message_id"] = "reply"
    return {name: each.deflate() for name, each in get_all_nested_objects(message).items()}


def test_large_ones_are_as_long_on_the_wire_and_share_no_piece():
    """Above 10 MiB Flower cuts a body into several pieces, and sends a piece that it has sent before no more."""
    count = 3_000_000
    job = Run.of(config_of(performance__dtype="float32", participation=0.5)).document.job("b")
    helper = 0.05 * torch.randn(count)
    sent = pieces_of("sent", helper + 0.01 * torch.randn(count))
    absent = pieces_of("absent", filler(job, helper, None))
    another = pieces_of("absent", filler(job, helper, None))
    assert len(sent) == len(absent) == len(another) > 6
    assert sum(map(len, sent.values())) == pytest.approx(sum(map(len, absent.values())), abs=8)
    shared = [absent[name] for name in set(absent) & set(another)]
    assert sum(map(len, shared)) < 5000  # the header, which says nothing but "absent"
