"""Values and names as TOML text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml(value: Any) -> str:
    """The value as TOML; None, which TOML does not have, is "nothing"."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON lets this one through, TOML does not
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(toml(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key_text(key)} = {toml(item)}' for key, item in value.items())}}}"
    return "nothing" if value is None else str(value)


def key_text(key: Any) -> str:
    """A key, in quotes where TOML needs them."""
    return str(key) if BARE_KEY.fullmatch(str(key)) else toml(str(key))


def joined(name: str, key: Any) -> str:
    """The dotted name of a key in the table of that name; the top table has no name."""
    return f"{name}.{key_text(key)}" if name else key_text(key)
