"""A CSV file as texts. A file of another form is refused, with the place and the cure."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..values import NOT_GIVEN, BadValue
from .folder import unreadable

AS_CSV = 'save the table as "CSV UTF-8"'
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
WRITTEN = {",": ",", ";": ";", "\t": "tab"}  # as data.separator has them

# The first bytes of files that are often renamed, or saved in the wrong format.
OTHER_FORMATS = {
    b"PK\x03\x04": "it is an Excel workbook or a zip archive",
    b"\xd0\xcf\x11\xe0": "it is an old Excel workbook",
    b"\x1f\x8b": "it is compressed by gzip",
    b"PAR1": "it is a Parquet file",
    b"%PDF": "it is a PDF",
    codecs.BOM_UTF16_LE: "it is UTF-16 text",
    codecs.BOM_UTF16_BE: "it is UTF-16 text",
}


@dataclass(frozen=True)
class Sheet:
    """The rows of a file with their line numbers and owners. There are no owners if the file is still to be split."""

    path: Path
    header: tuple[str, ...]
    rows: list[list[str]]
    lines: list[int]  # where each row begins
    owners: Sequence[str] = ()

    def column(self, name: str) -> list[str]:
        at = self.header.index(name)
        return [row[at] for row in self.rows]

    def place(self, i: int, column: str) -> str:
        """Where a value is, in words."""
        whose = f"client {self.owners[i]!r}, " if self.owners else ""
        return f"{whose}{self.path.name} line {self.lines[i]}, column {column!r}"


def read(path: Path, separator: str = ",", owner: str = "", trained: bool = False) -> Sheet:
    """The file as texts without surrounding blanks. Empty lines are left out.

    trained: whether the separator is that of a finished training, so that no config can change it.
    """
    reader = csv.reader(io.StringIO(_text(path), newline=""), delimiter=separator, strict=True)
    rows = []
    lines = []
    line = 1  # where the next row begins: a cell in quotes may go over several lines
    try:
        header = tuple(name.strip() for name in next(reader, []))
        line = reader.line_num + 1
        for row in reader:
            if row:
                rows.append([cell.strip() for cell in row])
                lines.append(line)
            line = reader.line_num + 1
    except csv.Error as error:
        raise unreadable(path, f"the row that begins in line {line}: {error}", "check the quotes in this row") from None
    if not header:
        remedy = "write the names of the columns in the first line"
        raise unreadable(path, "its first line is empty", remedy)
    sheet = Sheet(path, header, rows, lines, [owner] * len(rows) if owner else ())
    _check_separator(sheet, separator, trained)
    _check_header(sheet)
    _check_rows(sheet)
    return sheet


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise unreadable(path, str(error.strerror), "check the file and its permissions") from None
    for first, why in OTHER_FORMATS.items():
        if content.startswith(first):
            raise unreadable(path, why, AS_CSV)
    if b"\0" in content:
        line = content[: content.index(b"\0")].count(b"\n") + 1
        raise unreadable(path, f"line {line} holds a NUL byte, as binary files and UTF-16 text do", AS_CSV)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise unreadable(path, f"line {line} is not UTF-8 text", AS_CSV) from None


def _check_separator(sheet: Sheet, separator: str, trained: bool) -> None:
    """Refuse a file whose columns are separated by something else."""
    first = sheet.header[0]
    if first.casefold().startswith("sep="):
        remedy = "delete this line"
        if not trained:
            remedy += f", and set data.separator = {_written(first[4:5] or separator)}"
        raise BadValue(
            f"{sheet.path.name} line 1", repr(first), "is a line for Excel, not the names of the columns", remedy
        )
    if len(sheet.header) > 1:
        return
    for other, name in SEPARATORS.items():
        if other != separator and other in first:
            rule = f"is a single column, with {name} in its name"
            remedy = f"separate the columns by {SEPARATORS[separator]}"
            if trained:
                remedy = f"save it with {WRITTEN.get(separator, separator)} between columns, as in training"
            elif other in WRITTEN:
                remedy = f"if {name} separate the columns, set data.separator = {_written(other)}"
            if other == ";" and not trained:
                remedy += '; if the numbers have decimal commas, set data.decimal = "," too'
            raise BadValue(f"{sheet.path.name} line 1", repr(first), rule, remedy)


def _written(separator: str) -> str:
    return f'"{WRITTEN.get(separator, separator)}"'


def _check_header(sheet: Sheet) -> None:
    """Refuse bad names of columns."""
    header = sheet.header
    file = sheet.path.name
    for at, name in enumerate(header):
        if not name or not name.isprintable():
            field = f"{file} line 1, name of column {at + 1}"
            remedy = "name the column, or leave it out"
            if at and not any(header[at:]):
                remedy = "name the column, or remove the separators at the end of the lines"
            raise BadValue(field, repr(name), "must be printable and not empty", remedy)
        if name in header[:at]:
            rule = "is the name of two columns"
            raise BadValue(f"{file} line 1, column", repr(name), rule, "rename one of them")


def _check_rows(sheet: Sheet) -> None:
    """Refuse rows of another length than the header, repeated headers, and rows without a value."""
    width = len(sheet.header)
    header = list(sheet.header)
    for line, row in zip(sheet.lines, sheet.rows, strict=True):
        place = f"{sheet.path.name} line {line}"
        if row == header:
            rule = "repeats the names of the columns"
            raise BadValue(place, NOT_GIVEN, rule, "delete this line: tables were joined with their headers")
        if not any(row):
            raise BadValue(place, NOT_GIVEN, "holds no value", "delete this line")
        if len(row) != width:
            rule = f"must be {width}, as in the header"
            raise BadValue(f"{place}, number of values", len(row), rule, _other_length(row, width))


def _other_length(row: list[str], width: int) -> str:
    if width == 1:
        return "write the names of all columns in the first line, and no title above them"
    if len(row) < width:
        return "complete the row, or delete it if it is no record; check for line breaks and separators without quotes"
    if not any(row[width:]):
        return "remove the separators at the end of the line, or name their columns in the header"
    return "check for commas without quotes: put values that contain the separator in quotes"
