"""What an audit says: rows of a table, each with a verdict and a reason that people can read."""

from __future__ import annotations

from dataclasses import asdict, dataclass

# The chance that one statistical test rejects a right engine. An audit makes fewer than 60 of them, so it raises a false
# alarm in less than one case of a million.
CHANCE = 1e-8


@dataclass(frozen=True)
class Check:
    """One row of the table."""

    name: str
    measured: str
    allowed: str
    passed: bool
    explanation: str


@dataclass(frozen=True)
class StepAudit:
    """All that was measured about one noisy step."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the checks that failed."""
        return tuple(check.name for check in self.checks if not check.passed)

    def as_json(self) -> dict[str, object]:
        return {"passed": self.passed, "checks": [asdict(check) for check in self.checks]}
