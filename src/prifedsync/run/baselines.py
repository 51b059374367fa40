"""What scores are at the end of a run, and what they would be without privacy."""

from __future__ import annotations

import time

from ..events import RoundDone, Watch
from ..local import SeededDraws
from ..record import Scores
from ..rules import Server
from ..settings import unchosen
from ..sync import Evaluation
from .loop import synchronised
from .prepare import Prepared


def scores_of(prepared: Prepared, evaluation: Evaluation | None) -> dict[str, Scores]:
    """Of personal models and of the released one, on each client's test records and on everybody's."""
    scores: dict[str, Scores] = {}
    if evaluation and evaluation.personal:
        own = prepared.score(list(evaluation.personal.values()))
        scores["personal"] = Scores(own, prepared.score(list(evaluation.pooled_personal.values())))
    if evaluation and evaluation.released:  # else there is no global model
        each = prepared.score(list(evaluation.released.values()))
        scores["released"] = Scores(each, prepared.score([evaluation.pooled_released]))
    return scores


def comparison(prepared: Prepared, kind: str, watch: Watch) -> Scores:
    """What it would be without privacy: all together, or each client alone."""
    config = prepared.config.changed(**{"privacy.mechanism": "none"}, **unchosen(prepared.config))
    if kind == "alone":
        config = config.with_rule("alone")
    elif not prepared.rule.uploads:
        config = config.with_rule("fedavg")
    bare = prepared.under(config)
    config = bare.config
    engine = bare.cohort(SeededDraws(config.seed))
    start = Server(bare.start)
    server = start
    begun = time.perf_counter()
    for server, uploads in synchronised(bare, bare.aggregator(), engine, start):
        pace = (time.perf_counter() - begun) / server.round
        watch(RoundDone(kind, server.round, config.rounds, len(uploads.trained), None, None, pace, None, True))
    if kind == "alone":
        return scores_of(bare, engine.evaluate(None, engine.names, engine.names))["personal"]
    return scores_of(bare, engine.evaluate(server.released, pooled=()))["released"]
