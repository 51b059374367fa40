"""Many plans answered by two processes: one is not enough for a thousand clients of different sizes."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context

from .calibrate import Solve, Target
from .plan import PrivacyPlan
from .planning import Answers, Solved

PROCESSES = 2  # on any machine, because an answer depends on those before it in its process: so it can be repeated
MANY = 200  # different plans from which processes save more time than it takes to start them


@contextmanager
def ahead(plans: Sequence[PrivacyPlan], target: Target, solve: Solve) -> Iterator[Mapping[PrivacyPlan, Future[Solved]]]:
    """Answers that are worked on while the first are read; none if there are few different plans."""
    distinct = list(dict.fromkeys(plans))
    if len({plan.accounted for plan in distinct}) < MANY:
        yield {}
        return
    with ExitStack() as stack:
        pools = []
        for _ in range(PROCESSES):  # each a pool of its own, so that it is known which process answers which plan
            pool = ProcessPoolExecutor(1, get_context("spawn"), _begin, (target, solve))
            stack.callback(pool.shutdown, cancel_futures=True)
            pools.append(pool)
        yield {plan: pools[place % PROCESSES].submit(_solved, plan) for place, plan in enumerate(distinct)}


_answers: list[Answers] = []  # of this process, if it was started here


def _begin(target: Target, solve: Solve) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this process ends it
    _answers.append(Answers(target, solve))


def _solved(plan: PrivacyPlan) -> Solved:
    return _answers[0].solved(plan)
