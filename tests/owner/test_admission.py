"""What a policy allows: each limit at its last acceptable value, and just beyond it."""

import math
from dataclasses import replace

import pytest

from prifedsync.accounting import Neighbours, NoisySteps, OutputPerturbation, PrivacyPlan
from prifedsync.asking.document import RunDocument
from prifedsync.asking.refusals import Refusal
from prifedsync.config import ModelConfig
from prifedsync.data import Task
from prifedsync.local import Job, Optimiser, UnnoisedSteps
from prifedsync.local.optimisers import OPTIMISERS
from prifedsync.owner.admission import refusal
from prifedsync.owner.policy import from_mapping

KEY = "{:064x}"


def policy(**changes):
    """A policy whose every limit is away from its default; "limits__rounds" is limits.rounds."""
    given = {
        "client": "a",
        "source": {"name": "records of a", "records": 500, "holders": 2},
        "data": {"source": "csv", "path": "a.csv", "classes": 3, "test_fraction": 0.0},
        "budget": {"mu": 1.0},
        "limits": {
            "least_noise": 2.0,
            "clip_norm": 4.0,
            "local_steps": 10,
            "rounds": 30,
            "parameters": 5000,
            "models": ["softmax", "mlp", "shop.nets:net"],
            "rules": ["fedavg", "ditto", "shop.rules:Own"],
            "participants": 3,
        },
        "masks": {"identity": "a.key", "peers": {"b": KEY.format(1), "c": KEY.format(2)}},
    }
    for name, value in changes.items():
        table, key = name.split("__")
        given[table] = {**given[table], key: value}
    return from_mapping(given)


STEPS = NoisySteps(
    noise_multiplier=2.0, records=500, batch=50, local_steps=10, clip_norm=4.0, clip_margin=1e-3, rows_per_unit=1
)
PLAN = PrivacyPlan(mechanism=STEPS, rounds=30, copies=2)
OWN = Job(client="a", plan=PLAN, optimiser=Optimiser())


def others(plan=PLAN):
    return tuple(Job(client=name, plan=plan, optimiser=Optimiser()) for name in "bc")


def asked(own=OWN, rest=None, **changes):
    """The document of a run of a, b and c."""
    jobs = (own, *(others() if rest is None else rest))
    masks = changes.get("masks", False)
    values = {
        "run": "0" * 32,
        "jobs": jobs,
        "rule_name": "fedavg",
        "rule_fields": {},
        "model": ModelConfig(),
        "task": Task("classes", 3),
        "shape": (20,),
        "tokens": 0,
        "seed": 0,
        "arithmetic": "float32",
        "augment": "none",
        "metrics": ("accuracy",),
        "summed": masks,
        "masks": masks,
        "attempts": own.plan.attempts,
        "least": min(3, len(jobs)),
    }
    return RunDocument(**values | changes)


def forged(**changes):
    """A document that its own checks would not let through: admission does not rely on them."""
    document = asked()
    made = object.__new__(RunDocument)
    for name, value in (vars(document) | changes).items():
        if name in RunDocument.__dataclass_fields__:
            object.__setattr__(made, name, value)
    return made


def planned(**changes):
    """The document with other numbers in this owner's plan; rounds and attempts are those of all."""
    shared = {name: changes[name] for name in ("rounds", "attempts") if name in changes}
    masked = {"masks": True} if changes.get("attempts") else {}
    return asked(replace(OWN, plan=PLAN.changed(**changes)), others(PLAN.changed(**shared)), **masked)


def output(noise=2.0, clip=4.0, steps=10, records=500):
    plan = replace(PLAN, mechanism=OutputPerturbation(noise_multiplier=noise, clip_norm=clip))
    return asked(replace(OWN, plan=plan, unnoised_steps=UnnoisedSteps(records=records, batch="full", local_steps=steps)))


def without_plan(client):
    steps = UnnoisedSteps(records=500, batch=50, local_steps=1)
    return Job(client=client, plan=None, optimiser=Optimiser(), unnoised_steps=steps)


def below(value):
    return math.nextafter(value, 0)


def above(value):
    return math.nextafter(value, math.inf)


def test_a_run_at_all_limits_at_once_is_allowed():
    assert refusal(policy(), asked()) is None


MASKED = {"masks": True}
ONE_MORE = "d"
BOUNDARIES = {  # what: (the last acceptable document, the first unacceptable one, the refusal)
    "noise": (planned(noise_multiplier=2.0), planned(noise_multiplier=below(2.0)), Refusal.NOISE),
    "noise of an output": (output(noise=2.0), output(noise=below(2.0)), Refusal.NOISE),
    "clip": (planned(clip_norm=4.0), planned(clip_norm=above(4.0)), Refusal.CLIP),
    "clip of an output": (output(clip=4.0), output(clip=above(4.0)), Refusal.CLIP),
    "steps": (planned(local_steps=10), planned(local_steps=11), Refusal.STEPS),
    "steps without noise": (output(steps=10), output(steps=11), Refusal.STEPS),
    "steps that are kept": (
        asked(replace(OWN, plan=PLAN.changed(local_steps=6), kept_steps=4)),
        asked(replace(OWN, plan=PLAN.changed(local_steps=6), kept_steps=5)),
        Refusal.STEPS,
    ),
    "steps that are kept and counted": (
        asked(replace(OWN, kept_steps=5, kept_counted=True)),
        asked(replace(OWN, plan=PLAN.changed(local_steps=11), kept_steps=5, kept_counted=True)),
        Refusal.STEPS,
    ),
    "rounds": (planned(rounds=30), planned(rounds=31), Refusal.ROUNDS),
    "spare attempts": (planned(rounds=25, attempts=5), planned(rounds=25, attempts=6), Refusal.ROUNDS),
    "fewer records": (planned(records=500), planned(records=499), Refusal.RECORDS),
    "more records": (planned(records=500), planned(records=501), Refusal.RECORDS),
    "records of an output": (output(records=500), output(records=501), Refusal.RECORDS),
    "holders": (planned(copies=2), planned(copies=1), Refusal.RECORDS),
    "more holders than need be": (planned(copies=3), planned(copies=1), Refusal.RECORDS),
    "neighbours": (planned(), planned(neighbours=Neighbours.ADD_REMOVE), Refusal.RECORDS),
    "unit": (planned(), planned(unit="person"), Refusal.RECORDS),
    "model": (asked(model=ModelConfig(name="mlp", hidden=(9,))), asked(model=ModelConfig(name="linear")), Refusal.MODEL),
    "a model of the owner's": (
        asked(model=ModelConfig(name="shop.nets:net")),
        asked(model=ModelConfig(name="shop.nets:net2")),
        Refusal.MODEL,
    ),
    "layer rules": (asked(), forged(model=ModelConfig(layer_rules=("x:y",))), Refusal.MODEL),
    "parameters": (asked(shape=(1665,)), asked(shape=(1666,)), Refusal.MODEL),
    "rule": (asked(rule_name="ditto"), asked(rule_name="fedprox"), Refusal.RULE),
    "a rule of the owner's": (asked(rule_name="shop.rules:Own"), asked(rule_name="shop.rules:own"), Refusal.RULE),
    "classes": (asked(), asked(task=Task("classes", 4)), Refusal.TRAINING),
    "task": (asked(), asked(task=Task("regression", 0)), Refusal.TRAINING),
    "roster": (asked(), asked(rest=others()[:1]), Refusal.PARTICIPANTS),
    "least of a sum": (asked(**MASKED, least=3), asked(**MASKED, least=2), Refusal.PARTICIPANTS),
    "least of sums that hide nothing": (asked(least=1), asked(rest=others()[:1]), Refusal.PARTICIPANTS),
    "pinned keys": (
        asked(**MASKED),
        asked(**MASKED, rest=(*others(), replace(OWN, client=ONE_MORE))),
        Refusal.PEERS,
    ),
    "keys where nothing is masked": (
        asked(rest=(*others(), replace(OWN, client=ONE_MORE))),
        asked(**MASKED, rest=(*others(), replace(OWN, client=ONE_MORE))),
        Refusal.PEERS,
    ),
    "own name": (asked(), asked(replace(OWN, client="A")), Refusal.CLIENT),
    "a plan of one's own": (
        asked(),
        forged(jobs=(without_plan("a"), *others())),
        Refusal.NOISE,
    ),
    "a plan of everybody": (
        asked(),
        forged(jobs=(OWN, *others(), without_plan("d"))),
        Refusal.NOISE,
    ),
    "coins of a masked run": (
        asked(replace(OWN, plan=PLAN.changed(participation=0.5), participation=0.5)),
        asked(replace(OWN, plan=PLAN.changed(participation=0.5), participation=0.5), **MASKED),
        Refusal.TRAINING,
    ),
    "optimiser": (
        asked(replace(OWN, optimiser=Optimiser(name="adam"))),
        forged(jobs=(replace(OWN, optimiser=Optimiser(name="mine", own=OPTIMISERS["sgd"])), *others())),
        Refusal.TRAINING,
    ),
}


@pytest.mark.parametrize("what", BOUNDARIES)
def test_the_last_acceptable_value_is_accepted_and_the_first_unacceptable_one_refused(what):
    last, first, reason = BOUNDARIES[what]
    assert refusal(policy(), last) is None
    assert refusal(policy(), first) is reason


def test_the_parameters_of_an_mlp_are_all_counted():
    wide = asked(model=ModelConfig(name="mlp", hidden=(100, 28)))
    parameters = 21 * 100 + 101 * 28 + 29 * 3
    assert refusal(policy(limits__parameters=parameters), wide) is None
    assert refusal(policy(limits__parameters=parameters - 1), wide) is Refusal.MODEL


def test_masks_can_be_required():
    assert refusal(policy(masks__required=True), asked(**MASKED)) is None
    assert refusal(policy(masks__required=True), asked()) is Refusal.MASKS
    assert refusal(policy(masks__identity=""), asked(**MASKED)) is Refusal.PEERS
    assert refusal(policy(masks__identity=""), asked()) is None


def persons(rows=8, unit="person"):
    plan = PLAN.changed(unit=unit, rows_per_unit=rows)
    return asked(replace(OWN, plan=plan))


def test_a_budget_of_persons_takes_plans_of_persons_with_its_own_number_of_rows():
    data = {"source": "csv", "path": "a.csv", "classes": 3, "test_fraction": 0.0, "person": "who", "person_clients": 2}
    own = from_mapping(
        {
            "client": "a",
            "source": {"name": "persons of a", "records": 500, "holders": 2, "unit": "person"},
            "data": {**data, "rows_per_person": 8},
            "budget": {"epsilon": 2.0},
            "limits": {"models": ["softmax"]},
        }
    )
    assert refusal(own, persons(8)) is None
    assert refusal(own, persons(7)) is Refusal.RECORDS
    assert refusal(own, persons(9)) is Refusal.RECORDS
    assert refusal(own, persons(1, "record")) is Refusal.RECORDS


def test_a_limit_of_the_policy_moves_the_boundary():
    """The boundaries above are the policy's, and not numbers of the code."""
    assert refusal(policy(limits__least_noise=1.9), planned(noise_multiplier=1.9)) is None
    assert refusal(policy(limits__clip_norm=5.0), planned(clip_norm=5.0)) is None
    assert refusal(policy(limits__local_steps=11), planned(local_steps=11)) is None
    assert refusal(policy(limits__rounds=31), planned(rounds=31)) is None
    assert refusal(policy(source__records=501), planned(records=501)) is None
    assert refusal(policy(limits__participants=2), asked(rest=others()[:1])) is None
    assert refusal(policy(source__neighbours="add-remove"), planned(neighbours=Neighbours.ADD_REMOVE)) is None
