"""`prifedsync plan`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import click
import typer

from ..values import NOT_GIVEN, BadValue, counted
from .coalition import Together
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
from .planned import plan_of, target_of

if TYPE_CHECKING:
    from ..accounting import PrivacyPlan, Target
    from ..accounting.contributions import Contributions
    from ..accounting.planning import ClientAnswer

SOLVED = {"noise": "noise_multiplier", "rounds": "rounds", "batch": "batch"}  # --solve → the option it replaces
UNKNOWN = {"noise_multiplier": 1.0, "rounds": 1, "batch": "1"}  # where the search starts
DEFAULTS = {"local_steps": 1, "participation": 1.0, "sampling": "poisson", "neighbours": "replace", "attempts": 0}
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
    coalition_mu: Annotated[
        float | None, typer.Option(help="Largest μ against server and --colluders clients; needs --masks.")
    ] = None,
    colluders: Colluders = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients, all alike: adds who learns how much.")] = None,
    masks: Masks = False,
    attempts: Attempts = None,
    least_clients: LeastClients = None,
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
    fixed = {
        "local_steps": local_steps, "participation": participation, "sampling": sampling, "neighbours": neighbours,
        "attempts": attempts,
    }  # fmt: skip
    others = {"records": records, "sizes": sizes, "merge": merge, "delta": delta, "solve": solve}
    crowd = {"coalition_mu": coalition_mu, "clients": clients, "masks": "true" if masks else None}
    if source is not None:
        check_alone(source, targets | free | fixed | others | crowd | {"least_clients": least_clients})
        _plan_config(source, overrides, data, colluders, as_json)
        return
    if overrides or data is not None:
        field = "set" if overrides else "data"
        raise BadValue(field, overrides or data, "needs a config", "name a preset or a config file")
    delta = 1e-5 if delta is None else delta
    alone = coalition_mu is not None and all(value is None for value in targets.values())
    target = None if alone else target_of(target_epsilon, target_mu, target_advantage, delta)
    named = _clients(records, sizes)
    solve = solve or "noise"
    _check_given(free, solve)
    known: dict[str, Any] = (
        UNKNOWN | DEFAULTS | {name: value for name, value in (free | fixed).items() if value is not None}
    )
    if sizes is None:
        plan_of(records=named[""], **known)  # one client: what is wrong with its numbers is bad input, not an answer
    together = Together(
        clients, masks, colluders, least_clients, coalition_mu, merge or "records", delta, known["participation"],
        known["attempts"],
    )  # fmt: skip
    together.check(named, solve)
    answers = together.met(_answers(named, known, target, solve, quiet=as_json))
    adds = _contributions(answers, together.merge)
    said = _Said(answers, adds, target, str(together), solve, _warnings(answers, target, delta), together.views(answers))
    said.print(delta, as_json, alone=sizes is None)


def _answers(
    clients: Mapping[str, int], known: Mapping[str, Any], target: Target | None, solve: str, quiet: bool
) -> list[ClientAnswer]:
    """An answer for each client; without a target against everybody, the least noise that a plan may have."""
    from ..accounting.planning import Answers
    from ..accounting.side_by_side import ahead
    from ..terminal import tracked

    kind = cast(Literal["noise", "rounds", "batch"], solve)

    def build(size: int) -> PrivacyPlan:
        return plan_of(records=size, **known)

    if target is None:
        return [_least_noise(client, size, partial(build, size)) for client, size in clients.items()]
    plans = []
    for size in clients.values():
        with suppress(BadValue):  # said as this client's answer, below
            plans.append(build(size))
    with ahead(plans, target, kind) as working:
        answer = Answers(target, kind, working)
        shown = tracked(clients.items(), "clients", wanted=len(clients) > MANY and not quiet)
        return [answer(client, size, partial(build, size)) for client, size in shown]


def _least_noise(client: str, records: int, build: Callable[[], PrivacyPlan]) -> ClientAnswer:
    from ..accounting.planning import ClientAnswer
    from ..limits import LEAST_NOISE

    try:
        return ClientAnswer(client, records, build().changed(noise_multiplier=LEAST_NOISE), None, "")
    except BadValue as reason:
        return ClientAnswer(
            client, records, None, None, f"client {client} with {records} records cannot take part: {reason}"
        )


def _contributions(answers: Sequence[ClientAnswer], merge: str) -> Contributions | None:
    """What each client adds to the server's mean; None where there is one client, or some cannot take part."""
    from ..accounting.contributions import contributions

    plans = [(each.client, float(each.records or 1) if merge == "records" else 1.0, each.plan) for each in answers]
    planned = [(client, weight, plan) for client, weight, plan in plans if plan is not None]
    return contributions(planned, merge) if len(planned) == len(answers) > 1 else None


def _plan_config(source: str, overrides: list[str] | None, data: Path | None, colluders: int | None, as_json: bool) -> None:
    """What each client of a config gets: solved for its targets, or as the config says."""
    from ..planning import target_of as target_of_config

    planned = forecast_of(source, overrides, data, quiet=as_json)
    private = planned.config.privacy
    target = target_of_config(planned.config)
    coalition = private.target.coalition
    colluding = counted(coalition.colluders or 0, "client")
    against = "" if coalition.mu is None else f"μ = {coalition.mu:g} against the server and {colluding}"
    warnings = _warnings(planned.answers, target, private.delta) if target or against else []
    stated = {} if planned.reasons else planned.statement(colluders).as_json()
    views = cast(list[dict[str, Any]], stated.get("views", []))
    said = _Said(planned.answers, planned.contributions, target, against, "noise", warnings, views)
    said.print(private.delta, as_json, alone=False)


@dataclass(frozen=True)
class _Said:
    """What is printed: answers, what each client adds, the targets, warnings and views."""

    answers: Sequence[ClientAnswer]
    adds: Contributions | None
    target: Target | None
    coalition: str
    solve: str
    warnings: list[str]
    views: list[dict[str, Any]]

    def print(self, delta: float, as_json: bool, alone: bool) -> None:
        if as_json:
            self._print_json(alone)
            return
        from ..terminal import print_answers, print_contributions, print_views, screen

        print_answers(self.answers, self.target, self.solve, self.warnings, self.coalition)
        if self.views:
            simulation = any("simulation" in view for view in self.views)
            unit = next(answer.plan.unit for answer in self.answers if answer.plan)
            print_views(screen(), {"delta": delta, "unit": unit, "views": self.views}, simulation)
        if self.adds:
            print_contributions(self.adds)

    def _print_json(self, alone: bool) -> None:
        from ..accounting.planning import together

        said = self.answers[0].as_json() if alone else together(self.answers)
        shares = {"contributions": self.adds.as_json()} if self.adds else {}
        views = {"views": self.views} if self.views else {}
        warnings = self.warnings + list(self.adds.warnings if self.adds else ())
        print(json.dumps(said | shares | views | {"warnings": warnings}))


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


def _warnings(answers: Sequence[ClientAnswer], target: Target | None, delta: float) -> list[str]:
    """What a careful reader would ask about these answers: δ is compared with the largest client."""
    from ..accounting.planning import rare_events
    from ..accounting.statement import warnings

    each_numbers = ((each.client, each.numbers) for each in answers if each.numbers)
    found = list(rare_events(target, each_numbers)) if target else []
    plans = [each.plan for each in answers if each.plan]
    largest = max(plans, key=lambda plan: plan.mechanism.records or 0, default=None)
    return found + list(warnings(largest, delta) if largest else ())
