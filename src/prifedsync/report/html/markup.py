"""HTML that cannot forget to escape: whatever is not `Html` already is text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from typing import Any

VOID = {"br", "input", "meta"}
MISSING = "–"
Attribute = str | int | float | bool | None


class Html(str):
    """Text that is HTML already."""


Inside = str | int | float | None | Iterable[Any]


def tag(name: str, /, *inside: Inside, **attributes: Attribute) -> Html:
    """An element. `class_` and `aria_label` are the attributes class and aria-label; None and False leave one out."""
    start = f"<{name}{''.join(_attribute(key, value) for key, value in attributes.items())}>"
    if name in VOID:
        return Html(start)
    return Html(f"{start}{joined(inside)}</{name}>")


def joined(inside: Iterable[Inside]) -> Html:
    """Several pieces one after another; None is nothing."""
    return Html("".join(_piece(each) for each in inside))


def as_json(name: str, value: Any) -> Html:
    """Data for a script. No text in it can end the element, because "<" is written as an escape."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Html(f'<script type="application/json" id="{escape(name)}">{text}</script>')


def size(text: str) -> int:
    """The bytes of a text in a file."""
    return len(text.encode())


def _piece(each: Inside) -> str:
    if each is None:
        return ""
    if isinstance(each, Html):
        return each
    if isinstance(each, str):
        return escape(each)
    if isinstance(each, Iterable):
        return joined(each)
    return escape(str(each))


def _attribute(key: str, value: Attribute) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    return f' {name}="{escape(str(value))}"'
