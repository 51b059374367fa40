"""A mechanism says what it is: the rest of the package asks its members, never its class."""

import ast
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from prifedsync.accounting import (
    Neighbours,
    NoisySteps,
    OutputPerturbation,
    PrivacyPlan,
    Target,
    calibrated,
    mechanisms,
    paper,
)
from prifedsync.accounting.planning import Answers
from prifedsync.accounting.statement import Statement
from prifedsync.fdp import gaussian
from prifedsync.local import Job, Optimiser, UnnoisedSteps
from prifedsync.record import plan_as_json
from prifedsync.run.recording import _check_count
from prifedsync.sync import Account
from prifedsync.values import BadValue

SOURCE = Path(mechanisms.__file__).parents[1]
STEPS = NoisySteps(noise_multiplier=3.0, records=40, batch=8, local_steps=5, clip_norm=0.5)
OUTPUT = OutputPerturbation(noise_multiplier=3.0, clip_norm=0.5, noise="laplace")


@dataclass(frozen=True)
class OneNumber:
    """A mechanism that the package does not know: each round releases three noisy numbers, without local steps."""

    noise_multiplier: float
    clip_norm: float = 2.0

    noise = "gaussian"
    queries_per_round = 3
    records = 70
    steps = None
    output = None

    @property
    def noise_scale(self):
        return self.noise_multiplier * self.clip_norm

    def one_round(self, neighbours):
        return ((gaussian(1 / self.noise_multiplier), 3),)


def asked_for_by_class(text):
    """The names of mechanisms, or variables that hold one, in calls of isinstance and in class patterns of a match."""
    found = []
    for node in ast.walk(ast.parse(text)):
        checked = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"
        if checked or isinstance(node, ast.MatchClass):
            words = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            words |= {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
            found += sorted(words & {"NoisySteps", "OutputPerturbation", "Mechanism", "mechanism"})
    return found


def test_nobody_asks_which_class_a_mechanism_is():
    for path in SOURCE.rglob("*.py"):
        if path.name != "mechanisms.py":
            assert asked_for_by_class(path.read_text(encoding="utf-8")) == [], path
    assert asked_for_by_class("x = isinstance(plan.mechanism, NoisySteps)") == ["NoisySteps", "mechanism"]


def test_what_the_two_mechanisms_say_of_themselves():
    assert (STEPS.queries_per_round, STEPS.records, STEPS.noise, STEPS.noise_scale) == (5, 40, "gaussian", 1.5)
    assert (OUTPUT.queries_per_round, OUTPUT.records, OUTPUT.noise, OUTPUT.noise_scale) == (1, None, "laplace", 1.5)
    assert STEPS.steps is STEPS
    assert STEPS.output is None
    assert OUTPUT.output is OUTPUT
    assert OUTPUT.steps is None


def test_a_third_mechanism_is_accounted_calibrated_and_stated():
    plan = PrivacyPlan(mechanism=OneNumber(4.0), rounds=12)
    assert plan.guarantee().mu().upper == pytest.approx(6 / 4.0)
    quieter = calibrated(plan, Target("mu", 1.0))
    assert quieter.mechanism.noise_multiplier == pytest.approx(6.0, rel=2e-3)
    assert calibrated(plan, Target("mu", 1.0), "rounds").rounds == 5
    said = Statement.of(plan, delta=0.1, clients=3)
    assert said.mu_weak is None
    assert said.mu_strong is None
    assert "1/records = 0.014" in said.warnings[0]
    assert plan_as_json(plan)["mechanism"] == "OneNumber"


def test_a_third_mechanism_has_no_batch_and_no_value_in_the_paper():
    plan = PrivacyPlan(mechanism=OneNumber(4.0), rounds=12)
    found = Answers(Target("mu", 1.0))("a", 70, lambda: plan).as_json()
    assert found["batch"] is None
    assert found["noise_multiplier"] == pytest.approx(6.0, rel=2e-3)
    with pytest.raises(BadValue, match="batch only for noisy steps"):
        calibrated(plan, Target("mu", 1.0), "batch")
    with pytest.raises(BadValue, match="mechanism = OneNumber has no μ in the paper"):
        paper.mu_weak([plan])


def test_too_many_queries_are_refused_by_the_mechanisms_own_count():
    highest = mechanisms.MOST_STEPS // 3
    assert PrivacyPlan(mechanism=OneNumber(4.0), rounds=highest).rounds == highest
    with pytest.raises(BadValue, match=f"at most {highest}"):
        PrivacyPlan(mechanism=OneNumber(4.0), rounds=highest + 1)


@pytest.mark.parametrize("mechanism", [STEPS, OUTPUT, OneNumber(4.0)], ids=lambda each: type(each).__name__)
def test_a_run_is_refused_where_counts_and_mechanism_disagree(mechanism):
    own = None if mechanism.steps else UnnoisedSteps(records=40, batch=8, local_steps=5)
    plan = PrivacyPlan(mechanism=mechanism, rounds=4, neighbours=Neighbours.REPLACE)
    job = Job(client="a", plan=plan, optimiser=Optimiser(), unnoised_steps=own)
    each = mechanism.queries_per_round
    _check_count(job, Account(4, 4 * each))
    for queries in (4 * each - 1, 4 * each + 1, 0):
        with pytest.raises(RuntimeError, match="no guarantee can be stated"):
            _check_count(job, Account(4, queries))
    unprotected = replace(job, plan=None, unnoised_steps=UnnoisedSteps(records=40, batch=8, local_steps=5))
    _check_count(unprotected, Account(4, 0))
    with pytest.raises(RuntimeError):
        _check_count(unprotected, Account(4, 4))
