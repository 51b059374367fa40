"""`prifedsync account`."""

from __future__ import annotations

import json

from .options import (
    Batch,
    Clients,
    Delta,
    Json,
    LocalSteps,
    NeighboursOption,
    Noise,
    Participation,
    Records,
    Rounds,
    SamplingOption,
)
from .planned import plan_of


def account(
    records: Records,
    batch: Batch,
    noise_multiplier: Noise,
    local_steps: LocalSteps,
    rounds: Rounds,
    participation: Participation = 1.0,
    clients: Clients = None,
    sampling: SamplingOption = "poisson",
    neighbours: NeighboursOption = "replace",
    delta: Delta = 1e-5,
    as_json: Json = False,
) -> None:
    """State the guarantee of a plan before anything is trained."""
    from ..accounting.statement import Statement

    plan = plan_of(
        records=records,
        batch=batch,
        noise_multiplier=noise_multiplier,
        local_steps=local_steps,
        rounds=rounds,
        participation=participation,
        sampling=sampling,
        neighbours=neighbours,
    )
    statement = Statement.of(plan, delta, clients)
    if as_json:
        print(json.dumps(statement.as_json()))
        return
    from ..terminal import print_statement

    print_statement(statement)
