"""A target against a coalition, and the views of what was planned, as the options of `plan` give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..values import NOT_GIVEN, BadValue, counted
from .planned import ALIKE, ONE_RATE, supposing

if TYPE_CHECKING:
    from ..accounting.coalition import Member
    from ..accounting.planning import ClientAnswer


@dataclass(frozen=True)
class Together:
    """The clients that are planned together: one that stands for all, or those of --sizes."""

    clients: int | None
    masks: bool
    colluders: int | None
    least_clients: int | None
    coalition_mu: float | None
    merge: str
    delta: float
    participation: float
    attempts: int

    def check(self, sizes: Mapping[str, int], solve: str) -> None:
        """Refuse what is missing, or does not go together."""
        if "" not in sizes and self.clients is not None:
            raise BadValue(
                "clients", self.clients, "cannot be combined with --sizes, which names the clients", "leave it out"
            )
        if self.coalition_mu is None:
            return
        if solve != "noise":
            rule = f"cannot be combined with --solve {solve}: it is met with noise"
            raise BadValue("coalition_mu", self.coalition_mu, rule, "use --solve noise")
        if self.colluders is None:
            rule = "must be given with --coalition-mu: the number of clients that may collude with the server"
            raise BadValue("colluders", NOT_GIVEN, rule, "add --colluders")
        if not self.masks:
            rule = "needs masks: without them the server sees every single upload"
            raise BadValue("coalition_mu", self.coalition_mu, rule, "add --masks")

    @property
    def wanted(self) -> bool:
        """Whether anything about others than everybody was asked for."""
        return self.masks or any(
            each is not None for each in (self.clients, self.colluders, self.least_clients, self.coalition_mu)
        )

    def __str__(self) -> str:
        if self.coalition_mu is None:
            return ""
        return f"μ = {self.coalition_mu:g} against the server and {counted(self.colluders or 0, 'client')}"

    def met(self, answers: Sequence[ClientAnswer]) -> list[ClientAnswer]:
        """The answers with as much more noise as the coalition's target needs."""
        from ..accounting import CannotMeet, Crowd, Target
        from ..accounting.coalition import meeting
        from ..record import Guarantees

        members = self._members(answers)
        if self.coalition_mu is None or self.colluders is None or not members:
            return list(answers)
        total = self._size(answers)
        crowd = Crowd.alike(total, self._least(total), self.masks)
        try:
            plans = meeting(members, Target("mu", self.coalition_mu, self.delta), self.colluders, crowd)
        except CannotMeet as reason:
            broken = f"{self} cannot be met in {members[0].plan.rounds} rounds: {reason}"
            return [replace(answer, plan=None, numbers=None, reason=broken) for answer in answers]
        guarantees = Guarantees(self.delta, total)
        return [
            replace(answer, plan=plan, numbers=guarantees.planned(plan).honest)
            for answer, plan in zip(answers, plans, strict=True)
        ]

    def views(self, answers: Sequence[ClientAnswer]) -> list[dict[str, Any]]:
        """Who learns how much about any of these clients; nothing where it was not asked for, or some cannot take part."""
        from ..accounting.coalition import crowd_of
        from ..record import Guarantees

        members = self._members(answers)
        if not self.wanted or not members:
            return []
        total = self._size(answers)
        alike = members * total if len(members) < total else members
        crowd = crowd_of(alike, self._least(total), self.masks)
        plans = [member.plan for member in members]
        views = Guarantees(self.delta, total).views(crowd, plans, self.colluders)
        return [each.as_json() for each in supposing(views, ONE_RATE if self.clients is None else ALIKE)]

    def _members(self, answers: Sequence[ClientAnswer]) -> tuple[Member, ...]:
        """The clients of a sum; none where one of them has no plan. Learning rates are taken to be alike."""
        from ..accounting.coalition import members_of

        by_records = self.merge == "records"
        clients = [
            (answer.client, float(answer.records or 1) if by_records else 1.0, 1.0, answer.plan)
            for answer in answers
            if answer.plan
        ]
        return members_of(clients) if len(clients) == len(answers) else ()

    def _size(self, answers: Sequence[ClientAnswer]) -> int:
        if len(answers) == 1 and answers[0].client == "" and self.clients is None:
            raise BadValue("clients", NOT_GIVEN, "must be given: others hide a client by their noise", "add --clients")
        return self.clients or len(answers)

    def _least(self, clients: int) -> int:
        from ..accounting.sums import check_masked, least_clients

        least = least_clients(clients, self.least_clients, self.masks, self.attempts, self.participation)
        if self.masks:
            check_masked(least, self.least_clients, self.attempts)
        return least
