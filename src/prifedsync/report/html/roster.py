"""The table of clients: sortable, in pages, and whole in a print."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ...accounting.statement import down
from ..clients import ClientRow, ClientTable, Spent
from ..contents import Report
from ..guarantee import Stated
from ..wording import many, named
from .markup import MISSING, Html, Inside, joined, size, tag
from .parts import Section, Tone, heading, mark, paragraph, region, section

ROOM = 900_000  # bytes of rows: the page stays below its limit however many clients there are
FEW = 16  # columns that a sheet has room for in the usual size
PAGE = 100  # rows that are shown at once
SHORT = {
    "personal": "personal", "released": "released", "alone": "alone", "alone-private": "alone, with noise",
    "non-private": "non-private",
}  # fmt: skip
TAKEN = "ε ≤ of slots taken"
UNITS = {"mu": "μ ", "epsilon": "ε "}  # of a ledger's amounts
GAINS: dict[str, Tone] = {"gains": "good", "loses": "bad"}


@dataclass(frozen=True)
class Cell:
    """A cell, and what its column is sorted by."""

    inside: Inside
    key: str | float | None
    numeric: bool = True


@dataclass(frozen=True)
class Head:
    """A column, and how a client's cell of it is made."""

    text: str
    cell: Callable[[ClientRow], Cell]


def clients(report: Report, room: int = ROOM) -> Section | None:
    """A row for each client, as far as there is room."""
    found = report.clients
    if found is None or not found.rows:
        return None
    heads = _heads(found, report.run.nominal)
    rows = list(_rows(found, heads, room))
    return section(
        "clients", "Each client",
        paragraph(_lead(found, len(rows))), _unmatched(found),
        paragraph("The button at the head of a column sorts by it.", "needs-script"),
        tag("div", id="clients-pages", class_="pages needs-script", data_size=PAGE),
        _table(heads, rows, found), _about_taken(found.rows),
    )  # fmt: skip


def _lead(found: ClientTable, shown: int) -> str:
    said = []
    if shown < len(found.rows):
        said.append(f"These are the {shown:,} clients with the largest ε of {len(found.rows):,}. All are in report.json.")
    if found.without_ledger:
        said.append(
            f"No receipt of a ledger was given for {many(found.without_ledger, 'client')}, so what was spent before and "
            "what is left is not known there."
        )
    return " ".join(said)


def _unmatched(found: ClientTable) -> Inside:
    if not found.unmatched_receipts:
        return None
    names = named(found.unmatched_receipts, "receipt")
    return paragraph([mark("open", "warning"), f" These receipts belong to no client of this run: {names}."])


def _about_taken(rows: Iterable[ClientRow]) -> Inside:
    """Why the bound of slots that were taken may be the larger one."""
    larger = any(_loudness(row.taken_epsilon) > _loudness(row.epsilon) for row in rows if row.taken_epsilon is not None)
    if not larger:
        return None
    return paragraph(
        f"“{TAKEN}” may be larger than “ε ≤”: the planned number counts the coin that a client tosses in each round, and "
        "the number for slots taken knows how often the coin said yes."
    )


def _heads(found: ClientTable, nominal: bool) -> list[Head]:
    """What a client gave and what is left comes first, so that it is in sight where the table is wider than the page."""
    return [
        Head("Client", lambda row: Cell(row.name, row.name, numeric=False)),
        Head(f"{'nominal ' if nominal else ''}{found.unit}s", lambda row: _count(row.records)),
        Head("rounds", lambda row: _count(row.rounds)),
        Head("ε ≤", lambda row: _stated(row.epsilon)),
        Head("μ ≤", lambda row: _stated(row.mu)),
        Head(TAKEN, lambda row: _stated(row.taken_epsilon)),
        Head("spent before", lambda row: _stated(row.spent.before if row.spent else None, row)),
        Head("left", lambda row: _left(row.spent)),
        *(Head(f"{found.metric}, {SHORT.get(model, model)}", _score_of(model)) for model in _scored(found)),
        Head("gains by joining", _gains),
        Head("uploads", lambda row: _count(row.uploads)),
        Head("noisy queries", lambda row: _count(row.noisy_queries)),
        Head("noise multiplier", lambda row: _number(row.noise_multiplier, "{:.4g}")),
        Head("test records", lambda row: _count(row.test_records)),
        *_answer_heads(found),
    ]


def _scored(found: ClientTable) -> list[str]:
    """The models that some client has a score of."""
    scores = (each for row in found.rows for each in row.scores.items())
    return list(dict.fromkeys(model for model, value in scores if value is not None))


def _answer_heads(found: ClientTable) -> Iterable[Head]:
    """What each client answered, where the run was between machines."""
    kinds = dict.fromkeys(kind for row in found.rows for kind in (row.answers or {}))
    for kind in kinds:
        yield Head(kind, lambda row, kind=kind: _count((row.answers or {}).get(kind)))  # type: ignore[misc]


def _rows(found: ClientTable, heads: Sequence[Head], room: int) -> Iterable[Html]:
    """As many as there is room for. Where that is not all, those who leak most come first."""
    rows = [_row(row, heads) for row in found.rows]
    if sum(map(size, rows)) > room:
        rows = [_row(row, heads) for row in sorted(found.rows, key=lambda row: _loudness(row.epsilon), reverse=True)]
    for row in rows:
        room -= size(row)
        if room < 0:
            return
        yield row


def _loudness(stated: Stated | None) -> float:
    if stated is None or stated.upper is None:
        return float("inf")
    return stated.upper


def _row(row: ClientRow, heads: Sequence[Head]) -> Html:
    name, *others = (head.cell(row) for head in heads)
    return tag("tr", tag("th", name.inside, scope="row"), [_cell(each) for each in others])


def _cell(each: Cell) -> Html:
    """The sorting key stands in the cell only where it is not what the cell shows."""
    shown = MISSING if each.inside is None else each.inside
    key = None if str(each.key) == str(shown) else "" if each.key is None else each.key
    return tag("td", shown, data_k=key, class_=None if each.numeric else "text")


def _table(heads: Sequence[Head], rows: Sequence[Html], found: ClientTable) -> Html:
    top = tag("tr", [_head(head) for head in heads])
    caption = f"Clients, with their {found.metric} on their own test records" if _scored(found) else "Clients"
    inside = tag(
        "table",
        heading(caption),
        tag("thead", top),
        tag("tbody", joined(rows)),
        class_="sortable many" if len(heads) > FEW else "sortable",
        id="clients-table",
    )
    return region(caption, inside)


def _head(head: Head) -> Html:
    return tag("th", tag("button", head.text, type="button", class_="sort"), scope="col", aria_sort="none")


def _count(value: int | None) -> Cell:
    return Cell(None if value is None else f"{value:,}", value)


def _number(value: float | None, form: str) -> Cell:
    return Cell(None if value is None else form.format(value), value)


def _stated(value: Stated | None, row: ClientRow | None = None) -> Cell:
    if value is None:
        return Cell(None, None)
    unit = UNITS.get(row.spent.unit, "") if row and row.spent else ""
    return Cell(f"{unit}{value.text}", float("1e300") if value.upper is None else value.upper)


def _left(spent: Spent | None) -> Cell:
    """What the budget has room for, rounded down."""
    if spent is None or spent.left is None:
        return Cell(None, None)
    return Cell(f"{UNITS.get(spent.unit, '')}{down(spent.left)}", spent.left)


def _score_of(model: str) -> Callable[[ClientRow], Cell]:
    return lambda row: _number(row.scores.get(model), "{:.3f}")


def _gains(row: ClientRow) -> Cell:
    word = row.gains
    return Cell(mark(GAINS[word], word) if word in GAINS else word, word, numeric=False)
