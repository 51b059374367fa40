"""`prifedsync plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import click
import typer

from ..values import NOT_GIVEN, BadValue
from .options import Delta, Json, LocalSteps, NeighboursOption, Participation, SamplingOption
from .planned import plan_of, target_of

if TYPE_CHECKING:
    from ..accounting import PrivacyPlan, Target
    from ..accounting.planning import ClientAnswer

SOLVED = {"noise": "noise_multiplier", "rounds": "rounds", "batch": "batch"}  # --solve → the option it replaces
UNKNOWN = {"noise_multiplier": 1.0, "rounds": 1, "batch": "1"}  # where the search starts
MANY = 3  # clients: from there on a bar is shown


def plan(
    records: Annotated[int | None, typer.Option(help="Number of records of one client; or give --sizes.")] = None,
    sizes: Annotated[Path | None, typer.Option(help="CSV with columns client and records: an answer per client.")] = None,
    batch: Annotated[str | None, typer.Option(help="Expected batch size, or 'full'.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise std ÷ clip norm, unless solved for.")] = None,
    local_steps: LocalSteps = 1,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds, unless solved for.")] = None,
    participation: Participation = 1.0,
    sampling: SamplingOption = "poisson",
    neighbours: NeighboursOption = "replace",
    target_epsilon: Annotated[float | None, typer.Option(help="Largest ε at --delta.")] = None,
    target_mu: Annotated[float | None, typer.Option(help="Largest μ, for α in 1e-5 … 1−1e-5.")] = None,
    target_advantage: Annotated[float | None, typer.Option(help="Largest advantage of any attack.")] = None,
    delta: Delta = 1e-5,
    solve: Annotated[
        str, typer.Option(click_type=click.Choice(list(SOLVED)), help="Which number to choose for each client.")
    ] = "noise",
    as_json: Json = False,
) -> None:
    """Find what each client needs to meet a target, and who cannot."""
    from ..accounting.planning import answer, together
    from ..terminal import print_answers, tracked

    target = target_of(target_epsilon, target_mu, target_advantage, delta)
    clients = _clients(records, sizes)
    given = {"batch": batch, "noise_multiplier": noise_multiplier, "rounds": rounds}
    _check_given(given, solve)
    known: dict[str, Any] = UNKNOWN | {name: value for name, value in given.items() if value is not None}
    known |= {"local_steps": local_steps, "participation": participation, "sampling": sampling, "neighbours": neighbours}
    if sizes is None:
        plan_of(records=clients[""], **known)  # one client: what is wrong with its numbers is bad input, not an answer
    answers = []
    for client, size in tracked(clients.items(), "clients", wanted=len(clients) > MANY and not as_json):

        def build(size: int = size) -> PrivacyPlan:
            return plan_of(records=size, **known)

        answers.append(answer(client, size, build, target, cast(Literal["noise", "rounds", "batch"], solve)))
    warnings = _warnings(answers, target)
    if as_json:
        said = answers[0].as_json() if sizes is None else together(answers)
        print(json.dumps(said | {"warnings": warnings}))
    else:
        print_answers(answers, target, solve, warnings)


def _clients(records: int | None, sizes: Path | None) -> dict[str, int]:
    """Each client's records; one client has no name."""
    from ..accounting.planning import read_sizes

    if records is not None and sizes is not None:
        raise BadValue("records", records, f"cannot be combined with sizes = {sizes}", "give only one of the two")
    if sizes is not None:
        return read_sizes(sizes)
    if records is None:
        raise BadValue("records", NOT_GIVEN, "is missing", "give --records for one client, or --sizes for several")
    return {"": records}


def _check_given(given: dict[str, Any], solve: str) -> None:
    for name, value in given.items():
        if value is None and name != SOLVED[solve]:
            rule = f"must be given where --solve is {solve}"
            raise BadValue(name, NOT_GIVEN, rule, f"add --{name.replace('_', '-')}")


def _warnings(answers: list[ClientAnswer], target: Target) -> list[str]:
    """What a careful reader would ask about these answers: δ is compared with the largest client."""
    from ..accounting.planning import rare_events
    from ..accounting.statement import warnings

    found = list(rare_events(target, ((each.client, each.numbers) for each in answers if each.numbers)))
    planned = [each for each in answers if each.plan]
    largest = max(planned, key=lambda each: each.records, default=None)
    if largest is not None and largest.plan is not None:
        found += warnings(largest.plan, target.delta)
    return found
