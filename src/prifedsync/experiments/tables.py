"""The paper's tables from finished runs: rounds until the target, the privacy in the paper, and the certified privacy."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..accounting import NoisySteps, PrivacyPlan, Sampling
from ..accounting.paper import mu_weak
from ..accounting.statement import ALPHA_MIN, bracket, finite, largest
from ..config import Config
from ..fdp.bounds import Bound
from ..values import whole
from .declared import Experiment, Row
from .running import Run, Runs

STOPPED = "data-dependent stop, for comparison with the paper"
DELTA = 1e-5
TOLERANCE = 1e-3  # between the ends of a bracket in ε; of the upper end four digits are shown


@dataclass(frozen=True)
class Pair:
    """One row with one seed: the private run, and the same without privacy."""

    seed: int
    private: Run
    twin: Run | None


@dataclass(frozen=True)
class Asked:
    """The user's choices for an experiment."""

    rows: tuple[int, ...] | None = None  # None stands for all
    seeds: tuple[int, ...] = (0,)
    overrides: tuple[str, ...] = ()
    data: Path | None = None
    device: str | None = None

    def config(self, experiment: Experiment, row: Row, seed: int) -> Config:
        return experiment.config(row, seed, self.overrides, self.data, self.device)

    def chosen(self, experiment: Experiment) -> list[Row]:
        last = len(experiment.rows)
        for number in self.rows or ():
            whole("rows", number, 1, last, remedy=f"{experiment.name} has rows 1 to {last}")
        return [row for row in experiment.rows if self.rows is None or row.number in self.rows]


def run(experiment: Experiment, asked: Asked, runs: Runs) -> dict[int, list[Pair]]:
    """Run every chosen row with every seed. The seed decides the split, so runs of one seed follow each other."""
    rows = asked.chosen(experiment)
    pairs: dict[int, list[Pair]] = {row.number: [] for row in rows}
    for seed in asked.seeds:
        for number, pair in _run(experiment, rows, asked, seed, runs):
            pairs[number].append(pair)
    return pairs


def _run(experiment: Experiment, rows: Sequence[Row], asked: Asked, seed: int, runs: Runs) -> Iterator[tuple[int, Pair]]:
    """The rows, then their twins without privacy. Rows that differ only in their noise share the longest twin."""
    private: dict[int, Run] = {}
    for row in rows:
        title = f"{experiment.name} row {row.number} of {len(experiment.rows)}, seed {seed}"
        finished = runs.private(asked.config(experiment, row, seed), experiment.target, title)
        if finished:
            private[row.number] = finished
    for row in rows:
        if row.number not in private:
            continue
        twin = None
        if experiment.twins:
            alike = [other.number for other in rows if _without_noise(other) == _without_noise(row)]
            longest = max(len(private[number].personal) for number in alike if number in private)
            title = f"{experiment.name} row {row.number} without privacy, seed {seed}"
            twin = runs.open(asked.config(experiment, row, seed), longest, title)
        yield row.number, Pair(seed, private[row.number], twin)


def _without_noise(row: Row) -> dict[str, Any]:
    return {key: value for key, value in row.values.items() if not key.startswith("privacy.")}


# ---------------------------------------------------------------------- numbers


def assembled(experiment: Experiment, asked: Asked, pairs: Mapping[int, Sequence[Pair]]) -> dict[str, Any]:
    """The whole table. Rows that were not run have only the numbers that need no training."""
    rows = [_row(experiment, asked, row, pairs.get(row.number, ())) for row in experiment.rows]
    ran = [run for row in pairs.values() for pair in row for run in (pair.private, pair.twin) if run]
    distinct = [run for at, run in enumerate(ran) if run not in ran[:at]]  # twins are shared
    table = {
        "table": experiment.name,
        "title": experiment.title,
        "target": experiment.target,
        "delta": DELTA,
        "overrides": list(asked.overrides),
        "seeds": list(asked.seeds),
        "device": sorted({run.device for run in distinct}),
        "versions": [dict(items) for items in {tuple(sorted(run.versions.items())): 0 for run in distinct}],
        "seconds": sum(run.seconds for run in distinct),
        "rows": rows,
    }
    return table | ({"sentence": _sentence(rows)} if experiment.name == "table2" else {})


def _row(experiment: Experiment, asked: Asked, row: Row, pairs: Sequence[Pair]) -> dict[str, Any]:
    runs = [_reached(experiment, pair) for pair in pairs]
    reached = [each["rounds"] for each in runs if each["reached"]]
    median = statistics.median(reached) if reached and len(reached) == len(runs) else None
    plans = [plan for pair in pairs for plan in pair.private.privacy_plans]
    copies = max((plan.copies for plan in plans), default=1)
    one_holder = _cost([plan.changed(copies=1) for plan in plans]) if copies > 1 else None
    return {
        "row": row.number,
        **_setting(asked.config(experiment, row, asked.seeds[0])),
        "paper": _setting(experiment.config(row, 0)) | dict(row.paper),
        "rounds": median,
        "rounds_over_paper": median and median / row.paper["rounds"],
        "at_the_papers_rounds": _cost([_printed(experiment, row)]),
        "copies": copies,
        "planned": _cost(plans) if plans else None,
        "planned_counting_one_holder": one_holder,
        "runs": runs,
    }


def _setting(config: Config) -> dict[str, Any]:
    noise = config.privacy.noise_multiplier
    return {
        "participation": config.participation,
        "sigma": noise and noise / 2,
        "batch": config.local.batch,
        "local_steps": config.local.local_steps,
        "sampling": config.local.sampling,
    }


def _printed(experiment: Experiment, row: Row) -> PrivacyPlan:
    """The plan of the paper's row, without the user's overrides."""
    config = experiment.config(row, 0)
    local = config.local
    noise = config.privacy.noise_multiplier
    assert noise is not None
    steps = NoisySteps(
        noise_multiplier=noise, records=experiment.records, batch=local.batch, local_steps=local.local_steps,
        sampling=Sampling(local.sampling), clip_norm=config.privacy.clip_norm,
    )  # fmt: skip
    rounds = int(row.paper["rounds"])
    return PrivacyPlan(mechanism=steps, rounds=rounds, participation=config.participation)


def _reached(experiment: Experiment, pair: Pair) -> dict[str, Any]:
    """The round in which a run reached the target, or its last one, and the privacy of a plan with that many rounds."""
    run = pair.private
    round = run.reached(experiment.target)
    last = round or len(run.personal)
    plans = [plan.changed(rounds=last, copies=1) for plan in run.privacy_plans]
    return {
        "seed": pair.seed,
        "reached": round is not None,
        "rounds": last,
        "accuracy": 100 * run.personal[last - 1],
        "global": 100 * run.released[last - 1],
        "nonprivate": pair.twin and 100 * pair.twin.personal[last - 1],
        "nonprivate_global": pair.twin and 100 * pair.twin.released[last - 1],
        "at_these_rounds": _cost(plans) | {"kind": STOPPED},
        "seconds": run.seconds,
    }


def _cost(plans: Sequence[PrivacyPlan]) -> dict[str, Any]:
    """The paper's μ, which is asymptotic, and the certified numbers for both kinds of sampling: the worst over plans."""
    cost: dict[str, Any] = {"rounds": plans[0].rounds, "mu_clt": finite(mu_weak(plans))}
    for sampling in (Sampling.FIXED, Sampling.POISSON):
        drawn = [plan.changed(sampling=sampling) for plan in plans]
        chosen_by_others = [plan.changed(participation=1.0) for plan in drawn]  # the worst choice is every round
        cost[sampling.value] = _worst(drawn) | {"worst_case_participation": _worst(chosen_by_others)}
    return cost


def _worst(plans: Sequence[PrivacyPlan]) -> dict[str, Any]:
    """The largest ε and the largest μ. They may come from different plans."""
    certified = [_certified(plan) for plan in dict.fromkeys(plans)]
    epsilon = largest(epsilon for epsilon, _ in certified)
    mu = largest(mu for _, mu in certified)
    return {"epsilon": bracket(epsilon), "mu": bracket(mu) | {"alpha_min": ALPHA_MIN}}


@cache
def _certified(plan: PrivacyPlan) -> tuple[Bound, Bound]:
    """ε at DELTA, and μ."""
    f = plan.guarantee(tolerance=TOLERANCE)
    return f.epsilon(DELTA), f.mu(ALPHA_MIN)


def _sentence(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """A sentence to compare with the paper's: B = 8 has about 0.83 × the μ of B = 16, and uses about 1.39 × the samples."""
    both = list(zip(rows[::2], rows[1::2], strict=True))  # for each noise: the small batch, then the large one
    costs = [run["at_these_rounds"] for row in rows for run in row["runs"]]
    unbounded = any(cost["mu_clt"] is None or cost["fixed"]["mu"]["upper"] is None for cost in costs)
    if unbounded or not all(row["rounds"] for row in rows):
        return None

    def ratio(of: Callable[[Mapping[str, Any]], float]) -> float:
        return statistics.fmean(of(small) / of(large) for small, large in both)

    def certified(row: Mapping[str, Any]) -> float:
        return statistics.fmean(run["at_these_rounds"]["fixed"]["mu"]["upper"] for run in row["runs"])

    samples = ratio(lambda row: row["rounds"] * row["local_steps"] * row["batch"])
    iterations = ratio(lambda row: row["rounds"] * row["local_steps"])
    printed = ratio(lambda row: statistics.fmean(run["at_these_rounds"]["mu_clt"] for run in row["runs"]))
    return (
        f"With B = {both[0][0]['batch']} the paper's μ is {printed:.2f} × that of B = {both[0][1]['batch']} (the certified "
        f"μ of those rounds {ratio(certified):.2f} ×), after {iterations:.2f} × the iterations and {samples:.2f} × the "
        "samples. The paper says 0.83 ×, 2.78 × and 1.39 ×."
    )
