"""The whole config: everything a run is told, valid once it exists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from pathlib import Path
from typing import Any

from ..limits import MOST_STEPS
from .checks import check
from .declaring import field
from .defaults import Automatic, filled
from .fields import (
    AutoWhole,
    ClientConfig,
    Compared,
    DataConfig,
    LocalConfig,
    Merge,
    Metric,
    ModelConfig,
    PerformanceConfig,
    PrivacyConfig,
    ReportConfig,
    RuleConfig,
    ServerConfig,
)
from .layering import (
    DEFAULT_PRESET,
    check_depth,
    layers_of,
    merged,
    moved,
    nested,
    over,
    override,
    preset_names,
    starting_at,
    without_seed,
)
from .reading import values
from .toml import toml
from .writing import as_mapping, dotted


@dataclass(frozen=True, kw_only=True, repr=False)
class Config:
    """Everything a run is told; valid once it exists. `prifedsync train --show-config` prints and explains every field."""

    rounds: AutoWhole = field(
        None,
        "planned number of rounds (R); auto, the default with your own data: chosen from public numbers",
        1,
        MOST_STEPS,
    )
    participation: float = field(1.0, "probability that a client takes part in a round (p)", 0, 1, "(]")
    lost: float = field(
        0.0, "simulated: probability that a client takes part in a round and its upload never arrives", 0, 1, "[)"
    )
    server_rate: float = field(1.0, "step of the global model towards the mean of the uploads", 0, 1, "(]")
    merge: Merge = field(
        "records", "weight of a client in the mean of the uploads: its public number of records, or equal for all"
    )
    averaging: float = field(
        0.5, "fraction of the last global models that are averaged into the released one; 0 releases the last", 0, 1
    )
    seed: int = field(
        0,
        "random seed of the data split, initial weights and evaluation; "
        'with randomness = "seeded" also of noise and batches',
        0, 2**63 - 1,
    )  # fmt: skip
    evaluate_every: int = field(1, "rounds between two evaluations; 0 evaluates at the end only", 0)
    compare: tuple[Compared, ...] = field(
        None,
        "baselines to train for comparison: each client alone without noise (alone) or with its own noise (alone-private), "
        "all together without noise (non-private); [] by default with your own data",
    )
    metrics: tuple[Metric, ...] = field(
        ("auto",),
        "evaluation metrics, the first of which is shown while training; auto: accuracy, or rmse for regression",
        remedy='give a list, as in metrics = ["auc", "accuracy"]',
    )
    chosen: tuple[Automatic, ...] = field(
        (), 'fields that were "auto" before this run wrote their numbers; you need not set this'
    )
    data: DataConfig = field(DataConfig)
    model: ModelConfig = field(ModelConfig)
    local: LocalConfig = field(LocalConfig)
    rule: RuleConfig = field(RuleConfig)
    privacy: PrivacyConfig = field(PrivacyConfig)
    server: ServerConfig = field(ServerConfig)
    report: ReportConfig = field(ReportConfig)
    performance: PerformanceConfig = field(PerformanceConfig)
    clients: Mapping[str, ClientConfig] = field(dict, "values that differ for one client, by its name")

    def __post_init__(self) -> None:
        """Check all values here, where each has its full dotted name."""
        given = {name: value for name, value in vars(self).items() if value is not None or name != "compare"}
        for name, value in values(Config, given, "", Config).items():
            object.__setattr__(self, name, value)
        for name, value in filled(self).items():
            object.__setattr__(self, name, value)
        check(self)

    def changed(self, **changes: Any) -> Config:
        """A new config with other values at dotted names, tables merged: `changed(**{"local.batch": 8, "rounds": 2})`.

        Another `rule.name` drops the own fields of the rule before.
        """
        layers = [nested(name, value) for name, value in changes.items()]
        return from_mapping(over(as_mapping(self), merged(*layers)))

    def with_rule(self, name: str, /, **own: Any) -> Config:
        """A new config with that rule and these fields of its own; those of the rule before are dropped."""
        return replace(self, rule=replace(self.rule, name=name, own=own))

    def located(self, folder: Path) -> Config:
        """The same config with its relative paths starting at `folder`."""
        return from_mapping(moved(as_mapping(self), starting_at(folder)))

    def for_the_record(self) -> dict[str, Any]:
        """The config as nested dicts, for others to see: of files and folders it has the names, and not where they are."""
        return moved(as_mapping(self), lambda path: Path(path).name)

    def __repr__(self) -> str:
        """The fields that are not at their defaults, as in a TOML file."""
        lines = [f"{name} = {toml(value)}" for name, value in dotted(self).items() if value != _defaults().get(name)]
        return "\n  ".join(["Config; fields that are not listed have their defaults:", *lines])


@cache
def _defaults() -> dict[str, Any]:
    """The default of each field. There is none of the mechanism, since a config must say how much noise there is."""
    fields = dotted(from_mapping({"privacy": {"mechanism": "none"}}))
    del fields["privacy.mechanism"]
    return fields


def load(
    source: str | Path | None, overrides: Sequence[str] = (), data: str | Path | None = None, device: str | None = None
) -> Config:
    """The config of a preset or TOML file (None: the default preset) under "key=value" overrides, data path and device.

    Relative paths in a file start at its folder; those in overrides, and the data path, at the working directory.
    """
    given = [override(text, Config) for text in overrides]
    given += [{"data": {"path": str(data)}}] if data is not None else []
    given += [{"performance": {"device": device}}] if device is not None else []
    source = DEFAULT_PRESET if source is None else source
    below = layers_of(source)
    on_a_preset = str(source) in preset_names() or len(below) > 1
    layers = [*below, merged(*given)]
    lowest = without_seed(layers) if on_a_preset else layers[0]
    return from_mapping(reduce(over, [lowest, *layers[1:]]))


def from_mapping(mapping: Mapping[str, Any]) -> Config:
    """The config of nested mappings as `tomllib` makes them; what is not given has its default."""
    check_depth("config", mapping)
    return Config(**values(Config, mapping, "", Config))
