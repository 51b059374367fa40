"""The command line. Commands import what they need when they run, so that `account` starts fast."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import click
import typer

from . import __version__

if TYPE_CHECKING:
    from rich.table import Table

    from .accounting import PrivacyPlan, Target
    from .accounting.statement import Statement
    from .data.census import Census, Counted
    from .experiments.running import Runs
    from .experiments.tables import Asked
    from .rules import Rule

app = typer.Typer(
    name="prifedsync",
    help="Federated learning with record-level privacy, stated and proved as f-differential privacy.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

audit_app = typer.Typer(help="Attack what the engine really does, as opposed to what it says.", no_args_is_help=True)
app.add_typer(audit_app, name="audit")

Records = Annotated[int, typer.Option(help="How many records the client has (a public, nominal number).")]
Batch = Annotated[str, typer.Option(help="Expected records in a batch, or 'full'.")]
Noise = Annotated[float, typer.Option(help="Noise std over clip norm, as in Opacus: twice the paper's σ.")]
LocalSteps = Annotated[int, typer.Option(help="Noisy gradients in one round (K).")]
Rounds = Annotated[int, typer.Option(help="Rounds planned (R).")]
Participation = Annotated[float, typer.Option(help="Chance to take part in a round (p).")]
Clients = Annotated[int | None, typer.Option(help="How many clients there are; only the paper's strong μ needs it.")]
SamplingOption = Annotated[str, typer.Option(click_type=click.Choice(["poisson", "fixed"]), help="How a batch is drawn.")]
NeighboursOption = Annotated[
    str, typer.Option(click_type=click.Choice(["replace", "add-remove"]), help="Which data sets must look alike.")
]
Delta = Annotated[float, typer.Option(help="The δ at which ε is stated.")]
Source = Annotated[str | None, typer.Argument(metavar="[PRESET|CONFIG.toml]", help="Default: the digits preset.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a field of the config; repeatable.")
]
DataFolder = Annotated[Path | None, typer.Option(help="File or folder of your own records (data.path).")]
Device = Annotated[str | None, typer.Option(click_type=click.Choice(["auto", "cpu", "cuda"]), help="Where it runs.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]

RULE_COLUMNS = {  # a rule's attribute → its heading in the table, and how much of the width it gets
    "name": ("rule", 0),
    "server_sends": ("server sends", 4),
    "client_does": ("client does", 5),
    "leaves": ("leaves the client", 3),
    "cost": ("noisy gradients a round", 4),
}
RULE_SYMBOLS = (
    "K: local.local_steps, L: rule.inner_steps, γ: local.learning_rate; of each client, α_i: mixing, λ_i: strength, "
    "a_i: share. w̃_i: what client i sends, h_i: what it is sent. Each noisy gradient has a batch of its own and is "
    "counted; whatever follows it is free. docs/rules.md says which rule is for whom."
)
WIDEST_TABLE = 132  # columns; longer lines are hard to read
MOST_CLIENTS = 20  # rows of the table of clients
MOST_LABELS = 5  # of one client, where labels have no columns of their own


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"prifedsync {__version__}")
        raise typer.Exit


@app.command()
def account(
    records: Records,
    batch: Batch,
    noise_multiplier: Noise,
    local_steps: LocalSteps,
    rounds: Rounds,
    participation: Participation = 1.0,
    clients: Clients = None,
    sampling: SamplingOption = "poisson",
    neighbours: NeighboursOption = "replace",
    delta: Delta = 1e-5,
    as_json: Json = False,
) -> None:
    """The guarantee of a plan, before any model exists."""
    from .accounting.statement import Statement

    plan = _plan(records, batch, noise_multiplier, local_steps, rounds, participation, sampling, neighbours)
    statement = Statement.of(plan, delta, clients)
    if as_json:
        print(json.dumps(statement.as_json()))
    else:
        _print_statement(statement)


@app.command()
def curve(
    records: Records,
    batch: Batch,
    noise_multiplier: Noise,
    local_steps: LocalSteps,
    rounds: Rounds,
    participation: Participation = 1.0,
    sampling: SamplingOption = "poisson",
    neighbours: NeighboursOption = "replace",
    out: Annotated[Path, typer.Option(help="Where to write: a name ending in .png or .html.")] = Path("curve.png"),
) -> None:
    """The trade-off curve of a plan as a picture."""
    from .accounting import paper
    from .accounting.statement import up
    from .report.curve import draw, lines
    from .values import BadValue

    if out.suffix not in (".png", ".html"):
        raise BadValue("out", out, "must end in .png or .html")
    if not out.parent.is_dir():
        raise BadValue("out", out, "lies in a folder that does not exist", f"make {out.parent} first")
    plan = _plan(records, batch, noise_multiplier, local_steps, rounds, participation, sampling, neighbours)
    honest = plan.guarantee()
    worst = honest if plan.participation == 1 else plan.guarantee("adversarial")
    note = (
        f"{records} records, batch {batch} ({sampling}), noise multiplier {noise_multiplier:g}, {local_steps} steps × "
        f"{rounds} rounds, p = {participation:g}: ε ≤ {up(honest.epsilon(1e-5).upper)} at δ = 1e-5"
    )
    draw(lines(honest, worst, paper.mu_weak([plan])), note, out)
    print(out)


@app.command()
def plan(
    records: Annotated[int | None, typer.Option(help="How many records the client has; or give --sizes.")] = None,
    batch: Annotated[str | None, typer.Option(help="Expected records in a batch, or 'full'.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Given when rounds or batch are solved for.")] = None,
    local_steps: LocalSteps = 1,
    rounds: Annotated[int | None, typer.Option(help="Rounds planned (R).")] = None,
    participation: Participation = 1.0,
    sampling: SamplingOption = "poisson",
    neighbours: NeighboursOption = "replace",
    target_epsilon: Annotated[float | None, typer.Option(help="Meet this ε at --delta.")] = None,
    target_mu: Annotated[float | None, typer.Option(help="Meet this μ on [1e-5, 1 − 1e-5].")] = None,
    target_advantage: Annotated[float | None, typer.Option(help="Keep the best attack's advantage under this.")] = None,
    delta: Delta = 1e-5,
    solve: Annotated[
        str, typer.Option(click_type=click.Choice(["noise", "rounds", "batch"]), help="What to choose.")
    ] = "noise",
    sizes: Annotated[Path | None, typer.Option(help="CSV with columns client, records: one answer a client.")] = None,
    as_json: Json = False,
) -> None:
    """What each client needs to meet a target, and who cannot."""
    from .accounting.planning import answer, rare_events, read_sizes, together
    from .values import BadValue

    target = _target(target_epsilon, target_mu, target_advantage, delta)
    if (records is None) == (sizes is None):
        raise BadValue("records", records, "and --sizes: give one of the two")
    clients = {"": cast(int, records)} if sizes is None else read_sizes(sizes)
    given = {"batch": batch, "noise_multiplier": noise_multiplier, "rounds": rounds}
    solved = {"noise": "noise_multiplier"}.get(solve, solve)
    for name, value in given.items():
        if value is None and name != solved:
            raise BadValue(name, "nothing", f"must be given when --solve {solve}", f"add --{name.replace('_', '-')}")
    answers = []
    for client, size in _progress(clients.items(), "clients", shown=len(clients) > 3 and not as_json):
        row = {"noise_multiplier": 1.0, "batch": "1", "rounds": 1, **{k: v for k, v in given.items() if v is not None}}

        def build(size: int = size, row: dict[str, Any] = row) -> PrivacyPlan:
            return _plan(
                size, row["batch"], row["noise_multiplier"], local_steps, row["rounds"], participation, sampling, neighbours
            )

        if sizes is None:
            build()  # one client: what is wrong with its numbers is bad input, not an answer
        answers.append(answer(client, size, build, target, cast(Literal["noise", "rounds", "batch"], solve)))
    warnings = rare_events(target, ((found.client, found.numbers) for found in answers if found.numbers))
    if as_json:
        said = answers[0].as_json() if sizes is None else together(answers)
        print(json.dumps(said | {"warnings": list(warnings)}))
        return
    _print_answers(answers, target, solve, warnings)


@app.command()
def train(
    source: Annotated[
        str | None, typer.Argument(metavar="[PRESET|CONFIG.toml]", help="Default: the digits preset.")
    ] = None,
    overrides: Overrides = None,
    data: DataFolder = None,
    out: Annotated[Path | None, typer.Option(help="A new folder for the run; default: runs/NAME-TIME.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with an interrupted run.")] = None,
    device: Device = None,
    show_config: Annotated[bool, typer.Option("--show-config", help="Print every field, documented, and stop.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, only the run folder's name.")] = False,
    as_json: Json = False,
) -> None:
    """Train over all clients' records, privately, and say what it cost."""
    from .config import load, to_toml
    from .values import BadValue

    if resume is not None:
        if source is not None or overrides or data is not None or out is not None or device is not None or show_config:
            raise BadValue("resume", resume, "goes on with the config in that folder", "give --resume alone")
    else:
        config = load(source, overrides or (), data, device)
        if show_config:
            print(to_toml(config, documented=True), end="")
            return
    from . import files, run
    from .terminal import View, print_record

    folder = resume or out or _run_folder(source)
    try:
        with View(quiet or as_json) as view:
            result = run.resume(folder, watch=view) if resume else run.train(config, out=folder, watch=view)
    except run.Finished as finished:
        if as_json:
            print(json.dumps(finished.record.as_json() | {"folder": str(folder)}, allow_nan=False))
        else:
            print(folder if quiet else f"{folder} is finished; its record is {finished.path}")
        return
    except KeyboardInterrupt:
        how = f"; resume with --resume {folder}" if (folder / files.CONFIG).is_file() else ""
        print(f"prifedsync: interrupted{how}", file=sys.stderr)
        raise typer.Exit(130) from None
    if as_json:
        print(json.dumps(result.record.as_json() | {"folder": str(result.folder)}, allow_nan=False))
    elif quiet:
        print(result.folder)
    else:
        print_record(result.record, result.folder)


@app.command()
def rules(as_json: Json = False) -> None:
    """The personalisation rules: what is sent, what a client does with it, what leaves, what it costs."""
    from .rules import RULES

    if as_json:
        print(json.dumps({"rules": [_about_rule(kind) for kind in RULES.values()]}))
    else:
        _print_rules(RULES)


@app.command()
def partition(
    source: Source = None,
    overrides: Overrides = None,
    data: DataFolder = None,
    out: Annotated[Path | None, typer.Option(help="Draw it too: a name ending in .png.")] = None,
    as_json: Json = False,
) -> None:
    """Who has what: each client's numbers of records and of labels, before anything is trained."""
    from .config import PUBLIC, load
    from .values import BadValue

    if out is not None and out.suffix != ".png":
        raise BadValue("out", out, "must end in .png")
    if out is not None and not out.parent.is_dir():
        raise BadValue("out", out, "lies in a folder that does not exist", f"make {out.parent} first")
    config = load(source, overrides or (), data)
    from .data import load as load_records
    from .data.census import census
    from .report.partition import Bar, draw

    found = census(load_records(config.data, config.seed), config.data.label_values)
    if out is not None:
        bars = [Bar(client.name, client.train, client.labels) for client in found.clients]
        shared = f", one and the same with up to {found.copies} clients" if found.copies > 1 else ""
        draw(bars, f"{config.data.source}: {found.records:,} training records{shared}", out)
    if as_json:
        print(json.dumps(found.as_json()))
    else:
        _print_partition(found, out, own=config.data.source not in PUBLIC)


@app.command()
def reproduce(
    what: Annotated[str, typer.Argument(click_type=click.Choice(["table1", "table2", "table3", "figures", "all"]))],
    rows: Annotated[str | None, typer.Option(help="Rows of the table, from 1, between commas; default: all.")] = None,
    seeds: Annotated[str, typer.Option(help="Seeds between commas: every row is run once with each.")] = "0",
    data: Annotated[Path | None, typer.Option(help="Folder of MNIST's and CIFAR-10's files (data.path).")] = None,
    device: Device = None,
    out: Annotated[Path, typer.Option(help="Folder of runs, tables and pictures; what is finished there stays.")] = Path(
        "reproduction"
    ),
    overrides: Overrides = None,
    finished_only: Annotated[
        bool, typer.Option("--finished-only", help="Run nothing: put together what is finished.")
    ] = False,
    as_json: Json = False,
) -> None:
    """The paper's tables and figures; what is finished is not run again, what was interrupted goes on."""
    from .experiments.declared import TABLES
    from .experiments.running import Runs
    from .experiments.tables import Asked
    from .terminal import View, print_table
    from .values import BadValue

    numbers = None if rows is None else _counts("rows", rows)
    if numbers is not None and what not in TABLES:
        raise BadValue("rows", rows, f"cannot go with {what}", f"name one table: {', '.join(TABLES)}")
    asked = Asked(numbers, tuple(dict.fromkeys(_counts("seeds", seeds))), tuple(overrides or ()), data, device)
    found: dict[str, Any] = {}
    try:
        with View(quiet=as_json, spending=False) as view:
            runs = Runs(out, view, view.say, finished_only)
            for name in TABLES if what == "all" else (what,) if what in TABLES else ():
                found[name] = _table(name, asked, runs, out)
            pictures = _pictures(asked, runs, out / "figures") if what in ("figures", "all") else []
    except KeyboardInterrupt:
        print(f"prifedsync: interrupted; the same command goes on with {out}", file=sys.stderr)
        raise typer.Exit(130) from None
    if as_json:
        print(json.dumps(found | ({"figures": [str(path) for path in pictures]} if pictures else {}), allow_nan=False))
        return
    for name, table in found.items():
        print_table(table, out / f"{name}.md")
    for path in pictures:
        print(path)


@audit_app.command()
def step(
    source: Source = None,
    overrides: Overrides = None,
    data: DataFolder = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Measure one noisy step: how far a record moves it, the law of its noise, its batches and counts."""
    from .config import load

    config = load(source, overrides or (), data, device)
    from .audit import audit_config
    from .terminal import print_audit

    found = audit_config(config)
    if as_json:
        print(json.dumps(found.as_json()))
    else:
        print_audit(found)
    if not found.passed:
        raise typer.Exit(1)


@app.command()
def bench(
    preset: Annotated[str | None, typer.Argument(metavar="[PRESET]")] = None,
    device: Device = None,
    clients: Annotated[
        str | None,
        typer.Option(help="How many train in a round: 10,100,1000 compares with 10 and times the others too."),
    ] = None,
    overrides: Overrides = None,
    seconds: Annotated[float | None, typer.Option(help="How long rounds are timed; default: 25, on a GPU 40.")] = None,
    out: Annotated[Path | None, typer.Option(help="A folder for bench.json and bench.png.")] = None,
    as_json: Json = False,
) -> None:
    """Time a private step against one without privacy, and against Opacus where it is installed.

    Presets: mnist-paper (the default), cifar-paper, pfl-cifar10, mlp, general.
    """
    from .values import BadValue

    counts = () if clients is None else _counts("clients", clients)
    if out is not None and out.exists() and not out.is_dir():
        raise BadValue("out", out, "is not a folder", "name a folder")
    from .bench import measure
    from .report.bench import draw
    from .terminal import View, print_bench

    with View(quiet=as_json) as view:
        found = measure(preset, device=device, clients=counts, overrides=overrides or (), limit=seconds, watch=view)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "bench.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        draw(found, out / "bench.png")
    if as_json:
        print(json.dumps(found, allow_nan=False))
    else:
        print_bench(found, out)


def _counts(name: str, text: str) -> tuple[int, ...]:
    """10,100,1000 as numbers."""
    from .values import BadValue

    try:
        return tuple(int(each) for each in text.split(","))
    except ValueError:
        raise BadValue(name, text, "must be whole numbers between commas", "for example 1,10,100") from None


def _table(name: str, asked: Asked, runs: Runs, out: Path) -> dict[str, Any]:
    """One table of the paper, run and written."""
    from .experiments.declared import Experiment
    from .experiments.pages import write
    from .experiments.tables import assembled, run

    experiment = Experiment.named(name)
    table = assembled(experiment, asked, run(experiment, asked, runs))
    write(table, _reproduces(name, asked), out)
    return table


def _reproduces(what: str, asked: Asked) -> str:
    """The command that does this again."""
    from shlex import quote

    words = ["prifedsync reproduce", what]
    words += [f"--rows {','.join(map(str, asked.rows))}"] if asked.rows else []
    words += [f"--seeds {','.join(map(str, asked.seeds))}"] if asked.seeds != (0,) else []
    return " ".join([*words, *(f"--set {quote(each)}" for each in asked.overrides)])


def _pictures(asked: Asked, runs: Runs, folder: Path) -> list[Path]:
    """The paper's figures: theory first, which needs nothing, then what rows of tables show, then the split."""
    from .config import load
    from .data import load as load_records
    from .data.census import census
    from .experiments import leak
    from .experiments.figures import figures
    from .report import paper, partition

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png" for name in ("subsampling", "theorem-1")]
    paper.amplification_figure().savefig(paths[0])
    clients, share, rounds = 100, 0.05, 40
    paper.leak_figure(
        range(1, rounds + 1), leak.promised(share, rounds), leak.exact(clients, share, rounds),
        leak.measured(clients, share, rounds, runs=2000, seed=0), f"m = {clients} clients, p = {share:g}",
        leak.transcript(share, rounds),
    ).savefig(paths[1])  # fmt: skip
    for figure in figures(asked, runs):
        paths.append(folder / f"{figure.name}.png")
        lines = [paper.Accuracy(line.label, line.runs, line.kind, line.group) for line in figure.lines]
        paper.accuracy_figure(figure.title, lines, figure.target, figure.note).savefig(paths[-1])
    config = load("cifar-paper", [f"seed={asked.seeds[0]}", *asked.overrides], asked.data)
    found = census(load_records(config.data, config.seed))
    bars = [partition.Bar(client.name, client.train, client.labels) for client in found.clients]
    paths.append(folder / "cifar-labels.png")
    partition.draw(bars, f"CIFAR-10, β = {config.data.concentration:g}", paths[-1])
    return paths


def _run_folder(source: str | None) -> Path:
    """A folder named after what and when, made here so that no other run can take it; a number where that is taken."""
    from datetime import datetime

    from .config import DEFAULT_PRESET

    name = f"{Path(source or DEFAULT_PRESET).stem}-{datetime.now():%Y%m%d-%H%M%S}"
    for each in [name, *(f"{name}-{n}" for n in range(2, 100))]:
        try:
            (Path("runs") / each).mkdir(parents=True)
            return Path("runs") / each
        except FileExistsError:
            continue
    raise FileExistsError(f"runs/{name} and 98 more are taken")


def _progress(items: Collection[tuple[str, int]], what: str, shown: bool) -> Iterable[tuple[str, int]]:
    """The items, with a progress bar on the error stream while they are worked through, if that is a terminal."""
    if not (shown and sys.stderr.isatty()):
        return items
    from rich.console import Console
    from rich.progress import track

    return track(items, description=what, console=Console(stderr=True), transient=True)


def _target(epsilon: float | None, mu: float | None, advantage: float | None, delta: float) -> Target:
    from .accounting import Target
    from .values import BadValue

    given = {"epsilon": epsilon, "mu": mu, "advantage": advantage}
    chosen = [(kind, value) for kind, value in given.items() if value is not None]
    if len(chosen) != 1:
        raise BadValue(
            "target", len(chosen), "targets given", "give one of --target-epsilon, --target-mu, --target-advantage"
        )
    kind, value = chosen[0]
    return Target(cast(Literal["epsilon", "mu", "advantage"], kind), value, delta)


def _plan(
    records: int,
    batch: str,
    noise_multiplier: float,
    local_steps: int,
    rounds: int,
    participation: float,
    sampling: str,
    neighbours: str,
) -> PrivacyPlan:
    from .accounting import Neighbours, NoisySteps, PrivacyPlan, Sampling
    from .values import BadValue

    try:
        size: int | Literal["full"] = "full" if batch == "full" else int(batch)
    except ValueError:
        raise BadValue("batch", batch, "must be a whole number or 'full'") from None
    mechanism = NoisySteps(
        noise_multiplier=noise_multiplier,
        records=records,
        batch=size,
        local_steps=local_steps,
        sampling=Sampling(sampling),
    )
    return PrivacyPlan(mechanism=mechanism, rounds=rounds, participation=participation, neighbours=Neighbours(neighbours))


def _print_statement(statement: Statement) -> None:
    from rich.console import Console
    from rich.table import Table

    from .accounting.statement import SHOWN_LEVELS, down, percent_up, up

    table = Table(title="How much one record of this client leaks, to anyone", title_justify="left")
    table.add_column("")
    columns = {"takes part by its own coin": statement.honest, "others choose": statement.worst_case}
    if statement.worst_case == statement.honest:
        columns = {"takes part in every round": statement.honest}
    for heading in columns:
        table.add_column(heading, justify="right")
    both = columns.values()
    table.add_row(f"ε at δ = {statement.delta:g}", *(f"≤ {up(n.epsilon.upper, 5)}" for n in both))
    table.add_row("", *(f"[dim]≥ {down(n.epsilon.lower, 5)}[/dim]" for n in both))
    table.add_row("μ for α in 1e-5 … 1−1e-5", *(f"≤ {up(n.mu.upper)}" for n in both))
    table.add_row("best attack's advantage", *(f"≤ {percent_up(n.advantage.upper)}" for n in both))
    for level in SHOWN_LEVELS:
        table.add_row(f"hits at {level:.1%} false alarms", *(f"≤ {percent_up(n.hits(level))}" for n in both))
    console = Console()
    console.print(table)
    console.print(statement.sentence(), highlight=False)
    if statement.mu_weak is not None:
        strong = "" if statement.mu_strong is None else f", strong {statement.mu_strong:.2f}"
        console.print(
            f"[dim]The paper prints μ = {statement.mu_weak:.2f}{strong}: an asymptotic value, not a guarantee.[/dim]",
            highlight=False,
        )
    for warning in statement.warnings:
        console.print(f"[yellow]warning:[/yellow] {warning}", highlight=False)


def _print_answers(answers: list[Any], target: Target, solve: str, warnings: Iterable[str]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from .accounting.statement import up

    table = Table(title=f"To meet {target}, solving for {solve}", title_justify="left")
    for heading in ("client", "records", "batch", "rounds", "noise multiplier", "ε ≤", "μ ≤"):
        table.add_column(heading, justify="left" if heading == "client" else "right")
    for found in answers:
        if found.numbers is None:
            table.add_row(escape(found.client), str(found.records), "–", "–", "–", "cannot", "cannot")
        else:
            steps = found.plan.mechanism
            table.add_row(
                escape(found.client), str(found.records), str(steps.batch), str(found.plan.rounds),
                up(steps.noise_multiplier, 5), up(found.numbers.epsilon.upper), up(found.numbers.mu.upper),
            )  # fmt: skip
    console = Console()
    console.print(table)
    for found in answers:
        if found.reason:
            console.print(found.reason, highlight=False, markup=False)
    for warning in warnings:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}", highlight=False)


def _about_rule(kind: type[Rule]) -> dict[str, Any]:
    """One row of the table for programs, and which fields of [rule] (and of one client's own) the rule reads."""
    from inspect import cleandoc

    from .rules.fields import described, fields_read

    row = {key: getattr(kind, key) for key in RULE_COLUMNS}
    about = cleandoc(sys.modules[kind.__module__].__doc__ or "")
    return row | {"about": about, "fields": fields_read(kind), "own_fields": described(kind)}


def _print_rules(known: Mapping[str, type[Rule]]) -> None:
    """The table, wrapped between words where the longest have room, within them where not; nothing is cut off."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from .config.toml import toml
    from .rules.fields import described

    console = Console()
    table = Table(title="Personalisation rules", title_justify="left", show_lines=True)
    longest = [
        max(cell_len(word) for kind in known.values() for word in f"{heading} {getattr(kind, key)}".split())
        for key, (heading, _) in RULE_COLUMNS.items()
    ]
    lines = 3 * len(RULE_COLUMNS) + 1  # between columns, and the room beside them
    spare = max(0, min(console.width, WIDEST_TABLE) - lines - sum(longest))
    shares = sum(share for _, share in RULE_COLUMNS.values())
    for least, (heading, share) in zip(longest, RULE_COLUMNS.values(), strict=True):
        table.add_column(heading, overflow="fold", width=least + spare * share // shares)
    for kind in known.values():
        table.add_row(*(escape(getattr(kind, key)) for key in RULE_COLUMNS))
    console.print(table)
    console.print(RULE_SYMBOLS, highlight=False, markup=False)
    for kind in known.values():
        for own in described(kind):
            field = f"rule.{own['name']} = {toml(own['default'])}"
            console.print(f"{kind.name}: {field}: {own['about']} ({own['allowed']})", highlight=False, markup=False)


def _print_partition(found: Census, out: Path | None, own: bool) -> None:
    """A row a client, a column a label where they fit; then all clients in a line or two."""
    from rich.console import Console

    console = Console()
    table = _clients_table(found, by_label=True)
    if console.measure(table, options=console.options.update_width(10**6)).maximum > console.width:
        table = _clients_table(found, by_label=False)
    console.print(table)
    count = len(found.clients)
    least, median, most = found.sizes
    said = [f"… and {count - MOST_CLIENTS} more"] if count > MOST_CLIENTS else []
    said.append(
        f"{count} client{'s' * (count > 1)} with {found.records:,} training records: least {least:,}, "
        f"median {f'{median:,.1f}'.removesuffix('.0')}, most {most:,}"
        + (f"; a client has {found.labels_seen:.1f} of {len(found.labels)} labels on average" if found.labels else "")
    )
    if found.copies > 1:
        said.append(f"up to {found.copies} clients hold one and the same record; one held by c clients leaks through all c")
    if own:
        said.append("these are true counts of your records, without noise: no guarantee covers them")
    said.append(f"picture: {out}" if out else "for a picture, add --out partition.png")
    for line in said:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _clients_table(found: Census, by_label: bool) -> Table:
    """A row a client; its labels in columns, or the most frequent ones in words."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="Records of each client", title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True)
    table.add_column("client", overflow="fold")
    for heading in ("train", "test", *(map(escape, found.labels) if by_label else ["labels"] if found.labels else [])):
        table.add_column(heading, justify="right", overflow="fold")
    if found.labels:
        table.caption, table.caption_justify = "labels are those of training records", "left"
        if not by_label:
            table.add_column("most frequent", overflow="fold")
    for client in found.clients[:MOST_CLIENTS]:
        words = [str(client.seen), escape(_frequent(client))] if found.labels else []
        counts = [f"{count:,}" if count else "·" for count in client.labels.values()]
        table.add_row(escape(client.name), f"{client.train:,}", f"{client.test:,}", *(counts if by_label else words))
    return table


def _frequent(client: Counted) -> str:
    """A client's most frequent labels, each with how many records have it."""
    often = sorted((label for label, count in client.labels.items() if count), key=lambda label: -client.labels[label])
    named = [f"{label} ({client.labels[label]:,})" for label in often[:MOST_LABELS]]
    return ", ".join([*named, "…"] if len(often) > MOST_LABELS else named)


def _check_words(words: Iterable[str]) -> None:
    """Refuse what is not UTF-8: it could be neither printed nor written into a config."""
    from .values import BadValue

    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            remedy = "rename it, or go there first and give a name relative to it"
            raise BadValue("argument", word, "is not UTF-8", remedy) from None


def _out_of_memory(error: Exception) -> bool:
    """torch has no class of its own for memory that the processor does not have, nor for sizes beyond any memory."""
    said = str(error)
    signs = ("allocate memory", "out of memory", "Storage size calculation overflowed", "integer multiplication overflow")
    return isinstance(error, MemoryError) or any(sign in said for sign in signs)


def main() -> None:
    """Run a command; bad input is one line and exit status 2, an interruption 130."""
    from .values import BadValue

    command = typer.main.get_command(app)
    try:
        _check_words(sys.argv[1:])
        sys.exit(command.main(standalone_mode=False))
    except (click.UsageError, BadValue) as error:
        print(f"prifedsync: {error.format_message() if isinstance(error, click.UsageError) else error}", file=sys.stderr)
        sys.exit(2)
    except OverflowError as error:
        print(f"prifedsync: these numbers are beyond what can be computed: {error}", file=sys.stderr)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        reason = " ".join(str(error).split())
        print(f"prifedsync: there is not enough memory for this: {reason}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"prifedsync: {error}; nothing already saved is lost", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        print("prifedsync: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
