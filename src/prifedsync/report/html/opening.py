"""The top of the page: the verdict, and what the run was."""

from __future__ import annotations

from collections.abc import Iterable

from ..contents import MASKED, PERSONS, Report
from ..guarantee import Guarantee
from ..verdict import Verdict
from ..wording import many, unit_is
from .markup import Html, Inside, tag
from .parts import Section, icon, listed, mark, paragraph, section, spoken, terms
from .scale import TONES, person_of, scale

NOT_SAID = "not said"
GOOD_NEWS = (PERSONS, MASKED)


def header(report: Report) -> Html:
    """Which run this is about, in few lines: the verdict comes next."""
    notices = listed((_notice(each) for each in report.run.notices), "notices") if report.run.notices else None
    return tag(
        "div", paragraph("Privacy report of a training run", "kicker"), tag("h1", report.title), notices, class_="masthead"
    )


def _notice(text: str) -> Html:
    """What a reader must know. What protects more than usual has no sign of a warning."""
    return mark("good" if text in GOOD_NEWS else "open", text)


def _facts(report: Report) -> Iterable[tuple[str, Inside]]:
    run = report.run
    rounds = f"{run.rounds_done:,}" + (f" of {run.rounds_planned:,}" if run.rounds_planned is not None else "")
    yield "Run folder", tag("code", report.folder)
    yield "Date", run.date
    yield "Records", _records(report)
    yield "Model", f"{run.model}, trained with {run.rule}"
    yield "Rounds", rounds
    yield "Unit of privacy", f"one {unit_is(run.unit, report.words['record_is'])}"
    for name, label in (("owner", "Owner"), ("purpose", "Purpose"), ("law", "Law"), ("receivers", "May be received by")):
        yield label, report.words.get(name) or mark("open", NOT_SAID)


def _records(report: Report) -> str:
    """How many there are is said where each client's number is public."""
    if report.run.clients is None:
        return report.run.data
    source = f"{report.run.data}, {many(report.run.clients, 'client')}"
    sizes = [row.records for row in report.clients.rows] if report.clients else []
    known = [size for size in sizes if size is not None]
    if not known or len(known) < len(sizes):
        return source
    how = ", nominally" if report.run.nominal else ""
    shared = f"; a {report.run.unit} of several clients counts at each of them" if report.run.overlapping > 1 else ""
    return f"{source} with {many(sum(known), report.run.unit)} to train on{how}{shared}"


def verdict(report: Report) -> Section:
    """May this model leave: the decision by colour, sign and word, then why, and what to do."""
    found = report.verdict
    tone = TONES[found.decision]
    decision = tag("p", icon(tone), tag("strong", found.decision), class_="decision")
    return section(
        "verdict", "May this model be released?",
        tag(
            "div", decision, paragraph(spoken(found.reason), "reason"),
            tag("p", tag("strong", "Next step. "), spoken(found.next_step)), class_=f"verdict {tone}",
        ),
        _everyday(report), tag("h3", "Thresholds"), scale(report), listed(found.thresholds, "thresholds"),
        _grounds(found), tag("div", tag("h3", "The run"), terms(_facts(report)), class_="together"),
        _would_change(report),
    )  # fmt: skip


def _would_change(report: Report) -> Html:
    """On paper these stay together: the last sentence must not stand on a sheet of its own."""
    open_count = sum(item.status == "open" for item in report.items)
    warned = [tag("a", f"{many(len(report.warnings), 'warning')}", href="#warnings"), " came from training."]
    further = paragraph([
        "On ", tag("a", "the list of what an officer expects", href="#items"),
        f", {open_count} of {len(report.items)} items are open. ", warned if report.run.finished else None,
    ])  # fmt: skip
    return tag(
        "div", tag("h3", "What would change this verdict"), listed(report.verdict.would_change), further, class_="together"
    )


def _everyday(report: Report) -> Inside:
    """What the numbers mean, for whoever reads no further."""
    found = report.guarantee
    if found is None:
        return None
    members = "members" if found.unit == "record" else "persons"
    said = (
        f"In everyday words: an attacker who accepts 1% false positives finds at most {found.hits_at_1_percent.text} of "
        f"{members}; by guessing, it finds 1%. A smaller μ or ε means that fewer are found. δ is the slack that an ε "
        "needs."
    )
    return paragraph(" ".join([said, *_limits(report, found)]), "everyday")


def _limits(report: Report, found: Guarantee) -> Iterable[str]:
    """What the everyday words are not about."""
    person = person_of(report, found)
    if person is not None:
        yield f"This is about one record: a person with {person.records:,} records is protected less."
    if found.more_is_known:
        yield (
            "The bound is from before coins said who took part. Given that, more can be found, and two data sets are told "
            f"apart at most {found.known_correct.text} of the time."
        )
    if report.run.simulation:
        yield "This run is a simulation: that is so of the algorithm, and not of these files."
    if any(audit.broken for audit in report.audits):
        yield "An audit contradicts these numbers: do not rely on them."


def _grounds(found: Verdict) -> Inside:
    if len(found.grounds) < 2:
        return None
    rows = [
        tag(
            "li",
            mark(TONES[ground.decision], ground.decision),
            " ",
            spoken(ground.what),
            " ",
            tag("em", spoken(ground.next_step)),
        )
        for ground in found.grounds
    ]
    return [tag("h3", f"All {len(found.grounds)} grounds"), tag("ul", rows, class_="grounds")]
