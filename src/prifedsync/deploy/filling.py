"""Texts of a project: READMEs, systemd units and container files, with the project's own names in them."""

from __future__ import annotations

from importlib import resources
from string import Template


def filled(name: str, **values: object) -> str:
    """The template of that name with these values. A value that is missing is an error, and not a gap."""
    text = (resources.files(__package__) / "texts" / name).read_text(encoding="utf-8")
    return Template(text).substitute({key: str(value) for key, value in values.items()})
