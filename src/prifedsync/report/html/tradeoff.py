"""The trade-off curve in two views: error rates on even axes, and the members found on logarithmic ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, floor, log10
from typing import Any

import numpy as np

from ...accounting.statement import down, up
from ..contents import Report
from ..curve import X_LABEL, Y_LABEL
from ..graphs import Curve
from ..plans import EVERY, ROUNDING
from ..wording import percent, share_up
from .charts import BLUE, GREY, ORANGE, PINK, PURPLE, Line, axis, figure, layout, legend
from .markup import Html, Inside, joined, tag
from .parts import Column, Section, before_coins, capital, paragraph, section, sentence, table

LEVELS = (0.001, 0.01, 0.05, 0.1, 0.5)  # of the curve's table
LEAST = 1e-6  # of a logarithmic axis
DIGITS = 7  # of a share of members
GUESSING = "no information: guessing at random"
AUDIT = "audit: the range that was measured"
OWN_COIN = "where each client decides by its own coin whether it takes part"
OTHERS_CHOOSE = "where others decide who takes part"
VIEWS = ("linear", "log")


def curve(report: Report) -> Section | None:
    """The trade-off curve, with a slider that reads it point by point."""
    found = report.curve
    if found is None:
        return None
    members = "members" if report.run.unit == "record" else "persons"
    lines = list(_lines(found))
    traces = [line.as_trace() for line in lines]
    views = _views(members)
    drawn = layout(
        axis(X_LABEL, range=[0, 1], dtick=0.2),
        axis(Y_LABEL, range=[0, 1], dtick=0.2),
        height=450,
        meta={"certified": _certified_at(lines), "views": views},
    )
    titles = ("Error rates of any attack", f"Share of {members} that any attack finds, at most")
    return section(
        "curve", "The trade-off curve",
        _lead(found, members),
        before_coins(report),
        figure(
            "curve", _in_views(*titles), _curve_alt(found), traces, drawn,
            _toggle(members), _reader(found), legend=legend(lines), table=_curve_table(found, members),
        ),
    )  # fmt: skip


def _views(members: str) -> dict[str, dict[str, Any]]:
    """What changes in plotly's layout with the view."""
    ends = [float(np.log10(LEAST)), 0.0]
    even = {"type": "linear", "range": [0, 1], "dtick": 0.2, "exponentformat": "none"}
    logarithmic = {"type": "log", "range": ends, "dtick": 1, "exponentformat": "power"}
    found = {}
    for view, looks, title in zip(VIEWS, (even, logarithmic), (Y_LABEL, f"share of {members} found, 1 − β"), strict=True):
        both = {f"{name}.{key}": value for name in ("xaxis", "yaxis") for key, value in looks.items()}
        found[view] = {**both, "yaxis.title.text": title}
    return found


def _in_views(linear: Inside, log: Inside) -> Html:
    """Words for each view. The script shows those of the view that is drawn."""
    return joined(
        tag("span", said, data_view=view, hidden=view != VIEWS[0]) for view, said in zip(VIEWS, (linear, log), strict=True)
    )


def _lead(found: Curve, members: str) -> Html:
    linear = f"It accepts so many false positives (α, to the right) and misses so many {members} (β, upwards)."
    log = f"It accepts so many false positives (α, to the right) and finds so many {members} (1 − β, upwards)."
    return paragraph(
        [
            "Each point is an attacker. ",
            _in_views(f"{linear} {_limit(found, 'below')}", f"{log} {_limit(found, 'above')}"),
            " The closer the curve is to the line of guessing, the less can be learned.",
        ]
    )


def _limit(found: Curve, side: str) -> str:
    """Which curve no attacker passes, and when."""
    if found.if_others_choose is None:
        return f"No attacker is in the shaded area, {side} the certified curve."
    return (
        f"{capital(OWN_COIN)}, no attacker is in the shaded area, {side} the solid certified curve. "
        f"{capital(OTHERS_CHOOSE)}, none is {side} the dashed certified curve."
    )


# ---------------------------------------------------------------------- lines


def _lines(found: Curve) -> Iterable[Line]:
    """From back to front. G_μ is thin and lies on the certified curve, so that both are seen where they meet."""
    yield Line(GUESSING, found.alpha, found.identity, GREY, "dot", other=found.alpha)
    yield from _audit_lines(found)
    if found.asymptotic is not None:
        label = f"CLT, μ = {found.asymptotic_mu:.4g}: {found.asymptotic_note}"
        yield _line(label, found, found.asymptotic, ORANGE, "dashdot")
    if found.if_others_choose is not None:
        yield _line(f"certified, {OTHERS_CHOOSE}", found, found.if_others_choose, PURPLE, "dash")
    edge = tuple(0.0 for _ in found.alpha)
    yield Line("", found.alpha, edge, BLUE, width=0, other=tuple(1.0 for _ in found.alpha))
    yield _certified(found)
    if found.gaussian_mu is not None:
        label = f"G_μ for μ = {up(found.gaussian_mu)}, on the range of μ alone"
        yield _line(label, found, found.gaussian, PINK, "dash", width=2)


def _certified(found: Curve) -> Line:
    """The side that is out of reach is shaded: down to β = 0, or up to all members found."""
    label = "certified" if found.if_others_choose is None else f"certified, {OWN_COIN}"
    if found.holds_for != EVERY or found.if_others_choose is None:
        label += f", for {found.holds_for}"
    return Line(
        label, found.alpha, found.certified, BLUE, says=found.says, width=6, fill="tonexty",
        other=_found(found.certified),
    )  # fmt: skip


def _certified_at(lines: Sequence[Line]) -> int:
    return next(at for at, line in enumerate(lines) if line.says is not None)


def _audit_lines(found: Curve) -> Iterable[Line]:
    """A band for each audit; all look alike, so one is in the legend."""
    for at, band in enumerate(found.audit):
        alpha, low, high = zip(*band, strict=True)
        label = "" if at else AUDIT
        yield Line("", alpha, high, PURPLE, "dot", width=1, other=_found(high))
        yield Line(label, alpha, low, PURPLE, "dot", width=1, fill="tonexty", fades=True, other=_found(low))


def _line(label: str, found: Curve, betas: Sequence[float], colour: str, dash: str, width: float = 2) -> Line:
    return Line(label, found.alpha, betas, colour, dash, width=width, other=_found(betas))


def _found(betas: Sequence[float]) -> tuple[float, ...]:
    return tuple(_up(1 - beta + ROUNDING) for beta in betas)


def _up(share: float) -> float:
    """The share rounded up to a few digits: what is found is bounded from above."""
    if share <= 0:
        return 0.0
    scale = 10.0 ** (DIGITS - 1 - floor(log10(share)))
    return min(1.0, max(share, ceil(share * scale) / scale))


# ---------------------------------------------------------------------- the same in words


def _curve_alt(found: Curve) -> str:
    at = _nearest(found, 0.01)
    said = [sentence(f"The certified curve: {found.says[at]}")]
    if found.asymptotic is not None:
        said.append("The curve of the CLT is not a guarantee.")
    return " ".join(said)


def _nearest(found: Curve, level: float) -> int:
    return int(np.argmin(np.abs(np.array(found.alpha) - level)))


def _curve_table(found: Curve, members: str) -> Html:
    heads = ["false positive rate α", "certified β", f"{members} found, at most"]
    if found.if_others_choose is not None:
        heads.append(f"{members} found, at most, {OTHERS_CHOOSE}")
    if found.asymptotic is not None:
        heads.append("β of the CLT, not a guarantee")
    rows = [_row(found, _nearest(found, level)) for level in LEVELS]
    return table("Points of the trade-off curve", [Column(head, numeric=True) for head in heads], rows)


def _row(found: Curve, at: int) -> list[Inside]:
    row: list[Inside] = [percent(found.alpha[at]), down(found.certified[at]), share_up(_found([found.certified[at]])[0])]
    if found.if_others_choose is not None:
        row.append(share_up(_found([found.if_others_choose[at]])[0]))
    if found.asymptotic is not None:
        row.append(f"{found.asymptotic[at]:.4g}")
    return row


def _toggle(members: str) -> Html:
    said = ("linear: error rates", f"logarithmic: {members} found")
    choices = [
        tag("label", tag("input", type="radio", name="axes", value=view, checked=view == VIEWS[0]), text)
        for view, text in zip(VIEWS, said, strict=True)
    ]
    return tag("fieldset", tag("legend", "Axes"), choices, class_="choice needs-script")


def _reader(found: Curve) -> Html:
    """The curve for those who do not point at it: arrow keys go from point to point."""
    at = _nearest(found, 0.01)
    label = tag("label", "Read the curve: the attacker's false positive rate, from 0% to 100%", for_="reader")
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
