"""What it would be without privacy."""

from __future__ import annotations

import time

from ..events import RoundDone, Watch
from ..local import SeededDraws
from ..record import (
    Scores,
)
from ..rules import Server
from .loop import synchronised
from .prepare import Prepared
from .scores import everywhere, scores_of_one, scores_of_own


def comparison(prepared: Prepared, kind: str, watch: Watch) -> Scores:
    """What it would be without privacy: all together, or each client alone."""
    config = prepared.config.changed(**{"privacy.mechanism": "none"})
    if kind == "alone":
        config = config.with_rule("alone")
    elif not prepared.rule.uploads:
        config = config.with_rule("fedavg")
    bare = prepared.under(config)
    cohort, names = bare.cohort(SeededDraws(config.seed)), [job.client for job in bare.jobs]
    server, begun = Server(cohort.start), time.perf_counter()
    rounds = synchronised(bare, cohort, cohort.coins, server)
    for server, uploads in rounds:
        pace = (time.perf_counter() - begun) / server.round
        sent = len(uploads.of) if uploads else 0
        watch(RoundDone(kind, server.round, config.rounds, sent, None, None, pace, None, True))
    if kind == "alone":
        own = scores_of_own(bare, cohort, range(len(names)))
        return Scores(bare.score(own), bare.score(everywhere(bare, cohort)))
    return scores_of_one(bare, server.released)
