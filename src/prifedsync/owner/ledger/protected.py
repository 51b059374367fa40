"""What the amounts of a ledger promise. The same run costs another amount under another promise."""

from __future__ import annotations

from dataclasses import dataclass

from ...values import BadValue

FIELDS = {
    "unit": "source.unit",
    "neighbours": "source.neighbours",
    "holders": "source.holders",
    "rows": "data.rows_per_person",
}
REMEDY = "set it back; another promise needs records that nobody was told anything about, and a new source.name for them"


@dataclass(frozen=True)
class Protected:
    """What is protected, as the policy says it; by default what a policy says by default.

    It is fixed when a ledger is made: what was spent under one promise says nothing about another. One record added or
    removed costs a quarter of one replaced, so the spending of the one would pass for that of the other.
    """

    unit: str = "record"
    neighbours: str = "replace"
    holders: int = 1
    rows: int | None = None  # most records of one person; None where records are protected

    def check(self, policy: Protected) -> None:
        """Refuse a policy that promises anything else than what the ledger was made for."""
        for name, field in FIELDS.items():
            kept, said = getattr(self, name), getattr(policy, name)
            if kept != said:
                raise BadValue(field, said, f"is not {kept}, under which the ledger was made and adds up amounts", REMEDY)
