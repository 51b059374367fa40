"""The document of a run: exact in both directions, and nothing but `BadValue` comes out of what is wrong with one."""

import copy
import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prifedsync import data
from prifedsync.asking import document as documents
from prifedsync.asking.document import canonical, parsed, read
from prifedsync.asking.questions import VERSION, Answer, Head, Introduction
from prifedsync.config import load
from prifedsync.local import Optimiser
from prifedsync.rules import FedAvg
from prifedsync.run import prepare
from prifedsync.values import BadValue

from ..engines.settings import jobs_under

RUN = "0123456789abcdef" * 2
RUNS = {
    "default": [],
    "kept": ["rule.name=ditto"],
    "published": ["rule.name=apfl", "rule.publish=true", "rule.share=0.3"],
    "output": ["privacy.mechanism=output-gaussian", "local.local_steps=4"],
    "laplace": ["privacy.mechanism=output-laplace", "local.averaging=0.5"],
    "adam": ["local.optimiser=adam", "local.local_steps=3", "local.schedule=cosine", "participation=0.6"],
    "masks": ["privacy.masks=true", "privacy.attempts=1", "privacy.least_clients=3"],
    "fixed": ["local.sampling=fixed", "local.batch=7", "rule.name=attentive", "rule.mixing=0.3"],
    "pushed": ["rule.delivery=push", "rule.name=pfedme"],
    "one client": ['clients."client-01".noise_multiplier=7.3', 'clients."client-01".learning_rate=0.1'],
    "mlp": ["model.name=mlp", "model.hidden=[8, 4]", "model.features=none", "performance.dtype=float64"],
}


def document_of(*over):
    config = load("digits", ["data.clients=4", "compare=[]", "rounds=3", *over])
    description = data.load(config.data, config.seed).description
    prepared = prepare(config, description)
    return documents.of(
        prepared.config, description, prepared.jobs, prepared.rule, run=RUN, arithmetic=prepared.net.arithmetic,
        metrics=[metric.name for metric in prepared.metrics], sums=prepared.sums,
    )  # fmt: skip


@pytest.fixture(scope="module")
def values():
    """A document as JSON values, to be spoiled."""
    return json.loads(document_of(*RUNS["masks"]).text)


@pytest.mark.parametrize("over", RUNS.values(), ids=RUNS)
def test_there_and_back(over):
    made = document_of(*over)
    again = parsed(made.text)
    assert again == made
    assert again.jobs == made.jobs
    assert [repr(job) for job in again.jobs] == [repr(job) for job in made.jobs]
    assert again.text == made.text == canonical(made.mapping)
    assert again.digest == made.digest
    assert len(made.digest) == 32
    assert read(json.loads(made.text)) == made


def test_floats_keep_their_bits():
    made = document_of()
    odd = replace(made.jobs[0], mixing=0.1 + 2**-55, strength=5e-324, weight=1 / 3)
    again = parsed(replace(made, jobs=(odd, *made.jobs[1:])).text)
    assert (again.jobs[0].mixing, again.jobs[0].strength, again.jobs[0].weight) == (0.1 + 2**-55, 5e-324, 1 / 3)


def test_a_whole_number_in_a_field_of_numbers_has_one_text():
    made = document_of()
    one = replace(made, jobs=(replace(made.jobs[0], weight=361, strength=0), *made.jobs[1:]))
    assert one.jobs == parsed(one.text).jobs
    assert '"weight":361.0' in one.text


def test_the_digest_is_of_everything():
    made = document_of()
    others = [
        replace(made, seed=1),
        replace(made, run="f" * 32),
        replace(made, jobs=made.jobs[::-1]),
        replace(made, least=2),
    ]
    assert len({each.digest for each in [made, *others]}) == 5


def test_code_is_a_name_and_never_a_path():
    made = document_of("model.features=none")
    for field, changed in [("model", lambda it: replace(made.model, name=it)), ("rule_name", lambda it: it)]:
        assert parsed(replace(made, **{field: changed("package.module:Thing")}).text)
        for wrong in ["../x.py:f", "x.py:f", "/tmp/x:f", "a b:f", "x", "x:", ":f", "a:b:c", "python:model", "x:f\n"]:
            with pytest.raises(BadValue, match="is not a name that an owner could know"):
                replace(made, **{field: changed(wrong)})


def test_no_code_in_a_job():
    with pytest.raises(BadValue, match="must be one of"):
        Optimiser(name="module:Adam")
    jobs = jobs_under(FedAvg(), rounds=3)
    unplanned = replace(
        jobs[0], plan=None, unnoised_steps=document_of("privacy.mechanism=output-gaussian").jobs[0].unnoised_steps
    )
    with pytest.raises(BadValue, match="has no plan"):
        replace(document_of(), jobs=(unplanned,))


def spoiled(values, path, value):
    changed = copy.deepcopy(values)
    *way, last = path
    inner = changed
    for key in way:
        inner = inner[key]
    if value is DELETED:
        del inner[last]
    else:
        inner[last] = value
    return changed


DELETED = object()
PLAN = ("clients", 0, "plan")
WRONG = {
    "another version": (("version",), VERSION + 1),
    "no version": (("version",), DELETED),
    "a version that is true": (("version",), True),
    "no seed": (("seed",), DELETED),
    "an unknown key": (("path",), "/etc/passwd"),
    "an unknown key of a job": (("clients", 0, "own"), None),
    "an optimiser of one's own": (("clients", 0, "optimiser", "own"), None),
    "a run that is a path": (("run",), "../" * 10 + "ab"),
    "a run in capitals": (("run",), "A" * 32),
    "a negative seed": (("seed",), -1),
    "a huge seed": (("seed",), 2**63),
    "NaN": (("clients", 0, "weight"), float("nan")),
    "infinity": (("clients", 0, "mixing"), float("inf")),
    "a huge number": (("clients", 0, "weight"), 10**400),
    "a whole number for a float": (("clients", 0, "weight"), 1),
    "a truth value for a number": (("attempts",), True),
    "a number for a truth value": (("masks",), 1),
    "a text for a number": ((*PLAN, "rounds"), "3"),
    "a float for a whole number": ((*PLAN, "rounds"), 3.0),
    "no noise": ((*PLAN, "mechanism", "noise_multiplier"), 0.0),
    "negative noise": ((*PLAN, "mechanism", "noise_multiplier"), -4.0),
    "a huge clip": ((*PLAN, "mechanism", "clip_norm"), 1e30),
    "no rounds": ((*PLAN, "rounds"), 0),
    "other rounds": ((*PLAN, "rounds"), 4),
    "other attempts": ((*PLAN, "attempts"), 0),
    "another mechanism": ((*PLAN, "mechanism", "kind"), "none"),
    "no mechanism": ((*PLAN, "mechanism"), None),
    "a list as a mechanism's kind": ((*PLAN, "mechanism", "kind"), ["noisy-steps"]),
    "no plan": (PLAN, None),
    "another coin": ((*PLAN, "participation"), 0.5),
    "a schedule that divides by zero": (("clients", 0, "optimiser", "schedule", "rounds"), 0),
    "one of three betas": (("clients", 0, "optimiser", "betas"), [0.9, 0.9, 0.9]),
    "an unknown optimiser": (("clients", 0, "optimiser", "name"), "os:system"),
    "a name with a slash": (("clients", 0, "client"), "a/b"),
    "two clients of one name": (("clients", 1, "client"), "client-00"),
    "no clients": (("clients",), []),
    "a table of clients": (("clients",), {"0": {}}),
    "an unknown rule": (("rule", "name"), "fedsgd"),
    "an unknown field of a rule": (("rule", "fields"), {"publish": True}),
    "a field of a rule that is a table": (("rule", "fields"), {"a": {}}),
    "a model in a file": (("model", "name"), "/tmp/x.py:net"),
    "layer rules": (("model", "layer_rules"), ["os:system"]),
    "a thousand layers": (("model", "hidden"), [4] * 1000),
    "a layer of no width": (("model", "hidden"), [0]),
    "a huge record": (("shape",), [10**6, 10**6]),
    "a record without axes": (("shape",), []),
    "an axis of length 0": (("shape",), [0]),
    "another arithmetic": (("arithmetic",), "tf32"),
    "another augmentation": (("augment",), "os:system"),
    "a metric that is code": (("metrics",), ["os:system"]),
    "too many classes": (("task", "classes"), 10**9),
    "one class": (("task", "classes"), 1),
    "masks without sums": (("summed",), False),
    "attempts without masks": (("masks",), False),
    "more than all in a sum": (("least",), 5),
    "one in a masked sum": (("least",), 1),
    "a text that cannot be printed": (("augment",), "\ud800"),
    "a long text": (("augment",), "x" * 10**6),
}  # fmt: skip


@pytest.mark.parametrize(("path", "value"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_refused(values, path, value):
    with pytest.raises(BadValue):
        read(spoiled(values, path, value))


def test_the_values_are_right_before_they_are_spoiled(values):
    assert read(values).masks


def test_another_version_can_be_told(values):
    with pytest.raises(BadValue) as refused:
        read(spoiled(values, ("version",), VERSION + 1))
    assert refused.value.field == "document.version"


def test_sizes(values):
    deep = spoiled(values, ("rule", "fields"), {})
    inner = deep["rule"]["fields"]
    for _ in range(100_000):
        inner["a"] = {}
        inner = inner["a"]
    with pytest.raises(BadValue, match="nested"):
        read(deep)
    with pytest.raises(BadValue, match=r"too large|list of 1 to"):
        read(spoiled(values, ("clients",), [values["clients"][0]] * 10**6))
    with pytest.raises(BadValue, match="at most"):
        parsed(" " * (documents.MOST_BYTES + 1))
    for text in ["[" * 10**6, '{"a":1', "\x00", '{"version":1,"version":1}', '{"version":NaN}', "1", "null", '"x"']:
        with pytest.raises(BadValue):
            parsed(text)


PATHS = st.sampled_from(
    [path for path, value in WRONG.values() if value is not DELETED and path[-1] not in ("own", "path", "layer_rules")]
)
NUMBERS = st.one_of(st.integers(), st.floats(), st.booleans(), st.none(), st.text(max_size=8))
VALUES = st.recursive(
    NUMBERS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=PATHS, value=VALUES)
def test_nothing_else_is_raised(values, path, value):
    """A document that is accepted has the very text that was sent."""
    sent = spoiled(values, path, value)
    try:
        accepted = read(sent)
    except BadValue:
        return
    assert accepted.text == canonical(sent)


@settings(max_examples=200, deadline=None)
@given(value=VALUES)
def test_nothing_else_is_raised_by_anything_at_all(value):
    with pytest.raises(BadValue):
        read(value)


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=40))
def test_nothing_else_is_raised_by_any_text(text):
    with pytest.raises(BadValue):
        parsed(text)


def test_the_digest_of_a_question_is_of_all_that_its_answer_depends_on():
    """A message that was masked in another session would not cancel: it is the answer to another question."""
    one = Answer("a", RUN, 3, 1, b"helper", ("a", "b"), b"session")
    changes = [
        {"run": "f" * 32}, {"round": 4}, {"attempt": 2}, {"helper": b"other"}, {"clients": ("a", "c")}, {"session": b"new"},
    ]  # fmt: skip
    assert len({each.digest for each in [one, *(replace(one, **change) for change in changes)]}) == 7
    echoed = replace(one, head=Head(3, b"hash"), introductions=(Introduction("a", b"", b""),))
    assert echoed.digest == one.digest
