"""The figures of a finished run."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..accounting import PrivacyPlan
from ..accounting.statement import Statement, in_one_line
from ..fdp import TradeOff
from ..fdp.bounds import Array
from . import curve, rounds

NOTEBOOK_DPI = 72  # images that are stored in a notebook


@dataclass(frozen=True)
class Figures:
    """The figures of a run, each of matplotlib or of plotly; a notebook shows those of matplotlib by themselves.

    scores  the metric over rounds; None if nothing was evaluated.
    curve   the trade-off curve that holds for every client; None without a guarantee.
    """

    scores: Any
    curve: Any

    def _repr_html_(self) -> str:
        """Both figures as images, or as plotly's own HTML."""
        return "\n".join(_html(figure) for figure in (self.scores, self.curve) if figure is not None)


@dataclass(frozen=True)
class Lowest:
    """The lowest of several trade-off functions at each false positive rate: a bound that holds for all of them."""

    functions: tuple[TradeOff, ...]

    def __call__(self, alpha: Array) -> Array:
        lowest: Array = np.min([f(alpha) for f in self.functions], axis=0)
        return lowest


def of_run(
    history: Iterable[Mapping[str, Any]],
    metric: str,
    baselines: Mapping[str, float | None],
    plans: Iterable[PrivacyPlan],
    guarantee: Statement | None,
    html: bool = False,
) -> Figures:
    """The figures of a run: of matplotlib, or of plotly if `html` is set."""
    drawn = rounds.series(history, baselines)
    scores = (rounds.page if html else rounds.figure)(drawn, metric) if drawn else None
    if guarantee is None:
        return Figures(scores, None)
    lines = curve.lines(*lowest_curves(plans), mu_paper=None)
    note = in_one_line(guarantee.as_json(), guarantee.simulation)
    return Figures(scores, (curve.page if html else curve.figure)(lines, note))


def lowest_curves(plans: Iterable[PrivacyPlan]) -> tuple[Lowest, Lowest]:
    """What holds for every client: if each decides by its own coin, and if somebody else decides who takes part."""
    distinct = tuple(dict.fromkeys(plans))
    honest = Lowest(tuple(plan.guarantee() for plan in distinct))
    if all(plan.participation == 1 for plan in distinct):
        return honest, honest
    return honest, Lowest(tuple(plan.guarantee("adversarial") for plan in distinct))


def _html(figure: Any) -> str:
    if not hasattr(figure, "savefig"):
        return str(figure.to_html(include_plotlyjs="cdn", full_html=False))
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=NOTEBOOK_DPI)
    return f'<img alt="figure" src="data:image/png;base64,{base64.b64encode(image.getvalue()).decode()}">'
