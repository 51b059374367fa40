"""Help as people read it: every command and option in plain words, within the window, without escapes."""

import sys

import click
import pytest
import typer

from prifedsync import cli


def walked(command, path=()):
    """Every command of the command line, by the words that call it."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from walked(inner, (*path, name))


COMMANDS = dict(walked(typer.main.get_command(cli.app)))
NAMES = [" ".join(path) for path in COMMANDS]


@pytest.fixture
def help_of(monkeypatch, capsys):
    def call(name, width=100):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys, "argv", ["prifedsync", *name.split(), "--help"])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        seen = capsys.readouterr()
        assert stopped.value.code == 0
        assert seen.err == ""
        return seen.out

    return call


def test_all_commands_are_walked():
    assert {
        "",
        "train",
        "predict",
        "evaluate",
        "account",
        "plan",
        "curve",
        "rules",
        "partition",
        "reproduce",
        "bench",
        "audit",
        "audit step",
    } <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_help_is_plain_and_fits(name, help_of):
    text = help_of(name)
    assert text.startswith(f"Usage: prifedsync {name}".rstrip())
    assert "\\" not in text
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "Positional" not in text  # arguments are listed once


@pytest.mark.parametrize("name", NAMES)
def test_everything_has_one_line_of_help(name, help_of):
    command = COMMANDS[tuple(name.split())]
    shown = " ".join(help_of(name).split())
    first = command.help.splitlines()[0]
    assert first.endswith(".")
    assert first in shown
    for param in command.params:
        assert param.help, f"{name}: {param.name} has no help"
        assert "\n" not in param.help
        assert param.help[0].isupper() or isinstance(param, click.Argument)
        assert param.help.endswith(".")
        assert len(param.help) <= 66, f"{param.name}: beside its name there is room for 66 characters"
        assert param.help in shown


def test_no_line_about_a_command_is_cut_off(help_of):
    for name in ("", "audit", "owner", "ledger", "deploy"):
        assert "..." not in help_of(name, width=80).partition("Commands:")[2]


@pytest.mark.parametrize("name", ["", "audit", "owner", "ledger", "deploy"])
def test_without_a_word_help_is_the_answer(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["prifedsync", *name.split()])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("Usage: prifedsync")
