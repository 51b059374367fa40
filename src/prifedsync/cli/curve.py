"""`prifedsync curve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import (
    Batch,
    LocalSteps,
    NeighboursOption,
    Noise,
    Participation,
    Records,
    Rounds,
    SamplingOption,
    picture,
)
from .planned import plan_of

DELTA = 1e-5  # of the ε below the picture


def curve(
    records: Records,
    batch: Batch,
    noise_multiplier: Noise,
    local_steps: LocalSteps,
    rounds: Rounds,
    participation: Participation = 1.0,
    sampling: SamplingOption = None,
    neighbours: NeighboursOption = None,
    out: Annotated[Path, typer.Option(help="File to write; its name ends in .png or .html.")] = Path("curve.png"),
) -> None:
    """Draw the trade-off curve of a plan."""
    from ..accounting import paper
    from ..accounting.statement import up, warnings
    from ..report.curve import draw, lines
    from ..terminal import print_warnings

    picture(out, ".png", ".html")
    plan = plan_of(
        records=records,
        batch=batch,
        noise_multiplier=noise_multiplier,
        local_steps=local_steps,
        rounds=rounds,
        participation=participation,
        sampling=sampling or "poisson",
        neighbours=neighbours or "replace",
    )
    drawn = sampling or "poisson"
    honest = plan.guarantee()
    worst = honest if plan.participation == 1 else plan.guarantee("adversarial")
    note = (
        f"{records} records, batch {batch} ({drawn}), noise multiplier {noise_multiplier:g}, {local_steps} steps × "
        f"{rounds} rounds, p = {participation:g}: ε ≤ {up(honest.epsilon(DELTA).upper)} at δ = {DELTA:g}"
    )
    draw(lines(honest, worst, paper.mu_weak([plan])), note, out)
    print(out)
    print_warnings(warnings(plan, DELTA))
