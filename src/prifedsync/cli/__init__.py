"""The command line, one file a command. Commands import what they need when they run, so that `account` starts fast."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import __version__
from . import (
    account,
    audit,
    bench,
    curve,
    deploy,
    evaluate,
    ledger,
    owner,
    partition,
    plan,
    predict,
    report,
    reproduce,
    rules,
    train,
)
from .refusing import refusing
from .wording import PlainCommand, PlainGroup

COMMANDS = (  # in the order of `prifedsync --help`
    train.train,
    predict.predict,
    evaluate.evaluate,
    report.report,
    account.account,
    plan.plan,
    curve.curve,
    rules.rules,
    partition.partition,
    reproduce.reproduce,
    bench.bench,
)

app = typer.Typer(
    cls=PlainGroup,
    name="prifedsync",
    help="Federated learning with record-level privacy, stated and proved as f-differential privacy.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 100},
)
for command in COMMANDS:
    app.command(cls=PlainCommand)(command)
app.add_typer(audit.app, name="audit")
app.add_typer(owner.app, name="owner")
app.add_typer(ledger.app, name="ledger")
app.add_typer(deploy.app, name="deploy")


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        print(f"prifedsync {__version__}")
        raise typer.Exit


def main() -> None:
    """Run a command; bad input is one line and exit status 2, an interruption 130."""
    refusing(typer.main.get_command(app))


__all__ = ["app", "main"]
