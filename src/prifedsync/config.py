"""The config file as frozen dataclasses; presets, files and overrides in layers.

A field is declared once, with its type, default, documentation and bounds; reading, refusing and writing follow from those.
Values are checked when they come together in a `Config`, where each has its full dotted name.
"""
# ruff: noqa: RUF009  (`_field` is `dataclasses.field` with a line of documentation)

from __future__ import annotations

import json
import math
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from difflib import SequenceMatcher, get_close_matches
from functools import cache, reduce
from importlib import resources
from itertools import chain
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from .accounting.mechanisms import CLIP_REMEDY, LEAST_CLIP, MOST_CLIP, MOST_RECORDS, MOST_STEPS
from .fdp.constructors import LEAST_NOISE, MOST_NOISE
from .values import BadValue

PRESETS = resources.files(__package__) / "presets"
DEFAULT_PRESET = "digits"
EMBEDDED = ("digits", "breast-cancer")  # sources that come with the package's requirements
PUBLIC = (*EMBEDDED, "mnist", "fashion-mnist", "cifar10")  # sources that a simulation may use
DEEPEST = 20  # levels of tables and lists in a config; four are in use
FUNCTION = re.compile(r"(\w[\w.]*|.+\.py):\w+")

Optimiser = Literal["sgd", "momentum", "adam", "adagrad", "rmsprop"] | str  # or "module:name"
Sampling = Literal["poisson", "fixed"]
Batch = int | Literal["full"]
Partition = Literal["shards", "iid", "dirichlet", "quantity", "column"]
Mechanism = Literal["noisy-steps", "output-gaussian", "output-laplace", "none"]
Compared = Literal["alone", "non-private"]
Metric = Literal["auto", "accuracy", "auc", "f1", "rmse"] | str  # or "module:name"


def _field(
    default: Any, doc: str = "", low: float = -math.inf, high: float = math.inf, ends: str = "[]", remedy: str = ""
) -> Any:
    rules = {"doc": doc or default.__doc__, "low": low, "high": high, "ends": ends, "remedy": remedy}
    return field(default_factory=default, metadata=rules) if callable(default) else field(default=default, metadata=rules)


def _as(part: type, name: str) -> Any:
    """One client's own value of a field of `part`: the same text and bounds; None is as for everybody."""
    (shared,) = (f for f in fields(part) if f.name == name)
    return field(default=None, metadata=shared.metadata)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the records come from, and what is public about them."""

    source: Literal["digits", "breast-cancer", "mnist", "fashion-mnist", "cifar10", "csv", "npz"] | str = _field(
        "digits", "where the records come from"
    )
    path: str = _field("", "file or folder of the data, as seen from where the command runs")
    clients: int = _field(10, "how many clients an undivided data set is split over", 1)
    partition: Partition = _field(
        "shards", "how: shards of sorted labels, iid, labels or sizes by a Dirichlet law, or by client_column"
    )
    shards_per_client: int = _field(4, "label shards each client gets; the fewer, the more clients differ", 1)
    concentration: float = _field(
        0.5, "beta of the Dirichlet law: the smaller, the more clients differ in labels (dirichlet) or size (quantity)",
        0, 1e6, "(]",
    )  # fmt: skip
    records_per_client: int = _field(
        500, "dirichlet: records drawn for each client, those held out by test_fraction included", 1
    )
    overlap: bool = _field(
        False, "dirichlet: draw each client from all records; one with c clients leaks through all c, and is accounted so"
    )
    test_fraction: float = _field(0.2, "share of each client's records held out for scores", 0, 1, "[)")
    test_records: int = _field(200, "test images drawn for a client, with labels it has (mnist, fashion-mnist, cifar10)", 0)
    label: str = _field("label", "the column to predict (csv)")
    client_column: str = _field("", "the column that names the client, where one file holds them all")
    task: Literal["classes", "binary", "regression"] = _field("classes", "what is predicted")
    classes: int = _field(0, "how many classes there are (public); 0: known from the embedded source", 0, 10**9)
    label_values: tuple[str, ...] = _field((), "the labels' public values in order, where they are not 0, 1, 2, …")
    columns: tuple[str, ...] = _field((), "the columns to learn from; []: all but the label and the client")
    ranges: Mapping[str, tuple[float, float]] = _field(
        dict, "public range of a column, scaled to [−1, 1], clamped; '*': all"
    )
    missing: Mapping[str, float] = _field(dict, "public constant for a missing value of a column; '*': all")
    categories: Mapping[str, tuple[str, ...]] = _field(dict, "public values of a text column, one 0/1 input each")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What is trained."""

    name: Literal["softmax", "linear", "mlp", "mnist-cnn", "cifar-cnn"] | str = _field("softmax", "which model")
    features: Literal["none", "hog"] = _field("none", "fixed features computed from each record first")
    hidden: tuple[int, ...] = _field((64,), "widths of the mlp's hidden layers", 1, 10**6)
    dropout: bool = _field(True, "keep the paper's nets' dropout")
    zero_init: bool = _field(True, "start softmax and linear at zero")
    layer_rules: tuple[str, ...] = _field(
        (), 'functions "module:function" that return your own layer rules, a mapping of module class → rule'
    )


@dataclass(frozen=True, kw_only=True)
class LocalConfig:
    """What a client does in a round."""

    optimiser: Optimiser = _field("sgd", "what turns noisy gradients into steps")
    learning_rate: float = _field(1.0, "size of a step", 0, ends="(]")
    momentum: float = _field(0.9, "share of the last step kept by optimiser momentum", 0, 1, "[)")
    betas: tuple[float, float] = _field((0.9, 0.999), "decay of adam's two averages", 0, 1, "[)")
    stability: float = _field(1e-8, "added to the denominator of adam, adagrad and rmsprop", 0, ends="(]")
    decay: float = _field(0.99, "decay of rmsprop's average", 0, 1, "[)")
    weight_decay: float = _field(0.0, "pull of the weights towards zero, after clipping and noise", 0)
    schedule: Literal["constant", "step", "cosine", "inverse-sqrt"] = _field("constant", "learning rate over the rounds")
    schedule_every: int = _field(10, "rounds between the drops of schedule step", 1)
    schedule_factor: float = _field(0.99, "what schedule step multiplies by at each drop", 0, 1, "(]")
    state: Literal["carried", "reset"] = _field("carried", "the optimiser's state from one round to the next")
    local_steps: int = _field(1, "noisy gradients in one round (K)", 1, MOST_STEPS)
    batch: Batch = _field("full", "expected records in a batch (B)", 1)
    sampling: Sampling = _field("poisson", "how a batch is drawn: each record by its own coin, or a subset of that size")
    averaging: float = _field(0.0, "share of a round's last local models averaged into the upload; 0: the last only", 0, 1)
    augment: Literal["none", "crop-flip"] = _field(
        "none", "images: shift each record of a batch by up to 4 pixels and perhaps mirror it, anew in every step"
    )


@dataclass(frozen=True, kw_only=True)
class RuleConfig:
    """What a client makes of the global model."""

    name: str = _field("fedavg", "the personalisation rule; `prifedsync rules` lists them")
    mixing: float = _field(0.1, "interpolate: weight of the global model; attentive: of all others together", 0, 1)
    strength: float = _field(
        0.01, "lambda, the pull of fedprox, mean-regularised, pfedme, attentive and ditto; and of mixture", 0, 1e6
    )
    inner_steps: int = _field(3, "pfedme: noisy gradients before each move of the local model (L)", 1, MOST_STEPS)
    outer_step: float = _field(0.5, "pfedme: how far that move goes", 0, 1, "(]")
    bandwidth: float = _field(1.0, "attentive: how far others still count, in mean squared distances", 0, ends="(]")
    share: float = _field(0.5, "apfl: the personal model's first share of the blend", 0, 1)
    share_rate: float = _field(0.1, "apfl: how fast that share adapts", 0)
    publish: bool = _field(
        False, "apfl, ditto, alone: noise and count the personal models' steps, so that they may be published"
    )
    delivery: Literal["pull", "push"] = _field("pull", "a client starts from the current global model, or its last helper")


@dataclass(frozen=True, kw_only=True)
class TargetConfig:
    """A guarantee to meet instead of a noise_multiplier: the noise is chosen for it."""

    epsilon: float | None = _field(None, "the least noise that keeps epsilon at privacy.delta under this", 0, 1e3, "()")
    mu: float | None = _field(None, "the least noise that keeps mu under this", 0, 1e3, "()")
    advantage: float | None = _field(None, "the least noise that keeps the best attack's advantage under this", 0, 1, "()")


@dataclass(frozen=True, kw_only=True)
class PrivacyConfig:
    """What protects a record; exactly one of noise_multiplier and the targets."""

    mechanism: Mechanism = _field("noisy-steps", "noise on gradients, or once on a round's change; none: no guarantee")
    clip_norm: float = _field(
        1.0, "longest gradient (or change) of one record that is let through (C)", LEAST_CLIP, MOST_CLIP,
        remedy=CLIP_REMEDY,
    )  # fmt: skip
    noise_multiplier: float | None = _field(
        None, "noise std over clip_norm: twice the paper's sigma", LEAST_NOISE, MOST_NOISE, remedy='or mechanism = "none"'
    )
    delta: float = _field(1e-5, "the delta at which epsilon is stated", 0, 1, "()")
    neighbours: Literal["replace", "add-remove"] = _field("replace", "which data sets must look alike: one record differs")
    randomness: Literal["system", "seeded"] = _field("system", "seeded: a simulation; the seed gives the noise away")
    target: TargetConfig = _field(TargetConfig)


@dataclass(frozen=True, kw_only=True)
class PerformanceConfig:
    """How fast it runs; nothing here weakens a guarantee: what would is refused."""

    engine: Literal["vectorised", "reference"] = _field("vectorised", "all clients at once, or one record at a time")
    device: Literal["auto", "cpu", "cuda"] = _field("auto", "where it runs")
    dtype: Literal["auto", "float64", "float32", "tf32", "bf16"] = _field(
        "auto", "arithmetic of the training; auto: tf32 on a GPU, float32 elsewhere; its rounding is in the plan"
    )
    compile: Literal["auto", "on", "off"] = _field("auto", "compile for the GPU; auto: where the run wins the time back")
    chunk: int = _field(0, "clients stacked at once; 0: chosen", 0)
    records_at_once: int = _field(0, "records of one client processed at once; 0: chosen", 0)
    memory_gib: float = _field(2.0, "client state kept in memory before it goes to disk", 0)
    checkpoint_seconds: float = _field(30.0, "least time between two checkpoints", 0)
    threads: int = _field(0, "processor threads; 0: chosen", 0, 1024)
    tensorboard: bool = _field(False, "write TensorBoard events (needs the extra)")


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """What is different for one client; None is as for everybody."""

    records: int | None = _field(None, "public nominal number of records, needed under add-remove", 1, MOST_RECORDS)
    batch: Batch | None = _as(LocalConfig, "batch")
    local_steps: int | None = _as(LocalConfig, "local_steps")
    sampling: Sampling | None = _as(LocalConfig, "sampling")
    clip_norm: float | None = _as(PrivacyConfig, "clip_norm")
    noise_multiplier: float | None = _as(PrivacyConfig, "noise_multiplier")
    optimiser: Optimiser | None = _as(LocalConfig, "optimiser")
    learning_rate: float | None = _as(LocalConfig, "learning_rate")
    mixing: float | None = _as(RuleConfig, "mixing")
    strength: float | None = _as(RuleConfig, "strength")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything a run is told; valid once it exists."""

    rounds: int = _field(30, "rounds planned (R)", 1, MOST_STEPS)
    participation: float = _field(1.0, "chance of a client to take part in a round (p)", 0, 1, "(]")
    server_rate: float = _field(1.0, "how far the global model moves to the uploads' mean", 0, 1, "(]")
    averaging: float = _field(0.5, "share of the last global models averaged into the released one; 0: the last only", 0, 1)
    seed: int = _field(0, "of the split, the first weights and the scores (and of all draws in a seeded run)", 0, 2**63 - 1)
    evaluate_every: int = _field(1, "rounds between scores; 0: only at the end", 0)
    compare: tuple[Compared, ...] = _field(None, "trained beside it for the table; [] by default with your own data")
    metric: Metric = _field("auto", "the score; auto: accuracy, or rmse for regression")
    data: DataConfig = _field(DataConfig)
    model: ModelConfig = _field(ModelConfig)
    local: LocalConfig = _field(LocalConfig)
    rule: RuleConfig = _field(RuleConfig)
    privacy: PrivacyConfig = _field(PrivacyConfig)
    performance: PerformanceConfig = _field(PerformanceConfig)
    clients: Mapping[str, ClientConfig] = _field(dict, "what is different for one client, by its name")

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None or name != "compare"}
        for name, value in _values(Config, given, "").items():
            object.__setattr__(self, name, value)
        if self.compare is None:
            object.__setattr__(self, "compare", ("alone", "non-private") if self.data.source in EMBEDDED else ())
        _check(self)

    def changed(self, **values: Any) -> Config:
        """A new config with other values at dotted names, tables merged: `changed(**{"local.batch": 8, "rounds": 2})`."""
        layers = [_nested(_parts(name), value) for name, value in values.items()]
        return from_mapping(_over(as_mapping(self), _merged(*layers)))


def load(
    source: str | Path | None, overrides: Sequence[str] = (), data: str | Path | None = None, device: str | None = None
) -> Config:
    """The config of a preset or TOML file (None: the default preset) under "key=value" overrides, data path and device."""
    given = [_override(text) for text in overrides]
    given += [{"data": {"path": str(data)}}] if data is not None else []
    given += [{"performance": {"device": device}}] if device is not None else []
    source = DEFAULT_PRESET if source is None else source
    below = _layers(source)
    on_a_preset = str(source) in preset_names() or len(below) > 1
    layers = [*below, _merged(*given)]
    return from_mapping(reduce(_over, [_without_seed(layers) if on_a_preset else layers[0], *layers[1:]]))


def from_mapping(mapping: Mapping[str, Any]) -> Config:
    """The config of nested mappings as `tomllib` makes them; what is not given has its default."""
    _check_depth("config", mapping)
    return Config(**_values(Config, mapping, ""))


def as_mapping(config: Any) -> dict[str, Any]:
    """The config, or a part of it, as nested dicts and lists; what is None is left out."""
    return cast(dict[str, Any], _plain(vars(config)))


def dotted(config: Config) -> dict[str, Any]:
    """The config as one value for each dotted name; what is None is left out."""

    def leaves(mapping: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
        for key, value in mapping.items():
            if isinstance(value, Mapping):
                yield from leaves(value, _dotted(name, key))
            else:
                yield _dotted(name, key), value

    return dict(leaves(as_mapping(config), ""))


def to_toml(config: Config, documented: bool = False) -> str:
    """The whole config as a TOML file that reads back as the same; with a comment above each field if `documented`."""
    return "\n".join(_lines(config, "", documented)) + "\n"


def preset_names() -> tuple[str, ...]:
    """The presets inside the package."""
    return tuple(sorted(file.name.removesuffix(".toml") for file in PRESETS.iterdir() if file.name.endswith(".toml")))


# Rules between fields


def _check(config: Config) -> None:
    data, privacy = config.data, config.privacy
    noise = {f"privacy.{name}": value for name, value in _noise(as_mapping(privacy)).items()}
    if privacy.mechanism == "none":
        own = {f"clients.{_key(name)}.noise_multiplier": c.noise_multiplier for name, c in config.clients.items()}
        for name, value in (noise | {name: value for name, value in own.items() if value is not None}).items():
            raise BadValue(name, value, 'cannot go with privacy.mechanism = "none", which adds no noise', "leave one out")
    elif len(noise) != 1:
        remedy = "give one of privacy.noise_multiplier, privacy.target.epsilon, privacy.target.mu, privacy.target.advantage"
        rule = "are too many: only one decides the noise" if noise else "says how much noise there is"
        raise BadValue("privacy", " and ".join(noise).replace("privacy.", "") or "nothing", rule, remedy)
    drawn = {"local": config.local.sampling} | {f"clients.{_key(name)}": c.sampling for name, c in config.clients.items()}
    for name, sampling in drawn.items():
        if sampling == "fixed" and privacy.neighbours == "add-remove":
            rule = "cannot go with privacy.neighbours = add-remove"
            raise BadValue(f"{name}.sampling", sampling, rule, "use poisson, or replace")
    if privacy.neighbours == "add-remove" and data.test_fraction > 0:
        rule = "cannot go with privacy.neighbours = add-remove: which records are held out depends on how many there are"
        raise BadValue("data.test_fraction", data.test_fraction, rule, "set it to 0, and give test records of their own")
    if data.source in EMBEDDED and data.path:
        remedy = 'for your own data, data.source = "csv" or "npz"'
        raise BadValue("data.path", _toml(data.path), f"is not read by data.source = {data.source}", remedy)
    if data.source in ("csv", "npz") and not data.path:
        raise BadValue("data.path", '""', f"must be given for data.source = {data.source}", "give the file or folder")
    for name, (low, high) in data.ranges.items():
        if low >= high:
            raise BadValue(f"data.ranges.{_key(name)}", [low, high], "must be a lower and a higher end")
    if config.metric != "auto" and ":" not in config.metric and (config.metric == "rmse") != (data.task == "regression"):
        raise BadValue("metric", config.metric, f"does not go with data.task = {data.task}", 'metric = "auto" chooses')


def _noise(privacy: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the noise in a [privacy] table, of which there must be one."""
    target = privacy.get("target")
    targets = target if isinstance(target, Mapping) else {"": target}
    decides = {"noise_multiplier": privacy.get("noise_multiplier")} | {f"target.{k}": v for k, v in targets.items()}
    return {name: value for name, value in decides.items() if value is not None}


# Layers


def _without_seed(layers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The lowest layer; where a preset lies under your own data, without its seeded draws: those are for public data."""
    merged = _merged(*layers)
    data, below = merged.get("data"), layers[0].get("privacy")
    own = isinstance(data, Mapping) and data.get("source", DEFAULT_PRESET) not in PUBLIC
    if not own or not isinstance(below, Mapping):
        return layers[0]
    return {**layers[0], "privacy": {key: value for key, value in below.items() if key != "randomness"}}


def _check_depth(name: str, values: Mapping[str, Any]) -> None:
    """Refuse what is nested so deeply that reading it would not end well. Level by level, without recursion."""
    level: list[Any] = [values]
    for _ in range(DEEPEST):
        inner = [each.values() if isinstance(each, Mapping) else each for each in level]
        level = [each for several in inner for each in several if isinstance(each, (Mapping, list, tuple))]
    if level:
        remedy = "prifedsync train --show-config lists the fields"
        raise BadValue("config", name, f"is nested more than {DEEPEST} deep", remedy)


def _merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for name, value in (item for layer in layers for item in layer.items()):
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _merged(merged[name], value) if both else value
    return merged


def _over(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """A layer over another. One that decides the noise (or that there is none) replaces what was decided below."""
    below, above = lower.get("privacy"), upper.get("privacy")
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return _merged(lower, upper)
    silent = above.get("mechanism") == "none"
    if silent or _noise(above):
        lower = {**lower, "privacy": {k: v for k, v in below.items() if k not in ("noise_multiplier", "target")}}
    if silent and isinstance(lower.get("clients"), Mapping):
        lower = _merged(lower, {"clients": {name: {"noise_multiplier": None} for name in lower["clients"]}})
    return _merged(lower, upper)


def _layers(source: str | Path) -> list[dict[str, Any]]:
    """A preset's or file's values, under them those of the preset it names."""
    name, known = str(source), preset_names()
    if name not in known and not name.endswith(".toml") and not Path(source).is_file():
        remedy = f"did you mean {get_close_matches(name, known, 1, 0)[0]}? presets: {', '.join(known)}"
        raise BadValue("preset", name, "is not a preset or a .toml file", remedy)
    try:
        file = PRESETS / f"{name}.toml" if name in known else Path(source)
        values = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise BadValue("config", name, f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BadValue("config", name, f"is not TOML: {error}") from None
    _check_depth(name, values)
    base = values.pop("preset", None)
    if base is not None and base not in known:
        raise BadValue("preset", _toml(base), "is not a preset", f"presets: {', '.join(known)}")
    return [*(_layers(base) if base else []), values]


_PART = r""""(?:[^"\\]|\\.)*"|'[^']*'|[^."'=]+"""  # of a dotted key; more lenient than TOML, since a shell eats quotes
_DOTTED = rf"(?:{_PART})(?:\.(?:{_PART}))*"


def _parts(dotted: str) -> list[str]:
    try:
        if re.fullmatch(_DOTTED, dotted):
            parts = [part.strip() for part in re.findall(_PART, dotted)]
            return [tomllib.loads(f"key = {part}")["key"] if part[:1] in ("'", '"') else part for part in parts]
    except ValueError:
        pass
    raise BadValue("key", dotted, "is not a dotted name", 'for example local.batch or clients."hospital-a".batch')


def _nested(parts: Sequence[str], value: Any) -> dict[str, Any]:
    nested = value
    for part in reversed(parts):
        nested = {part: nested}
    _check_depth(".".join(parts), nested)
    return cast(dict[str, Any], nested)


def _override(text: str) -> dict[str, Any]:
    match = re.fullmatch(rf"({_DOTTED})=(.*)", text, re.DOTALL)
    if match is None:
        raise BadValue("override", _toml(text), "must read key=value", "for example rounds=2")
    parts, hint = _parts(match[1]), cast(Any, Config)
    for part in parts:
        hint = get_args(hint)[1] if get_origin(hint) is Mapping else _hints(hint).get(part)
    return _nested(parts, _typed(match[2].strip(), hint, match[1]))


def _typed(text: str, hint: Any, name: str) -> Any:
    """A TOML value; a bare word is text, and commas make a list where one is wanted."""
    if get_origin(hint) is tuple and not text.startswith("["):
        return [_typed(item.strip(), get_args(hint)[0], name) for item in text.split(",") if item.strip()]
    try:
        (value,) = tomllib.loads(f"value = {text}").values()
    except (ValueError, RecursionError):
        if text.startswith(("[", "{", '"', "'")):
            raise BadValue(name, _toml(text), "is not a TOML value", f"quote it for the shell: '{name}=…'") from None
        return text
    return text if hint is str and not isinstance(value, (str, list, dict)) else value


# Reading, by type hint


@cache
def _hints(part: Any) -> dict[str, Any]:
    return get_type_hints(part) if is_dataclass(part) else {}


def _arms(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _values(part: type, given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The given fields of a dataclass, checked."""
    known = {f.name: f.metadata for f in fields(part)}
    for key, value in given.items():
        if key not in known:
            raise BadValue(_dotted(name, key), _toml(value), "is not a field", _nearest(name, key, part))
    return {key: _read(_hints(part)[key], value, _dotted(name, key), known[key]) for key, value in given.items()}


def _read(hint: Any, value: Any, name: str, rules: Mapping[str, Any]) -> Any:
    """The value as its type hint and bounds want it, or a refusal."""
    words: list[str] = []
    for arm in _arms(hint):
        kind, inner = cast(Any, get_origin(arm) or arm), get_args(arm)
        words += inner if kind is Literal else ()
        if _hints(kind) and isinstance(value, (Mapping, kind)):
            return kind(**_values(kind, value if isinstance(value, Mapping) else vars(value), name))
        if kind is Mapping and isinstance(value, Mapping):
            return {str(key): _read(inner[1], item, _dotted(name, key), rules) for key, item in value.items()}
        if kind is tuple and isinstance(value, (list, tuple)) and (inner[-1] is ... or len(value) == len(inner)):
            return tuple(_read(inner[0], item, name, rules) for item in value)
        if kind in (int, float) and isinstance(value, Integral if kind is int else Real) and _within(value, rules):
            return kind(value)
        if value in inner if kind is Literal else kind in (bool, NoneType) and isinstance(value, kind):
            return value
        if kind is str and isinstance(value, str) and (arm is hint or FUNCTION.fullmatch(value)):
            return value
    near = get_close_matches(value, words, 1) if isinstance(value, str) else []
    remedy = f"did you mean {near[0]}?" if near else rules["remedy"]
    raise BadValue(name, _toml(value), f"must be {_allowed(hint, rules)}", remedy)


def _within(value: Any, rules: Mapping[str, Any]) -> bool:
    low, high, ends = rules["low"], rules["high"], rules["ends"]
    inside = low < value < high or (value == low and ends[0] == "[") or (value == high and ends[1] == "]")
    return inside and abs(value) <= sys.float_info.max and not isinstance(value, bool)


def _allowed(hint: Any, rules: Mapping[str, Any]) -> str:
    """What a value may be, in words."""
    low, high, ends = rules["low"], rules["high"], rules["ends"]
    span = f" {'at least' if ends[0] == '[' else 'above'} {low:g}" if low > -math.inf else ""
    span = f" in {ends[0]}{low:g}, {high:g}{ends[1]}" if high < math.inf else span
    names = {int: f"a whole number{span}", float: f"a number{span}", bool: "true | false", Mapping: "a table", NoneType: ""}
    said = []
    for arm in _arms(hint):
        kind, inner = cast(Any, get_origin(arm) or arm), get_args(arm)
        if kind is Literal:
            said += [_toml(word) for word in inner]
        elif kind is tuple:
            said.append(f"a {'list' if inner[-1] is ... else 'pair'}, each {_allowed(inner[0], rules)}")
        elif kind is str:
            said.append("text" if arm is hint else '"module:function"')
        else:
            said.append(names.get(kind, "a table"))
    return " | ".join(filter(None, said))


def _names(part: Any, name: str = "") -> Iterator[str]:
    for key, hint in _hints(part).items():
        yield _dotted(name, key)
        yield from _names(hint, _dotted(name, key))


def _nearest(name: str, key: str, part: type) -> str:
    """Which field an unknown key may have meant: alike in full, or alike in its last word but elsewhere."""

    def alike(candidate: str) -> float:
        last = SequenceMatcher(None, str(key), candidate.rpartition(".")[2]).ratio()
        return max(SequenceMatcher(None, _dotted(name, key), candidate).ratio(), 0.9 * last)

    best = max([*_names(part, name), *_names(Config)], key=alike)
    return f"did you mean {best}?" if alike(best) > 0.6 else "prifedsync train --show-config lists the fields"


# Writing


def _key(name: Any) -> str:
    return str(name) if re.fullmatch(r"[A-Za-z0-9_-]+", str(name)) else _toml(str(name))


def _dotted(name: str, key: Any) -> str:
    return f"{name}.{_key(key)}" if name else _key(key)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping) or is_dataclass(value):
        items = value if isinstance(value, Mapping) else vars(value)
        return {key: _plain(item) for key, item in items.items() if item is not None}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON lets this one through, TOML does not
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(key)} = {_toml(item)}' for key, item in value.items())}}}"
    return "nothing" if value is None else str(value)


def _lines(part: Any, name: str, documented: bool) -> Iterator[str]:
    if name:
        yield from ["", *([f"# {type(part).__doc__}"] if documented else []), f"[{name}]"]
    tables: list[Iterable[str]] = []
    for f in fields(part):
        value, hint = getattr(part, f.name), _hints(part.__class__)[f.name]
        if _hints(hint):
            tables.append(_lines(value, _dotted(name, f.name), documented))
        elif hint == Mapping[str, ClientConfig]:
            sample = _lines(ClientConfig(), f'{f.name}."name"', True) if documented else ()
            tables.append(["", *([f"# {f.metadata['doc']}"] if documented else []), f"[{f.name}]"])
            tables.append(line if line[:1] in ("", "#") else f"# {line}" for line in sample)
            tables += [_lines(own, _dotted(f.name, client), False) for client, own in value.items()]
        else:
            yield from [f"# {f.metadata['doc']} — {_allowed(hint, f.metadata)}"] if documented else []
            yield from [f"{f.name} = {_toml(value)}"] if value is not None else [f"# {f.name} ="] if documented else []
    yield from chain.from_iterable(tables)
