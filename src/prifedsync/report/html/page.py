"""One self-contained HTML file: style, script, plotly and numbers are in it, and a policy in it forbids the network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from plotly import offline

from ... import __version__
from ...files import RECORD, write_file
from ..contents import Report
from . import officer, opening, privacy, releases, research, roster, tradeoff
from .markup import Html, Inside, as_json, size, tag
from .parts import Section

LIMIT = 6_400_000  # bytes of a page
SAID = 1000  # bytes that say that rows were left out
MOST_TITLE = 90  # letters of a title in the margin of a sheet
SECTIONS = (
    opening.verdict, privacy.guarantee, privacy.attacks, privacy.views, tradeoff.curve, privacy.epsilon, releases.leaving,
    releases.conditions, releases.audits, roster.clients, research.utility, research.reproducing, officer.items,
    officer.warnings, officer.signatures,
)  # fmt: skip


def write_page(report: Report, path: Path) -> None:
    """Write the report as a page."""
    write_file(path, page_of(report).encode())


def page_of(report: Report) -> str:
    """The page as text. The report's numbers are in it as JSON, but for the rows of clients, which are in their table.

    Where that is too much, it has no JSON; and where that is not enough, it has fewer rows.
    """
    sections = [made for made in (each(report) for each in SECTIONS) if made is not None]
    opened = opening.header(report)
    sealed = _sealed(report)
    page = whole(report.title, sections, opened, _numbers(report), sealed)
    if size(page) > LIMIT:
        page = whole(report.title, sections, opened, None, sealed)
    over = size(page) - LIMIT
    if over > 0:
        fewer = roster.clients(report, roster.ROOM - over - SAID)
        sections = [fewer if fewer and each.name == fewer.name else each for each in sections]
        page = whole(report.title, sections, opened, None, sealed)
    return page


def _sealed(report: Report) -> str:
    """The hash of the record, for each sheet of a print: it tells which run a sheet belongs to."""
    found = next((file.sha256 for file in report.signatures.files if file.name == RECORD), None)
    return f"{RECORD}, SHA-256: {found}" if found else ""


def whole(title: str, sections: Sequence[Section], opened: Html, data: Inside, sealed: str = "") -> str:
    """A page with this title, its sections and a table of contents. `sealed`: what stands below each sheet of a print."""
    plotly, own = Html(offline.get_plotlyjs()), Html(_asset("report.js"))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(plotly, own)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title}: privacy report"),
        tag("style", Html(_asset("report.css") + _margins(title, sealed))),
    )
    top = tag("header", tag("span", "PriFedSync", class_="brand"), _theme(), class_="top")
    links = tag("ol", [tag("li", tag("a", each.title_text, href=f"#{each.name}")) for each in sections])
    contents = tag(
        "nav", tag("details", tag("summary", "Contents"), links, open=True), aria_label="Contents", class_="contents"
    )
    foot = tag("footer", f"Made with PriFedSync {__version__}. This page loads nothing from a network.")
    skip = tag("a", "Skip to the report", href="#main", class_="skip")
    scripts = [tag("script", plotly), tag("script", own)]
    main = tag("main", opened, sections, data, id="main", tabindex="-1")
    shown = tag("body", skip, top, tag("div", contents, main, class_="frame"), foot, scripts)
    return f"<!DOCTYPE html>\n{tag('html', head, shown, lang='en')}\n"


def _policy(*scripts: str) -> str:
    """Nothing is loaded, and no script runs but those whose hashes are named here."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    forbidden = "default-src 'none'; base-uri 'none'; form-action 'none'"
    return f"{forbidden}; style-src 'unsafe-inline'; img-src data:; script-src {allowed}"


def _margins(title: str, sealed: str) -> str:
    """What a print has in the margin of each sheet."""
    head = title if len(title) <= MOST_TITLE else f"{title[: MOST_TITLE - 1]}…"
    boxes = {"top-left": head, "bottom-left": sealed}
    return f"@page {{{' '.join(f'@{place} {{ content: {_quoted(text)}; }}' for place, text in boxes.items())}}}\n"


def _quoted(text: str) -> str:
    """Text as a string of CSS, in which every sign but letters and digits is written as a number."""
    signs = (each if each.isascii() and each.isalnum() else f"\\{ord(each):06x}" for each in text)
    return f'"{"".join(signs)}"'


def _theme() -> Html:
    return tag("button", "Theme: system", type="button", id="theme", class_="needs-script")


def _numbers(report: Report) -> Html:
    plain = report.as_json()
    if plain["clients"] is not None:
        plain["clients"] = {**plain["clients"], "rows": []}
    return as_json("report", plain)


def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")
