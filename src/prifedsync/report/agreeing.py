"""Whether a record agrees with itself, with its log, and with its plans. Where it does not, its numbers are not used.

Everything here is made from the record, and needs no records of clients. A plan, and what is computed from it, decides;
what a record says besides must be no less.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from math import inf, isclose, sqrt
from typing import Any

import numpy as np

from ..accounting import Neighbours, PrivacyPlan
from ..accounting.calibrate import CLOSE
from ..accounting.progress import QUICK
from ..accounting.statement import ALPHA_MIN
from ..accounting.views import NoClaim, View
from ..config import load
from ..fdp import TradeOff
from ..files import CONFIG, LOG
from ..limits import LEAST_NOISE, RECORD
from ..record import ClientRecord, RunRecord, plan_from_json
from .leaving import queries_per_round
from .plans import KINDS, MOST, Plans
from .sources import Sources
from .wording import named

ROOM = 1e-6  # relative: a bound that is computed anew may differ so much from the record's
BETA_ROOM = 1e-9  # of a β, for the same reason
SAME = 1e-9  # relative: a number of a config and the same number in a plan
Planned = tuple[ClientRecord, PrivacyPlan]


# ---------------------------------------------------------------------- counts


def miscounted(record: RunRecord) -> list[str]:
    """The clients whose noisy queries are not those of their slots. Holders of one record count together."""
    return [client.name for client in record.clients if client.plan is not None and not _agree(client, client.plan)]


def _agree(client: ClientRecord, plan: Mapping[str, Any]) -> bool:
    counted = client.slots_taken * queries_per_round(plan)
    return client.noisy_queries == counted or (plan.get("copies", 1) > 1 and client.noisy_queries < counted)


def beyond_plan(record: RunRecord) -> list[str]:
    """The clients that took more slots than their plans have: the guarantee does not count the others."""
    return [client.name for client in record.clients if client.plan and client.slots_taken > _slots(client.plan)]


def _slots(plan: Mapping[str, Any]) -> int:
    return int(plan["rounds"] + plan.get("attempts", 0))


# ---------------------------------------------------------------------- the record beside itself


def contradictions(sources: Sources, record: RunRecord) -> list[str]:
    """What a record says in two ways, in words; nothing where it agrees with itself."""
    return list(dict.fromkeys([*_of_counts(sources, record), *_of_guarantee(record)]))


def _of_counts(sources: Sources, record: RunRecord) -> Iterator[str]:
    rounds = int(record.config["rounds"])
    spare = int(record.config["privacy"].get("attempts", 0))
    odd = [client.name for client in record.clients if not _in_order(client, rounds, spare)]
    if odd:
        yield f"slots and rounds of {named(odd)}"
    answers = (record.deployment or {}).get("answers", {})
    unseen = [client.name for client in record.clients if answers.get(client.name, {}).get("sent", 0) > client.slots_taken]
    if unseen:
        yield f"slots and answers of {named(unseen)}"
    told = sum(line["participants"] for line in sources.lines if isinstance(line.get("participants"), int))
    taken = sum(client.rounds_taken for client in record.clients)
    if (sources.folder / LOG).is_file() and (not sources.lines or sources.rounds_done != rounds or told > taken):
        yield "the log and the rounds"


def _in_order(client: ClientRecord, rounds: int, spare: int) -> bool:
    """Of holders of one record, older records have the slots of the busiest of them."""
    shared = client.plan is not None and client.plan.get("copies", 1) > 1
    return 0 <= client.rounds_taken <= min(rounds, client.slots_taken) and (
        shared or client.slots_taken <= client.rounds_taken + spare
    )


def _of_guarantee(record: RunRecord) -> Iterator[str]:
    said = record.guarantee
    if said is None:
        return
    names = [client.name for client in record.clients]
    if len(set(names)) < len(names) or not set(record.config.get("clients", {})) <= set(names):
        yield "the names of clients"
    plans = list(_plans(record))
    bare = [client.name for client in record.clients if not (client.plan and client.planned and client.taken)]
    if bare:
        yield f"clients without a plan or its numbers ({named(bare)})"
    if said["delta"] != record.config["privacy"]["delta"]:
        yield "δ"
    if any(each["mu"].get("alpha_min", ALPHA_MIN) > ALPHA_MIN for each in _statements(record, said)):
        yield "the range of μ"
    if said.get("copies", 1) != max((plan.copies for _, plan in plans), default=1):
        yield "how many clients may hold the same records"
    for what, holds in _settings(record, said).items():
        wrong = [client.name for client, plan in plans if not holds(client, plan)]
        if wrong:
            yield f"{what} ({named(wrong)})"


def _plans(record: RunRecord) -> Iterator[Planned]:
    """Each client with its plan. Clients share plans, and each is read once."""
    read: dict[int, PrivacyPlan] = {}
    for client in record.clients:
        if client.plan is not None:
            yield client, read.setdefault(id(client.plan), plan_from_json(client.plan))


def _statements(record: RunRecord, said: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Everything in a record that states a μ."""
    views = [view for view in said.get("views", ()) if view["claim"]]
    rows = [each for client in record.clients for each in (client.planned, client.taken) if each]
    for each in (said, *views, *{id(row): row for row in rows}.values()):
        yield each
        if "worst_case_participation" in each:
            yield each["worst_case_participation"]


def _settings(record: RunRecord, said: Mapping[str, Any]) -> dict[str, Callable[[ClientRecord, PrivacyPlan], bool]]:
    """What → whether a client's plan agrees with the config and with the guarantee. Older records have not all of it."""
    config = record.config
    private, local, data = config["privacy"], config["local"], config["data"]
    chosen = record.server_chose

    def asked(client: ClientRecord, name: str, common: Any) -> Any:
        own = config.get("clients", {}).get(client.name, {}).get(name)
        return common if own is None else own

    def unit(client: ClientRecord, plan: PrivacyPlan) -> bool:
        """Records that code has given may have persons that no field of the config names."""
        named = bool(data.get("person")) or (":" in data["source"] and plan.unit != RECORD)
        return plan.unit == record.unit == said.get("unit", RECORD) and named == (plan.unit != RECORD)

    def noise(client: ClientRecord, plan: PrivacyPlan) -> bool:
        wanted = asked(client, "noise_multiplier", private.get("noise_multiplier"))
        if wanted is None:
            return _meets(private.get("target", {}), client, plan)
        return isclose(plan.mechanism.noise_multiplier, wanted, rel_tol=SAME)

    def mechanism(client: ClientRecord, plan: PrivacyPlan) -> bool:
        steps = plan.mechanism.steps is not None
        return bool(private["mechanism"] == ("noisy-steps" if steps else f"output-{plan.mechanism.noise}"))

    def batch(client: ClientRecord, plan: PrivacyPlan) -> bool:
        steps = plan.mechanism.steps
        return steps is None or (
            steps.batch == asked(client, "batch", local["batch"])
            and steps.sampling.value == asked(client, "sampling", local["sampling"])
        )

    def local_steps(client: ClientRecord, plan: PrivacyPlan) -> bool:
        steps = plan.mechanism.steps
        wanted = _gradients_a_step(config["rule"]) * asked(client, "local_steps", local["local_steps"])
        return steps is None or bool(steps.local_steps >= wanted)

    def records(client: ClientRecord, plan: PrivacyPlan) -> bool:
        """Only where noise is added to a whole round, and their number is not public, is there none."""
        if client.records is None:
            return plan.mechanism.records is None and plan.neighbours is Neighbours.ADD_REMOVE
        return plan.mechanism.records in (None, client.records)

    return {
        "the unit": unit,
        "the adjacency relation": lambda client, plan: plan.neighbours.value == said["neighbours"] == private["neighbours"],
        "how many clients may hold the same person": lambda client, plan: (
            not data.get("person") or plan.copies >= data.get("person_clients", 1)
        ),
        "the number of rounds": lambda client, plan: (
            (plan.rounds, plan.attempts) == (config["rounds"], private.get("attempts", 0))
        ),
        "participation": lambda client, plan: plan.participation >= (1 if chosen else config["participation"]),
        "the mechanism": mechanism,
        "the noise": noise,
        "the batches": batch,
        "the local steps": local_steps,
        "the numbers of records": records,
    }


def _gradients_a_step(rule: Mapping[str, Any]) -> int:
    """Noisy gradients for each local step at least; what a rule from outside takes is not known here."""
    if ":" in rule["name"]:
        return 0
    both = rule.get("publish", False) and rule["name"] != "alone"  # what is uploaded, and what is published
    return int(rule.get("inner_steps", 1) * (2 if both else 1))


def _meets(target: Mapping[str, Any], client: ClientRecord, plan: PrivacyPlan) -> bool:
    """Whether a client's noise is what a target needs: no number that is stated may be far below it.

    A target against a coalition may need more noise than that, and the least noise may be more than enough.
    """
    if target.get("coalition", {}).get("mu") is not None:
        return True
    kind = next((kind for kind in KINDS if target.get(kind) is not None), None)
    if kind is None:
        return False
    own = (client.planned or {}).get(kind, {}).get("upper")
    least_noise = plan.mechanism.noise_multiplier <= LEAST_NOISE * (1 + CLOSE)
    return own is None or own >= target[kind] * (1 - 2 * CLOSE) or least_noise


def changed_settings(sources: Sources, record: RunRecord) -> list[str]:
    """The fields that the config in the folder has otherwise than the record. The owner's words may be added later."""
    path = sources.folder / CONFIG
    if not path.is_file():
        return []
    try:
        found = json.loads(json.dumps(load(path).for_the_record()))
        written = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return [f"{CONFIG} as a whole, which cannot be read"]
    said = {**record.config, "clients": record.config.get("clients", {})}
    names = [*_absent(said, written), *_absent(found, said), *_differences(said, found)]
    return [name for name in names if name.partition(".")[0] != "report"]


def _absent(said: Mapping[str, Any], written: Mapping[str, Any], below: str = "") -> Iterator[str]:
    """The dotted names of what `written` has and `said` has not: a run writes its config and its record alike."""
    for name, value in written.items():
        if name not in said:
            yield f"{below}{name}"
        elif isinstance(value, Mapping) and isinstance(said[name], Mapping):
            yield from _absent(said[name], value, f"{below}{name}.")


def _differences(said: Mapping[str, Any], found: Mapping[str, Any], below: str = "") -> Iterator[str]:
    """The dotted names of fields that both have, each with another value. Older records have not all fields."""
    for name in sorted(said.keys() & found.keys()):
        one, other = said[name], found[name]
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _differences(one, other, f"{below}{name}.")
        elif one != other:
            yield f"{below}{name}"


# ---------------------------------------------------------------------- the record beside its plans


def understated(record: RunRecord, plans: Plans) -> list[str]:
    """The numbers of a record that are smaller than those of its own plans."""
    said = record.guarantee
    if said is None or not plans.plans:
        return []
    found = [name for name, own, lower in _headline(plans, said) if own is not None and lower > own * (1 + ROOM)]
    return [*found, *_attacks(plans, said), *_rows(record, plans, said), *_views(record, said)]


def _headline(plans: Plans, said: Mapping[str, Any]) -> Iterator[tuple[str, float | None, float]]:
    """Each number of a record, its upper end there, and the least that it is by the plans."""
    delta, alpha_min = said["delta"], min(ALPHA_MIN, said["mu"]["alpha_min"])
    worst = said["worst_case_participation"]
    yield "μ", said["mu"]["upper"], max(f.mu(alpha_min).lower for f in plans.honest)
    yield "ε", said["epsilon"]["upper"], max(f.epsilon(delta).lower for f in plans.honest)
    yield "advantage", said["advantage"]["upper"], max(f.advantage().lower for f in plans.honest)
    others = "where others decide who takes part"
    yield f"μ {others}", worst["mu"]["upper"], max(f.mu(alpha_min).lower for f in plans.worst_case)
    yield f"ε {others}", worst["epsilon"]["upper"], max(f.epsilon(delta).lower for f in plans.worst_case)


def _attacks(plans: Plans, said: Mapping[str, Any]) -> Iterator[str]:
    """The curve bounds attacks: a β above what the plans can have promises too much."""
    alpha, beta = (np.array(column, dtype=float) for column in zip(*said["curve"], strict=True))
    if not np.all(beta <= np.min([f.upper(alpha) for f in plans.honest], axis=0) + BETA_ROOM):
        yield "bound on attacks"


def _rows(record: RunRecord, plans: Plans, said: Mapping[str, Any]) -> Iterator[str]:
    """Each client's own numbers, for all rounds and for the slots that it took."""
    made = dict(zip(plans.plans, plans.honest, strict=True))
    every = list(_plans(record))
    computed = {own for own in {plan.accounted for _, plan in every} if own in made}
    further = {plan.accounted for _, plan in every} - computed
    if len(further) <= MOST:  # else the numbers of the clients who leak most are compared alone
        made |= {plan: plan.guarantee(tolerance=QUICK) for plan in further}
    busiest = max((client.slots_taken for client in record.clients), default=0)
    least = cache(lambda plan: _least(made[plan], said["delta"]))
    least_taken = cache(lambda plan, slots: _least(plan.guarantee(taken=slots, tolerance=QUICK), said["delta"]))
    most: dict[PrivacyPlan, int] = {}
    for client, plan in every:
        most[plan.accounted] = max(most.get(plan.accounted, 0), client.slots_taken)
    wrong = []
    for client, plan in every:
        own = plan.accounted
        states_less = any(_above(client.planned, said, kind) for kind in KINDS)
        if own in made:
            states_less |= _below(client.planned, least(own))
            slots = busiest if plan.copies > 1 else client.slots_taken
            if slots in (most[own], busiest) and 0 <= slots <= plan.slots:  # of the others, these have the most
                states_less |= _below(client.taken, least_taken(own, slots))
        if states_less:
            wrong.append(client.name)
    if wrong:
        yield f"row of {named(wrong)}"


def _least(f: TradeOff, delta: float) -> dict[str, float]:
    return {"epsilon": f.epsilon(delta).lower, "mu": f.mu(ALPHA_MIN).lower, "advantage": f.advantage().lower}


def _below(stated: Mapping[str, Any] | None, least: Mapping[str, float]) -> bool:
    """Whether any number that is stated is less than the least that it can be."""
    ends = {kind: (stated or {})[kind]["upper"] for kind in least} if stated else {}
    return any(end is not None and least[kind] > end * (1 + ROOM) for kind, end in ends.items())


def _above(stated: Mapping[str, Any] | None, said: Mapping[str, Any], kind: str) -> bool:
    """Whether a client's number is above that of every client."""
    if not stated or said[kind]["upper"] is None:
        return False
    own = stated[kind]["upper"]
    return bool((inf if own is None else own) > said[kind]["upper"] * (1 + ROOM))


def _views(record: RunRecord, said: Mapping[str, Any]) -> Iterator[str]:
    """Against fewer than everybody a client hides behind the noise of the others at most: √h times its own, of h clients.

    The worst of all clients is seen no less well than the one with the most noise in the sum, of which that is true.
    Without masks the server sees every single upload.
    """
    claims = [view for view in said.get("views", ()) if view["claim"]]
    plans = list(dict.fromkeys(plan.accounted for _, plan in _plans(record)))
    if len(plans) > MOST:
        return
    for view in claims:
        honest = len(record.clients) - (0 if view["who"] == "readers" else view["colluders"])
        looks = View(who=view["who"], colluders=view["colluders"], assumes="", gain=sqrt(max(1, honest)))
        found = [looks.seen(plan) for plan in plans]
        seen = [plan for plan in found if not isinstance(plan, NoClaim)]
        ends = [_least(plan.guarantee(tolerance=QUICK), said["delta"]) for plan in seen]
        single = view["who"] == "server" and not record.masked
        if single or len(seen) < len(found) or _below(view, {kind: min(end[kind] for end in ends) for kind in KINDS}):
            yield f"number against {view['who']}"
