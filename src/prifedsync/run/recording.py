"""What a run leaves behind: its record and its models."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from .. import __version__
from ..accounting import PrivacyPlan, Target
from ..accounting.planning import rare_events
from ..accounting.statement import Statement
from ..config import PUBLIC, Config
from ..events import Watch, Working
from ..files import write_file
from ..joining import alone_of
from ..limits import RECORD
from ..local import Job
from ..metrics import differences
from ..planning import crowd_of
from ..record import (
    EMPTY_ROUNDS,
    KEPT,
    MASKS_SIMULATED,
    NO_GUARANTEE,
    NOTHING_LEAVES,
    OVERLAP,
    REHEARSAL,
    REHEARSED,
    REPLIES_LEAK,
    SCORES_LEAK,
    SERVER_CHOSE,
    SHARED_PERSONS,
    SIMULATION,
    TIMINGS_LEAK,
    UPPER_BOUNDS,
    WITH_OWNERS,
    ClientRecord,
    Guarantees,
    RunRecord,
    plan_as_json,
    without_curve,
)
from ..rules import LocalOnly, Noised, Rule, Unprotected
from ..scores import Interval, Measured, Measurement, Scores, about_scale
from ..sync import Account, Engine
from .history import Row
from .loop import Session
from .prepare import Prepared
from .statistics import statistics_of

MOST_INTERVALS = 1_000  # clients of which a record keeps the intervals of every score
MOST_WHOLE = 100  # different plans of which a record keeps the whole statement, with its curve


def guarantees_of(prepared: Prepared) -> Guarantees:
    """What the clients' plans guarantee, each computed when it is first asked for."""
    return Guarantees(prepared.config.privacy.delta, len(prepared.jobs))


def statement_of(prepared: Prepared, guarantees: Guarantees) -> Statement | None:
    """What holds for every client; None without privacy."""
    if not prepared.plans:
        return None
    return stated(prepared.config, prepared.rule, prepared.jobs, guarantees)


def stated(
    config: Config, rule: Rule, jobs: Sequence[Job], guarantees: Guarantees, colluders: int | None = None
) -> Statement:
    """What holds for every client, and against whom. One `colluders` more stands in the table where it is given."""
    plans = [job.plan for job in jobs if job.plan]
    statement = replace(guarantees.worst(plans), simulation=config.privacy.randomness == "seeded")
    crowd = crowd_of(config, rule, jobs) if len(jobs) > 1 else None  # a single client hides behind nobody
    if crowd is None:
        return statement
    asked = config.privacy.target.coalition.colluders if colluders is None else colluders
    return replace(statement, views=guarantees.views(crowd, plans, asked))


def record_of(
    prepared: Prepared, run: Session, guarantees: Guarantees, measured: Mapping[str, tuple[Measurement, ...]],
    given: Sequence[str], watch: Watch, deployment: Mapping[str, Any] | None = None,
) -> RunRecord:  # fmt: skip
    """`measured`: model → one measurement for each metric. `deployment`: `deployment_of`, where owners hold the clients."""
    config = prepared.config
    randomness = config.privacy.randomness
    check_counts(prepared, run.engine)
    statement = statement_of(prepared, guarantees)
    span = prepared.rules.label.span if prepared.rules else None
    record = RunRecord(
        config=config.for_the_record(),
        clients=_clients(prepared, run, guarantees, measured, watch, deployment),
        guarantee=_stated(statement, randomness) if statement else None,
        sentence=_nothing_leaves(prepared) or sentence(statement, config.privacy.randomness),
        by_metric={
            metric.name: {model: _with_public_counts(found[at].scores, prepared) for model, found in measured.items()}
            for at, metric in enumerate(prepared.metrics)
        },
        lower_is_better=tuple(metric.name for metric in prepared.metrics if metric.lower_is_better),
        in_use=_in_use(prepared),
        unit=prepared.description.unit,
        note=about_scale([metric.name for metric in prepared.metrics], span),
        warnings=_warnings(prepared, given, guarantees, statement, deployment, run.history),
        settings=prepared.settings.reasons,
        versions=versions(),
        device=device_name(prepared.net.device),
        gradients=prepared.net.gradients,
        parameters=prepared.net.count,
        attempts_used=sum(row["attempts"] - 1 for row in run.history),
        uploads_lost=sum(row["lost"] for row in run.history),
        statistics=statistics_of(prepared, run),
        personal_models=_with_owners(prepared) if deployment else _of_clients(prepared, run),
        deployment=deployment,
    )
    return _with_few_intervals(record)


def _with_public_counts(scores: Scores, prepared: Prepared) -> Scores:
    """The scores without numbers of records, unless these are public: that of a person's records never is."""
    if prepared.config.privacy.neighbours == "replace" and prepared.description.unit == RECORD:
        return scores
    return Scores(replace(scores.own, records=None), replace(scores.pooled, records=None))


def _clients(
    prepared: Prepared,
    run: Session,
    guarantees: Guarantees,
    measured: Mapping[str, tuple[Measurement, ...]],
    watch: Watch,
    deployment: Mapping[str, Any] | None = None,
) -> tuple[ClientRecord, ...]:
    config = prepared.config
    told = run.engine.accounts()
    accounts = {job.client: _at_most(told[job.client], job, deployment) for job in prepared.jobs}
    most = max(account.taken for account in accounts.values())
    public_count = config.privacy.neighbours == "replace"
    tested = [client.test.units for client in prepared.federation.clients] if prepared.federation else None
    apart = _differences(prepared, measured)
    once = _Once(guarantees, config.privacy.randomness, whole=len(set(prepared.plans)) <= MOST_WHOLE)
    clients = []
    for i, job in enumerate(prepared.jobs):
        account = accounts[job.client]
        slots = most if job.plan and job.plan.copies > 1 else account.taken  # who else holds a record is not asked
        clients.append(
            ClientRecord(
                name=job.client,
                records=job.steps.records if job.noisy or public_count else None,  # else the real number is not public
                plan=once.plan(job.plan) if job.plan else None,
                rounds_taken=account.rounds,
                slots_taken=account.taken,
                noisy_queries=account.queries,
                planned=once.planned(job.plan) if job.plan else None,
                taken=once.taken(job.plan, slots) if job.plan else None,
                test_records=tested[i] if tested and public_count else None,
                scores={
                    model: {each.metric: _short(each.clients[i]) for each in found} for model, found in measured.items()
                },
                difference=_rounded(apart[i]),
            )
        )
        watch(Working("accounting", i + 1, len(prepared.jobs)))
    return tuple(clients)


def _at_most(account: Account, job: Job, deployment: Mapping[str, Any] | None) -> Account:
    """What a client has spent at most. A server that was killed does not know of the attempts that it was making.

    So all spare attempts count, as they do in the plan.
    """
    if not (deployment and deployment["resumed"] and job.plan and account.taken):
        return account
    unknown = job.plan.attempts - account.spare
    queries = account.queries + unknown * job.plan.mechanism.queries_per_round
    return Account(account.taken + unknown, queries, job.plan.attempts)


def _in_use(prepared: Prepared) -> str:
    """The model that clients use after joining."""
    return "personal" if prepared.rule.personalises else "released"


def _differences(prepared: Prepared, measured: Mapping[str, tuple[Measurement, ...]]) -> tuple[Interval | None, ...]:
    """What each client has by joining, in the first metric; None where nothing was trained alone."""
    joined, alone = _in_use(prepared), alone_of(measured)
    if joined not in measured or alone is None:
        return (None,) * len(prepared.jobs)
    return differences(measured[joined][0], measured[alone][0])


class _Once:
    """What a record says of plans, made once for all clients of one plan; only the numbers unless `whole`."""

    def __init__(self, guarantees: Guarantees, randomness: str, whole: bool) -> None:
        def stated(plan: PrivacyPlan) -> dict[str, Any]:
            said = _stated(guarantees.planned(plan), randomness)
            return said if whole else without_curve(said)

        self.plan = cache(plan_as_json)
        self.planned = cache(stated)
        self.taken = cache(lambda plan, slots: guarantees.taken(plan, slots).as_json())


def _short(score: Measured) -> Measured:
    """A client's score with as many digits as it deserves."""
    if score.value is None:
        return score
    return Measured(float(f"{score.value:.6g}"), _rounded(score.interval))


def _rounded(interval: Interval | None) -> Interval | None:
    return interval and Interval(*(float(f"{end:.4g}") for end in interval))


def _with_few_intervals(record: RunRecord) -> RunRecord:
    """Of very many clients, the record keeps the intervals of those that its table shows."""
    if len(record.clients) <= MOST_INTERVALS:
        return record
    shown = {row.client for row in record.joining_shown}
    return replace(record, clients=tuple(each if each.name in shown else _bare(each) for each in record.clients))


def _bare(client: ClientRecord) -> ClientRecord:
    scores = {
        model: {metric: replace(score, interval=None) for metric, score in by.items()}
        for model, by in client.scores.items()
    }
    return replace(client, scores=scores)


def _nothing_leaves(prepared: Prepared) -> str:
    """What is said instead of a guarantee where there is nothing to guarantee."""
    rule = prepared.rule
    return NOTHING_LEAVES if not rule.uploads and not prepared.plans and not rule.publishes else ""


def _of_clients(prepared: Prepared, run: Session) -> str:
    """Whether the clients' own models may be published: all of a run are of one kind."""
    return _publishing(prepared, run.engine.models(run.server.released)[prepared.jobs[0].client])


def _with_owners(prepared: Prepared) -> str:
    """The same where the models are not here."""
    kept = prepared.rule.kept and not prepared.rule.publishes
    return f"{WITH_OWNERS}; not private if published: {KEPT}" if kept else WITH_OWNERS


def _publishing(
    prepared: Prepared, model: Noised[Tensor] | Unprotected[Tensor] | LocalOnly[Tensor], rehearsal: bool = False
) -> str:
    """Whether a model of this run may be published."""
    if rehearsal:
        return REHEARSED
    if isinstance(model, LocalOnly):
        return f"not private if published: {KEPT}"
    if isinstance(model, Unprotected):
        return f"not private if published: {NO_GUARANTEE}"
    if prepared.config.privacy.randomness == "seeded":
        return f"a simulation: the guarantee is {SIMULATION}"
    return "may be published: covered by the guarantee in record.json"


def check_counts(prepared: Prepared, engine: Engine) -> None:
    """The guarantee is stated from counts; if they disagree, there is none."""
    accounts = engine.accounts()
    for job in prepared.jobs:
        _check_count(job, accounts[job.client])


def _check_count(job: Job, account: Account) -> None:
    per_round = job.plan.mechanism.queries_per_round if job.plan else 0
    if account.queries != account.taken * per_round:
        raise RuntimeError(
            f"client {job.client}: {account.queries} noisy queries in {account.taken} slots of {per_round}; "
            "no guarantee can be stated"
        )


def sentence(statement: Statement | None, randomness: str) -> str:
    """The guarantee in one sentence, and what it is not."""
    if statement is None:
        return NO_GUARANTEE
    return replace(statement, simulation=randomness == "seeded").sentence()


def _stated(statement: Statement, randomness: str) -> dict[str, Any]:
    return statement.as_json() | {"sentence": sentence(statement, randomness)}


def _warnings(
    prepared: Prepared, given: Sequence[str], guarantees: Guarantees, statement: Statement | None,
    deployment: Mapping[str, Any] | None = None, history: Sequence[Row] = (),
) -> tuple[str, ...]:  # fmt: skip
    config = prepared.config
    found = list(statement.warnings) if statement else []
    found += prepared.settings.warnings
    found += _rare_events(prepared, guarantees)
    found += prepared.contributions.warnings if prepared.contributions else ()
    private = config.privacy.randomness == "system" or config.data.source not in PUBLIC
    if private and prepared.federation and any(len(client.test) for client in prepared.federation.clients):
        found.append(SCORES_LEAK)
    if private and prepared.plans:
        found.append(REPLIES_LEAK if deployment else TIMINGS_LEAK)
    if config.privacy.masks and prepared.plans and not deployment:
        found.append(MASKS_SIMULATED)
    if deployment and deployment["rehearsal"]:
        found.append(REHEARSAL)
    empty = sum(not row["participants"] for row in history)
    if deployment and empty:
        found.append(EMPTY_ROUNDS.format(empty, len(history)))
    if deployment and deployment["resumed"] and prepared.plans:
        found.append(UPPER_BOUNDS)
    if deployment and deployment["participation"] == "server" and prepared.plans:
        found.append(SERVER_CHOSE)
    if (
        prepared.federation
        and config.data.source in ("csv", "npz")
        and Path(config.data.path).is_file()
        and not config.data.client_column
    ):
        found.append("where records were dealt to clients here, the guarantee is about a record after it was dealt")
    if prepared.description.copies > 1 and prepared.plans:
        shared = OVERLAP if prepared.description.unit == RECORD else SHARED_PERSONS
        found.append(f"{shared}: here up to {prepared.description.copies}, and the guarantee is composed over so many")
    if prepared.rule.kept and not prepared.rule.publishes and config.privacy.mechanism != "none":
        found.append(f"personal models: {KEPT}; neither they nor their scores may leave the client")
    if given:
        found.append(f"{', '.join(given)} came from Python: config.toml alone does not repeat this run")
    return tuple(found)


def _rare_events(prepared: Prepared, guarantees: Guarantees) -> tuple[str, ...]:
    """What a target on the advantage leaves open, where this run has one."""
    privacy = prepared.config.privacy
    if privacy.target.advantage is None:
        return ()
    target = Target("advantage", privacy.target.advantage, privacy.delta)
    return rare_events(target, ((job.client, guarantees.planned(job.plan).honest) for job in prepared.jobs if job.plan))


def write_models(folder: Path, prepared: Prepared, run: Session, personal: bool = True, rehearsal: bool = False) -> None:
    """The released model and, where they are here (`personal`), the clients' own."""
    folder.mkdir(parents=True, exist_ok=True)

    def write(path: Path, model: Noised[Tensor] | Unprotected[Tensor] | LocalOnly[Tensor]) -> None:
        state = {name: value.contiguous() for name, value in prepared.net.state_dict(model.value).items()}
        content = save(state, metadata={"publishing": _publishing(prepared, model, rehearsal)})
        write_file(path, content, private=isinstance(model, LocalOnly))

    if prepared.rule.uploads:  # else it is made of nothing
        write(folder / "global.safetensors", (Noised if prepared.plans else Unprotected)(run.server.released))
    if not personal:
        return
    (folder / "personal").mkdir(exist_ok=True)
    models = run.engine.models(run.server.released)
    for name, account in run.engine.accounts().items():
        if account.taken:  # the others still have the first weights
            write(folder / "personal" / f"{quote(name, safe='')}.safetensors", models[name])


def versions() -> dict[str, str]:
    return {
        "prifedsync": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
