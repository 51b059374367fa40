"""MODEL_CARD.md: what the model is for, its data, its scores, its guarantee and its limits, to lie beside the model."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from ..scores import LEVEL
from ..values import one_line
from .contents import Report
from .items import NOT_SAID
from .sources import STAY
from .utility import NAMES, Scored
from .wording import many, mean_between, score, small, unit_is

MARKED = "\\`*_[]|#$~"  # what Markdown, or formulas in it, reads as more than text


def card_of(report: Report) -> str:
    """The card as Markdown. What nobody has said stands as "not said"."""
    sections = {
        "Verdict": _verdict(report),
        "What it is for": _purpose(report),
        "Data": _data(report),
        "Scores": _scores(report),
        "Guarantee": _guarantee(report),
        "Limits": _limits(report),
        "Files": _files(report),
    }
    parts = [f"# {text(report.title)}"]
    for title, lines in sections.items():
        parts.append("\n".join([f"## {title}", "", *lines]))
    return "\n\n".join(parts) + "\n"


def text(value: object) -> str:
    """A value as text and nothing else: no name is read as HTML or as Markdown."""
    shown = html.escape(one_line(str(value)), quote=False)
    return "".join(f"\\{letter}" if letter in MARKED else letter for letter in shown)


def _verdict(report: Report) -> Iterable[str]:
    verdict = report.verdict
    yield f"**{verdict.decision}.** {text(verdict.reason)}"
    yield ""
    yield f"Next step: {text(verdict.next_step)}"


def _purpose(report: Report) -> Iterable[str]:
    words = report.words
    for title, name in (
        ("Purpose", "purpose"), ("Owner", "owner"), ("May be received by", "receivers"), ("Sector", "sector"),
        ("Law", "law"),
    ):  # fmt: skip
        yield f"- {title}: {text(words[name] or NOT_SAID)}"
    yield f"- Date: {text(report.run.date)}"
    yield f"- Model: {text(report.run.model)}, trained with rule {text(report.run.rule)}"


def _data(report: Report) -> Iterable[str]:
    run = report.run
    yield f"- Source: {text(run.data)}" + (" (a public data set)" if run.public_data else "")
    yield f"- Whom the records are about: {text(report.words['population'] or NOT_SAID)}"
    count = "" if run.clients is None else f"{many(run.clients, 'client')}; "
    yield f"- {count}the unit is a {text(unit_is(run.unit, report.words['record_is']))}"
    if report.clients is None:
        return
    sizes = [row.records for row in report.clients.rows if row.records is not None]
    if sizes:
        shared = f"; a {run.unit} of several clients counts at each of them" if run.overlapping > 1 else ""
        what = f"{run.unit.capitalize()}s of a client{', nominally' if run.nominal else ''}"
        yield f"- {what}: {min(sizes):,} to {max(sizes):,}, {sum(sizes):,} in all{shared}"


def _scores(report: Report) -> Iterable[str]:
    if report.utility is None or not report.utility.scores:
        yield "Not measured."
        return
    if report.words["scores"] == STAY and not report.run.public_data:
        yield "Scores are computed without noise, and stay with the owners."
        return
    heads = ["model", "metric", "mean over clients", "worst client", "protection"]
    yield from table(heads, [_row(each) for each in report.utility.scores])
    yield ""
    yield (
        f"Ranges are {LEVEL:.0%} bootstrap intervals over test {report.run.unit}s. Scores are computed without noise"
        + (": the guarantee does not cover them." if report.guarantee else ".")
    )
    smallest = report.utility.smallest
    used = report.utility.in_use
    if smallest is not None and used in smallest.scores:
        value = f"{report.utility.metric} {score(smallest.scores[used])}"
        yield f"The smallest client, {text(smallest.client)}, has {value} ({NAMES.get(used, used)})."


def _row(scored: Scored) -> list[str]:
    mean = mean_between(scored.mean, scored.interval)
    return [scored.name, scored.metric, mean, score(scored.worst), scored.protection]


def _guarantee(report: Report) -> Iterable[str]:
    guarantee = report.guarantee
    if guarantee is None:
        yield f"{text(report.no_guarantee)}."
        return
    for sentence in guarantee.sentences:
        yield f"- {text(sentence)}"
    for rate in report.attacks[0].rates:
        yield f"- {text(rate.sentence)}"
    for group in guarantee.groups:
        together = (
            f"- {group.records} records of one person together: ε ≤ {group.epsilon.text} at δ = {small(guarantee.delta)}"
        )
        yield together + (f", μ ≤ {group.mu.text}" if group.mu else "")


def _limits(report: Report) -> Iterable[str]:
    for notice in report.run.notices:
        yield f"- {text(notice)}"
    for ground in report.verdict.grounds:
        if ground.decision != "release":
            yield f"- {text(ground.what)}"
    for warning in report.warnings:
        yield f"- {text(warning)}"
    said = " ".join(ground.what for ground in report.verdict.grounds)
    for condition in report.conditions:
        if condition.state == "broken" and condition.here not in said:
            yield f"- Not so here: {text(condition.what)} {text(condition.here)}"
    left = [item.title for item in report.items if item.status == "open"]
    yield f"- Open in the report: {text('; '.join(left) or 'nothing')}."


def _files(report: Report) -> Iterable[str]:
    yield from table(["file", "SHA-256"], [[each.name, each.sha256] for each in report.signatures.files])
    yield ""
    yield f"Made by PriFedSync {report.made_with}. report.json has all numbers."


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    """A table in Markdown."""
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(text(cell) for cell in row)} |"
