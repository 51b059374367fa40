"""The config as nested mappings, as dotted names, and as a TOML file that reads back as the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, is_dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, cast, get_args, get_origin

from .declaring import allowed, declared, declared_fields, hints, keys_of
from .toml import joined, toml

if TYPE_CHECKING:
    from .whole import Config


def as_mapping(part: Any) -> dict[str, Any]:
    """The config, or a part of it, as nested dicts and lists; what is None is left out."""
    return cast(dict[str, Any], _plain(part))


def dotted(config: Config) -> dict[str, Any]:
    """The config as one value for each dotted name; what is None is left out."""
    return dict(_leaves(as_mapping(config), ""))


def to_toml(config: Any, documented: bool = False) -> str:
    """The config, or another dataclass of fields, as a TOML file that reads back as the same.

    documented: with a comment above each field.
    """
    return "\n".join(_lines(config, "", documented)) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping) or is_dataclass(value):
        items = value if isinstance(value, Mapping) else keys_of(value)
        return {key: _plain(item) for key, item in items.items() if item is not None}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _leaves(mapping: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, joined(name, key))
        else:
            yield joined(name, key), value


def _lines(part: Any, name: str, documented: bool) -> Iterator[str]:
    """A table: its own fields first, then the tables in it."""
    if name:
        yield ""
        yield from [f"# {type(part).__doc__}"] if documented else []
        yield f"[{name}]"
    tables: list[Iterable[str]] = []
    for each in declared_fields(part):
        value = getattr(part, each.name)
        hint = hints(type(part))[each.name]
        if hints(hint):
            tables.append(_lines(value, joined(name, each.name), documented))
        elif get_origin(hint) is Mapping and hints(get_args(hint)[1]):
            tables.append(_tables(value, each, get_args(hint)[1], documented))
        elif declared(each).is_open:
            yield from [f"# {declared(each).doc}"] if documented else []
            yield from (f"{joined('', key)} = {toml(item)}" for key, item in value.items())
        else:
            yield from [f"# {declared(each).doc} — {allowed(hint, declared(each))}"] if documented else []
            yield from _assignment(each.name, value, documented)
    yield from chain.from_iterable(tables)


def _assignment(name: str, value: Any, documented: bool) -> list[str]:
    """The line of one field; None cannot be written, and has a line only where fields are documented."""
    if value is not None:
        return [f"{name} = {toml(value)}"]
    return [f"# {name} ="] if documented else []


def _tables(parts: Mapping[str, Any], each: Field[Any], kind: type, documented: bool) -> Iterator[str]:
    """A table of tables, one for each client; where documented, a sample in comments first."""
    yield ""
    yield from [f"# {declared(each).doc}"] if documented else []
    yield f"[{each.name}]"
    if documented:
        sample = _lines(kind(), f'{each.name}."name"', True)
        yield from (line if line[:1] in ("", "#") else f"# {line}" for line in sample)
    for name, part in parts.items():
        yield from _lines(part, joined(each.name, name), False)
