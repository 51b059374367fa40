"""A plan about persons: what it says, what it composes, and what its margin covers."""

import pytest
import torch

from prifedsync.accounting import Neighbours, NoisySteps, PrivacyPlan, Sampling
from prifedsync.accounting.statement import Statement, in_one_line
from prifedsync.local.net.persons import FLOOR
from prifedsync.local.net.precision import CLIP_MARGIN, clip_margin, sums_in
from prifedsync.record import plan_as_json, plan_from_json
from prifedsync.values import BadValue


def plan_of(rows=32, unit="person", neighbours=Neighbours.REPLACE, copies=1, **steps):
    steps = {"noise_multiplier": 2.0, "records": 100, "batch": 10, "local_steps": 2, "rows_per_unit": rows} | steps
    return PrivacyPlan(mechanism=NoisySteps(**steps), rounds=5, unit=unit, neighbours=neighbours, copies=copies)


def test_a_person_with_many_rows_has_the_guarantee_of_one_with_one():
    """The bound on rows enters by its margin alone."""
    said = [Statement.of(plan_of(rows)).honest for rows in (1, 32, 4096)]
    assert said[0] == said[1] == said[2] == Statement.of(plan_of(1, "record")).honest


@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_the_words_are_about_persons(neighbours):
    said = Statement.of(plan_of(neighbours=neighbours, copies=2))
    sentence = said.sentence()
    assert sentence.startswith("For any person of this client: an attacker knows all records of every other person, ")
    assert "the 2 clients that hold records of that person send" in sentence
    asked = {
        Neighbours.REPLACE: "which of two sets of records the person has there",
        Neighbours.ADD_REMOVE: "whether the person's records are in the data",
    }
    assert asked[neighbours] in sentence
    stated = said.as_json()
    assert stated["unit"] == "person"
    adjacency = {Neighbours.REPLACE: "one person replaced", Neighbours.ADD_REMOVE: "one person added or removed"}
    assert f"adjacency: {adjacency[neighbours]}" in in_one_line(stated, False)
    assert "1/persons" in Statement.of(plan_of(), delta=0.05).warnings[0]
    with pytest.raises(BadValue, match="one unit"):
        Statement.worst([said, Statement.of(plan_of(1, "record", neighbours, copies=2))])


def test_a_plan_says_what_it_is_about():
    assert plan_from_json(plan_as_json(plan_of())) == plan_of()
    older = {
        key: value for key, value in plan_as_json(plan_of(1, "record")).items() if key not in ("unit", "rows_per_unit")
    }
    assert plan_from_json(older) == plan_of(1, "record")
    assert repr(plan_of()) != repr(plan_of(1)) != repr(plan_of(1, "record"))  # secret draws are bound to it
    with pytest.raises(BadValue, match="rows_per_unit = 32 must be 1 if the unit is a record"):
        plan_of(unit="record")
    with pytest.raises(BadValue, match="unit = patient must be one of record, person"):
        plan_of(unit="patient")


def test_plans_that_leak_alike():
    full = {"batch": "full"}
    assert plan_of(**full).accounted == plan_of(**full, records=7, clip_norm=3.0, sampling=Sampling.FIXED).accounted
    assert plan_of().accounted == plan_of(clip_norm=3.0).accounted
    for changed in ({"noise_multiplier": 2.1}, {"local_steps": 3}, {"clip_margin": 1e-3}):
        assert plan_of(**full).accounted != plan_of(**full, **changed).accounted
    assert plan_of().accounted != plan_of(records=99).accounted
    assert plan_of().accounted != plan_of(sampling=Sampling.FIXED).accounted
    for changed in ({"rounds": 6}, {"participation": 0.5}, {"neighbours": Neighbours.ADD_REMOVE}, {"copies": 2}):
        assert plan_of(**full).accounted != plan_of(**full).changed(**changed).accounted


@pytest.mark.parametrize("fastest", [torch.float32, torch.float64])
def test_the_margin_grows_with_rows_and_persons(fastest):
    def margin(rows, records, terms=300):
        steps = plan_of(rows, "person", batch="full", records=records).mechanism
        arithmetic = "float32" if fastest == torch.float32 else "float64"
        assert rows == 1 or sums_in(steps, Neighbours.REPLACE, fastest) == torch.float64  # rows may cancel
        return clip_margin(steps, Neighbours.REPLACE, arithmetic, 500, fastest, terms)

    if fastest == torch.float64:
        assert margin(1, 100) == margin(8, 100) == CLIP_MARGIN
    records, rows = 50_000, 32
    both_sums = 2 * records**2 * rows * 2.0**-53 / FLOOR
    assert margin(rows, records, 0) > both_sums > CLIP_MARGIN
    assert margin(2 * rows, records, 0) > 1.5 * both_sums
    others = records * 4 * 10**6 * 2.0**-53 / FLOOR**2  # a sum of a million products may round otherwise in another row
    assert margin(rows, records, 10**6) - margin(rows, records, 0) == pytest.approx(others)
