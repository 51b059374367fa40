"""Options that several commands have, each with one line of help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click
import typer

from ..values import BadValue

Records = Annotated[int, typer.Option(help="Number of records: a public nominal number.")]
Batch = Annotated[str, typer.Option(help="Expected batch size, or 'full'.")]
Noise = Annotated[float, typer.Option(help="Noise std ÷ clip norm; twice the paper's σ.")]
LocalSteps = Annotated[int, typer.Option(help="Noisy gradients per round.")]
Rounds = Annotated[int, typer.Option(help="Number of rounds.")]
Participation = Annotated[float, typer.Option(help="Probability to take part in a round.")]
SamplingOption = Annotated[
    str | None,
    typer.Option(click_type=click.Choice(["poisson", "fixed"]), help="How a batch is drawn; default: poisson."),
]
NeighboursOption = Annotated[
    str | None,
    typer.Option(
        click_type=click.Choice(["replace", "add-remove"]),
        help="One record replaced (default), or one added or removed.",
    ),
]
Delta = Annotated[float | None, typer.Option(help="The δ at which ε is stated; default: 1e-5.")]
Source = Annotated[
    str | None, typer.Argument(metavar="[PRESET|CONFIG.toml]", help="A preset or a config file; default: digits.")
]
ConfigSource = Annotated[
    str | None, typer.Argument(metavar="[PRESET|CONFIG.toml]", help="A preset or a config file, instead of the options.")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a field of the config; repeatable.")
]
DataFolder = Annotated[Path | None, typer.Option(help="File or folder of your own records (data.path).")]
Device = Annotated[str | None, typer.Option(click_type=click.Choice(["auto", "cpu", "cuda"]), help="Device to compute on.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Folder of a finished run.")]
UsedModel = Annotated[str, typer.Option(metavar="global|CLIENT", help="The released model, or a client's own.")]
Code = Annotated[
    str | None,
    typer.Option(metavar="MODULE:FUNCTION", help="Your function that makes the model, if the run had one."),
]
Masks = Annotated[bool, typer.Option("--masks", help="The server learns only the sum of the uploads.")]
Colluders = Annotated[int | None, typer.Option(help="Number of clients that may collude, a view of its own.")]
Attempts = Annotated[int | None, typer.Option(help="Spare attempts of the whole run, all charged; default: 0.")]
LeastClients = Annotated[
    int | None,
    typer.Option(help="Least clients in a sum; default: all less --attempts, 1 if p < 1."),
]
PolicyFile = Annotated[Path, typer.Argument(metavar="POLICY", help="The owner's policy, a TOML file.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def whole_numbers(name: str, text: str) -> tuple[int, ...]:
    """10,100,1000 as numbers."""
    try:
        return tuple(int(each) for each in text.split(","))
    except ValueError:
        raise BadValue(name, text, "must be whole numbers between commas", "for example 1,10,100") from None


def picture(out: Path, *endings: str) -> Path:
    """Where a picture goes, if it is of a known kind and its folder exists."""
    if out.suffix not in endings:
        raise BadValue("out", out, f"must end in {' or '.join(endings)}")
    if not out.parent.is_dir():
        raise BadValue("out", out, "lies in a folder that does not exist", f"make {out.parent} first")
    if out.is_dir():
        raise BadValue("out", out, "is a folder", "name a file")
    return out
