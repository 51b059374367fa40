"""Rules and their fields from a config and from outside the package: what is taken, and what is refused."""

from dataclasses import dataclass
from typing import Literal

import pytest
import torch

import prifedsync
from prifedsync import run as running
from prifedsync.config import load, to_toml
from prifedsync.planning import GIVEN_RULE, rule_of
from prifedsync.rules import APFL, RULES, Ditto, FedAvg, FedProx, Interpolate, PFedMe, Pulled, Rule, field
from prifedsync.values import BadValue

from ..test_run import Killed, killed_in_round

SMALL = ("data.clients=3", "rounds=2", "compare=[]", "performance.checkpoint_seconds=0", "privacy.noise_multiplier=20")


def config_of(*more):
    return load("digits", [*SMALL, *more])


def refusal(config, rule=None):
    with pytest.raises(BadValue) as refused:
        rule_of(config, rule)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@dataclass(frozen=True)
class Slow(Rule):
    """Starts near the helper, `by` so much."""

    name = "slow"
    numbers = ("mixing",)

    by: float = field(0.5, "weight of the helper", 0, 1, "(]")
    what: Literal["all", "some"] = field("all", "a choice")
    layers: tuple[int, ...] = field((1, 2), "whole numbers", 1, 9)
    plain: int = 3

    def start(self, own, helper):
        return (1 - self.by) * own + self.by * helper


# A rule's own fields


def test_a_rule_is_made_with_the_fields_of_the_config():
    assert rule_of(config_of("rule.name=pfedme", "rule.inner_steps=5")) == PFedMe(inner_steps=5)
    assert rule_of(config_of("rule.name=apfl", "rule.share=1", "rule.publish=true")) == APFL(share=1.0, publish=True)
    for name, kind in RULES.items():
        assert rule_of(config_of(f"rule.name={name}")) == kind()


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["rule.inner_steps=5"], "rule.inner_steps = 5 is not a field of rule fedavg; remove it (it has no fields"),
        (["rule.mixng=0.5"], "rule.mixng = 0.5 is not a field of rule fedavg; did you mean rule.mixing?"),
        (["rule.name=apfl", "rule.shar=1"], "rule.shar = 1 is not a field of rule apfl; did you mean rule.share?"),
        (["rule.name=apfl", "rule.x=1"], "rule.x = 1 is not a field of rule apfl; remove it (its own fields are"),
        (["rule.name=pfedme", "rule.inner_steps=0"], "rule.inner_steps = 0 must be a whole number in [1, 1e+09]"),
        (["rule.name=pfedme", "rule.inner_steps=2.5"], "rule.inner_steps = 2.5 must be a whole number"),
        (["rule.name=pfedme", "rule.outer_step=0"], "rule.outer_step = 0 must be a number in (0, 1]"),
        (["rule.name=ditto", "rule.publish=1"], "rule.publish = 1 must be true or false"),
        (["rule.name=attentive", "rule.bandwidth=wide"], 'rule.bandwidth = "wide" must be a number above 0'),
        (["rule.name=python:rule"], "rule is missing: the rule of this run was given from Python, and must be given again"),
    ],
)  # fmt: skip
def test_a_field_that_is_not_the_rules_or_not_allowed_is_refused(overrides, line):
    assert refusal(config_of(*overrides)).startswith(line)
    with pytest.raises(BadValue) as refused:
        running.prepare(config_of(*overrides))
    assert str(refused.value).startswith(line)


def test_comparisons_of_a_rule_with_fields_are_trained():
    for own in (["rule.name=pfedme", "rule.inner_steps=2"], ["rule.name=alone", "rule.publish=true"]):
        scores = running.train(config_of(*own, 'compare=["alone", "non-private"]')).record.scores
        assert {"alone", "non-private"} <= set(scores)


# From Python


def test_a_rule_from_python_with_fields_of_its_own():
    config = config_of("rule.by=0.25")
    for rule, made in (
        (Slow, Slow(by=0.25)),
        (Slow(plain=4), Slow(plain=4)),
        (PFedMe(inner_steps=2), PFedMe(inner_steps=2)),
    ):
        prepared = running.prepare(config, rule=rule)
        assert prepared.rule == made
        assert prepared.config.rule.name == GIVEN_RULE
        assert prepared.config.rule.own == vars(made)
        assert prepared.under(prepared.config.changed(**{"privacy.mechanism": "none"})).rule is prepared.rule
        assert prepared.under(prepared.config.with_rule("alone")).rule == RULES["alone"]()


def test_a_rule_from_python_is_what_is_trained():
    config = config_of("local.local_steps=2")  # with one step, clients of the built-in rule send integers for a sum
    whole, half = (running.train(config, rule=Slow(by=by)) for by in (1.0, 0.5))
    plain = running.train(config)
    assert torch.equal(whole.server.weights, plain.server.weights)
    assert not torch.equal(half.server.weights, plain.server.weights)
    assert any(warning.startswith("rule came from Python") for warning in half.record.warnings)
    assert half.record.config["rule"]["by"] == 0.5
    compared = running.train(config_of('compare=["alone", "non-private"]'), rule=Slow).record.scores
    assert {"alone", "non-private"} <= set(compared)


def test_both_engines_train_it():
    fast, slow = (
        running.train(config_of(f"performance.engine={name}", "local.local_steps=2", "data.clients=2"), rule=Slow(by=0.3))
        for name in ("vectorised", "reference")
    )
    # Another order of additions may move an entry by a step of the grid of the noise, 2.7e-5 here.
    assert torch.allclose(fast.server.weights, slow.server.weights, atol=1e-4)
    assert (
        [account.queries for account in fast.engine.accounts().values()]
        == [account.queries for account in slow.engine.accounts().values()]
        == [4, 4]
    )


def test_an_int_for_a_number_is_the_same_rule():
    made = running.prepare(config_of(), rule=Slow(by=1)).rule
    assert type(made.by) is float


def test_a_run_with_a_rule_from_python_is_resumed_with_the_same_rule(tmp_path):
    def begun(name):
        with pytest.raises(Killed):
            prifedsync.train(config_of("privacy.randomness=system"), rule=Slow(by=0.3), out=tmp_path / name,
                             watch=killed_in_round(2))  # fmt: skip
        return tmp_path / name

    folder = begun("run")
    text = (folder / "config.toml").read_text()
    assert 'name = "python:rule"' in text
    assert "by = 0.3" in text
    with pytest.raises(BadValue, match=r"rule is missing: .* must be given again"):
        prifedsync.resume(folder)
    with pytest.raises(BadValue, match=r"differs from \[rule\] in the config, which has .*0.3"):
        prifedsync.resume(folder, rule=Slow(by=0.4))
    (folder / "config.toml").write_text(to_toml(load(folder / "config.toml").changed(**{"rule.by": 0.4})))
    with pytest.raises(BadValue, match=r"differs from the run that was begun: .*rule.by = 0.4 \(was 0.3\)"):
        prifedsync.resume(folder, rule=Slow(by=0.4))
    (folder / "config.toml").write_text(text)
    assert prifedsync.resume(folder, rule=Slow).record.config["rule"]["by"] == 0.3  # a class takes the config's fields

    @dataclass(frozen=True)
    class Slow2(Slow):
        name = "slow"

        def start(self, own, helper):
            return helper

    with pytest.raises(BadValue, match=r"differs from the run that was begun: rule;"):
        prifedsync.resume(begun("again"), rule=Slow2)


# By its name

FILE = """
from dataclasses import dataclass
from prifedsync.rules import Rule, field

@dataclass(frozen=True)
class Near(Rule):
    name = "near"
    by: float = field(0.5, "weight of the helper", 0, 1)

    def start(self, own, helper):
        return (1 - self.by) * own + {factor} * self.by * helper

class Bare(Rule):
    name = "bare"

number = 3
def makes():
    return Near()
"""


def test_a_rule_in_a_file_is_trained_and_resumed_unless_it_has_changed(tmp_path):
    file = tmp_path / "near.py"
    file.write_text(FILE.format(factor=1))
    config = config_of("privacy.randomness=system", f'rule.name="{file}:Near"', "rule.by=0.3")
    for changed in (False, True):
        folder = tmp_path / f"run {changed}"
        with pytest.raises(Killed):
            prifedsync.train(config, out=folder, watch=killed_in_round(2))
        if not changed:
            assert prifedsync.resume(folder).record.config["rule"]["by"] == 0.3
            continue
        file.write_text(FILE.format(factor=2))
        with pytest.raises(BadValue, match=r"differs from the run that was begun: rule;"):
            prifedsync.resume(folder)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("Bare", "is not a frozen dataclass, so its fields are unknown; decorate it with @dataclass(frozen=True)"),
        ("number", "must be a function: there is no number to call"),
        ("makes", "is not a rule; name or pass a subclass of prifedsync.rules.Rule"),
        ("None", "must be a function: there is no None to call"),
    ],
)
def test_a_name_that_leads_to_no_rule(tmp_path, name, line):
    (tmp_path / "near.py").write_text(FILE.format(factor=1))
    assert line in refusal(config_of(f'rule.name="{tmp_path / "near.py"}:{name}"'))


def test_a_file_or_module_that_is_not_there():
    assert "cannot be found: no file nowhere.py" in refusal(config_of("rule.name=nowhere.py:Leash"))
    assert "cannot be found: no module nowhere" in refusal(config_of("rule.name=nowhere:Leash"))


# What is refused of a class


def made(**entries):
    """A rule class with these entries."""
    return dataclass(frozen=True)(type("Odd", (Rule,), {"name": "odd", "__module__": __name__, **entries}))


ODD = {
    "no rule": (dict, "is not a rule; name or pass a subclass"),
    "not decorated": (type("Bare", (Rule,), {"name": "bare"}), "is not a frozen dataclass"),
    "no name": (made(name=""), "has the name '', which is empty or belongs to another rule"),
    "a name that is taken": (made(name="fedprox"), "has the name 'fedprox', which is empty or belongs to another rule"),
    "a count of its own": (made(noisy_gradients=lambda self, steps: 0), "overrides noisy_gradients"),
    "a claim of its own": (made(needs_sum_alone=True), "overrides needs_sum_alone"),
    "a computed claim": (made(needs_sum_alone=property(lambda self: True)), "overrides needs_sum_alone"),
    "an unknown number": (made(numbers=("mixng",)), "lists 'mixng' in numbers; the numbers are mixing, strength"),
    "a shared name": (made(__annotations__={"mixing": float}, mixing=0.5), "declares the field mixing, which every rule"),
    "no default": (made(__annotations__={"by": float}), "declares the field by without a default"),
    "an unknown type": (
        made(__annotations__={"by": "Nowhere"}, by=1),
        "has a field of unknown type: name 'Nowhere' is not",
    ),
    "a default beyond its bounds": (Slow(by=2.0), "rule.by = 2.0 must be a number in (0, 1]"),
    "steps that are none": (made(steps=3), "has steps of type int"),
    "kept that is none": (made(kept=Pulled()), "has kept of type Pulled"),
    "nothing to publish": (made(publishes=True), "publishes a personal model, but trains none"),
    "one that fails": (made(steps=property(lambda self: 1 / 0)), "raised ZeroDivisionError"),
    "one that cannot be made": (made(__post_init__=lambda self: {}["x"]), "raised KeyError: 'x'"),
}


@pytest.mark.parametrize("name", ODD)
def test_a_class_that_could_not_be_counted_on(name):
    rule, line = ODD[name]
    assert line in refusal(config_of(), rule)


def test_built_in_rules_may_be_given_from_python():
    for rule in (FedAvg, FedProx(), Ditto(publish=True), Interpolate):
        assert type(rule_of(config_of(), rule)) is (rule if isinstance(rule, type) else type(rule))


@pytest.mark.parametrize("steps", [0, -1, 1.5, None])
def test_steps_that_cannot_be_counted(steps):
    with pytest.raises(
        BadValue, match=r"client client-00: rule.upload_steps = .* must be a whole number of at least 1; rule odd"
    ):
        running.prepare(config_of(), rule=made(upload_steps=lambda self, local_steps: steps))
