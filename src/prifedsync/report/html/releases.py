"""What left each client, what would void the guarantee, and what attacks have measured."""

from __future__ import annotations

from ..audits import NOT_TIED, Audited
from ..contents import Report
from ..leaving import Release
from ..wording import many
from .markup import Inside, tag
from .parts import Column, Section, Tone, listed, mark, paragraph, section, sentence, spoken, table

COVERS: dict[str, tuple[Tone, str]] = {
    "the guarantee": ("good", "covered"),
    "the guarantee of the algorithm only": ("open", "simulation"),
    "nothing": ("bad", "not covered"),
    "public": ("plain", "public"),
}
MEANING = {
    "the guarantee": "Covered: the guarantee is about it.",
    "the guarantee of the algorithm only": "Simulation: the guarantee is about the algorithm and not about this file.",
    "nothing": "Not covered: the guarantee says nothing about it.",
    "public": "Public: it does not depend on any private record.",
}
STATES: dict[str, Tone] = {"holds": "good", "broken": "bad", "cannot be checked here": "plain"}


def leaving(report: Report) -> Section | None:
    """Everything that left, with who sees it and what covers it."""
    found = report.leaving
    if found is None:
        return None
    columns: list[Column | str] = [
        Column("What", wide=True),
        "How much",
        "Who sees it",
        "Protection",
        Column("Note", wide=True),
    ]
    uploads = f"{many(found.uploads, 'upload')} left the clients, each of {many(found.values, 'number')}."
    covers = {each.covered_by for each in found.releases}
    return section(
        "leaving", "What left each client",
        paragraph(sentence(found.where)), paragraph(uploads if found.uploads else "No client sent an upload."),
        table("Everything that left, or was written", columns, [_release(each) for each in found.releases]),
        paragraph(" ".join(said for cover, said in MEANING.items() if cover in covers)),
        paragraph(["How many uploads each client sent is in ", tag("a", "the table of clients", href="#clients"), "."]),
        tag("div", tag("h3", "What stayed"), listed(found.stays), class_="together"),
    )  # fmt: skip


def _release(each: Release) -> tuple[Inside, ...]:
    return sentence(each.what), each.amount, each.seen_by, mark(*COVERS[each.covered_by]), sentence(each.note)


def conditions(report: Report) -> Section | None:
    """What must be true for the guarantee to hold."""
    if not report.conditions:
        return None
    columns: list[Column | str] = [Column("What must be true", wide=True), Column("In this run", wide=True), "Is it so?"]
    rows = [(spoken(each.what), spoken(each.here), mark(STATES[each.state], each.state)) for each in report.conditions]
    broken = sum(each.state == "broken" for each in report.conditions)
    lead = f"{many(broken, 'condition')} of {len(rows)} {'is' if broken == 1 else 'are'} broken in this run."
    return section("conditions", "What would void the guarantee", paragraph(lead), table("Conditions", columns, rows))


def audits(report: Report) -> Section:
    """Measured lower bounds beside the claim."""
    title = "What attacks have measured"
    if not report.run.finished:
        return section("audits", title, paragraph([mark("open", "not measured"), " The run is not finished."]))
    if not report.audits:
        return section("audits", title, paragraph([mark("open", "not measured"), " No audit was given."]))
    columns: list[Column | str] = ["File", Column("What was found", wide=True), "Result"]
    rows = [(each.file, each.sentence, _result(each)) for each in report.audits]
    return section("audits", title, table("Audits", columns, rows), paragraph(NOT_TIED))


def _result(audit: Audited) -> Inside:
    if audit.broken:
        return mark("bad", "broken")
    if not audit.compared:
        return mark("open", "not compared")
    return mark("good", "checks passed" if audit.kind == "step" else "within the claim")
