"""Help in plain words, as typer should print it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

import click
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo


class PlainCommand(TyperCommand):
    """A command whose help names every argument, and shows no escapes."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        if self.callback is not None:
            _restore_help(self.params, self.callback)

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Nothing: click 8.5 lists arguments a second time, and typer lists them among the options."""

    def get_help(self, ctx: click.Context) -> str:
        return _without_escapes(super().get_help(ctx))


class PlainGroup(TyperGroup):
    """The same for a command that has commands."""

    def get_help(self, ctx: click.Context) -> str:
        return _without_escapes(super().get_help(ctx))


def _without_escapes(text: str) -> str:
    """typer escapes brackets for rich even where rich does not print its help."""
    return text.replace("\\[", "[")


def _restore_help(params: list[click.Parameter], callback: Callable[..., Any]) -> None:
    """click 8.5 forgets the help that typer gives to arguments."""
    hints = get_type_hints(callback, include_extras=True)
    for param in params:
        for note in getattr(hints.get(param.name or ""), "__metadata__", ()):
            if isinstance(note, ArgumentInfo) and isinstance(param, click.Argument):
                param.help = note.help
