"""The config file: layers, refusals with the nearest name, and text that reads back as the same config."""

import math
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, FrozenInstanceError, fields, is_dataclass
from pathlib import Path
from typing import get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prifedsync import config as room
from prifedsync.config import (
    EMBEDDED,
    PRESETS,
    ClientConfig,
    Config,
    DataConfig,
    RuleConfig,
    as_mapping,
    dotted,
    from_mapping,
    load,
    preset_names,
    to_toml,
)
from prifedsync.config.declaring import declared
from prifedsync.config.layering import OF_EVERY_RULE
from prifedsync.values import BadValue

SECTIONS = [thing for thing in vars(room).values() if isinstance(thing, type) and is_dataclass(thing)]
TABLES = {"data", "model", "local", "rule", "privacy", "performance"}
ODD = ["hospital-a", "St. Mary's", 'say "hi"', "tab\tnew\nline\\", "Zürich 🏥", "a=b", "", "*", "\x00\x1f\x7f", "#", "[x]"]


def said(*arguments, **more):
    with pytest.raises(BadValue) as refusal:
        load(*arguments, **more)
    line = str(refusal.value)
    assert "\n" not in line
    return line


def again(config, documented=False):
    return from_mapping(tomllib.loads(to_toml(config, documented)))


# What is there


@pytest.mark.parametrize("section", SECTIONS, ids=lambda s: s.__name__)
def test_every_field_has_a_default_and_one_line_of_documentation(section):
    assert section.__doc__
    for f in fields(section):
        assert f.kw_only
        assert f.default is not MISSING or f.default_factory is not MISSING
        assert declared(f).doc
        assert "\n" not in declared(f).doc


@pytest.mark.parametrize("section", SECTIONS, ids=lambda s: s.__name__)
def test_defaults_keep_their_own_rules(section):
    built = section() if section is not Config else load(None)
    assert isinstance(built, section)
    if section not in (Config, ClientConfig, room.TargetConfig, room.CoalitionConfig):
        name = section.__name__.removesuffix("Config").lower()
        noise = {"privacy": {"noise_multiplier": 1.0}}
        alone = section() if name != "privacy" else section(noise_multiplier=1.0)
        within = getattr(from_mapping(noise), name)
        differ = {each for each, value in vars(within).items() if value != getattr(alone, each)}
        assert differ == {each.rpartition(".")[2] for each in room.AUTOMATIC if each.startswith(f"{name}.")}
        assert all(getattr(alone, each) is None for each in differ)  # what a default depends on is the source of the data


def test_the_presets_are_known():
    assert set(preset_names()) >= {"digits", "breast-cancer", "digits-paper", "mnist-paper", "cifar-paper"}


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_says_what_it_is_for_and_loads_complete(name):
    text = (PRESETS / f"{name}.toml").read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert "xpect" in text
    config = load(name)
    written = tomllib.loads(to_toml(config))
    for section, hint in get_type_hints(Config).items():
        if is_dataclass(hint):
            always = {f.name for f in fields(hint) if f.default is not None and not declared(f).is_open}
            missing = always - set(written[section])
            assert not missing
    assert config.privacy.randomness == "seeded"  # presets are on public data
    assert config.compare == (("alone", "alone-private", "non-private") if config.data.source in EMBEDDED else ())
    assert again(config) == config


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_keeps_the_order_of_the_fields(name):
    text = (PRESETS / f"{name}.toml").read_text(encoding="utf-8")

    def in_order(values, section):
        order = [f.name for f in fields(section)]
        assert list(values) == sorted(values, key=order.index)
        for key, value in values.items():
            hint = get_type_hints(section)[key]
            if is_dataclass(hint):
                in_order(value, hint)

    in_order(tomllib.loads(text), Config)


@pytest.mark.parametrize("name", preset_names())
def test_the_papers_presets_weigh_clients_alike(name):
    assert load(name).merge == ("equal" if name.endswith("-paper") else "records")


def test_nothing_is_the_default_preset():
    assert load(None) == load("digits")
    assert load(None).privacy.target.mu == 1.0


def test_a_config_is_frozen_and_valid_however_it_is_made():
    config = load(None)
    with pytest.raises(FrozenInstanceError):
        config.rounds = 3
    with pytest.raises(BadValue, match=r"^data.clients = 0 must be a whole number of at least 1"):
        Config(data=DataConfig(clients=0))
    whole = Config(participation=1, privacy=room.PrivacyConfig(noise_multiplier=2))
    assert isinstance(whole.participation, float)
    assert whole.privacy.noise_multiplier == 2.0


def test_one_must_choose_the_noise():
    for make in (Config, lambda: from_mapping({})):
        with pytest.raises(BadValue, match=r"^\[privacy\] sets no noise; give exactly one of noise_multiplier, target"):
            make()


# Round trips


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.floats(0, 1, exclude_min=True),
    st.floats(0, exclude_min=True, allow_infinity=False, allow_nan=False),
    st.one_of(st.just("full"), st.integers(1, 2**63 - 1)),
    st.lists(st.text(), max_size=3),
    st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False), max_size=3),
    st.dictionaries(st.text(), st.integers(1, 10**12), max_size=3),
)
def test_what_is_written_reads_back_as_the_same(participation, rate, batch, columns, missing, clients):
    config = load("breast-cancer").changed(
        **{
            "participation": participation,
            "local.learning_rate": rate,
            "local.batch": batch,
            "data.columns": columns,
            "data.missing": missing,
            "clients": {name: {"records": records, "batch": batch} for name, records in clients.items()},
        }
    )
    assert config.participation == participation
    assert again(config) == again(config, documented=True) == config == from_mapping(as_mapping(config))
    assert tomllib.loads(to_toml(config)) == as_mapping(config)


@pytest.mark.parametrize("name", ODD)
def test_odd_names_and_texts_survive(name):
    config = load(None).changed(
        clients={name: {"clip_norm": 0.5}}, **{"data.label": name, "data.categories": {name: [name]}}
    )
    assert config.clients[name] == ClientConfig(clip_norm=0.5)
    for documented in (False, True):
        assert again(config, documented) == config


def test_fields_of_a_rule_are_kept_as_they_are():
    config = load(None, ["rule.name=mine.rules:Leash", "rule.slack=2.5", "rule.by=layer", "rule.at=[1, [true, 'x']]"])
    assert config.rule.own == {"slack": 2.5, "by": "layer", "at": (1, (True, "x"))}
    assert again(config) == again(config, documented=True) == config == from_mapping(as_mapping(config))
    assert tomllib.loads(to_toml(config))["rule"]["at"] == as_mapping(config)["rule"]["at"] == [1, [True, "x"]]
    assert dotted(config)["rule.slack"] == 2.5
    assert config.changed(**dotted(config)) == config
    assert config.changed(**{"rule.slack": None}).rule.own == {"by": "layer", "at": (1, (True, "x"))}
    from_python = RuleConfig(name="mine.rules:Leash", own={"slack": 2.5, "by": "layer", "at": [1, [True, "x"]]})
    assert load(None).changed(rule=as_mapping(from_python)) == config
    assert Config(rule=from_python, privacy=config.privacy).rule == config.rule


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.dictionaries(
    st.text().filter(lambda key: key not in OF_EVERY_RULE),
    st.recursive(
        st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3), max_leaves=5,
    ),
    max_size=3,
))  # fmt: skip
def test_whatever_a_rule_calls_its_fields_reads_back(own):
    config = load(None).with_rule("mine:Rule", **own)
    assert again(config) == again(config, documented=True) == config == from_mapping(as_mapping(config))
    assert config.changed(**dotted(config)) == config


def test_a_client_without_overrides_is_not_lost():
    config = load(None).changed(clients={"a": {}})
    assert again(config).clients == {"a": ClientConfig()}


def test_the_documented_text_parses_and_names_every_field():
    text = to_toml(load(None), documented=True)
    values = tomllib.loads(text)
    assert set(values) >= TABLES
    assert "target" in values["privacy"]
    lines = text.splitlines()
    for section in SECTIONS:
        for f in fields(section):
            hint = get_type_hints(section)[f.name]
            if is_dataclass(hint) or hint == Mapping[str, ClientConfig]:
                continue
            if declared(f).is_open:
                assert f"# {declared(f).doc}" in lines
                continue
            (where, *_) = [n for n, line in enumerate(lines) if line.removeprefix("# ").startswith(f"{f.name} =")]
            assert lines[where - 1].startswith("# ")
            assert any(line.startswith(f"# {declared(f).doc} — ") for line in lines)
    assert '— "poisson" or "fixed"' in text
    assert "# noise_multiplier =" in lines
    assert '# [clients."name"]' in lines


# Layers


def test_a_file_may_build_on_a_preset(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('\ufeffpreset = "digits-paper"\nrounds = 3\n[clients."St. Mary"]\nbatch = 4\n', encoding="utf-8")
    config = load(file, ["clients.'St. Mary'.local_steps=2"])
    assert (config.rounds, config.rule.name) == (3, "interpolate")
    assert config.clients == {"St. Mary": ClientConfig(batch=4, local_steps=2)}
    assert load(str(file)).privacy.noise_multiplier == 2.0


def test_the_later_decision_about_noise_replaces_the_earlier(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('preset = "digits"\n[privacy]\nnoise_multiplier = 3\n')
    assert load(file).privacy.target.mu is None
    file_then_target = load(file, ["privacy.target.advantage=0.1"]).privacy
    assert file_then_target.noise_multiplier is None
    assert file_then_target.target == room.TargetConfig(advantage=0.1)
    assert load("digits-paper", ["privacy.target.mu=1"]).privacy.target.mu == 1.0
    assert load(None, ["privacy.target.epsilon=2"]).privacy.target == room.TargetConfig(epsilon=2.0)
    assert load(None, ["privacy.clip_norm=2"]).privacy.target.mu == 1.0
    assert load(None).changed(**{"privacy.noise_multiplier": 4}).privacy.target == room.TargetConfig()
    both = said(None, ["privacy.noise_multiplier=1", "privacy.target.mu=1"])
    assert both.startswith("[privacy] sets the noise more than once, by noise_multiplier and target.mu; ")


COALITION = ["privacy.masks=true", "privacy.target.coalition.mu=0.2", "privacy.target.coalition.colluders=5"]


def test_a_coalition_stands_beside_the_target_below_and_replaces_noise(tmp_path):
    beside = load("digits", COALITION).privacy.target
    assert (beside.mu, beside.coalition) == (1.0, room.CoalitionConfig(mu=0.2, colluders=5))
    alone = load("digits-paper", COALITION).privacy
    assert (alone.noise_multiplier, alone.target) == (None, room.TargetConfig(coalition=beside.coalition))
    unset = load("digits-paper").changed(**{"privacy.target.coalition.mu": None}).privacy
    assert (unset.noise_multiplier, unset.target) == (2.0, room.TargetConfig())


def test_what_lies_over_two_targets_replaces_what_it_contradicts(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'preset = "digits"\n[privacy]\nmasks = true\ntarget.epsilon = 3\ntarget.coalition = {mu = 0.2, colluders = 5}\n'
    )
    both = room.CoalitionConfig(mu=0.2, colluders=5)
    assert load(file).privacy.target == room.TargetConfig(epsilon=3.0, coalition=both)
    fewer = room.TargetConfig(epsilon=3.0, coalition=room.CoalitionConfig(mu=0.2, colluders=4))
    assert load(file, ["privacy.target.coalition.colluders=4"]).privacy.target == fewer
    assert load(file).changed(**{"privacy.target.coalition.colluders": 4}).privacy.target == fewer
    assert load(file, ["privacy.target.advantage=0.1"]).privacy.target == room.TargetConfig(advantage=0.1, coalition=both)
    assert load(file, ["privacy.noise_multiplier=4"]).privacy.target == room.TargetConfig()
    assert load(file, ["privacy.mechanism=none"]).privacy.target == room.TargetConfig()


def test_half_a_coalition_says_which_field_is_missing():
    assert said("digits", COALITION[:2]) == (
        "privacy.target.coalition.colluders is missing: a target against a coalition needs both mu and colluders; "
        "give it, or remove privacy.target.coalition.mu"
    )
    twice = said("digits-paper", ["privacy.noise_multiplier=1", *COALITION])
    assert "by noise_multiplier and target.coalition; give exactly one of" in twice
    assert twice.endswith("target.coalition may stand alone or beside one of these targets")


def test_no_mechanism_has_no_noise_and_no_target():
    assert load(None, ["privacy.mechanism=none"]).privacy.target == room.TargetConfig()
    own = load(None, ["clients.a.noise_multiplier=2"])
    assert own.changed(**{"privacy.mechanism": "none"}).clients == {"a": ClientConfig()}
    for override in ("privacy.target.mu=1", "privacy.noise_multiplier=1", "clients.a.noise_multiplier=1"):
        assert said(None, ["privacy.mechanism=none", override]).startswith(
            override.replace("=1", " = 1.0 cannot be combined")
        )


def test_another_rule_drops_the_fields_of_the_one_before(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('preset = "digits"\n[rule]\nname = "pfedme"\nstrength = 0.5\ninner_steps = 5\n')
    assert load(file).rule.own == {"inner_steps": 5}
    assert load(file, ["rule.outer_step=0.1"]).rule.own == {"inner_steps": 5, "outer_step": 0.1}
    assert load(file, ["rule.name=pfedme"]).rule.own == {"inner_steps": 5}
    other = load(file, ["rule.name=ditto", "rule.publish=true"]).rule
    assert other == RuleConfig(name="ditto", strength=0.5, own={"publish": True})
    assert load(file).changed(**{"rule.name": "fedavg"}).rule == RuleConfig(strength=0.5)
    assert load(file).with_rule("alone").rule == RuleConfig(name="alone", strength=0.5)
    assert load(file).with_rule("pfedme", outer_step=0.1).rule.own == {"outer_step": 0.1}
    below = tmp_path / "below.toml"
    below.write_text("[rule]\nslack = 1\n[privacy]\nnoise_multiplier = 1\n")  # of the default rule
    assert load(below, ["rule.name=fedavg"]).rule.own == {"slack": 1}
    assert load(below, ["rule.name=ditto"]).rule.own == {}


def test_what_is_compared_depends_on_whose_data_it_is():
    csv = ["data.source=csv"]
    assert load(None, csv, data="records.csv").compare == ()
    assert load(None, [*csv, "compare=alone"], data=Path("records.csv")).compare == ("alone",)
    assert load(None, ["data.source=mine.loading:digits"]).compare == ()
    assert load("breast-cancer").compare == ("alone", "alone-private", "non-private")


def test_data_and_device_are_laid_over_all():
    config = load(None, ["data.source=npz", "performance.device=cuda"], data="folder", device="cpu")
    assert (config.data.path, config.performance.device) == ("folder", "cpu")


# Overrides


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("rounds=2", "rounds", 2),
        (" rounds = 2 ", "rounds", 2),
        ("rule.name=interpolate", "rule.name", "interpolate"),
        ('rule.name="interpolate"', "rule.name", "interpolate"),
        ("model.dropout=false", "model.dropout", False),
        ("local.batch=8", "local.batch", 8),
        ("local.batch=full", "local.batch", "full"),
        ("privacy.delta=1e-6", "privacy.delta", 1e-6),
        ("compare=[]", "compare", ()),
        ("compare=", "compare", ()),
        ("compare=alone", "compare", ("alone",)),
        ("compare=alone,non-private", "compare", ("alone", "non-private")),
        ('compare=["alone"]', "compare", ("alone",)),
        ("model.hidden=64, 32", "model.hidden", (64, 32)),
        ("local.optimiser=mine.steps:lion", "local.optimiser", "mine.steps:lion"),
        ("metrics=/srv/my scores.py:kappa", "metrics", ("/srv/my scores.py:kappa",)),
        ("clients.a.optimiser=mine:lion", "clients", {"a": ClientConfig(optimiser="mine:lion")}),
        ("rule.inner_steps=5", "rule.own", {"inner_steps": 5}),
        ("rule.publish=true", "rule.own", {"publish": True}),
        ("rule.by=layer", "rule.own", {"by": "layer"}),
        ("local.betas=0.8,0.9", "local.betas", (0.8, 0.9)),
        ("data.label=1", "data.label", "1"),
        ("data.label_values=0,1", "data.label_values", (0, 1)),
        ("data.label_values=no,yes", "data.label_values", ("no", "yes")),
        ("data.categories.sex=0,1,unknown", "data.categories", {"sex": (0, 1, "unknown")}),
        ("data.label=", "data.label", ""),
        ("model.name=my.nets:small", "model.name", "my.nets:small"),
        ("model.name=/srv/my nets.py:small", "model.name", "/srv/my nets.py:small"),
        ("data.ranges.age=[0,120]", "data.ranges", {"age": (0.0, 120.0)}),
        ('data.ranges."*"=[0,1]', "data.ranges", {"*": (0.0, 1.0)}),
        ("data.ranges.*=0,1", "data.ranges", {"*": (0.0, 1.0)}),
        ('data.missing={age = -1, "b.c" = 2}', "data.missing", {"age": -1.0, "b.c": 2.0}),
        ("data.categories.sex=f,m", "data.categories", {"sex": ("f", "m")}),
        ('clients."hospital-a".batch=8', "clients", {"hospital-a": ClientConfig(batch=8)}),
        ("clients.hospital-a.batch=8", "clients", {"hospital-a": ClientConfig(batch=8)}),
        ('clients."a.b=\\"c\\"".batch=full', "clients", {'a.b="c"': ClientConfig(batch="full")}),
        ("clients.'a \\ b'.optimiser=adam", "clients", {"a \\ b": ClientConfig(optimiser="adam")}),
        ("clients.St Mary.mixing=1", "clients", {"St Mary": ClientConfig(mixing=1.0)}),
    ],
)
def test_overrides_are_toml_with_bare_words_and_commas(text, name, value):
    config = load(None, [text])
    for part in name.split("."):
        config = getattr(config, part)
    assert config == value
    assert type(config) is type(value)


@pytest.mark.parametrize("text", ["", "rounds", "=2", ".rounds=2", "a..b=2", "rounds\n", 'clients."a.batch=3', '"\\q"=3'])
def test_a_malformed_override_is_refused(text):
    assert said(None, [text]).startswith(("override = ", "key = "))


def test_a_broken_list_is_not_taken_for_a_word():
    assert said(None, ["compare=[alone"]).startswith('compare = "[alone" is not a TOML value')
    assert said(None, ["rounds=2\nseed=3"]).startswith('rounds = "2\\nseed=3" must be a whole number')


def test_changed_gives_a_new_checked_config():
    config = load(None)
    other = config.changed(rounds=2, **{"local.batch": 8, 'clients."a.b".batch': "full"})
    assert (other.rounds, other.local.batch, other.clients["a.b"].batch) == (2, 8, "full")
    assert (config.rounds, config.local.batch, config.clients) == (30, "full", {})
    assert other.changed(**{'clients."a.b".batch': None}).clients == {"a.b": ClientConfig()}
    with pytest.raises(BadValue, match=r"did you mean local\.batch"):
        config.changed(**{"local.bach": 8})


# Refusals


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("privacy.clip_nrm=1", "privacy.clip_norm"),
        ("clip_norm=1", "privacy.clip_norm"),
        ("local.clip_norm=1", "privacy.clip_norm"),
        ("round=1", "rounds"),
        ("privcy.clip_norm=1", "privacy"),
        ("privacy.targt.mu=1", "privacy.target"),
        ("privacy.target.epsilom=1", "privacy.target.epsilon"),
        ("local.optimizer=adam", "local.optimiser"),
        ("clients.a.bach=1", "clients.a.batch"),
        ('clients."a b".learn_rate=1', 'clients."a b".learning_rate'),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_name(text, nearest):
    line = said(None, [text])
    assert " is not a field; " in line
    assert line.endswith(f"did you mean {nearest}?")


def test_an_unknown_key_like_no_other_says_where_the_names_are():
    assert said(None, ["qqqq=1"]) == "qqqq = 1 is not a field; prifedsync train --show-config lists the fields"


def test_an_unknown_preset_is_refused_with_the_nearest():
    line = said("digit")
    assert "did you mean digits?" in line
    assert all(name in line for name in preset_names())


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("rounds=0", "rounds = 0 must be a whole number in [1, 1e+09]"),
        ("rounds=2.5", "rounds = 2.5 must be a whole number"),
        ("rounds=true", "rounds = true must be a whole number"),
        ("rounds=ten", 'rounds = "ten" must be a whole number'),
        ("participation=0", "participation = 0 must be a number in (0, 1]"),
        ("participation=nan", "participation = nan must be"),
        ("server_rate=1.01", "server_rate = 1.01 must be"),
        ("averaging=-0.1", "averaging = -0.1 must be"),
        ("local.learning_rate=inf", "local.learning_rate = inf must be a number above 0"),
        ("local.learning_rate=1" + "0" * 400, "local.learning_rate = 1"),
        ("local.betas=0.9", "local.betas = [0.9] must be a pair, each item a number in [0, 1)"),
        ("local.betas=0.9,1", "local.betas = 1 must be a number in [0, 1)"),
        ("local.batch=0", 'local.batch = 0 must be a whole number of at least 1, "full" or "auto"'),
        (
            "local.batch=ful",
            'local.batch = "ful" must be a whole number of at least 1, "full" or "auto"; did you mean full?',
        ),
        ("local.sampling=poison", 'local.sampling = "poison" must be "poisson" or "fixed"; did you mean poisson?'),
        ("local.optimiser=adma", 'local.optimiser = "adma" must be "sgd", '),
        ("clients.a.optimiser=sgdd", 'clients.a.optimiser = "sgdd" must be "sgd", '),
        (
            "metrics=acuracy",
            'metrics = "acuracy" must be "auto", "accuracy", "auc", "f1", "rmse" or "module:function"; did',
        ),
        ("rule.inner_steps={a = 1}", "rule.inner_steps = {a = 1} must be a finite number, text, true or false, or a list"),
        ("rule.outer_step=nan", "rule.outer_step = nan must be a finite number"),
        ("rule.day=1979-05-27", "rule.day = 1979-05-27 must be a finite number"),
        ("local.optimiser=3", 'local.optimiser = 3 must be "sgd", '),
        ("model.hidden=0", "model.hidden = 0 must be a whole number in [1, 1e+06]"),
        ("model.dropout=1", "model.dropout = 1 must be true or false"),
        ("model.name=sofmax", 'model.name = "sofmax" must be "softmax", '),
        ("data.source=mnst:", 'data.source = "mnst:" must be "digits", '),
        ("data.path=x.csv", 'data.path = "x.csv" is not read by data.source = digits'),
        ("data.source=csv", 'data.path = "" must be set for data.source = csv'),
        ("data.ranges.age=3", "data.ranges.age = [3] must be a pair"),
        ("data.ranges.age=3,3", "data.ranges.age = [3.0, 3.0] must be a lower end and a higher end"),
        ("data.ranges=3", "data.ranges = 3 must be a table"),
        ("data.label_values=[true, 1]", "data.label_values = true must be a whole number, a number or text"),
        ("data.missing.age=nan", "data.missing.age = nan must be a whole number, a number or text"),
        ("metrics=auc,rmse", "metrics = rmse does not fit data.task = classes"),
        ("metrics=[]", "metrics = [] must name at least one metric"),
        ("metric=auc", 'metric = "auc" is not a field; it is called metrics, and is a list: metrics = ["auc", "accuracy"]'),
        ("compare=alone,together", 'compare = "together" must be "alone", "alone-private" or "non-private"'),
        ("local=3", "local = 3 must be a table"),
        ("privacy.target=1", "privacy.target = 1 must be a table"),
        ("privacy.target.advantage=1", "privacy.target.advantage = 1 must be a number in (0, 1)"),
        (
            "privacy.noise_multiplier=0",
            "privacy.noise_multiplier = 0 must be a number in [0.05, 1e+06]; to train without noise, set",
        ),
        ("rule.mixing=1.5", "rule.mixing = 1.5 must be a number in [0, 1]"),
        ("clients.a.mixing=2", "clients.a.mixing = 2 must be a number in [0, 1]"),
        ("clients.a=2", "clients.a = 2 must be a table"),
        ("performance.device=tpu", 'performance.device = "tpu" must be "auto", "cpu" or "cuda"'),
    ],
)
def test_bad_values_are_refused_in_one_line(text, start):
    assert said(None, [text]).startswith(start)


def test_fixed_batches_do_not_go_with_add_remove():
    for name in ("local", "clients.a"):
        line = said(None, [f"{name}.sampling=fixed", "privacy.neighbours=add-remove"])
        assert line.startswith(f"{name}.sampling = fixed cannot be combined with privacy.neighbours = add-remove")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (b"rounds = 2\nseed 3\n", "line 2"),
        (b"rounds = \xff\n", "is not TOML"),
        (b"rounds = " + b"1" * 5000, "is not TOML"),
        (b'preset = "digit"\n', "is not a preset"),
        (b"preset = 3\n", "is not a preset"),
        (b"round = 2\n", "did you mean rounds?"),
        (b"rounds = 1979-05-27\n", "must be a whole number"),
        (b"[privacy]\nnoise_multiplier = 1\ntarget.mu = 1\n", "more than once"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path, text, rule):
    file = tmp_path / "bad.toml"
    file.write_bytes(text)
    line = said(file)
    assert rule in line
    assert "is not TOML" not in line or str(file) in line


def test_a_file_that_is_not_there_is_refused(tmp_path):
    assert "No such file" in said(tmp_path / "none.toml")
    (tmp_path / "folder.toml").mkdir()
    assert "Is a directory" in said(tmp_path / "folder.toml")


def test_numbers_that_are_no_numbers_are_refused_from_python_too():
    for value in (math.nan, "1", [1.0], True):
        with pytest.raises(BadValue, match=r"^privacy.clip_norm = .* must be a number in "):
            load(None).changed(**{"privacy.clip_norm": value})


OWN = """
[data]
source = "csv"
path = "tables"
classes = 2
"""


@pytest.mark.parametrize(("text", "randomness"), [
    ('preset = "digits"\n' + OWN, "system"),  # a preset's seed is for its public data
    ('preset = "digits"\n' + OWN + '[privacy]\nrandomness = "seeded"\n', "seeded"),  # asked for
    (OWN + '[privacy]\nnoise_multiplier = 2.0\nrandomness = "seeded"\n', "seeded"),
    (OWN + "[privacy]\nnoise_multiplier = 2.0\n", "system"),
])  # fmt: skip
def test_a_seed_under_your_own_data_must_be_your_own(tmp_path, text, randomness):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert load(path).privacy.randomness == randomness
    assert load(path, ["rounds=2"]).privacy.randomness == randomness
    again = tmp_path / "again.toml"
    again.write_text(to_toml(load(path)))  # as a run folder keeps it, and resumes it
    assert load(again) == load(path)


def test_a_preset_by_its_name_under_your_own_data_is_not_seeded():
    assert load("digits", ["data.source=csv", "data.path=tables", "data.classes=2"]).privacy.randomness == "system"


def test_a_metric_of_ones_own_fits_any_task():
    for task in ("classes", "regression"):
        assert load(None, ["metrics=mine:score", f"data.task={task}"]).metrics == ("mine:score",)


def test_the_config_never_loads_torch():
    script = "import sys, prifedsync.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_what_a_client_may_not_set_is_not_offered_to_it():
    text = to_toml(load("digits", ["clients.client-00.batch=5"]), documented=True)
    shared, own = text.split("[clients", 1)
    assert "auto, the default" in shared
    assert "auto, the default" not in own
    assert "# expected batch size (B), or all records — " in own
    docs = {each.name: declared(each).doc for each in fields(ClientConfig)}
    assert not [name for name, doc in docs.items() if "auto" in doc]
    assert docs["clip_norm"] == "clipping norm (C): largest norm of a per-sample gradient, or of a round's update"
