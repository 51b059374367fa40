"""`prifedsync plan`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import click
import typer

from ..values import NOT_GIVEN, BadValue
from .configured import check_alone, forecast_of
from .options import ConfigSource, DataFolder, Delta, Json, NeighboursOption, Overrides, SamplingOption
from .planned import plan_of, target_of

if TYPE_CHECKING:
    from ..accounting import PrivacyPlan, Target
    from ..accounting.contributions import Contributions
    from ..accounting.planning import ClientAnswer

SOLVED = {"noise": "noise_multiplier", "rounds": "rounds", "batch": "batch"}  # --solve → the option it replaces
UNKNOWN = {"noise_multiplier": 1.0, "rounds": 1, "batch": "1"}  # where the search starts
DEFAULTS = {"local_steps": 1, "participation": 1.0, "sampling": "poisson", "neighbours": "replace"}
MANY = 3  # clients: from there on a bar is shown


def plan(
    source: ConfigSource = None,
    records: Annotated[int | None, typer.Option(help="Number of records of one client; or give --sizes.")] = None,
    sizes: Annotated[Path | None, typer.Option(help="CSV with columns client and records: an answer per client.")] = None,
    batch: Annotated[str | None, typer.Option(help="Expected batch size, or 'full'.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise std ÷ clip norm, unless solved for.")] = None,
    local_steps: Annotated[int | None, typer.Option(help="Noisy gradients per round; default: 1.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds, unless solved for.")] = None,
    participation: Annotated[float | None, typer.Option(help="Probability to take part in a round; default: 1.")] = None,
    sampling: SamplingOption = None,
    neighbours: NeighboursOption = None,
    merge: Annotated[
        str | None,
        typer.Option(click_type=click.Choice(["records", "equal"]), help="Weights in the mean; default: records."),
    ] = None,
    target_epsilon: Annotated[float | None, typer.Option(help="Largest ε at --delta.")] = None,
    target_mu: Annotated[float | None, typer.Option(help="Largest μ, for α in 1e-5 … 1−1e-5.")] = None,
    target_advantage: Annotated[float | None, typer.Option(help="Largest advantage of any attack.")] = None,
    delta: Delta = None,
    solve: Annotated[
        str | None,
        typer.Option(click_type=click.Choice(list(SOLVED)), help="What to choose for each client; default: noise."),
    ] = None,
    overrides: Overrides = None,
    data: DataFolder = None,
    as_json: Json = False,
) -> None:
    """Find what each client needs to meet a target, and who cannot."""
    targets = {"target_epsilon": target_epsilon, "target_mu": target_mu, "target_advantage": target_advantage}
    free = {"batch": batch, "noise_multiplier": noise_multiplier, "rounds": rounds}
    fixed = {"local_steps": local_steps, "participation": participation, "sampling": sampling, "neighbours": neighbours}
    others = {"records": records, "sizes": sizes, "merge": merge, "delta": delta, "solve": solve}
    if source is not None:
        check_alone(source, targets | free | fixed | others)
        _plan_config(source, overrides, data, as_json)
        return
    if overrides or data is not None:
        field = "set" if overrides else "data"
        raise BadValue(field, overrides or data, "needs a config", "name a preset or a config file")
    target = target_of(target_epsilon, target_mu, target_advantage, 1e-5 if delta is None else delta)
    clients = _clients(records, sizes)
    solve = solve or "noise"
    _check_given(free, solve)
    known: dict[str, Any] = (
        UNKNOWN | DEFAULTS | {name: value for name, value in (free | fixed).items() if value is not None}
    )
    if sizes is None:
        plan_of(records=clients[""], **known)  # one client: what is wrong with its numbers is bad input, not an answer
    answers = _answers(clients, known, target, solve, quiet=as_json)
    adds = _contributions(answers, merge or "records")
    warnings = _warnings(answers, target) + list(adds.warnings if adds else ())
    if as_json:
        _print_json(answers, adds, warnings, alone=sizes is None)
    else:
        _print(answers, adds, target, solve, _warnings(answers, target))


def _answers(
    clients: Mapping[str, int], known: Mapping[str, Any], target: Target, solve: str, quiet: bool
) -> list[ClientAnswer]:
    from ..accounting.planning import Answers
    from ..accounting.side_by_side import ahead
    from ..terminal import tracked

    kind = cast(Literal["noise", "rounds", "batch"], solve)

    def build(size: int) -> PrivacyPlan:
        return plan_of(records=size, **known)

    plans = []
    for size in clients.values():
        with suppress(BadValue):  # said as this client's answer, below
            plans.append(build(size))
    with ahead(plans, target, kind) as working:
        answer = Answers(target, kind, working)
        shown = tracked(clients.items(), "clients", wanted=len(clients) > MANY and not quiet)
        return [answer(client, size, partial(build, size)) for client, size in shown]


def _contributions(answers: Sequence[ClientAnswer], merge: str) -> Contributions | None:
    """What each client adds to the server's mean; None where there is one client, or some cannot take part."""
    from ..accounting.contributions import contributions

    plans = [(each.client, float(each.records or 1) if merge == "records" else 1.0, each.plan) for each in answers]
    planned = [(client, weight, plan) for client, weight, plan in plans if plan is not None]
    return contributions(planned, merge) if len(planned) == len(answers) > 1 else None


def _plan_config(source: str, overrides: list[str] | None, data: Path | None, as_json: bool) -> None:
    """What each client of a config gets: solved for its target, or as the config says."""
    from ..planning import target_of as target_of_config

    planned = forecast_of(source, overrides, data, quiet=as_json)
    target = target_of_config(planned.config)
    warnings = _warnings(planned.answers, target) if target else []
    adds = planned.contributions
    if as_json:
        _print_json(planned.answers, adds, warnings + list(adds.warnings if adds else ()), alone=False)
    else:
        _print(planned.answers, adds, target, "noise", warnings)


def _print(
    answers: Sequence[ClientAnswer], adds: Contributions | None, target: Target | None, solve: str, warnings: list[str]
) -> None:
    from ..terminal import print_answers, print_contributions

    print_answers(answers, target, solve, warnings)
    if adds:
        print_contributions(adds)


def _print_json(answers: Sequence[ClientAnswer], adds: Contributions | None, warnings: list[str], alone: bool) -> None:
    from ..accounting.planning import together

    said = answers[0].as_json() if alone else together(answers)
    shares = {"contributions": adds.as_json()} if adds else {}
    print(json.dumps(said | shares | {"warnings": warnings}))


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


def _check_given(given: Mapping[str, Any], solve: str) -> None:
    for name, value in given.items():
        if value is None and name != SOLVED[solve]:
            rule = f"must be given where --solve is {solve}"
            raise BadValue(name, NOT_GIVEN, rule, f"add --{name.replace('_', '-')}")


def _warnings(answers: Sequence[ClientAnswer], target: Target) -> list[str]:
    """What a careful reader would ask about these answers: δ is compared with the largest client."""
    from ..accounting.planning import rare_events
    from ..accounting.statement import warnings

    found = list(rare_events(target, ((each.client, each.numbers) for each in answers if each.numbers)))
    plans = [each.plan for each in answers if each.plan]
    largest = max(plans, key=lambda plan: plan.mechanism.records or 0, default=None)
    return found + list(warnings(largest, target.delta) if largest else ())
