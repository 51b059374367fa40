"""`prifedsync reproduce`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from ..values import BadValue
from .options import Device, Json, Overrides, whole_numbers

if TYPE_CHECKING:
    from ..experiments.running import Runs
    from ..experiments.tables import Asked


def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            click_type=click.Choice(["table1", "table2", "table3", "figures", "all"]),
            metavar="WHAT",
            help="table1, table2, table3, figures or all.",
        ),
    ],
    rows: Annotated[str | None, typer.Option(help="Rows of the table, from 1, between commas; default: all.")] = None,
    seeds: Annotated[str, typer.Option(help="Seeds between commas; each row is run once per seed.")] = "0",
    data: Annotated[Path | None, typer.Option(help="Folder of the files of MNIST and CIFAR-10 (data.path).")] = None,
    device: Device = None,
    out: Annotated[Path, typer.Option(help="Folder of runs, tables and pictures.")] = Path("reproduction"),
    overrides: Overrides = None,
    finished_only: Annotated[bool, typer.Option("--finished-only", help="Run nothing; show what is finished.")] = False,
    as_json: Json = False,
) -> None:
    """Run the paper's tables and figures.

    Finished runs in --out are not run again, and interrupted ones go on.
    """
    from ..experiments.declared import TABLES
    from ..experiments.pages import summary
    from ..experiments.running import Runs
    from ..experiments.tables import Asked
    from ..terminal import View, print_tables

    numbers = None if rows is None else whole_numbers("rows", rows)
    if numbers is not None and what not in TABLES:
        raise BadValue("rows", rows, f"cannot go with {what}", f"name one table: {', '.join(TABLES)}")
    asked = Asked(numbers, tuple(dict.fromkeys(whole_numbers("seeds", seeds))), tuple(overrides or ()), data, device)
    tables: dict[str, Any] = {}
    pictures: list[Path] = []
    try:
        with View(quiet=as_json, spending=False) as view:
            runs = Runs(out, view, view.say, finished_only)
            for name in TABLES if what == "all" else [each for each in TABLES if each == what]:
                tables[name] = _table(name, asked, runs, out)
            if what in ("figures", "all"):
                pictures = _pictures(asked, runs, out / "figures")
    except KeyboardInterrupt:
        print(f"prifedsync: interrupted; the same command goes on with {out}", file=sys.stderr)
        raise typer.Exit(130) from None
    if as_json:
        drawn = {"figures": [str(path) for path in pictures]} if pictures else {}
        print(json.dumps(tables | drawn, allow_nan=False))
        return
    for name, table in tables.items():
        print_tables(summary(table), table.get("sentence"), out / f"{name}.md")
    for path in pictures:
        print(path)


def _table(name: str, asked: Asked, runs: Runs, out: Path) -> dict[str, Any]:
    """One table of the paper, run and written."""
    from ..experiments.declared import Experiment
    from ..experiments.pages import write
    from ..experiments.tables import assembled, run

    experiment = Experiment.named(name)
    table = assembled(experiment, asked, run(experiment, asked, runs))
    write(table, _command(name, asked), out)
    return table


def _command(what: str, asked: Asked) -> str:
    """The command that does this again."""
    words = ["prifedsync reproduce", what]
    words += [f"--rows {','.join(map(str, asked.rows))}"] if asked.rows else []
    words += [f"--seeds {','.join(map(str, asked.seeds))}"] if asked.seeds != (0,) else []
    return " ".join([*words, *(f"--set {quote(each)}" for each in asked.overrides)])


def _pictures(asked: Asked, runs: Runs, folder: Path) -> list[Path]:
    """The paper's figures: theory first, which needs nothing, then what rows of tables show, then the split."""
    from ..experiments.figures import figures
    from ..report import paper

    folder.mkdir(parents=True, exist_ok=True)
    paths = _theory(folder)
    for figure in figures(asked, runs):
        paths.append(folder / f"{figure.name}.png")
        lines = [paper.Accuracy(line.label, line.runs, line.kind, line.group) for line in figure.lines]
        paper.accuracy_figure(figure.title, lines, figure.target, figure.note).savefig(paths[-1])
    return [*paths, _split(asked, folder)]


def _theory(folder: Path) -> list[Path]:
    """Subsampling, and Theorem 1 against Algorithm 1 itself."""
    from ..experiments import leak
    from ..report import paper

    paths = [folder / f"{name}.png" for name in ("subsampling", "theorem-1")]
    paper.amplification_figure().savefig(paths[0])
    clients = 100
    share = 0.05
    rounds = 40
    paper.leak_figure(
        range(1, rounds + 1),
        leak.promised(share, rounds),
        leak.exact(clients, share, rounds),
        leak.measured(clients, share, rounds, runs=2000, seed=0),
        f"m = {clients} clients, p = {share:g}",
        leak.transcript(share, rounds),
    ).savefig(paths[1])
    return paths


def _split(asked: Asked, folder: Path) -> Path:
    """The labels of each client of the CIFAR-10 experiment."""
    from ..config import load
    from ..data import load as load_records
    from ..data.census import census
    from ..report import partition

    config = load("cifar-paper", [f"seed={asked.seeds[0]}", *asked.overrides], asked.data)
    found = census(load_records(config.data, config.seed))
    bars = [partition.Bar(client.name, client.train, client.labels) for client in found.clients]
    path = folder / "cifar-labels.png"
    partition.draw(bars, f"CIFAR-10, β = {config.data.concentration:g}", path)
    return path
