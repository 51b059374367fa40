"""The table of `partition`: a row a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from rich.box import SIMPLE_HEAD
from rich.table import Table

from .lines import say, say_place, screen

MOST_CLIENTS = 20  # rows of the table
MOST_LABELS = 5  # of one client, where labels have no columns of their own


class Counted(Protocol):
    """One client: its records, and how many of those trained on have each label."""

    @property
    def name(self) -> str: ...
    @property
    def train(self) -> int: ...
    @property
    def test(self) -> int: ...
    @property
    def labels(self) -> Mapping[str, int]: ...
    @property
    def seen(self) -> int: ...
    @property
    def persons(self) -> tuple[int, int] | None: ...


class Census(Protocol):
    """All clients, counted."""

    @property
    def clients(self) -> Sequence[Counted]: ...
    @property
    def labels(self) -> Sequence[str]: ...
    @property
    def copies(self) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def sizes(self) -> tuple[int, float, int]: ...
    @property
    def persons(self) -> int | None: ...
    @property
    def labels_seen(self) -> float: ...


def print_partition(census: Census, picture: object, own: bool) -> None:
    """A row a client, a column a label where they fit; then all clients in a line or two.

    own: whether these are records of the user's own, and not a published data set.
    """
    console = screen()
    table = _table(census, by_label=True)
    if console.measure(table, options=console.options.update_width(10**6)).maximum > console.width:
        table = _table(census, by_label=False)
    console.print(table)
    for line in _summary(census, own):
        say(console, line)
    if picture:
        say_place(console, f"picture: {picture}")
    else:
        say(console, "for a picture, add --out partition.png")


def _summary(census: Census, own: bool) -> list[str]:
    count = len(census.clients)
    least, median, most = census.sizes
    lines = [f"… and {count - MOST_CLIENTS} more"] if count > MOST_CLIENTS else []
    lines.append(
        f"{count} client{'s' * (count > 1)} with {census.records:,} training records: least {least:,}, "
        f"median {f'{median:,.1f}'.removesuffix('.0')}, most {most:,}"
    )
    if census.labels:
        lines.append(f"a client has {census.labels_seen:.1f} of {len(census.labels)} labels on average")
    if census.persons is not None:
        lines.append(f"the training records are those of {census.persons:,} persons, each counted at each of its clients")
    if census.copies > 1:
        unit = "record" if census.persons is None else "person"
        lines.append(
            f"up to {census.copies} clients hold one and the same {unit}; a {unit} held by c clients leaks through all c"
        )
    if own:
        lines.append("these are exact counts of your records, without noise: no guarantee covers them")
    return lines


def _table(census: Census, by_label: bool) -> Table:
    """A row a client; its labels in columns, or the most frequent ones in words."""
    table = Table(title="Records of each client", title_justify="left", box=SIMPLE_HEAD, collapse_padding=True)
    table.add_column("client", overflow="fold")
    headings = ["train", "test"]
    if census.persons is not None:
        headings += ["persons train", "test"]
    if census.labels:
        headings += census.labels if by_label else ["labels"]
        table.caption = "labels are those of training records"
        table.caption_justify = "left"
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    if census.labels and not by_label:
        table.add_column("most frequent", overflow="fold")
    for client in census.clients[:MOST_CLIENTS]:
        cells = [client.name, f"{client.train:,}", f"{client.test:,}"]
        cells += [f"{count:,}" for count in client.persons or ()]
        if census.labels and by_label:
            cells += [f"{count:,}" if count else "·" for count in client.labels.values()]
        elif census.labels:
            cells += [str(client.seen), _frequent(client)]
        table.add_row(*cells)
    return table


def _frequent(client: Counted) -> str:
    """A client's most frequent labels, each with how many records have it."""
    often = sorted((label for label, count in client.labels.items() if count), key=lambda label: -client.labels[label])
    named = [f"{label} ({client.labels[label]:,})" for label in often[:MOST_LABELS]]
    return ", ".join([*named, "…"] if len(often) > MOST_LABELS else named)
