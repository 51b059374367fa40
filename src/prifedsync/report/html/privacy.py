"""What is guaranteed: in sentences, against four attacks, for each kind of attacker, and as curves."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..contents import Report
from ..curve import X_LABEL, Y_LABEL
from ..graphs import Curve, Deltas, Progress
from ..guarantee import Group, Guarantee, View
from ..plans import EVERY
from ..wording import percent, share_up, small
from .charts import BLUE, GREEN, GREY, ORANGE, PURPLE, Line, axis, figure, layout, legend
from .markup import Html, Inside, as_json, tag
from .parts import Column, Section, mark, more, paragraph, section, sentence, table

LEVELS = (0.001, 0.01, 0.05, 0.1, 0.5)  # of the curve's table
LEAST = 1e-6  # of a logarithmic axis
ABOUT_LINES = {"identity": "no information: guessing at random, β = 1 − α"}


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
    tiles = [
        _tile(f"μ ≤ {found.mu.text}", f"for false positive rates from {least} to 1 − {least}"),
        _tile(f"ε ≤ {found.epsilon.text}", f"at δ = {small(found.delta)}"),
        _tile(found.correct.text, "of the time, at most, an attacker tells two equally likely data sets apart"),
        _tile(found.hits_at_1_percent.text, "of members, at most, are found with 1% false positives"),
    ]
    return tag("div", paragraph(f"These numbers are about {found.about}.", "about"), tag("ul", tiles), class_="tiles")


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
        Column(head, numeric=True) for head in ("Records of one person", "μ ≤", "ε ≤", "attacker is right at most")
    ]
    rows = [_group(group) for group in found.groups]
    caption = f"Several records of one person at one client, at δ = {small(found.delta)}, for {found.groups_hold_for}"
    return [tag("h3", "If a person has several records"), table(caption, columns, rows)]


def _group(group: Group) -> tuple[Inside, ...]:
    return group.records, group.mu.text if group.mu else "not in closed form", group.epsilon.text, group.correct.text


# ---------------------------------------------------------------------- attacks and attackers


def attacks(report: Report) -> Section | None:
    """Four attacks at four base rates."""
    if not report.attacks:
        return None
    bases = [Column(rate.base_text, numeric=True) for rate in report.attacks[0].rates]
    rows = [
        [
            [attack.name, tag("span", sentence(attack.question), class_="under")],
            *(rate.at_most.text for rate in attack.rates),
        ]
        for attack in report.attacks
    ]
    lead = (
        "The head of a column says how often an attacker would be right without the model. The cells below say how often "
        "it is right with the model, at most. One curve bounds all four attacks, so their rows are alike. What differs is "
        "how often an attacker is right without the model."
    )
    caption = "How often an attacker is right with the model, at most"
    said = [sentence(rate.sentence) for rate in report.attacks[0].rates[:1]]
    return section(
        "attacks", "What an attacker can still do",
        paragraph(lead), table(caption, ["Right without the model:", *bases], rows),
        paragraph(["For example: ", *said]), paragraph(sentence(report.attacks_note)),
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


# ---------------------------------------------------------------------- the trade-off curve


def curve(report: Report) -> Section | None:
    """The trade-off curve, with a slider that reads it point by point."""
    found = report.curve
    if found is None:
        return None
    lines = list(_lines(found))
    drawn = layout(
        axis(X_LABEL, range=[0, 1]), axis(Y_LABEL, range=[0, 1]), height=450,
        meta={"ends": [float(np.log10(LEAST)), 0.0]},
    )  # fmt: skip
    members = "members" if report.run.unit == "record" else "persons"
    return section(
        "curve", "The trade-off curve",
        paragraph(
            "Each point is an attacker. It accepts so many false positives (α, to the right) and misses so many "
            f"{members} (β, upwards). No attacker is below the certified curve. The closer that curve is to the line of "
            "guessing, the less can be learned."
        ),
        figure(
            "curve", "Error rates of any attack", _curve_alt(found), [line.as_trace() for line in lines], drawn,
            _toggle(), _reader(found), legend=legend(lines), table=_curve_table(found),
        ),
    )  # fmt: skip


def _lines(found: Curve) -> Iterable[Line]:
    yield Line(ABOUT_LINES["identity"], found.alpha, found.identity, GREY, "dot")
    if found.audit:
        alpha, low, high = zip(*found.audit, strict=True)
        yield Line("audit: highest error rates measured", alpha, high, PURPLE, "dot", width=1)
        yield Line("audit: the range that was measured", alpha, low, PURPLE, "dot", width=1, fill="tonexty", fades=True)
    if found.asymptotic is not None:
        label = f"CLT, μ = {found.asymptotic_mu:.4g}: {found.asymptotic_note}"
        yield Line(label, found.alpha, found.asymptotic, ORANGE, "dashdot")
    if found.gaussian_mu is not None:
        yield Line(
            f"G_μ for μ = {found.gaussian_mu:.4g}, on the range of μ alone", found.alpha, found.gaussian, GREEN, "dash"
        )
    if found.if_others_choose is not None:
        yield Line("certified, if others choose who takes part", found.alpha, found.if_others_choose, PURPLE, "dash")
    yield Line(
        f"certified lower bound, for {found.holds_for}", found.alpha, found.certified, BLUE, says=found.says, width=3,
        fill="tozeroy",
    )  # fmt: skip


def _curve_alt(found: Curve) -> str:
    at = _nearest(found, 0.01)
    said = [sentence(f"The certified curve: {found.says[at]}")]
    if found.asymptotic is not None:
        said.append("The curve of the CLT is not a guarantee.")
    return " ".join(said)


def _nearest(found: Curve, level: float) -> int:
    return int(np.argmin(np.abs(np.array(found.alpha) - level)))


def _curve_table(found: Curve) -> Html:
    heads = [Column(head, numeric=True) for head in ("false positive rate α", "certified β", "members found, at most")]
    extra = [(Column("CLT, not a guarantee", numeric=True), found.asymptotic)] if found.asymptotic is not None else []
    rows = []
    for level in LEVELS:
        at = _nearest(found, level)
        row: list[Inside] = [percent(found.alpha[at]), f"{found.certified[at]:.4g}", share_up(1 - found.certified[at])]
        rows.append(row + [f"{values[at]:.4g}" for _, values in extra])
    return table("Points of the trade-off curve", [*heads, *(head for head, _ in extra)], rows)


def _toggle() -> Html:
    choices = [
        tag("label", tag("input", type="radio", name="axes", value=value, checked=value == "linear"), text)
        for value, text in (("linear", "linear"), ("log", "logarithmic"))
    ]
    return tag("fieldset", tag("legend", "Axes"), choices, class_="choice needs-script")


def _reader(found: Curve) -> Html:
    """The curve for those who do not point at it: arrow keys go from point to point."""
    at = _nearest(found, 0.01)
    label = tag("label", "Read the curve: the attacker's false positive rate", for_="reader")
    slider = tag(
        "input",
        type="range",
        id="reader",
        min=0,
        max=len(found.alpha) - 1,
        value=at,
        aria_valuetext=sentence(found.says[at]),
    )
    said = tag("output", sentence(found.says[at]), for_="reader", id="reader-says")
    return tag("div", label, slider, said, class_="slider needs-script")


# ---------------------------------------------------------------------- ε over rounds, and at each δ


def epsilon(report: Report) -> Section | None:
    """How ε grew, and how it depends on δ."""
    if report.progress is None or report.deltas is None:
        return None
    over_rounds = _progress(report.progress) if report.progress.rounds else None
    return section("epsilon", "ε at each δ, and over rounds", _deltas(report.deltas, _smallest(report)), over_rounds)


def _progress(found: Progress) -> Html:
    after = [f"after round {each}: ε ≤ {value.text}" for each, value in zip(found.rounds, found.epsilon, strict=True)]
    line = Line(
        f"ε at δ = {small(found.delta)}, for {found.holds_for}", found.rounds, [each.upper for each in found.epsilon], BLUE,
        says=after, shape="vh", markers=True, width=3,
    )  # fmt: skip
    marks = [_upright(found.planned, ORANGE, "dash")] + ([_upright(found.done, GREEN, "dot")] if found.done else [])
    ends = (
        Line(f"planned end: round {found.planned:,}", (), (), ORANGE, "dash"),
        Line(f"rounds taken: {found.done:,}", (), (), GREEN, "dot"),
    )
    drawn = layout(axis("round", range=[0, found.planned * 1.03]), axis("ε", rangemode="tozero"), shapes=marks)
    alt = (
        f"After {found.done:,} of {found.planned:,} planned rounds. At the planned end ε ≤ {found.epsilon[-1].text} at "
        f"δ = {small(found.delta)}."
    )
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


def _smallest(report: Report) -> int | None:
    sizes = [row.records for row in report.clients.rows if row.records is not None] if report.clients else []
    return min(sizes, default=None)


def _deltas(found: Deltas, smallest: int | None) -> Html:
    """A slider in steps of a tenth of a decade. It takes ε at the next smaller δ that was computed, which is the larger."""
    powers = np.log10([row.delta for row in found.rows])
    own = next(row for row in found.rows if row.delta == found.own)
    label = tag("label", "δ, the probability that ε does not bound", for_="delta")
    slider = tag(
        "input", type="range", id="delta", min=f"{np.ceil(10 * powers.min() - 1e-9) / 10:.1f}", max=f"{powers.max():.1f}",
        step="0.1", value=f"{np.log10(found.own):.1f}",
    )  # fmt: skip
    said = tag("output", f"ε ≤ {own.epsilon.text} at δ = {small(own.delta)}", for_="delta", id="delta-says")
    rows = [
        (small(row.delta), row.epsilon.text, mark("open", "not below 1/n") if row.warning else "below 1/n")
        for row in found.rows
        if row.delta == found.own or f"{row.delta:e}".startswith("1.0")
    ]
    columns: list[Column | str] = [
        Column("δ", numeric=True),
        Column("ε ≤", numeric=True),
        "δ beside the smallest client's n",
    ]
    data = {
        "rows": [[row.delta, row.epsilon.text] for row in found.rows],
        "smallest": smallest,
    }
    note = "" if found.holds_for == EVERY else f" The numbers are of {found.holds_for}."
    return tag(
        "div", paragraph(f"The same guarantee has an ε for every δ.{note}"),
        tag("div", label, slider, said, class_="slider needs-script"),
        more("ε at powers of ten of δ", table("ε at powers of ten of δ", columns, rows)),
        as_json("deltas", data), class_="deltas",
    )  # fmt: skip
