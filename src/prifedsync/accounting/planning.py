"""Calibration of each client: the plan that it needs, or the reason why it cannot meet the target."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ..values import BadValue, whole
from .calibrate import CannotMeet, Solve, Target, calibrated
from .calibrator import Calibrator
from .plan import PrivacyPlan
from .statement import Numbers, up

LARGE_EPSILON = 10.0  # a warning is given if a target on the advantage leaves a client a larger ε than this
NO_NUMBERS: dict[str, object] = {name: {"lower": None, "upper": None} for name in ("epsilon", "mu", "advantage")}


@dataclass(frozen=True)
class ClientAnswer:
    """A calibrated plan for one client, or the reason why there is none."""

    client: str
    records: int | None  # None where the number is not public
    plan: PrivacyPlan | None
    numbers: Numbers | None
    reason: str

    def as_json(self) -> dict[str, object]:
        mechanism = self.plan.mechanism if self.plan else None
        steps = mechanism.steps if mechanism else None
        return {
            "client": self.client,
            "records": self.records,
            "meets_target": self.plan is not None,
            "noise_multiplier": mechanism.noise_multiplier if mechanism else None,
            "batch": steps.batch if steps else None,
            "rounds": self.plan.rounds if self.plan else None,
            **(self.numbers.as_json() if self.numbers else NO_NUMBERS),
            "reason": self.reason,
        }


Solved = tuple[PrivacyPlan, Numbers] | CannotMeet


class Answers:
    """The answers for many clients. Clients with the same plan share one, and others start from their neighbours'.

    ahead: what others are working out meanwhile, by the plan that is asked about.
    """

    def __init__(
        self, target: Target, solve: Solve = "noise", ahead: Mapping[PrivacyPlan, Future[Solved]] = MappingProxyType({})
    ) -> None:
        self.target = target
        self.solve: Solve = solve
        self.ahead = ahead
        self._least_noise = Calibrator(target)
        self._solved: dict[PrivacyPlan, Solved] = {}
        self._numbers: dict[PrivacyPlan, Numbers] = {}

    def __call__(self, client: str, records: int, build: Callable[[], PrivacyPlan]) -> ClientAnswer:
        """Calibrate one client's plan. A plan that cannot be built or cannot meet the target is an answer too."""
        name = f"client {client} with {records} records" if client else f"a client with {records} records"
        try:
            asked = build()
        except BadValue as reason:
            return ClientAnswer(client, records, None, None, f"{name} cannot take part: {reason}")
        found = self.solved(asked)
        if isinstance(found, CannotMeet):
            span = "" if self.solve == "rounds" else f" in {asked.rounds} rounds"
            return ClientAnswer(client, records, None, None, f"{name} cannot meet {self.target}{span}: {found}")
        return ClientAnswer(client, records, *found, "")

    def solved(self, asked: PrivacyPlan) -> Solved:
        """The plan that meets the target and what it guarantees, or why there is none."""
        if asked not in self._solved:
            self._solved[asked] = self.ahead[asked].result() if asked in self.ahead else self._solve(asked)
        return self._solved[asked]

    def _solve(self, asked: PrivacyPlan) -> Solved:
        try:
            plan = self._least_noise(asked) if self.solve == "noise" else calibrated(asked, self.target, self.solve)
        except CannotMeet as reason:
            return reason
        return plan, self.numbers(plan)

    def numbers(self, plan: PrivacyPlan) -> Numbers:
        """What the plan guarantees."""
        same = plan.accounted
        if same not in self._numbers:
            self._numbers[same] = Numbers.of(same.guarantee(), self.target.delta)
        return self._numbers[same]


def together(answers: Sequence[ClientAnswer]) -> dict[str, object]:
    """One answer for all clients: settings that meet the target for each, and the worst value of each number."""
    each = [answer.as_json() for answer in answers]
    everybody = all(answer.numbers for answer in answers)
    worst = Numbers.worst(answer.numbers for answer in answers if answer.numbers) if everybody else None

    def shared(field: str, choose: Callable[..., object]) -> object:
        return choose(row[field] for row in each) if everybody else None

    return {
        "meets_target": everybody,
        "noise_multiplier": shared("noise_multiplier", max),
        "batch": shared("batch", min),
        "rounds": shared("rounds", min),
        **(worst.as_json() if worst else NO_NUMBERS),
        "reason": "; ".join(answer.reason for answer in answers if answer.reason),
        "clients": each,
    }


def rare_events(target: Target, clients: Iterable[tuple[str, Numbers]]) -> tuple[str, ...]:
    """A warning if a target on the advantage leaves a client a large ε. It names the client with the largest ε."""
    if target.kind != "advantage":
        return ()
    by_epsilon = {client: numbers.epsilon.upper for client, numbers in clients}
    client = max(by_epsilon, key=lambda name: by_epsilon[name], default=None)
    if client is None or by_epsilon[client] <= LARGE_EPSILON:
        return ()
    named = f"client {client}" if client else "this client"
    return (
        f"the only target is {target}, and {named} has ε ≤ {up(by_epsilon[client])} at δ = {target.delta:g}: an "
        "advantage is an average over runs and says nothing about rare events that may reveal a record completely; "
        "set a target on ε or μ instead",
    )


def read_sizes(path: Path) -> dict[str, int]:
    """The number of records of each client, from a CSV file with the columns client and records."""
    if not path.is_file():
        raise BadValue("sizes", path, "is not a file", "give the path of a CSV file with the columns client and records")
    try:
        return _read_sizes(path)
    except csv.Error as error:
        raise BadValue("sizes", path, f"cannot be read as CSV: {error}", "check its quotes") from None


def _read_sizes(path: Path) -> dict[str, int]:
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        rows = csv.DictReader(file)
        if not {"client", "records"} <= set(rows.fieldnames or ()):
            raise BadValue("sizes", path, f"has the columns {rows.fieldnames}", "name its columns client and records")
        sizes: dict[str, int] = {}
        for line, row in enumerate(rows, start=2):
            client, records = row["client"], row["records"]
            if client in sizes:
                rule = f"names client {client} twice, the second time in line {line}"
                raise BadValue("sizes", path, rule, "give each client one line")
            try:
                sizes[client] = whole("records", int(records), 1)
            except (TypeError, ValueError):
                rule = f"says records = {records} in line {line}"
                raise BadValue("sizes", path, rule, "it must be a positive whole number") from None
    if not sizes:
        raise BadValue("sizes", path, "has no clients", "add one line for each client")
    return sizes
