"""How many processor threads a run takes. A small model takes one: waking the others takes longer than the work.

The number of threads changes how sums are rounded, so it may depend on public numbers only. And it is part of what secret
draws are bound to, so a resumed run must find the same number: it follows from the config and the plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from ..accounting import Neighbours
from ..local import Job
from ..local.batches import expected_size
from .prepare import Prepared

SMALL = 2e7  # parameters × records of all clients' batches, up to which a step takes one thread (docs/design.md)


@contextmanager
def threads_restored() -> Iterator[None]:
    """torch's number of threads is afterwards what it was before: it belongs to the program that calls this one."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def set_threads(prepared: Prepared) -> None:
    """The config's number of threads. 0 takes one for a small model on the processor, and torch's number otherwise."""
    asked = prepared.config.performance.threads
    if asked:
        torch.set_num_threads(asked)
    elif prepared.net.device.type == "cpu" and is_small(prepared.net.count, prepared.jobs):
        torch.set_num_threads(1)


def is_small(parameters: int, jobs: Sequence[Job]) -> bool:
    """Whether a step of all clients is little work, by public numbers; not where one of these is not public."""
    rows = [_public_batch(job) for job in jobs]
    return all(rows) and parameters * sum(rows) <= SMALL


def _public_batch(job: Job) -> int:
    """The expected size of a batch; 0 where it is the real number of records, and that is private."""
    private_count = job.plan is not None and job.plan.neighbours is Neighbours.ADD_REMOVE and job.noisy is None
    return 0 if private_count and job.steps.batch == "full" else expected_size(job.steps)
