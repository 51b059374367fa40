"""The table of `plan`: what each client needs to meet a target, and who cannot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..accounting import Target
from ..accounting.planning import ClientAnswer
from ..accounting.statement import percent_up, up
from .lines import say, screen, show, table_of, warn

CANNOT = "cannot"


def print_answers(
    answers: Sequence[ClientAnswer], target: Target | None, solve: str, warnings: Iterable[str], coalition: str = ""
) -> None:
    """A row a client, the reasons of those who cannot meet the target, and warnings. None: nothing was solved.

    coalition: the target against a coalition, in words.
    """
    console = screen()
    headings = ["records", "batch", "rounds", "noise multiplier", "ε ≤", "μ ≤"]
    if target and target.kind == "advantage":
        headings.append("advantage ≤")
    targets = " and ".join(str(each) for each in (target, coalition) if each)
    title = f"To meet {targets}, solved for {solve}" if targets else "What each client does, and what it costs"
    table = table_of(title, ["client"], headings)
    for answer in answers:
        cells = _settings(answer) + _numbers(answer)
        table.add_row(answer.client, "–" if answer.records is None else str(answer.records), *cells[: len(headings) - 1])
    show(console, table)
    for answer in answers:
        if answer.reason:
            say(console, answer.reason)
    warn(console, warnings)


def _settings(answer: ClientAnswer) -> list[str]:
    """Batch, rounds and noise; noise is rounded up, so that whoever types it in is not worse off."""
    if answer.plan is None:
        return ["–", "–", "–"]
    mechanism = answer.plan.mechanism
    batch = str(mechanism.steps.batch) if mechanism.steps else "–"
    return [batch, str(answer.plan.rounds), up(mechanism.noise_multiplier, 5)]


def _numbers(answer: ClientAnswer) -> list[str]:
    """ε, μ and the advantage, on their safe sides."""
    numbers = answer.numbers
    if numbers is None:
        return [CANNOT, CANNOT, CANNOT]
    return [up(numbers.epsilon.upper), up(numbers.mu.upper), percent_up(numbers.advantage.upper)]
