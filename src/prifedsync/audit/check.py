"""The result of an audit: one row for each check, with a verdict and an explanation."""

from __future__ import annotations

from dataclasses import asdict, dataclass

# The probability that one statistical test rejects a correct engine. An audit makes fewer than 60 tests, so it fails for a
# correct engine with a probability below one in a million.
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
    """All checks of one noisy step."""

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
