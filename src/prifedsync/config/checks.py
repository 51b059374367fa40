"""Rules between fields: values that are allowed by themselves, and not together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

from ..values import NOT_GIVEN, BadValue
from .fields import EMBEDDED, PUBLIC, DataConfig, Metric
from .toml import joined, toml
from .writing import as_mapping

if TYPE_CHECKING:
    from .whole import Config

EVERYBODY = ("target.epsilon", "target.mu", "target.advantage")  # a target against everybody; one at most
NOISE_REMEDY = (
    f"give exactly one of noise_multiplier, {', '.join(EVERYBODY)}; "
    "target.coalition may stand alone or beside one of these targets"
)
COALITION = "target.coalition"  # a second target, which may stand beside one of the others
METRICS = get_args(get_args(Metric)[0])


def check(config: Config) -> None:
    """Refuse a config whose fields contradict each other."""
    _check_noise(config)
    _check_adjacency(config)
    check_data(config.data)
    _check_metrics(config)


def noise_settings(privacy: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a [privacy] table that set the noise: exactly one, or a target against everybody and a coalition."""
    target = privacy.get("target")
    targets = target if isinstance(target, Mapping) else {"": target}
    settings = {"noise_multiplier": privacy.get("noise_multiplier")}
    settings |= {f"target.{name}": value for name, value in targets.items()}
    return {name: value for name, value in settings.items() if _is_given(value)}


def _is_given(value: Any) -> bool:
    return any(_is_given(each) for each in value.values()) if isinstance(value, Mapping) else value is not None


def _check_noise(config: Config) -> None:
    settings = noise_settings(as_mapping(config.privacy))
    if config.privacy.mechanism == "none":
        _check_no_noise(config, settings)
    elif not settings:
        raise BadValue("[privacy]", NOT_GIVEN, "sets no noise", NOISE_REMEDY)
    elif len(settings) > 1 and not (len(settings) == 2 and COALITION in settings and "noise_multiplier" not in settings):
        rule = f"sets the noise more than once, by {' and '.join(settings)}"
        raise BadValue("[privacy]", NOT_GIVEN, rule, NOISE_REMEDY)
    _check_coalition(config)


def _check_coalition(config: Config) -> None:
    coalition = config.privacy.target.coalition
    fields = {"mu": coalition.mu, "colluders": coalition.colluders}
    missing = [name for name, value in fields.items() if value is None]
    if len(missing) == 1:
        (given,) = set(fields) - set(missing)
        rule = "is missing: a target against a coalition needs both mu and colluders"
        raise BadValue(
            f"privacy.{COALITION}.{missing[0]}", NOT_GIVEN, rule, f"give it, or remove privacy.{COALITION}.{given}"
        )
    if not missing and not config.privacy.masks:
        rule = "needs masks: without them the server sees every single upload"
        raise BadValue(f"privacy.{COALITION}.mu", coalition.mu, rule, "set privacy.masks = true")


def _check_no_noise(config: Config, settings: Mapping[str, Any]) -> None:
    shared = {f"privacy.{name}": value for name, value in settings.items()}
    own = {f"{joined('clients', name)}.noise_multiplier": c.noise_multiplier for name, c in config.clients.items()}
    for name, value in (shared | own).items():
        if value is not None:
            rule = 'cannot be combined with privacy.mechanism = "none", which adds no noise'
            raise BadValue(name, value, rule, "remove one of the two")


def _check_adjacency(config: Config) -> None:
    if config.privacy.neighbours != "add-remove":
        return
    sampling = {"local": config.local.sampling}
    sampling |= {joined("clients", name): own.sampling for name, own in config.clients.items() if own.sampling}
    for name, value in sampling.items():
        if value == "fixed":
            rule = "cannot be combined with privacy.neighbours = add-remove"
            raise BadValue(f"{name}.sampling", value, rule, "use poisson sampling, or replace-one adjacency")
    if config.data.test_fraction > 0:
        rule = (
            "cannot be combined with privacy.neighbours = add-remove, "
            "because the records held out would depend on the private number of records"
        )
        raise BadValue("data.test_fraction", config.data.test_fraction, rule, "set it to 0 and give separate test records")


def _check_metrics(config: Config) -> None:
    if not config.metrics:
        raise BadValue("metrics", "[]", "must name at least one metric", 'metrics = ["auto"] chooses one that fits')
    regression = config.data.task == "regression"
    for name in config.metrics:
        if name in METRICS and name != "auto" and (name == "rmse") != regression:
            rule = f"does not fit data.task = {config.data.task}"
            raise BadValue("metrics", name, rule, 'metrics = ["auto"] chooses one that fits')


def check_data(data: DataConfig) -> None:
    """Refuse a [data] whose fields contradict each other."""
    if data.source in EMBEDDED and data.path:
        rule = f"is not read by data.source = {data.source}"
        raise BadValue("data.path", toml(data.path), rule, 'for your own data, set data.source to "csv" or "npz"')
    if data.source in ("csv", "npz") and not data.path:
        raise BadValue("data.path", '""', f"must be set for data.source = {data.source}", "give the file or folder")
    if data.person and data.source in PUBLIC:
        rule = f"cannot be used with data.source = {data.source}, whose records name no persons"
        raise BadValue("data.person", toml(data.person), rule, "leave it out")
    if data.person_clients > 1 and not data.person:
        rule = "is about persons, but data.person is not set"
        raise BadValue("data.person_clients", data.person_clients, rule, "name the column of the person in data.person")
    for name, (low, high) in data.ranges.items():
        if low >= high:
            rule = "must be a lower end and a higher end"
            raise BadValue(joined("data.ranges", name), [low, high], rule, "give the lower end first")
