"""For the researcher: scores, how they grew, how they differ between clients, who gains, and how to run it again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...scores import Interval
from ..contents import Report
from ..utility import NAMES, Labels, Rounds, Scored, Utility
from ..wording import many
from .charts import BLUE, GREEN, GREY, ORANGE, PURPLE, Line, axis, faded, figure, layout, legend, plain, rounds_axis, short
from .markup import Html, Inside, tag
from .parts import Column, Section, capital, intervals, listed, mark, more, paragraph, section, sentence, table, terms

LOOKS = {  # model → colour and dashes
    "personal": (ORANGE, "dash"),
    "released": (BLUE, "solid"),
    "alone": (PURPLE, "dot"),
    "alone-private": (GREY, "dashdot"),
    "non-private": (GREEN, "dash"),
}
MOST_DOTS = 200  # clients that are drawn one by one: beside a box, or as rows of labels
MOST_LABELS = 50  # that are drawn
MOST_COLUMNS = 12  # labels in a table
MOST_CONFIG = 100_000  # characters
FENCE = 1.5  # times the distance between the quartiles: how far a box's lines reach at most
SHORT = {"alone": "alone", "alone-private": "alone, noisy", "non-private": "non-private"}  # names beside a box
UNKNOWN = "auto"  # the metric of a run that is not finished
FEW = 3  # sentences that are not folded away
MOST_ROWS = 20  # rounds, or clients, in a table
LONGEST = 20  # characters of a name beside a figure
NOT_COVERED = "These are computed from records without noise. The guarantee does not cover them."
NOT_MEASURED = "Not measured: these would be computed from records without noise. Only a simulation has them."
NOT_COMPARED = "not compared"  # a verdict of joining
SPANS = {"train": "Training", "all": "Whole run"}
NO_OWN_MODEL = "Each client's own model was not trained or not scored."


def utility(report: Report) -> Section | None:
    """Was it worth it."""
    found = report.utility
    rounds = report.rounds
    if found is None:
        return section("utility", "Was it worth it?", _rounds(rounds)) if rounds else None
    unit = report.run.unit
    return section(
        "utility", "Was it worth it?",
        _note(found), _scores(found, unit), _smallest(found, report), _rounds(rounds) if rounds else None,
        _distribution(report), _joining(found), _statistics(found), _times(found),
    )  # fmt: skip


def _note(found: Utility) -> Inside:
    return paragraph(sentence(found.note)) if found.note else None


def _scores(found: Utility, unit: str) -> Inside:
    if all(each.mean is None and each.pooled is None for each in found.scores):
        return paragraph([mark("open", "not measured"), " No model was scored: the clients have no test records."])
    columns: list[Column | str] = [
        Column("Model", wide=True), "Metric", Column("mean over clients", numeric=True), Column("interval", numeric=True),
        Column("worst client", numeric=True), Column("on all test records", numeric=True), "Protection",
    ]  # fmt: skip
    lower = " Lower is better." if found.lower_is_better else ""
    caption = f"Scores on the clients' own test records, and on those of all clients.{lower}"
    rows = [_scored(each) for each in found.scores]
    return [table(caption, columns, rows), paragraph(intervals([unit]))]


def _scored(each: Scored) -> tuple[Inside, ...]:
    return (
        each.name, each.metric, number(each.mean), between(each.interval), number(each.worst), number(each.pooled),
        each.protection,
    )  # fmt: skip


def number(value: float | None) -> str | None:
    """A score."""
    return None if value is None else f"{value:.3f}"


def between(found: Interval | None) -> str | None:
    """An interval of a score."""
    return None if found is None else f"{found.low:.3f}–{found.high:.3f}"


def _smallest(found: Utility, report: Report) -> Inside:
    least = found.smallest
    if least is None:
        return None
    said = ", ".join(f"{NAMES.get(model, model)} {number(value)}" for model, value in least.scores.items())
    scores = f" Its {found.metric}: {said}." if said else ""
    hidden = report.clients is not None and any(row.records is None for row in report.clients.rows)
    others = "no client whose number is known has fewer" if hidden else "no client has fewer"
    how = "nominally " if report.run.nominal else ""
    return paragraph(f"{least.client} has {how}{many(least.records or 0, report.run.unit)}, and {others}.{scores}")


# ---------------------------------------------------------------------- over rounds


def _rounds(found: Rounds) -> Html:
    """A picture of the scores, where there are any."""
    if all(value is None for values in found.mean.values() for value in values):
        return paragraph([mark("open", "not measured"), " No round was scored: the clients have no test records."])
    return _rounds_figure(found)


def _rounds_figure(found: Rounds) -> Html:
    metric = "score" if found.metric == UNKNOWN else found.metric
    lines = list(_round_lines(found))
    alt = f"{metric} after round {found.rounds[-1]:,}: " + "; ".join(
        f"{NAMES.get(model, model)} {_score(values[-1])} on average, {_score(found.worst[model][-1])} at the worst client"
        for model, values in found.mean.items()
    )
    columns = [Column("after round", numeric=True)] + [
        Column(f"{NAMES.get(model, model)}, {what}", numeric=True) for model in found.mean for what in ("mean", "worst")
    ]
    return figure(
        "rounds", f"{metric} over rounds", sentence(alt), [line.as_trace() for line in lines],
        layout(rounds_axis(found.rounds[-1]), axis(plain(metric))), legend=legend(lines),
        table=table(f"{metric} after some of the rounds", columns, _round_rows(found)),
    )  # fmt: skip


def _round_lines(found: Rounds) -> Iterable[Line]:
    for model in found.mean:
        if _drawn_already(found, model) is None:
            yield from _model_lines(found, model)
    ends = (found.rounds[0], found.rounds[-1])
    for model, level in found.baselines.items():
        if level is not None:
            colour, dash = LOOKS.get(model, (GREY, "dot"))
            name = NAMES.get(model, model)
            yield Line(name, ends, (level, level), colour, dash, [f"{name}: {_score(level)}"] * 2)


def _drawn_already(found: Rounds, model: str) -> str | None:
    """Another kind of model with the same scores in every round, as the personal models of some rules are."""
    for other in found.mean:
        if other == model:
            return None
        if (found.mean[other], found.worst[other]) == (found.mean[model], found.worst[model]):
            return other
    return None


def _model_lines(found: Rounds, model: str) -> Iterable[Line]:
    """The mean over clients, and the area from there down to the worst client."""
    alike = [model, *(other for other in found.mean if _drawn_already(found, other) == model)]
    colour, dash = LOOKS.get(alike[-1], (GREY, "solid"))
    name = " and ".join(NAMES.get(each, each) for each in alike)
    one = len(found.rounds) == 1
    mean, worst = found.mean[model], found.worst[model]
    says = [f"round {at}: {name} {_score(value)} on average" for at, value in zip(found.rounds, mean, strict=True)]
    yield Line(f"{name}, mean over clients", found.rounds, mean, colour, dash, says, markers=one, width=3)
    says = [
        f"round {at}: {name} {_score(value)} at the worst client" for at, value in zip(found.rounds, worst, strict=True)
    ]
    label = "from the mean down to the worst client"
    yield Line(label, found.rounds, worst, colour, "solid", says, markers=one, width=1, fill="tonexty", fades=True)


def _round_rows(found: Rounds) -> Iterable[list[Inside]]:
    step = -(-len(found.rounds) // MOST_ROWS)
    marks = sorted({*range(0, len(found.rounds), step), len(found.rounds) - 1})
    for at in marks:
        pairs = [(found.mean[model][at], found.worst[model][at]) for model in found.mean]
        yield [found.rounds[at], *(_score(value) for pair in pairs for value in pair)]


def _score(value: float | None) -> str:
    return number(value) or "–"


# ---------------------------------------------------------------------- between clients


def _distribution(report: Report) -> Inside:
    """How the clients' scores lie: quartiles, and each client where they are not too many."""
    rows = report.clients.rows if report.clients else ()
    by_model: dict[str, list[tuple[str, float]]] = {}
    for row in rows:
        for model, value in row.scores.items():
            if value is not None:
                by_model.setdefault(model, []).append((row.name, value))
    if len(rows) < 2 or not by_model:
        return None
    metric = report.clients.metric if report.clients else ""
    quarters = {model: _quarters([value for _, value in values]) for model, values in by_model.items()}
    traces = [_box(model, values, quarters[model]) for model, values in by_model.items()]
    alt = "; ".join(
        f"{NAMES.get(model, model)}: half of the clients have {each.median:.3f} or more" for model, each in quarters.items()
    )
    if len(rows) > MOST_DOTS:
        alt += f". Points are clients beyond the lines of a box, at most {MOST_DOTS} of them for each kind of model"
    drawn = layout(axis(plain(metric)), axis("", autorange="reversed"), height=80 + 52 * len(by_model))
    columns: list[Column | str] = [
        "Model",
        *(Column(head, numeric=True) for head in ("lower quartile", "median", "upper quartile")),
    ]
    body = [
        (NAMES.get(model, model), number(each.lower), number(each.median), number(each.upper))
        for model, each in quarters.items()
    ]
    return figure(
        "clients-scores", f"{metric} of each client", sentence(alt), traces, drawn, table=table("Quartiles", columns, body)
    )  # fmt: skip


@dataclass(frozen=True)
class Quarters:
    """Quartiles, and the last values that are within 1½ times their distance: the box, and how far its lines reach."""

    lower: float
    median: float
    upper: float
    least: float
    most: float


def _quarters(values: list[float]) -> Quarters:
    lower, median, upper = (float(each) for each in np.quantile(values, (0.25, 0.5, 0.75)))
    reach = FENCE * (upper - lower)
    within = [value for value in values if lower - reach <= value <= upper + reach]
    return Quarters(lower, median, upper, min(within), max(within))


def _box(model: str, values: list[tuple[str, float]], quarters: Quarters) -> Mapping[str, Any]:
    """With the quartiles of the table: plotly's own follow another rule."""
    colour, _ = LOOKS.get(model, (GREY, "solid"))
    points = values if len(values) <= MOST_DOTS else _outliers(values, quarters)
    name = plain(SHORT.get(model, model))
    drawn = {  # plotly draws no box whose list of points is empty
        "x": [[float(f"{value:.4g}") for _, value in points]],
        "text": [[plain(client) for client, _ in points]],
    }
    return {
        "type": "box", "orientation": "h", "name": name, "y": [name],
        "q1": [quarters.lower], "median": [quarters.median], "q3": [quarters.upper], "lowerfence": [quarters.least],
        "upperfence": [quarters.most], "boxpoints": "all", "jitter": 0.5, "pointpos": 0, "hoveron": "points",
        "hovertemplate": "%{text}: %{x:.3f}<extra></extra>",
        "marker": {"color": colour, "size": 5, "opacity": 0.75}, "line": {"color": colour, "width": 2},
        **(drawn if points else {}),
    }  # fmt: skip


def _outliers(values: list[tuple[str, float]], quarters: Quarters) -> list[tuple[str, float]]:
    """The clients beyond the lines of the box. Of very many, some from the lowest to the highest."""
    found = [each for each in values if not quarters.least <= each[1] <= quarters.most]
    found.sort(key=lambda each: each[1])
    return [found[at] for at in _spaced(len(found), MOST_DOTS)]


def _spaced(count: int, most: int) -> list[int]:
    """So many places at about equal distances, with the first and the last."""
    return [round(float(at)) for at in np.linspace(0, count - 1, min(count, most))]


def _joining(found: Utility) -> Inside:
    if not found.joining:
        return None
    title = tag("h3", "Who gains by joining")
    if set(found.joining) == {NOT_COMPARED}:
        return [title, paragraph([mark("open", NOT_COMPARED), f" {NO_OWN_MODEL}"])]
    counts = terms([(word, many(count, "client")) for word, count in found.joining.items()], "terms counts")
    said = listed(found.joining_sentences)
    if len(found.joining_sentences) > FEW:
        said = more(f"{many(len(found.joining_sentences), 'client')}, one by one", said)
    return [title, counts, said]


def _statistics(found: Utility) -> Inside:
    """Shares of labels and clipping, which no private run may show."""
    note = [mark("open", "simulation only"), " ", NOT_COVERED] if found.labels or found.clipping else NOT_MEASURED
    return [
        tag("h3", "Statistics of records and gradients"),
        paragraph(note),
        _labels(found.labels) if found.labels else None,
        _clipping(found) if found.clipping else None,
    ]


def _labels(found: Labels) -> Html:
    """A row for each client, darker where it has more of a label."""
    largest = [max(shares) for shares in found.shares]
    client = found.clients[largest.index(max(largest))]
    alt = (
        f"{many(len(found.clients), 'client')}, {many(len(found.names), 'label')}. {client} has the largest share "
        f"of one label, {max(largest):.0%}"
    )
    shown = _some(found, MOST_DOTS, MOST_LABELS)
    if shown != found:
        clients, labels = many(len(shown.clients), "client"), many(len(shown.names), "label")
        alt += (
            f". The picture has {clients} at equal distances in the table of clients, and the {labels} that are commonest"
        )
    named = list(range(0, len(shown.clients), -(-len(shown.clients) // MOST_ROWS)))
    names = [plain(short(shown.clients[at], LONGEST)) for at in named]
    height = 90 + min(24 * max(len(shown.clients), 3), 480)
    trace = {
        "type": "heatmap", "z": shown.shares, "x": [plain(name) for name in shown.names],
        "y": [plain(client) for client in shown.clients], "xgap": 1, "ygap": 1, "zmin": 0, "zmax": max(largest),
        "hovertemplate": "%{y}: %{z:.1%} of its records have label %{x}<extra></extra>",
        "colorscale": [[0, faded(BLUE)], [1, BLUE]],
        "colorbar": {"tickformat": ".0%", "thickness": 12, "nticks": 6 if len(shown.clients) > FEW else 3},
    }  # fmt: skip
    drawn = layout(
        axis("label", type="category", showgrid=False),
        axis("", type="category", autorange="reversed", showgrid=False, tickvals=named, ticktext=names),
        height=height,
    )
    return figure("labels", "labels of each client", sentence(alt), [trace], drawn, table=_label_table(found))


def _label_table(found: Labels) -> Html:
    shown = _some(found, MOST_ROWS, MOST_COLUMNS)
    columns: list[Column | str] = ["Client", *(Column(name, numeric=True) for name in shown.names)]
    rows = [(client, *(f"{share:.1%}" for share in row)) for client, row in zip(shown.clients, shown.shares, strict=True)]
    said = "Share of each label" if len(shown.names) == len(found.names) else "Share of each of the commonest labels"
    said += "" if len(shown.clients) == len(found.clients) else f", of {len(shown.clients)} clients"
    return table(said, columns, rows)


def _some(found: Labels, clients: int, labels: int) -> Labels:
    """So many clients at equal distances, and so many of the commonest labels, at most: a page has room for no more."""
    rows = _spaced(len(found.clients), clients)
    often = [sum(row[at] for row in found.shares) for at in range(len(found.names))]
    columns = sorted(sorted(range(len(often)), key=lambda at: -often[at])[:labels])
    return Labels(
        tuple(found.names[at] for at in columns),
        tuple(found.clients[at] for at in rows),
        tuple(tuple(found.shares[row][at] for at in columns) for row in rows),
    )


def _clipping(found: Utility) -> Html:
    heads = ("gradients that are clipped", "lower quartile", "median", "upper quartile")
    caption = f"Lengths of {many(found.clipping[0].units, 'gradient')}, in clip norms"
    columns: list[Column | str] = ["Weights", *(Column(head, numeric=True) for head in heads)]
    rows = [(each.weights, f"{each.clipped:.0%}", *(f"{norm:.3g}" for norm in each.norms)) for each in found.clipping]
    return table(caption, columns, rows)


def _times(found: Utility) -> Html:
    pairs: list[tuple[str, Inside]] = [
        (f"{SPANS.get(name, capital(name))}, in seconds", f"{value:.2f}") for name, value in found.seconds.items()
    ]
    pairs.append(("Rounds a second", _pace(found.rounds_per_second)))
    pairs.append(("Uploads a second", _pace(found.uploads_per_second)))
    pairs.append(("Device", found.device))
    return tag("div", tag("h3", "How long it took"), terms(pairs), class_="together")


def _pace(value: float | None) -> Inside:
    return "not measured" if value is None else f"{value:,.1f}"


# ---------------------------------------------------------------------- again


def reproducing(report: Report) -> Section | None:
    """Commands, versions, settings and config."""
    found = report.reproducing
    if found is None:
        return None
    facts: list[tuple[str, Inside]] = [(name, version) for name, version in found.versions.items()]
    facts += [
        ("Device", found.device), ("Host", found.host), ("Gradients", found.gradients),
        ("Parameters", f"{found.parameters:,}"),
    ]  # fmt: skip
    settings = [tag("h3", "Settings"), listed(found.settings)] if found.settings else None
    return section(
        "reproducing", "How to run it again",
        [_command(command) for command in found.commands],
        paragraph(sentence(found.exactly)), tag("h3", "Versions"), terms(facts), settings,
        _config(found.config),
    )  # fmt: skip


def _command(command: str) -> Html:
    """Lines break between words only: half of an option would read as another one."""
    words = [tag("span", word) for word in command.split(" ")]
    spaced = [piece for word in words for piece in (" ", word)][1:]
    return tag("pre", tag("code", spaced), class_="command")


def _config(config: Mapping[str, Any]) -> Html:
    """For a screen: on paper it would fill sheets that nobody reads."""
    said = _text(config)
    text = tag("pre", tag("code", short(said, MOST_CONFIG)), tabindex="0", class_="config")
    whole = len(said) <= MOST_CONFIG
    return more(
        "The whole config" if whole else "The beginning of the config: all of it is in record.json", text, class_="screen"
    )


def _text(config: Mapping[str, Any]) -> str:
    return json.dumps(config, ensure_ascii=False, indent=1)
