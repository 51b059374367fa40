"""For the officer: every item of the list, warnings, and lines to sign."""

from __future__ import annotations

from ..contents import Report
from ..items import Item
from ..wording import many
from .markup import Html, Inside, tag
from .parts import Column, Section, Tone, listed, mark, paragraph, section, sentence, spoken, table

STATUS: dict[str, Tone] = {"filled": "good", "open": "open", "not applicable": "plain"}
LEAD = (
    "These are the items that NIST SP 800-226, the registry of DP deployments, EDPB opinion 28/2024 and SACRO-ML ask for. "
    "What is open is for the owner to fill in: words in [report] of the config or with --set, measurements with --audit, "
    "names and signatures below."
)
SIGNED_FOR = (
    "Each hash is of the file that was found when this report was made. It tells later whether a file is the one that was "
    "signed for."
)
MOST_EXTRAS = 200  # files beside the run that are listed
REASON_LINES = 3  # on which a reason is written


def items(report: Report) -> Section | None:
    """All items, with an amber mark where one is open."""
    if not report.items:
        return None
    open_ones = [item for item in report.items if item.status == "open"]
    columns: list[Column | str] = [
        "No.",
        Column("Item", wide=True),
        "State",
        Column("What this run has", wide=True),
        "Taken from",
    ]
    return section(
        "items", "What an officer expects",
        paragraph(LEAD), paragraph([mark("open", f"{len(open_ones)} open"), f" of {len(report.items)} items."]),
        table("Items of the list", columns, [_item(item) for item in report.items]), class_="items",
    )  # fmt: skip


def _item(item: Item) -> tuple[Inside, ...]:
    title = [sentence(item.title).removesuffix("."), tag("span", item.source, class_="under")]
    return item.number, title, mark(STATUS[item.status], item.status), spoken(sentence(item.text)), item.taken_from


def warnings(report: Report) -> Section:
    """What training warned of."""
    if not report.run.finished:
        said: Html = paragraph("The run is not finished. Its warnings are written down when it ends.")
    elif not report.warnings:
        said = paragraph("Training gave no warning.")
    else:
        said = listed([mark("open", "warning"), " ", spoken(sentence(each))] for each in report.warnings)
    return section("warnings", "Warnings", said)


def signatures(report: Report) -> Section:
    """Lines to sign, and the hashes of what is signed."""
    found = report.signatures
    lines = [
        tag(
            "li", tag("strong", sentence(who).removesuffix(".")),
            [tag("span", each, class_="line") for each in ("name", "date", "signature")],
        )
        for who in found.lines
    ]  # fmt: skip
    rows = [(each.name, f"{each.size:,}" if each.size else None, tag("code", each.sha256)) for each in found.files]
    rows += [(each.name, None, tag("code", each.sha256)) for each in found.extras[:MOST_EXTRAS]]
    hashed = sum(each.name.startswith("models/personal/") for each in found.files)
    cut = f" Of {many(found.personal_models, 'personal model')}, {hashed:,} are listed." if found.personal_models else ""
    if len(found.extras) > MOST_EXTRAS:
        cut += f" Of {len(found.extras):,} files beside the run, {MOST_EXTRAS} are listed. All are in report.json."
    decision = tag("p", "The verdict of this report: ", tag("strong", report.verdict.decision), ".")
    own = _own_decision() if report.verdict.decision == "review" else None
    columns: list[Column | str] = [Column("File", wide=True), Column("bytes", numeric=True), Column("SHA-256", wide=True)]
    return section(
        "signatures", "Signatures",
        tag("div", decision, own, tag("ul", lines, class_="signatures"), class_="together"),
        tag("h3", "What is signed for"), paragraph(f"{SIGNED_FOR}{cut}"),
        table("Files and their hashes", columns, rows),
    )  # fmt: skip


def _own_decision() -> Html:
    """Where an officer writes what a review has decided, and why."""
    choices = [tag("li", tag("span", class_="tick"), each) for each in ("release", "do not release")]
    lines = [tag("span", class_="line") for _ in range(REASON_LINES)]
    return tag(
        "div", tag("h3", "Decision of the privacy officer"), tag("ul", choices, class_="choices"),
        paragraph("Reason:"), tag("div", lines, class_="written"), class_="decided",
    )  # fmt: skip
