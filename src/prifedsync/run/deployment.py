"""What happened between machines: the answers of a round in its line of the log, and all of them in the record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from ..sync import Absent, Answer, Answers, Lost, Refused, Stayed

KINDS = ("sent", "stayed", "absent", "refused", "lost")  # of answers, in the order of the record
SILENT: Mapping[str, type[Answer]] = {"stayed": Stayed, "absent": Absent}  # kinds without a reason
MOST_EVENTS = 1_000  # that a record keeps
LONGEST = 300  # characters of a reason: some of them repeat what came from outside
Line = Mapping[str, Any]


def answers_in_line(answers: Answers, names: Sequence[str]) -> dict[str, Any]:
    """Who answered what, for a round's line in the log; empty where that is not public.

    Whoever is not named has sent. "asked" is left out where it would name everybody.
    """
    if not answers.public:
        return {}
    said: dict[str, Any] = {}
    if len(answers.answers) < len(names):
        said["asked"] = list(answers.answers)
    for kind, silent in SILENT.items():
        said[kind] = [name for name, answer in answers.answers.items() if isinstance(answer, silent)]
    said["refused"] = {name: _short(it.reason) for name, it in answers.answers.items() if isinstance(it, Refused)}
    said["lost"] = {name: _short(it.reason) for name, it in answers.answers.items() if isinstance(it, Lost)}
    return {"answers": {part: value for part, value in said.items() if value or part == "asked"}}


def deployment_of(
    lines: Iterable[Line], names: Sequence[str], *, carrier: str, participation: Literal["clients", "server"],
    share: float = 1.0, resumed: int = 0, rehearsal: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """What a record says of a run between machines.

    lines    of the log, so that a resumed run has all its rounds
    carrier  what carried questions and answers, with its version
    share    of the clients that is asked in a round
    resumed  how often the run went on after its server had ended
    rehearsal  all parties were on one machine, to try the run out
    """
    lines = list(lines)
    events = [event for line in lines for event in _events(line)]
    return {
        "carrier": carrier,
        "participation": participation,
        "share": share,
        "resumed": resumed,
        "rehearsal": rehearsal,
        "answers": _counts(lines, names),
        "events": events[:MOST_EVENTS],
        "events_left_out": max(0, len(events) - MOST_EVENTS),
    }


def _counts(lines: Iterable[Line], names: Sequence[str]) -> dict[str, dict[str, int]]:
    counts = {name: dict.fromkeys(KINDS, 0) for name in names}
    for line in lines:
        said = line.get("answers", {})
        kinds = {name: kind for kind in KINDS[1:] for name in said.get(kind, ())}
        for name in said.get("asked", names):
            counts[name][kinds.get(name, "sent")] += 1
    return counts


def _events(line: Line) -> Iterator[dict[str, Any]]:
    """Of one round, whoever refused or was lost, and why."""
    for kind in ("refused", "lost"):
        for name, reason in line.get("answers", {}).get(kind, {}).items():
            yield {"round": line["round"], "client": name, "answer": kind, "reason": reason}


def _short(reason: str) -> str:
    return reason if len(reason) <= LONGEST else f"{reason[:LONGEST]}…"
