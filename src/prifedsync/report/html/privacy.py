"""What is guaranteed: in sentences, against four attacks, for each kind of attacker, and as ε."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..contents import Report
from ..graphs import Deltas, Progress
from ..guarantee import Group, Guarantee, View
from ..plans import EVERY
from ..wording import many, small
from .charts import BLUE, GREEN, ORANGE, Line, axis, figure, layout, legend, rounds_axis
from .markup import Html, Inside, as_json, tag
from .parts import Column, Section, before_coins, mark, more, paragraph, section, sentence, table


def guarantee(report: Report) -> Section:
    """Who is protected against whom, and how well."""
    found = report.guarantee
    if found is None:
        return section(
            "guarantee", "The guarantee", mark("bad", "no guarantee"), paragraph(sentence(report.no_guarantee), "lead")
        )
    return section(
        "guarantee", "The guarantee",
        _tiles(found), [paragraph(each) for each in found.sentences], paragraph(sentence(found.judgement)),
        _delta_warning(found), _hypotheses(found), _groups(found),
    )  # fmt: skip


def _tiles(found: Guarantee) -> Html:
    least = small(found.alpha_min)
    whom = "members" if found.unit == "record" else "persons"
    known = found.known
    about = f"These numbers are about {found.about}."
    if found.more_is_known:
        about += (
            " The first three hold also given who took part. The last is from before that was known, and can be larger."
        )
    tiles = [
        _tile(f"μ ≤ {known['mu'].text}", f"for false positive rates from {least} to 1 − {least}"),
        _tile(f"ε ≤ {known['epsilon'].text}", f"at δ = {small(found.delta)}"),
        _tile(found.known_correct.text, "of the time, at most, an attacker tells two equally likely data sets apart"),
        _tile(found.hits_at_1_percent.text, f"of {whom}, at most, are found with 1% false positives"),
    ]
    return tag("div", paragraph(about, "about"), tag("ul", tiles), class_="tiles")


def _tile(number: str, meaning: str) -> Html:
    return tag("li", tag("strong", number), tag("span", meaning))


def _delta_warning(found: Guarantee) -> Inside:
    return tag("p", mark("open", "warning"), f" {sentence(found.delta_warning)}") if found.delta_warning else None


def _hypotheses(found: Guarantee) -> Html:
    first, second = (tag("li", each) for each in found.hypotheses)
    return tag(
        "div", tag("h3", "Two cases that an attacker would tell apart"), tag("ol", first, second, class_="hypotheses"),
        class_="together",
    )  # fmt: skip


def _groups(found: Guarantee) -> Inside:
    if not found.groups:
        return None
    columns: list[Column | str] = [
        Column("Records of one person", wide=True),
        *(Column(head, numeric=True) for head in ("μ ≤", "ε ≤", "attacker is right at most")),
    ]
    rows = [_group(group) for group in found.groups]
    caption = f"Several records of one person at one client, at δ = {small(found.delta)}, for {found.groups_hold_for}"
    return [tag("h3", "If a person has several records"), table(caption, columns, rows)]


def _group(group: Group) -> tuple[Inside, ...]:
    return (
        many(group.records, "record"),
        group.mu.text if group.mu else "not in closed form",
        group.epsilon.text,
        group.correct.text,
    )


# ---------------------------------------------------------------------- attacks and attackers


def attacks(report: Report) -> Section | None:
    """Four attacks at four base rates."""
    if not report.attacks:
        return None
    bases = [
        Column(rate.base_text, numeric=True, alone=f"without the model {rate.base_text}, with it at most")
        for rate in report.attacks[0].rates
    ]
    rows = [
        [
            [attack.name, tag("span", sentence(attack.question), class_="under")],
            *(rate.at_most.text for rate in attack.rates),
        ]
        for attack in report.attacks
    ]
    lead = (
        "A percentage is how often an attacker is right with the model, at most. It stands with how often that attacker "
        "would be right without the model: 1 in 1,000 times, 1 in 100, 1 in 10 or 1 in 2. One curve bounds all four "
        "attacks, so their rows are alike. The attacks differ in how often an attacker is right without the model."
    )
    caption = "How often an attacker is right with the model, at most"
    said = [sentence(rate.sentence) for rate in report.attacks[0].rates[:1]]
    return section(
        "attacks", "What an attacker can still do",
        paragraph(lead), table(caption, [Column("Right without the model:", wide=True), *bases], rows),
        paragraph(said), paragraph(sentence(report.attacks_note)),
    )  # fmt: skip


def views(report: Report) -> Section | None:
    """What each kind of attacker learns at most."""
    if report.guarantee is None or not report.guarantee.views:
        return None
    numbers = [
        Column(head, numeric=True)
        for head in ("together with so many clients", "μ ≤", "ε ≤", "ε ≤ if others choose who takes part")
    ]
    rows = [_view(*each) for each in _alike(report.guarantee.views)]
    return section(
        "views", "Who learns how much",
        paragraph("The numbers above hold against everybody together. Some attackers see less, if what is assumed holds."),
        table("Bounds for each kind of attacker", ["Attacker", *numbers, Column("What this assumes", wide=True)], rows),
    )  # fmt: skip


def _alike(found: Iterable[View]) -> Iterable[tuple[View, list[int]]]:
    """Attackers of one kind for whom nothing smaller can be said share a row."""
    several: list[int] = []
    last: View | None = None
    for view in found:
        if last is not None and (view.claim or last.claim or (view.who, view.why) != (last.who, last.why)):
            yield last, several
            several = []
        several = [*several, view.colluders]
        last = view
    if last is not None:
        yield last, several


def _view(view: View, colluders: list[int]) -> tuple[Inside, ...]:
    several = ", ".join(f"{count:,}" for count in colluders)
    if not view.claim or view.mu is None or view.epsilon is None:
        return view.who, several, None, None, None, [mark("plain", "no smaller number"), " ", sentence(view.why)]
    chosen = view.epsilon_if_others_choose
    return view.who, several, view.mu.text, view.epsilon.text, chosen.text if chosen else None, sentence(view.assumes)


# ---------------------------------------------------------------------- ε over rounds, and at each δ


def epsilon(report: Report) -> Section | None:
    """How ε grew, and how it depends on δ."""
    if report.progress is None or report.deltas is None:
        return None
    over_rounds = _progress(report.progress) if report.progress.rounds else None
    return section(
        "epsilon", "ε at each δ, and over rounds",
        before_coins(report), _deltas(report.deltas, _most_units(report)), over_rounds,
    )  # fmt: skip


def _progress(found: Progress) -> Html:
    after = [f"after round {each:,}: ε ≤ {value.text}" for each, value in zip(found.rounds, found.epsilon, strict=True)]
    line = Line(
        f"ε at δ = {small(found.delta)}, for {found.holds_for}", (0, *found.rounds),
        (0.0, *(each.upper for each in found.epsilon)), BLUE, says=["before the first round nothing has left", *after],
        shape="vh", markers=True, width=2,
    )  # fmt: skip
    ended = found.done == found.planned  # two lines at one place would hide each other
    label = "planned end, and rounds taken" if ended else "planned end"
    ends = [Line(f"{label}: {found.planned:,}", (), (), ORANGE, "dash")]
    marks = [_upright(found.planned, ORANGE, "dash")]
    if found.done and not ended:
        ends.append(Line(f"rounds taken: {found.done:,}", (), (), GREEN, "dot"))
        marks.append(_upright(found.done, GREEN, "dot"))
    drawn = layout(rounds_axis(found.planned, range=[0, found.planned * 1.03]), axis("ε", rangemode="tozero"), shapes=marks)
    alt = (
        f"After {found.done:,} of {found.planned:,} planned rounds. At the planned end ε ≤ {found.epsilon[-1].text} at "
        f"δ = {small(found.delta)}."
    )
    if len(found.rounds) < found.planned:
        computed = len(found.rounds)
        alt += f" ε was computed after {computed} rounds. Between two of them the line shows the next one's, the larger."
    columns: list[Column | str] = [Column("after round", numeric=True), Column("ε ≤", numeric=True)]
    rows = [(each, value.text) for each, value in zip(found.rounds, found.epsilon, strict=True)]
    return figure(
        "progress", "ε over rounds", alt, [line.as_trace()], drawn, legend=legend([line, *ends]),
        table=table("ε after each round that was computed", columns, rows),
    )  # fmt: skip


def _upright(at: int, colour: str, dash: str) -> dict[str, object]:
    return {
        "type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1,
        "line": {"color": colour, "dash": dash, "width": 2},
    }  # fmt: skip


def _most_units(report: Report) -> int | None:
    sizes = [row.records for row in report.clients.rows if row.records is not None] if report.clients else []
    return max(sizes, default=None)


def _deltas(found: Deltas, most_units: int | None) -> Html:
    """A slider in steps of a tenth of a decade. It takes ε at the next smaller δ that was computed, which is the larger."""
    powers = np.log10([row.delta for row in found.rows])
    own = next(row for row in found.rows if row.delta == found.own)
    least, most = (small(each([row.delta for row in found.rows])) for each in (min, max))
    label = tag("label", f"δ, the slack of ε: from {least} to {most}", for_="delta")
    slider = tag(
        "input", type="range", id="delta", min=f"{np.ceil(10 * powers.min() - 1e-9) / 10:.1f}", max=f"{powers.max():.1f}",
        step="0.1", value=f"{np.log10(found.own):.1f}",
    )  # fmt: skip
    said = tag("output", f"ε ≤ {own.epsilon.text} at δ = {small(own.delta)}", for_="delta", id="delta-says")
    rows = [
        (small(row.delta), row.epsilon.text, mark("open", "not below") if row.warning else "below")
        for row in found.rows
        if row.delta == found.own or f"{row.delta:e}".startswith("1.0")
    ]
    columns: list[Column | str] = [
        Column("δ", numeric=True),
        Column("ε ≤", numeric=True),
        "δ beside 1/n of the largest client",
    ]
    data = {
        "rows": [[row.delta, row.epsilon.text] for row in found.rows],
        "mostUnits": most_units,
    }
    note = "" if found.holds_for == EVERY else f" The numbers are of {found.holds_for}."
    return tag(
        "div", paragraph(f"The same guarantee has an ε for every δ.{note}"),
        tag("div", label, slider, said, class_="slider needs-script"),
        more("ε at powers of ten of δ", table("ε at powers of ten of δ", columns, rows)),
        as_json("deltas", data), class_="deltas",
    )  # fmt: skip
