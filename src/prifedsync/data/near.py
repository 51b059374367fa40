"""The name of a column that was probably meant."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


def meant(name: str, known: Sequence[str]) -> str | None:
    """The known name that is most like this one. Case, blanks and underscores do not count; None if none is alike."""
    bare = {_bare(other): other for other in reversed(known)}
    near = get_close_matches(_bare(name), bare, 1)
    return bare[near[0]] if near else None


def _bare(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum()) or name
