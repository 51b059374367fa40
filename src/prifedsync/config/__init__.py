"""The config file as frozen dataclasses; presets, files and overrides in layers. Never imports torch."""

from .defaults import AUTO, AUTOMATIC, value_of, with_values
from .fields import (
    EMBEDDED,
    PUBLIC,
    ClientConfig,
    CoalitionConfig,
    DataConfig,
    LocalConfig,
    ModelConfig,
    PerformanceConfig,
    PrivacyConfig,
    ReportConfig,
    RuleConfig,
    ServerConfig,
    TargetConfig,
)
from .layering import DEFAULT_PRESET, PRESETS, preset_names
from .reading import RENAMED
from .toml import joined
from .whole import Config, from_mapping, load
from .writing import as_mapping, dotted, to_toml

__all__ = [
    "AUTO",
    "AUTOMATIC",
    "DEFAULT_PRESET",
    "EMBEDDED",
    "PRESETS",
    "PUBLIC",
    "RENAMED",
    "ClientConfig",
    "CoalitionConfig",
    "Config",
    "DataConfig",
    "LocalConfig",
    "ModelConfig",
    "PerformanceConfig",
    "PrivacyConfig",
    "ReportConfig",
    "RuleConfig",
    "ServerConfig",
    "TargetConfig",
    "as_mapping",
    "dotted",
    "from_mapping",
    "joined",
    "load",
    "preset_names",
    "to_toml",
    "value_of",
    "with_values",
]
