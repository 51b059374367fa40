"""`prifedsync account`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..values import NOT_GIVEN, BadValue
from .configured import check_alone, forecast_of
from .options import (
    Attempts,
    Colluders,
    ConfigSource,
    DataFolder,
    Delta,
    Json,
    LeastClients,
    Masks,
    NeighboursOption,
    Overrides,
    SamplingOption,
)
from .planned import plan_of, views_of_alike

if TYPE_CHECKING:
    from ..run import Forecast

NEEDED = ("records", "batch", "noise_multiplier", "local_steps", "rounds")  # without a config


def account(
    source: ConfigSource = None,
    records: Annotated[int | None, typer.Option(help="Number of records: a public nominal number.")] = None,
    batch: Annotated[str | None, typer.Option(help="Expected batch size, or 'full'.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise std ÷ clip norm; twice the paper's σ.")] = None,
    local_steps: Annotated[int | None, typer.Option(help="Noisy gradients per round.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.")] = None,
    participation: Annotated[float | None, typer.Option(help="Probability to take part in a round; default: 1.")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients, all alike: adds who learns how much.")] = None,
    masks: Masks = False,
    colluders: Colluders = None,
    attempts: Attempts = None,
    least_clients: LeastClients = None,
    sampling: SamplingOption = None,
    neighbours: NeighboursOption = None,
    delta: Delta = None,
    overrides: Overrides = None,
    data: DataFolder = None,
    as_json: Json = False,
) -> None:
    """State the guarantee of a plan or a config, without training."""
    options = {
        "records": records,
        "batch": batch,
        "noise_multiplier": noise_multiplier,
        "local_steps": local_steps,
        "rounds": rounds,
        "participation": participation,
        "clients": clients,
        "masks": "true" if masks else None,
        "attempts": attempts,
        "least_clients": least_clients,
        "sampling": sampling,
        "neighbours": neighbours,
        "delta": delta,
    }
    if source is not None:
        check_alone(source, options)
        _account_config(forecast_of(source, overrides, data, quiet=as_json), colluders, as_json)
        return
    _check_needed(options, {"set": overrides, "data": data})
    _account_plan(options | {"colluders": colluders}, as_json)


def _check_needed(options: Mapping[str, Any], of_configs: Mapping[str, Any]) -> None:
    for name in NEEDED:
        if options[name] is None:
            raise BadValue(name, NOT_GIVEN, "is missing", f"add --{name.replace('_', '-')}, or give a config")
    for name, value in of_configs.items():
        if value:
            raise BadValue(name, value, "needs a config", "name a preset or a config file")


def _account_plan(options: Mapping[str, Any], as_json: bool) -> None:
    from ..accounting.statement import Statement

    given = {name: value for name, value in options.items() if value is not None}
    delta = given.pop("delta", 1e-5)
    public = {name: given.pop(name, None) for name in ("clients", "masks", "colluders", "least_clients")}
    defaults: dict[str, Any] = {"participation": 1.0, "sampling": "poisson", "neighbours": "replace"}
    plan = plan_of(**(defaults | given))
    statement = Statement.of(plan, delta, public["clients"])
    statement = replace(statement, views=views_of_alike(plan, delta, **public))
    if as_json:
        print(json.dumps(statement.as_json()))
        return
    from ..terminal import print_statement

    print_statement(statement)


def _account_config(planned: Forecast, colluders: int | None, as_json: bool) -> None:
    from ..terminal import print_statement

    statement = planned.statement(colluders)
    if as_json:
        print(json.dumps(statement.as_json() | {"clients": [each.as_json() for each in planned.answers]}))
    else:
        print_statement(statement)
