"""Layers of a config: presets, files and overrides, as nested mappings. A later layer lies over an earlier one."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any, cast, get_args, get_origin

from ..values import BadValue
from .checks import COALITION, EVERYBODY, noise_settings
from .declaring import declared, hints
from .fields import PUBLIC, DataConfig, RuleConfig
from .reading import WHERE_FIELDS_ARE
from .toml import toml

PRESETS = resources.files(__package__.rpartition(".")[0]) / "presets"
DEFAULT_PRESET = "digits"
DEEPEST = 20  # levels of tables and lists in a config; four are in use
FILE_FUNCTION = re.compile(r".+\.py:\w+")  # "folder/file.py:function"
OF_EVERY_RULE = frozenset(each.name for each in fields(RuleConfig) if not declared(each).is_open)

Move = Callable[[str], str]  # where a path is instead

_PART = r""""(?:[^"\\]|\\.)*"|'[^']*'|[^."'=]+"""  # of a dotted key; more lenient than TOML, since a shell eats quotes
_DOTTED = rf"(?:{_PART})(?:\.(?:{_PART}))*"


# One layer over another


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """The layers as one; tables are merged, and of other values the last one counts."""
    result: dict[str, Any] = {}
    for name, value in (item for layer in layers for item in layer.items()):
        both = isinstance(value, Mapping) and isinstance(result.get(name), Mapping)
        result[name] = merged(result[name], value) if both else value
    return result


def over(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """A layer over another. What it says about the noise, or about the rule, replaces what it contradicts below."""
    lower = _without_replaced_noise(lower, upper)
    lower = _without_replaced_rule(lower, upper)
    return merged(lower, upper)


def _without_replaced_noise(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> Mapping[str, Any]:
    """The lower layer without the settings of the noise that the upper one replaces."""
    below = lower.get("privacy")
    above = upper.get("privacy")
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return lower
    silent = above.get("mechanism") == "none"
    replaced = _replaced(noise_settings(above), silent)
    kept = {name: value for name, value in below.items() if name not in replaced}
    if isinstance(kept.get("target"), Mapping):
        kept["target"] = {name: value for name, value in kept["target"].items() if f"target.{name}" not in replaced}
    lower = {**lower, "privacy": kept}
    if silent and isinstance(lower.get("clients"), Mapping):
        lower = merged(lower, {"clients": {name: {"noise_multiplier": None} for name in lower["clients"]}})
    return lower


def _replaced(settings: Mapping[str, Any], silent: bool) -> Collection[str]:
    """The names of what is dropped below, where these settings of the noise lie above. A coalition is merged."""
    if silent or "noise_multiplier" in settings:
        return ("noise_multiplier", "target")
    if set(settings) - {COALITION}:
        return ("noise_multiplier", *EVERYBODY)
    return ("noise_multiplier",) if settings else ()


def _without_replaced_rule(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> Mapping[str, Any]:
    """The lower layer without the own fields of its rule, where the upper one names another rule."""
    below = lower.get("rule")
    above = upper.get("rule")
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return lower
    before = below.get("name", RuleConfig.name)
    if above.get("name", before) == before:
        return lower
    return {**lower, "rule": {key: value for key, value in below.items() if key in OF_EVERY_RULE}}


def without_seed(layers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The lowest layer; where a preset lies under your own data, without its seeded draws: those are for public data."""
    data = merged(*layers).get("data")
    below = layers[0].get("privacy")
    own = isinstance(data, Mapping) and data.get("source", DataConfig.source) not in PUBLIC
    if not own or not isinstance(below, Mapping):
        return layers[0]
    return {**layers[0], "privacy": {key: value for key, value in below.items() if key != "randomness"}}


# Presets and files


def preset_names() -> tuple[str, ...]:
    """The presets inside the package."""
    return tuple(sorted(file.name.removesuffix(".toml") for file in PRESETS.iterdir() if file.name.endswith(".toml")))


def layers_of(source: str | Path) -> list[dict[str, Any]]:
    """The values of a preset or file; below them, those of the preset it names."""
    name = str(source)
    known = preset_names()
    if name not in known and not name.endswith(".toml") and not Path(source).is_file():
        near = get_close_matches(name, known, 1, 0)[0]
        rule = "is neither a preset nor a .toml file"
        raise BadValue("preset", name, rule, f"did you mean {near}? The presets are {', '.join(known)}")
    if name in known:
        values = file_values(name, PRESETS / f"{name}.toml")
    else:
        values = moved(file_values(name, Path(source)), starting_at(Path(source).parent))
    below = values.pop("preset", None)
    if below is not None and below not in known:
        raise BadValue("preset", toml(below), "is not a preset", f"the presets are {', '.join(known)}")
    return [*(layers_of(below) if below else []), values]


def moved(layer: Mapping[str, Any], to: Move) -> dict[str, Any]:
    """The layer with other paths: those of the data, and of functions in files."""
    found = {name: _moved(value, to) for name, value in layer.items() if name != "data"}
    if "data" not in layer:
        return found
    data = layer["data"]
    if not isinstance(data, Mapping):  # refused later, by its name
        return {**found, "data": data}
    source = {"source": _moved(data["source"], to)} if "source" in data else {}
    path = {"path": to(data["path"])} if data.get("path") and isinstance(data["path"], str) else {}
    return {**found, "data": {**data, **source, **path}}


def _moved(value: Any, to: Move) -> Any:
    if isinstance(value, Mapping):
        return {key: _moved(item, to) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_moved(item, to) for item in value]
    return to(value) if isinstance(value, str) and FILE_FUNCTION.fullmatch(value) else value


def starting_at(folder: Path) -> Move:
    """Relative paths start at this folder; absolute ones stay."""
    return lambda path: str(folder / path)


def file_values(name: str, file: Any, what: str = "config") -> dict[str, Any]:
    """The tables of a TOML file; `what` it is, for the refusal of one that cannot be read."""
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise BadValue(what, name, f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BadValue(what, name, f"is not TOML: {error}") from None
    check_depth(name, values)
    return values


def check_depth(name: str, values: Mapping[str, Any]) -> None:
    """Refuse what is nested so deeply that reading it would not end well. Level by level, without recursion."""
    level: list[Any] = [values]
    for _ in range(DEEPEST):
        inner = [each.values() if isinstance(each, Mapping) else each for each in level]
        level = [each for several in inner for each in several if isinstance(each, (Mapping, list, tuple))]
    if level:
        raise BadValue("config", name, f"is nested more than {DEEPEST} levels deep", WHERE_FIELDS_ARE)


# Overrides


def nested(dotted: str, value: Any) -> dict[str, Any]:
    """The layer that has one value at a dotted name."""
    layer = value
    for part in reversed(_parts(dotted)):
        layer = {part: layer}
    check_depth(dotted, layer)
    return cast(dict[str, Any], layer)


def override(text: str, whole: type) -> dict[str, Any]:
    """The layer of one "key=value" for the config class `whole`."""
    match = re.fullmatch(rf"({_DOTTED})=(.*)", text, re.DOTALL)
    if match is None:
        raise BadValue("override", toml(text), "must have the form key=value", "for example rounds=2")
    hint = cast(Any, whole)
    for part in _parts(match[1]):
        hint = get_args(hint)[1] if get_origin(hint) is Mapping else hints(hint).get(part)
    return nested(match[1], typed(match[2].strip(), hint, match[1]))


def typed(text: str, hint: Any, name: str) -> Any:
    """A TOML value; a bare word is text, and commas make a list where one is wanted."""
    if get_origin(hint) is tuple and not text.startswith("["):
        return [typed(item.strip(), get_args(hint)[0], name) for item in text.split(",") if item.strip()]
    try:
        (value,) = tomllib.loads(f"value = {text}").values()
    except (ValueError, RecursionError):
        if text.startswith(("[", "{", '"', "'")):
            raise BadValue(name, toml(text), "is not a TOML value", f"quote it for the shell: '{name}=…'") from None
        return text
    return text if hint is str and not isinstance(value, (str, list, dict)) else value


def _parts(dotted: str) -> list[str]:
    malformed = BadValue("key", dotted, "is not a dotted name", 'for example local.batch or clients."hospital-a".batch')
    if not re.fullmatch(_DOTTED, dotted):
        raise malformed
    try:
        return [_unquoted(part.strip()) for part in re.findall(_PART, dotted)]
    except tomllib.TOMLDecodeError:
        raise malformed from None


def _unquoted(part: str) -> str:
    return cast(str, tomllib.loads(f"key = {part}")["key"]) if part[:1] in ("'", '"') else part
