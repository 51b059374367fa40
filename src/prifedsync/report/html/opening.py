"""The top of the page: the verdict, and what the run was."""

from __future__ import annotations

from collections.abc import Iterable

from ..contents import Report
from ..verdict import Verdict
from ..wording import many
from .markup import Html, Inside, tag
from .parts import Section, Tone, icon, listed, mark, paragraph, section, sentence, spoken, terms

TONES: dict[str, Tone] = {"release": "good", "review": "open", "do not release": "bad"}
NOT_SAID = "not said"
SCALE = 4 / 3  # the verdict's scale ends at so many times the threshold for a review


def header(report: Report) -> Html:
    """Which run this is about, in few lines: the verdict comes next."""
    notices = listed((mark("open", notice) for notice in report.run.notices), "notices") if report.run.notices else None
    return tag(
        "div", paragraph("Privacy report of a training run", "kicker"), tag("h1", report.title), notices, class_="masthead"
    )


def _facts(report: Report) -> Iterable[tuple[str, Inside]]:
    run = report.run
    rounds = f"{run.rounds_done:,}" + (f" of {run.rounds_planned:,}" if run.rounds_planned is not None else "")
    yield "Run folder", tag("code", report.folder)
    yield "Date", run.date
    yield "Records", f"{run.data}, {many(run.clients, 'client')}"
    yield "Model", f"{run.model}, trained with {run.rule}"
    yield "Rounds", rounds
    yield "Unit of privacy", f"one {run.unit}"
    for name, label in (("owner", "Owner"), ("purpose", "Purpose"), ("law", "Law"), ("receivers", "May be received by")):
        yield label, report.words.get(name) or mark("open", NOT_SAID)


def verdict(report: Report) -> Section:
    """May this model leave: the decision by colour, sign and word, then why, and what to do."""
    found = report.verdict
    tone = TONES[found.decision]
    open_count = sum(item.status == "open" for item in report.items)
    decision = tag("p", icon(tone), tag("strong", found.decision), class_="decision")
    return section(
        "verdict", "May this model be released?",
        tag(
            "div", decision, paragraph(spoken(found.reason), "reason"),
            tag("p", tag("strong", "Next step. "), spoken(found.next_step)), class_=f"verdict {tone}",
        ),
        tag("h3", "Thresholds"), _scale(report), listed(found.thresholds, "thresholds"),
        _grounds(found), tag("div", tag("h3", "The run"), terms(_facts(report)), class_="together"),
        tag("h3", "What would change this verdict"), listed(found.would_change),
        paragraph([
            "On ", tag("a", "the list of what an officer expects", href="#items"),
            f", {open_count} of {len(report.items)} items are open. ",
            tag("a", f"{many(len(report.warnings), 'warning')}", href="#warnings"), " came from training.",
        ]),
    )  # fmt: skip


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


def _scale(report: Report) -> Inside:
    """Where μ lies between the thresholds."""
    release = float(report.words["release_mu"])
    review = max(release, float(report.words["review_mu"]))
    if report.guarantee is None or report.guarantee.mu.upper is None or review <= 0:
        return None
    mu = report.guarantee.mu
    end = max(review, release) * SCALE
    at = min(100.0, 100 * float(mu.upper or 0.0) / end)
    beyond = " It is beyond the end of this scale." if (mu.upper or 0.0) > end else ""
    alt = f"This run has μ ≤ {mu.text}. Release ends at μ = {release:g}, review at μ = {review:g}.{beyond}"
    parts = [
        tag("span", word, class_=f"part {tone}", style=f"width:{100 * width / end:.2f}%")
        for word, tone, width in (
            ("release", "good", release), ("review", "open", review - release), ("do not release", "bad", end - review),
        )
    ]  # fmt: skip
    side = "left" if at < 50 else "right"
    pin = tag("span", tag("span", f"μ ≤ {mu.text}"), class_=f"pin {side}", style=f"left:{at:.2f}%")
    return tag("div", pin, tag("div", parts, class_="bar"), class_="scale", role="img", aria_label=sentence(alt))
