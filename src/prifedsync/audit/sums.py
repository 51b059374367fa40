"""Where messages are added up: whether they are integers on the public grid, and their sum is exact."""

from __future__ import annotations

from dataclasses import replace

import torch

from .check import Check
from .release import unequal
from .subject import Subject, messages

WEIGHTS = (1.0, 3.0, 0.5, 2.0)  # of the clients in the mean: their factors differ too
CHUNK = 2  # in two stacks


def check_sum(subject: Subject) -> Check:
    """Compare the sum of a round with all messages that were added to it, and these with what each client sends alone."""
    jobs, data = unequal(subject, 1, 1)
    jobs = [replace(job, weight=weight) for job, weight in zip(jobs, WEIGHTS, strict=True)]
    together = subject.cohort(jobs, data, chunk=CHUNK)
    words, total = messages(together, 0, subject.start)
    faults = [] if torch.equal(torch.stack(list(words.values())).sum(0), total) else ["a sum that is not the messages'"]
    for job, own in zip(jobs, data, strict=True):
        _, alone = messages(subject.cohort([job], [own], shared=together.sums), 0, subject.start)
        cells = (words[job.client] - alone).abs() if job.client in words else alone
        if int(cells.max()) > 1:  # sums may be rounded to neighbouring cells
            faults.append("other messages in company than alone")
    return Check(
        "sum", "; ".join(dict.fromkeys(faults)) or "exact", "exact", not faults,
        "What the server is given is exactly the sum of the clients' messages, integers on a public grid.",
    )  # fmt: skip
