"""`prifedsync ledger`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..values import NOT_GIVEN, BadValue
from .options import Json, PolicyFile
from .wording import PlainCommand, PlainGroup

if TYPE_CHECKING:
    from ..owner.ledger import Ledger
    from ..owner.policy import Policy

LEAST_DIGITS = 4  # of the name of a run: with fewer, a slip of the keyboard would end one

app = typer.Typer(
    cls=PlainGroup,
    help="Read and keep the ledger of a data owner.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
RunName = Annotated[str, typer.Argument(metavar="RUN", help="The run, or the first digits of its name.")]
Out = Annotated[Path | None, typer.Option(help="Write to this file.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="The file of the backup.")]


@app.command(cls=PlainCommand)
def new(
    policy: PolicyFile,
    after_loss: Annotated[
        bool, typer.Option("--after-loss", help="The old one is lost: begin with what the anchor says it committed.")
    ] = False,
) -> None:
    """Make the ledger of a source of records, once."""
    from ..owner.ledger import Ledger
    from ..owner.ledger.pages import kept_for

    read = _read(policy)
    path = read.path("ledger")
    anchor = read.path("anchor")
    named = kept_for(read)
    if not after_loss:
        Ledger.create(path, **named, anchor=anchor)
        print(f"{path} is the ledger of {read.source.name}; nothing was spent")
        return
    if anchor is None:
        raise BadValue("after_loss", "true", "needs an anchor, which says what was committed", "restore a backup instead")
    lost = Ledger.create_after_loss(path, **named, anchor=anchor)
    budget = named["budget"].at(lost.order)
    said = "the whole budget" if lost.alone else f"{budget.unit} = {_up(budget.spent_as(lost.committed))}"
    print(f"{path} is the ledger of {read.source.name}; {said} was committed before the loss and counts as spent")


@app.command(cls=PlainCommand)
def show(
    policy: PolicyFile,
    last: Annotated[int, typer.Option(min=1, help="How many entries to show.")] = 20,
    as_json: Json = False,
) -> None:
    """Show the budget and the last entries."""
    from ..owner.ledger.pages import entries_of, totals_of

    with _opened(policy) as ledger:
        page = totals_of(ledger)
        entries = entries_of(ledger)
    if as_json:
        print(json.dumps({**page, "entries": entries[-last:]}))
    else:
        from ..terminal import print_entries

        print_entries(page, entries, last)


@app.command(cls=PlainCommand)
def verify(
    policy: Annotated[Path | None, typer.Argument(metavar="[POLICY]", help="The owner's policy, a TOML file.")] = None,
    receipt: Annotated[Path | None, typer.Option(help="Check the signature of this receipt.")] = None,
    as_json: Json = False,
) -> None:
    """Check a ledger against itself and its anchor, or a receipt."""
    if policy is None and receipt is None:
        raise BadValue("policy", "none", "must be given", "name a policy, or --receipt FILE")
    found: dict[str, Any] = {}
    if policy is not None:
        found |= _verified(_read(policy))
    if receipt is not None:
        found |= _checked(receipt, policy)
    print(json.dumps(found) if as_json else "\n".join(f"{name}: {value}" for name, value in found.items()))


@app.command(cls=PlainCommand)
def export(
    policy: PolicyFile,
    run: Annotated[str | None, typer.Option(help="The receipt of this run alone.")] = None,
    out: Out = None,
) -> None:
    """Write all entries as JSON, or the receipt of one run. No reply and no score is in them."""
    from ..files import write_file
    from ..owner.keys import read_identity
    from ..owner.ledger.pages import entries_of, totals_of
    from ..owner.ledger.receipts import signed

    with _opened(policy) as ledger:
        if run is None:
            made: dict[str, Any] = {**totals_of(ledger), "entries": entries_of(ledger)}
        else:
            made = ledger.receipt(_named(ledger, run))
    found = _read(policy)
    if run is not None and found.path("identity") is not None:
        made = signed(made, read_identity(found))
    text = json.dumps(made, indent=1, ensure_ascii=False)
    if out is None:
        print(text)
    else:
        write_file(out, text.encode() + b"\n")
        print(out)


@app.command(cls=PlainCommand)
def end(policy: PolicyFile, run: RunName) -> None:
    """Close a run, and release what it reserved and did not ask."""
    with _opened(policy, readonly=False) as ledger:
        name = _named(ledger, run)
        before = ledger.run(name)
        assert before is not None
        if not before.open:
            raise BadValue("run", name, "is closed already")
        ledger.close(name, "its owner ended it")
    asked = f"{before.asked} of {before.rounds} rounds and {before.spare} of {before.attempts} attempts were asked"
    if not before.alone:
        said = "what it reserved for the others is free again" if before.reserved else "it has nothing left to release"
    elif before.asked:
        said = "it had the whole budget to itself, and nothing of it is released"
    else:
        said = "it had the whole budget to itself, which is free again"
    print(f"{name} is closed: {asked}; {said}")


@app.command(cls=PlainCommand)
def backup(policy: PolicyFile, file: File) -> None:
    """Copy the ledger to a new file, also while it is in use."""
    with _opened(policy, readonly=False) as ledger:
        ledger.backup(file)
    print(file)


@app.command(cls=PlainCommand)
def restore(
    policy: PolicyFile,
    file: File,
    confirm_loss: Annotated[
        bool,
        typer.Option("--confirm-loss", help="Entries are lost: all that was reserved counts as spent."),
    ] = False,
) -> None:
    """Put a backup in the place of the ledger. The daemon must be stopped."""
    from ..owner.ledger import restore as restored
    from ..owner.ledger.pages import kept_for

    read = _read(policy)
    path = read.path("ledger")
    found = restored(path, file, **kept_for(read), anchor=read.path("anchor"), confirm_loss=confirm_loss)
    said = [f"{path} was restored"]
    if found.lost:
        said.append("entries were lost, and all that was committed is spent")
    if found.closed:
        said.append(f"closed: {', '.join(found.closed)}")
    print("; ".join(said))


@app.command(cls=PlainCommand)
def anchor(policy: PolicyFile) -> None:
    """Write an anchor that is missing, if this is the latest ledger."""
    from ..owner.ledger import Ledger
    from ..owner.ledger.pages import kept_for

    read = _read(policy)
    path = read.path("anchor")
    if path is None:
        raise BadValue("files.anchor", '""', "must be set", "name a file on another disk or machine")
    with Ledger.open_unanchored(read.path("ledger"), **kept_for(read), anchor=path) as ledger:
        if _readable(path):
            ledger.check_anchor()  # one that has seen more than this ledger is not overwritten
        ledger.write_anchor()
        print(f"{path} is the anchor of entry {ledger.head.number}")


def _readable(path: Path) -> bool:
    """Whether there is an anchor, and it is not damaged."""
    from ..owner.ledger import Anchor

    try:
        return Anchor.read(path) is not None
    except BadValue:
        return False


def _read(path: Path) -> Policy:
    from ..owner.policy import read

    return read(path)


def _opened(policy: Path, readonly: bool = True) -> Ledger:
    from ..owner.ledger.pages import open_ledger

    return open_ledger(_read(policy), readonly)


def _named(ledger: Ledger, run: str) -> str:
    """The one run whose name begins so."""
    if len(run) < LEAST_DIGITS:
        rule = f"must have at least {LEAST_DIGITS} digits"
        raise BadValue("run", run or NOT_GIVEN, rule, "`prifedsync owner status POLICY` lists the runs")
    found = [each.run for each in ledger.runs() if each.run.startswith(run)]
    if run in found:
        return run
    if len(found) != 1:
        rule = "is the beginning of several runs" if found else "is not in the ledger"
        raise BadValue("run", run, rule, "`prifedsync owner status POLICY` lists the runs")
    return found[0]


def _verified(policy: Policy) -> dict[str, Any]:
    from ..owner.ledger import verify as verified

    found = verified(policy.path("ledger"), policy.path("anchor"))
    return {
        "source": found.source,
        "entries": found.head.number + 1,
        "head": found.head.hash.hex(),
        "runs": found.runs,
        "replies": found.replies,
        "bodies": found.bodies,
        "anchored": found.anchored,
    }


def _checked(path: Path, policy: Path | None) -> dict[str, Any]:
    """What signed a receipt and, with a policy, whether the ledger knows its head."""
    from ..asking.questions import Head
    from ..owner.ledger import check_receipt

    try:
        receipt = dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        raise BadValue(
            "receipt", path, "cannot be read", "name a file that `prifedsync ledger export --run` wrote"
        ) from None
    found = {"receipt": receipt.get("run"), "signed_by": check_receipt(receipt)}
    if policy is not None:
        head = Head(receipt["head"]["number"], bytes.fromhex(receipt["head"]["hash"]))
        with _opened(policy) as ledger:
            known = ledger.knows(head)
        if not known:
            raise BadValue("receipt", path, "names a head that is not in this ledger", "ask the owner who signed it")
    return found


def _up(value: float) -> str:
    from ..accounting.statement import up

    return up(value)
